"""Does fast inference change captions? Picks and words against plain inference, over a split.

    python benchmarks/agreement.py [msvd:val:../shared/msvd …] [--clips 99]

Plain inference decodes every frame in order, glances at every sample, computes all graphs in 32 bits, and stops a
search only when no open sentence can win.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from timing import ROOT, save

from picknet.captioner import Caption, Captioner, load
from picknet.data.split import Dataset, load_split
from picknet.model import runtime, search
from picknet.video.file import Video
from picknet.video.frame import Frame, middles

MSVD = ROOT.parent / "shared" / "msvd"


def captions(paths: Sequence[Path]) -> Iterator[tuple[Caption, Caption, bool]]:
    """For each video the fast caption, the plain one, and whether the fast one was computed again in 32 bits."""
    fast = load()
    with patch.object(runtime, "PRECISION", dict.fromkeys(runtime.PRECISION, "f32")):
        plain = load()
    for path in paths:
        with patch.object(search, "MORE_WORDS", plain.config.text.max_words):
            expected = plain.caption(plainly_sampled(path, plain))
        with patch.object(fast.runtime, "exact_features", wraps=fast.runtime.exact_features) as computed_again:
            found = fast.caption(path)
        yield found, expected, computed_again.called


def plainly_sampled(path: Path, plain: Captioner) -> Iterator[Frame]:
    """The samples of a video, decoding everything."""
    with Video(path) as video:
        yield from video._at_positions(middles(video._num_frames, plain.config.video.num_frames))


def compared(dataset: Dataset, name: str, folder: str, most_clips: int) -> dict[str, Any]:
    split = load_split(Path(folder), dataset=dataset, split=name)
    clips = split.clips[:most_clips]
    found = list(zip(clips, captions([clip.path for clip in clips]), strict=True))
    return {
        "split": f"{dataset} {name}",
        "clips": len(found),
        "close calls": sum(close for _, (_, _, close) in found),
        "other picks": sum(_indexes(fast) != _indexes(plain) for _, (fast, plain, _) in found),
        "other words": [
            {"clip": clip.name, "fast": fast.text, "plain": plain.text}
            for clip, (fast, plain, _) in found
            if fast.text != plain.text
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("splits", nargs="*", default=[f"msvd:val:{MSVD}"], help="dataset:split:folder")
    parser.add_argument("--clips", type=int, default=99, help="number of clips of each split")
    arguments = parser.parse_args()
    found = [compared(*split.split(":", 2), arguments.clips) for split in arguments.splits]
    save("agreement", {"splits": found}, f"python {shlex.join(sys.argv)}")


def _indexes(caption: Caption) -> list[int]:
    return [pick.index for pick in caption.picks]


if __name__ == "__main__":
    main()
