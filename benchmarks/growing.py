"""Time of a caption against the length of a video, its size and the number of picks.

    python benchmarks/growing.py [--repeats 3]

Long videos repeat the same packets, so the time of decoding all of one is a multiple of that of the repeated part; it
is computed, not measured.
"""

import shlex
import sys
from functools import partial
from pathlib import Path

from captioning import decode
from footage import LOOP_SECONDS, make
from timing import alternate, parser, ratio, save, times

import picknet
from picknet.picking.plain import UniformPicker

LENGTHS = (5, 17, 60, 600, 3600)
SIZES = ((320, 240), (640, 360), (1280, 720), (1920, 1080), (3840, 2160))
PICKS = (1, 2, 4, 8, 15, 30)


def main() -> None:
    arguments = parser(__doc__, repeats=3).parse_args()
    captioner = picknet.load()

    def clip(width: int, height: int, seconds: float) -> Path:
        return make(arguments.work, width=width, height=height, seconds=seconds)

    lengths = []
    for seconds in LENGTHS:
        unit = min(seconds, LOOP_SECONDS)
        things = {
            "caption": partial(captioner.caption, clip(1280, 720, seconds)),
            "decode": partial(decode, clip(1280, 720, unit)),
        }
        rounds = alternate(things, repeats=arguments.repeats)
        against = ratio(rounds, "caption", "decode")
        scaled = {kind: {key: value * unit / seconds for key, value in of.items()} for kind, of in against.items()}
        lengths.append({"seconds": seconds, "times": times(rounds), "caption against decoding it all": scaled})
    sizes = []
    for width, height in SIZES:
        path = clip(width, height, 10)
        things = {"caption": partial(captioner.caption, path), "decode": partial(decode, path)}
        rounds = alternate(things, repeats=arguments.repeats)
        sizes.append({"size": f"{width}x{height}", "times": times(rounds), "ratio": ratio(rounds, "caption", "decode")})
    path = clip(640, 360, 10)
    things = {str(k): partial(captioner.caption, path, picker=UniformPicker(k)) for k in PICKS}
    picks = times(alternate(things, repeats=arguments.repeats))
    found = {"lengths": lengths, "sizes": sizes, "picks": picks}
    save("growing", found, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
