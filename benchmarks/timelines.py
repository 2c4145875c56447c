"""Timelines of films with known scenes: CIDEr, cuts met, CPU time.

    python benchmarks/timelines.py --data MSVD --work FOLDER [--fps 1 --fps 2 --fps 4] [--seed 0]

The films are those of scenes.py: 24 films of four or five validation clips. The CIDEr of a clip is that of the
sentences shown during it, weighted by time; a cut is met if a segment, or in a scene list a scene, starts within a
second of it. Times are CPU seconds of all cores, of the timeline and of decoding alone. Last come the scene lists of
PySceneDetect. Needs the `bench` extra.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scenedetect import AdaptiveDetector, ContentDetector, detect
from scenes import Joined, join

from picknet.captioner import Captioner, load
from picknet.data.split import load_split
from picknet.metrics import Cider
from picknet.text import tokenise
from picknet.timeline import Segment, from_cut_to_cut
from picknet.video.file import Video


def clip_scores(joined: Joined, segments: list[Segment], cider: Cider) -> list[float]:
    """For each clip the mean CIDEr over time of the sentences shown."""
    ends = [*joined.starts[1:], segments[-1].end]
    scores = []
    for clip, start, end in zip(joined.clips, joined.starts, ends, strict=True):
        on = [max(min(end, segment.end) - max(start, segment.start), 0.0) for segment in segments]
        found = cider.scores([clip.name] * len(segments), [tokenise(segment.text) for segment in segments])
        scores.append(100 * float(np.average(found, weights=on)))
    return scores


def met(film: Joined, starts: Sequence[float]) -> int:
    """The number of a film's cuts that one of the starts is within a second of."""
    return sum(any(abs(start - cut) <= 1 for start in starts) for cut in film.starts[1:])


def measured(captioner: Captioner, films: list[Joined], cider: Cider, *, fps: float) -> str:
    scores: list[float] = []
    num_cuts = sum(len(film.starts) - 1 for film in films)
    num_met = num_segments = num_picks = met_by_scenes = num_scenes = 0
    seconds = decoding = 0.0
    for film in films:
        start = time.process_time()
        with Video(film.path) as video:
            for _ in video.sample_by_time(fps=fps):
                pass
        decoded = time.process_time()
        segments = list(captioner.timeline(film.path, fps=fps))
        decoding, seconds = decoding + decoded - start, seconds + time.process_time() - decoded
        scores += clip_scores(film, segments, cider)
        scenes = list(from_cut_to_cut(segments))
        num_met, num_segments = num_met + met(film, [one.start for one in segments]), num_segments + len(segments)
        met_by_scenes, num_scenes = met_by_scenes + met(film, [one.start for one in scenes]), num_scenes + len(scenes)
        num_picks += sum(len(one.picks) for one in segments)
    error = np.std(scores) / np.sqrt(len(scores))
    return (
        f"| {fps:g} | {np.mean(scores):.1f} ± {error:.1f} | {num_met} of {num_cuts} | {num_segments} "
        f"| {met_by_scenes} of {num_cuts} | {num_scenes} | {num_picks} | {seconds:.0f} s | {decoding:.0f} s |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with MSVD's videos and captions")
    parser.add_argument("--work", type=Path, required=True, help="folder for the films, outside of the repository")
    parser.add_argument("--fps", type=float, action="append", help="sampling rate; may be repeated")
    parser.add_argument("--model", help="a model folder; the default model otherwise")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    captioner = load(arguments.model)
    clips = load_split(arguments.data, dataset="msvd", split="val").clips
    cider = Cider({clip.name: [tokenise(text) for text in clip.captions] for clip in clips})
    films = join(clips, arguments.work, seed=arguments.seed)
    print("| fps | CIDEr by time | cuts met | segments | met by scenes | scenes | picks | timeline | decoding alone |")
    print("|---|---|---|---|---|---|---|---|---|")
    for fps in arguments.fps or (1.0, 2.0, 4.0):
        print(measured(captioner, films, cider, fps=fps), flush=True)
    for detector in (ContentDetector, AdaptiveDetector):
        lists = [[first.seconds for first, _ in detect(str(film.path), detector())] for film in films]
        num_met = sum(met(film, starts) for film, starts in zip(films, lists, strict=True))
        # A film without a cut is one scene, of which PySceneDetect says nothing.
        print(f"{detector.__name__}: {num_met} cuts met by {sum(max(1, len(starts)) for starts in lists)} scenes")


if __name__ == "__main__":
    main()
