"""Who does the work: processes of this machine, or actors on a Ray cluster. Both give the same rows, in any order."""

from collections.abc import Callable, Iterable, Iterator

from picknet.batch.sources import Clip
from picknet.batch.table import Row
from picknet.batch.work import checked_rows
from picknet.workers import as_finished

DoClip = Callable[[Clip], list[Row]]
"""What a worker does with a clip; a `Work`, which is pickled."""


def locally(
    work: DoClip, clips: Iterable[Clip], num_clips: int, *, jobs: int, timeout: float | None
) -> Iterator[list[Row]]:
    """The rows of each clip, by `jobs` processes with a model each. Few clips are read ahead."""
    jobs = min(jobs, num_clips)
    for clip, result in as_finished(work, clips, jobs=jobs, timeout=timeout, name=lambda clip: clip.shown_name):
        yield checked_rows(clip, result)
