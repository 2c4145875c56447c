"""Speed of the fitted CIDEr against the COCO code's, as the reward of a batch.

    python benchmarks/cider.py [--captions sents_train_lc_nopunc.txt] [--repeats 15]

A batch is 128 videos with 40 references each. Ours is fitted once on all videos of the file; theirs gets the batch's
references with every call, as its interface requires. Both score the same captions alternately. Without a caption file
(lines of `video<TAB>caption`; MSVD's is used if it is in ../shared) synthetic captions of similar statistics are used.
Needs the `meteor` extra.
"""

import argparse
import random
import shlex
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from pycocoevalcap.cider.cider_scorer import CiderScorer
from timing import save, summary

from picknet.metrics import Cider
from picknet.text import tokenise

BATCH_SIZE = 128
NUM_REFERENCES = 40
MSVD = Path(__file__).resolve().parents[2] / "shared" / "msvd" / "captions" / "sents_train_lc_nopunc.txt"

Captions = dict[str, list[list[str]]]


def read_captions(path: Path) -> Captions:
    """The first 40 tokenised captions of each video."""
    captions: Captions = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        video, _, caption = line.partition("\t")
        captions.setdefault(video, []).append(tokenise(caption))
    return {video: several[:NUM_REFERENCES] for video, several in captions.items()}


def make_captions(rng: random.Random, *, num_videos: int = 1000) -> Captions:
    """Synthetic captions like MSVD's: about 7 words, a few very common, most others shared within a video."""
    words = [f"word{rank}" for rank in range(9000)]
    common = [1 / (rank + 2) for rank in range(len(words))]
    captions: Captions = {}
    for number in range(num_videos):
        subject = rng.choices(words, common, k=30)
        captions[f"video{number}"] = [
            [rng.choice(subject[: rng.randint(4, 30)]) for _ in range(max(3, round(rng.gauss(7, 2.3))))]
            for _ in range(NUM_REFERENCES)
        ]
    return captions


def coco_scores(references: list[list[str]], candidates: list[str]) -> np.ndarray:
    scorer = CiderScorer()
    for candidate, several in zip(candidates, references, strict=True):
        scorer += (candidate, several)
    return scorer.compute_score()[1]


def seconds(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=Path, help="lines of `video<TAB>caption`")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()

    rng = random.Random(0)
    path = arguments.captions or (MSVD if MSVD.exists() else None)
    captions = read_captions(path) if path else make_captions(rng)
    videos = [video for video, several in captions.items() if len(several) == NUM_REFERENCES]
    if len(videos) < BATCH_SIZE:
        print(f"{path}: {len(videos)} videos have {NUM_REFERENCES} captions (needs {BATCH_SIZE})", file=sys.stderr)
        return 2

    start = time.perf_counter()
    whole = Cider(captions)
    fit_seconds = time.perf_counter() - start
    print(f"captions   {path or 'synthetic'}: {len(captions)} videos, fitted once in {fit_seconds:.2f} s")

    ours, theirs, ratios, differences = [], [], [], []
    for _ in range(arguments.repeats):
        batch = rng.sample(videos, BATCH_SIZE)
        # Like a captioner's samples: some fit their video, some another.
        candidates = [rng.choice(captions[rng.choice([video, rng.choice(videos)])]) for video in batch]
        references = [[" ".join(tokens) for tokens in captions[video]] for video in batch]
        sentences = [" ".join(tokens) for tokens in candidates]

        ours.append(seconds(whole.scores, batch, candidates))
        theirs.append(seconds(coco_scores, references, sentences))
        ratios.append(theirs[-1] / ours[-1])

        # Theirs counts document frequencies in the batch, so ours is fitted on the batch to compare scores.
        same = Cider({video: captions[video] for video in batch}).scores(batch, candidates)
        differences.append(np.abs(same - coco_scores(references, sentences)).max())

    for name, times in (("COCO code", theirs), ("picknet", ours)):
        low, middle, high = (1000 * value for value in (min(times), statistics.median(times), max(times)))
        print(f"{name:10} {middle:8.2f} ms a batch ({low:.2f} to {high:.2f})")
    print(f"ratio      {statistics.median(ratios):5.0f} ({min(ratios):.0f} to {max(ratios):.0f}; {len(ratios)} pairs)")
    print(f"scores     differ by {max(differences):.1e} at most")
    found = {
        "captions": path.name if path else "synthetic",
        "videos": len(captions),
        "picknet, ms a batch": summary([1000 * value for value in ours]),
        "COCO code, ms a batch": summary([1000 * value for value in theirs]),
        "times as fast": summary(ratios),
        "greatest difference": max(differences),
    }
    save("cider", found, f"python {shlex.join(sys.argv)}")
    return 0 if max(differences) < 1e-9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
