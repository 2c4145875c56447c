"""Do the fast ways of doing things change what is said? Picks and words, against the plain way, over a split.

    python benchmarks/agreement.py [--data ../shared/msvd] [--clips 99]

The plain way decodes every frame of a file in its order, and computes all graphs in 32 bits.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from timing import ROOT, save

from picknet import runtime
from picknet.captioner import Caption, Captioner, load
from picknet.datasets import load_split
from picknet.video import Frame, Video

MSVD = ROOT.parent / "shared" / "msvd"


def captions(paths: Sequence[Path]) -> Iterator[tuple[Caption, Caption]]:
    """The caption of each video, and the plain way's."""
    fast = load()
    with _in_32_bits():
        plain = load()
        plain._warm_up(plain.config.beam)  # graphs are compiled when they are first used
    for path in paths:
        yield fast.caption(path), plain.caption(plainly_sampled(path, plain))


def plainly_sampled(path: Path, captioner: Captioner) -> Iterator[Frame]:
    """The samples of a video, by decoding everything."""
    with Video(path) as video:
        yield from video._at_positions(*video._middles(captioner.config.video.num_frames))


@contextmanager
def _in_32_bits() -> Iterator[None]:
    before, runtime.PRECISION = runtime.PRECISION, dict.fromkeys(runtime.PRECISION, "f32")
    try:
        yield
    finally:
        runtime.PRECISION = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=MSVD)
    parser.add_argument("--clips", type=int, default=99)
    arguments = parser.parse_args()
    split = load_split(arguments.data, dataset="msvd", split="val").clips[: arguments.clips]
    pairs = list(captions([clip.path for clip in split]))
    other_words = [
        {"clip": clip.name, "fast": fast.text, "plain": plain.text}
        for clip, (fast, plain) in zip(split, pairs, strict=True)
        if fast.text != plain.text
    ]
    num_other_picks = sum(
        [pick.index for pick in fast.picks] != [pick.index for pick in plain.picks] for fast, plain in pairs
    )
    found = {"clips": len(pairs), "other picks": num_other_picks, "other words": other_words}
    save("agreement", found, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
