"""Time of captions and picks on files as people have them, and on a made hour.

    python benchmarks/originals.py [--data ../shared/originals] [--runs 3] [--repeats 5] [--clips 12]

Every folder in the folder of data is a kind of files, such as MSVD's AVI files. Against decoding the file and nothing
else, with all cores and with one: a caption by the shipped picker, which looks, and as many picks by one that does not.
The hour is 640×360 with a keyframe every ten seconds; what decoding all of it takes is computed from a part that it
repeats. The first caption is that of a new process, with compiled graphs in the cache. All of it is measured several
times, since a machine is not equally fast at all times.
"""

import platform
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from captioning import NUM_FRAMES, decode
from footage import LOOP_SECONDS, make
from starting import run
from timing import ROOT, Rounds, alternate, parser, ratio, save, times

import picknet
from picknet.captioner import Captioner
from picknet.picking.plain import EveryNthPicker
from picknet.video.file import is_video_file

HOUR = 3600
BUDGET = 10


def captions(captioner: Captioner, path: Path) -> dict[str, Callable[[], object]]:
    """Captions, and decoding alone."""
    num_picks = len(captioner.caption(path).picks)
    blind = EveryNthPicker(NUM_FRAMES / num_picks)
    return {
        "decode alone": partial(decode, path),
        "decode in one thread": partial(decode, path, thread_type="NONE"),
        "caption": partial(captioner.caption, path),
        "caption, every n-th frame": partial(captioner.caption, path, picker=blind),
    }


def over_files(found: list[dict[str, Any]]) -> dict[str, float]:
    """Of the ratios of several files: their median, lowest and highest."""
    medians = [of["median"] for of in found]
    return {"median": statistics.median(medians), "low": min(medians), "high": max(medians)}


def measured(captioner: Captioner, paths: list[Path], *, repeats: int) -> dict[str, Any]:
    """A kind of files."""
    rounds = {path: alternate(captions(captioner, path), repeats=repeats) for path in paths}
    pairs = [
        (one, other)
        for one in ("caption", "caption, every n-th frame")
        for other in ("decode alone", "decode in one thread")
    ]
    ratios = {}
    for one, other in pairs:
        found = [ratio(of_file, one, other) for of_file in rounds.values()]
        ratios[f"{one} against {other}"] = {clock: over_files([of[clock] for of in found]) for clock in ("wall", "cpu")}
    return {
        "files": [path.name for path in paths],
        "ratios": ratios,
        "times": {path.name: times(of_file) for path, of_file in rounds.items()},
    }


def hour(captioner: Captioner, work: Path, *, repeats: int) -> dict[str, Any]:
    path = make(work, width=640, height=360, seconds=HOUR, regular=True)
    things = {
        "decode a part": partial(decode, make(work, width=640, height=360, seconds=LOOP_SECONDS, regular=True)),
        "caption": partial(captioner.caption, path),
        f"pick, budget {BUDGET}": partial(captioner.picked, path, budget=BUDGET),
    }
    rounds: Rounds = alternate(things, repeats=repeats)
    part = LOOP_SECONDS / HOUR
    return {
        "times": times(rounds),
        "against decoding it all": {
            name: {
                kind: {key: value * part for key, value in of.items()}
                for kind, of in ratio(rounds, name, "decode a part").items()
            }
            for name in list(things)[1:]
        },
    }


def first_captions(paths: list[Path], *, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        things = {
            path.name: partial(run, "-m", "picknet", "caption", str(path), cache=Path(cache)) for path in paths
        }
        return times(alternate(things, repeats=repeats))


def main() -> None:
    options = parser(__doc__, repeats=5)
    options.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "originals", help="folder of folders")
    options.add_argument("--clips", type=int, default=12, help="files of each kind, at most")
    options.add_argument("--runs", type=int, default=3, help="how often all of it is measured")
    arguments = options.parse_args()
    captioner = picknet.load()
    kinds = {}
    for folder in sorted(folder for folder in arguments.data.glob("*") if folder.is_dir()):
        paths = sorted(path for path in folder.iterdir() if is_video_file(path))[: arguments.clips]
        if paths:
            print(f"{folder.name}: {', '.join(path.name for path in paths)}", flush=True)
            kinds[folder.name] = paths
    if not kinds:
        print(f"{arguments.data}: no files, so only made ones are measured", flush=True)
    first = [paths[0] for paths in kinds.values()] or [make(arguments.work, width=320, height=240, seconds=10)]
    runs = [
        {
            "kinds": {name: measured(captioner, paths, repeats=arguments.repeats) for name, paths in kinds.items()},
            "hour": hour(captioner, arguments.work, repeats=min(arguments.repeats, 3)),
            "first caption": first_captions(first, repeats=arguments.repeats),
        }
        for _ in range(arguments.runs)
    ]
    save(f"originals-{platform.machine()}", {"runs": runs}, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
