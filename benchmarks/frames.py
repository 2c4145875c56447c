"""Whether sampled frames are those that decoding every frame in order gives, on any number of files.

    python benchmarks/frames.py FOLDER ... [--files 60] [--seed 0]

Of each folder so many files, drawn at random: 30 samples, four of them alone, seven, and two a second. Prints what
differs, and exits with 1 if anything does.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np

from picknet.video.file import Video, is_video_file
from picknet.video.frame import Frame, middles

SAMPLINGS = ((30, None), (30, (3, 11, 19, 27)), (7, None))


def differences(path: Path) -> Iterator[str]:
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = "NONE"
        every = list(container.decode(video=0))
    for count, only in SAMPLINGS:
        wanted = middles(len(every), count)
        wanted = [place for index, place in enumerate(wanted) if only is None or index in only]
        with Video(path) as video:
            frames = list(video.sample_evenly(count=count, only=only))
        if not _same(frames, [every[place] for place in wanted]) or [frame.number for frame in frames] != wanted:
            yield f"{path}: {count} samples ({only or 'all'})"
    with Video(path) as video:
        frames = list(video.sample_by_time(fps=2.0))
        plain = list(video._at_ticks(2.0))
    if not _same(frames, [frame._picture for frame in plain]):
        yield f"{path}: two frames a second"


def _same(frames: Sequence[Frame], pictures: Sequence[av.VideoFrame]) -> bool:
    return len(frames) == len(pictures) and all(
        np.array_equal(frame._picture.to_ndarray(), picture.to_ndarray())
        for frame, picture in zip(frames, pictures, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--files", type=int, default=60, help="files of each folder, at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    num_files = num_different = 0
    for folder in arguments.folders:
        paths = sorted(path for path in folder.iterdir() if is_video_file(path))
        for path in chance.sample(paths, min(arguments.files, len(paths))):
            num_files += 1
            for difference in differences(path):
                num_different += 1
                print(difference, flush=True)
    print(f"{num_files} files, {num_different} samplings differ")
    sys.exit(num_different > 0)


if __name__ == "__main__":
    main()
