"""`picknet stream`."""

import json
import shutil
import signal
import sys
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from picknet.cli.arguments import Beam, Model, Style
from picknet.cli.terminal import many, say

if TYPE_CHECKING:
    from picknet.captioner import Update
    from picknet.video.live import Live


class StreamFormat(StrEnum):
    text = "text"
    jsonl = "jsonl"


def stream(
    source: Annotated[
        str, typer.Argument(help="A file, - (standard input), a camera (0), or rtsp://, rtmp://, http(s):// or udp://.")
    ],
    fps: Annotated[float, typer.Option(min=0.001, max=1000, help="Frames a second that are glanced at.")] = 1.0,
    format: Annotated[StreamFormat, typer.Option(help="jsonl: one object a line.")] = StreamFormat.text,
    only_changes: Annotated[
        bool, typer.Option("--only-changes", help="Say a sentence only when it differs from the one before.")
    ] = False,
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Read a file at its own speed; drop from it, and from a pipe, when late.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds without a frame after which a source is given up or lost.")
    ] = 15.0,
    retries: Annotated[int, typer.Option(min=0, help="How often in a row a lost source is tried again.")] = 10,
    model: Model = None,
    style: Style = None,
    beam: Beam = None,
) -> None:
    """Describe a camera or another stream as it runs: a sentence after every pick."""
    from picknet.captioner import load
    from picknet.video.live import Live

    teller = _Teller(format)
    live = Live(source, fps=fps, realtime=realtime, timeout=timeout, retries=retries, note=teller.note)
    captioner = load(model, style=style)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    num_picks = num_sentences = 0
    try:
        for update in captioner.stream(live, beam=beam):
            num_picks, num_sentences = update.num_picks, num_sentences + update.changed
            if update.changed or not only_changes:
                teller.tell(update)
    finally:
        teller.end()
        if live.num_frames:
            say(_stream_summary(live, num_picks, num_sentences))
        signal.signal(signal.SIGTERM, before)


class _Teller:
    """Prints updates: on a terminal one line that is written over, elsewhere a line for each."""

    def __init__(self, format: StreamFormat) -> None:
        self._format = format
        self._rewrites = format is StreamFormat.text and sys.stdout.isatty()
        self._line = ""
        self._lock = threading.Lock()  # a lost connection is noted while an update is told

    def tell(self, update: "Update") -> None:
        from picknet.timeline import clock

        with self._lock:
            if self._format is StreamFormat.jsonl:
                print(json.dumps(_update_json(update)), flush=True)
            elif not self._rewrites:
                print(f"{clock(update.seconds)}  {update.text}", flush=True)
            else:
                picks = f"{many(update.num_picks, 'pick')} of {many(update.frames_seen, 'frame')}"
                line = f"{clock(update.seconds)}  {update.text}  ({picks})"
                self._line = line[: shutil.get_terminal_size().columns - 1]
                print(f"\r\x1b[2K{self._line}", end="", flush=True)

    def note(self, message: str) -> None:
        """A line for people, above the one that is written over."""
        with self._lock:
            if self._line:
                print("\r\x1b[2K", end="", flush=True)
            say(message)
            print(self._line, end="", flush=True)

    def end(self) -> None:
        """Leave what is said on a line of its own."""
        with self._lock:
            if self._line:
                print(flush=True)
            self._line = ""


def _update_json(update: "Update") -> dict[str, Any]:
    content = {
        "seconds": update.seconds,
        "caption": update.text,
        "changed": update.changed,
        "probability": update.pick.probability,
        "confidence": update.confidence,
        "frames_seen": update.frames_seen,
        "picks": update.num_picks,
        "scene": update.scene,
        "lag": update.lag,
    }
    return content | ({"damage": update.damage} if update.damage else {})


def _stream_summary(live: "Live", num_picks: int, num_sentences: int) -> str:
    from picknet.timeline import clock

    parts = [
        f"{many(live.num_frames, 'frame')} until {clock(live.seconds)}",
        many(num_picks, "pick"),
        many(num_sentences, "sentence"),
    ]
    if live.max_lag is not None:
        parts += [f"{live.num_dropped:,} dropped", f"lag at most {live.max_lag:.1f} s"]
    if live.num_reconnects:
        parts.append(f"lost {many(live.num_reconnects, 'time')}")
    if live.damage:
        parts.append(live.damage)
    return f"{live.name}: {', '.join(parts)}"
