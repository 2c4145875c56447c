"""Narrate a camera: print, or speak, the caption whenever it changes.

    python examples/narrate.py 0                            the first camera
    python examples/narrate.py rtsp://camera/1 --fps 2
    python examples/narrate.py film.mp4 --voice espeak      spoken, at the speed of the film
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

import picknet


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a camera number, a file, - for a pipe, or an address")
    parser.add_argument("--fps", type=float, default=1.0, help="frames sampled per second (1)")
    parser.add_argument("--voice", metavar="PROGRAM", help="a program that speaks its argument: espeak, say, spd-say")
    parser.add_argument(
        "--min-confidence", type=float, default=0.5, metavar="C", help="say nothing of which it is less sure (0.5)"
    )
    options = parser.parse_args(arguments)
    if options.voice and not shutil.which(options.voice):
        parser.error(f"--voice {options.voice}: there is no such program")
    try:
        with contextlib.suppress(KeyboardInterrupt):
            narrate(
                options.source, fps=options.fps, voice=options.voice, min_confidence=options.min_confidence
            )
    except picknet.PicknetError as error:
        sys.exit(f"narrate.py: {error}")


def narrate(source: str, *, fps: float, voice: str | None, min_confidence: float) -> None:
    speaking = None
    stream = picknet.load().stream(source, fps=fps, realtime=voice is not None, min_confidence=min_confidence)
    for update in stream:
        if not update.changed or not update.text:
            continue
        minutes, seconds = divmod(int(update.seconds), 60)
        print(f"{minutes}:{seconds:02d}  {update.text}", flush=True)
        # Captions that arrive while the voice is speaking are only printed.
        if voice and (speaking is None or speaking.poll() is not None):
            speaking = subprocess.Popen([voice, update.text])
    if speaking:
        speaking.wait()


if __name__ == "__main__":
    main()
