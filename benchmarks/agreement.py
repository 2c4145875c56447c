"""Does fast inference change captions? Picks and words against plain inference, over a split.

    python benchmarks/agreement.py [msvd:val:../shared/msvd …] [--clips 99]

Plain inference decodes every frame in order, glances at every sample, computes all graphs in 32 bits, and stops a
search only when no open sentence can win. Where words differ, CIDEr says which ones people would rather have written.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from timing import ROOT, save

from picknet.captioner import Caption, Captioner, load
from picknet.data.split import Dataset, load_split
from picknet.metrics import Cider
from picknet.model import runtime, search
from picknet.text import tokenise
from picknet.video.file import Video
from picknet.video.frame import Frame, middles

MSVD = ROOT.parent / "shared" / "msvd"


def captions(paths: Sequence[Path], *, style: str | None = None) -> Iterator[tuple[Caption, Caption]]:
    """For each video the fast caption and the plain one."""
    fast = load(style=style)
    with patch.object(runtime, "PRECISION", dict.fromkeys(runtime.PRECISION, "f32")):
        plain = load(style=style)
    for path in paths:
        with patch.object(search, "MORE_WORDS", plain.config.text.max_words):
            expected = plain.caption(plainly_sampled(path, plain))
        yield fast.caption(path), expected


def plainly_sampled(path: Path, plain: Captioner) -> Iterator[Frame]:
    """The samples of a video, decoding everything."""
    with Video(path) as video:
        yield from video._at_positions(middles(video._num_frames, plain.config.video.num_frames))


def compared(dataset: Dataset, name: str, folder: str, most_clips: int) -> dict[str, Any]:
    split = load_split(Path(folder), dataset=dataset, split=name)
    clips = split.clips[:most_clips]
    style = dataset if dataset in load().runtime.vocabulary.styles else None
    found = list(zip(clips, captions([clip.path for clip in clips], style=style), strict=True))
    scorer = Cider({clip.name: [tokenise(caption) for caption in clip.captions] for clip in clips})
    fast_cider, plain_cider = (
        100 * np.array(list(scorer.score({clip.name: tokenise(both[i].text) for clip, both in found}).values()))
        for i in range(2)
    )
    differences = fast_cider - plain_cider
    return {
        "split": f"{dataset} {name}",
        "clips": len(found),
        "other picks": sum(_indexes(fast) != _indexes(plain) for _, (fast, plain) in found),
        "other words": [
            {"clip": clip.name, "fast": fast.text, "plain": plain.text}
            for clip, (fast, plain) in found
            if fast.text != plain.text
        ],
        "plain CIDEr": plain_cider.mean(),
        "CIDEr difference": differences.mean(),
        "standard error": differences.std(ddof=1) / len(differences) ** 0.5,
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
