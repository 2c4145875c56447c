"""A captioner that needs no video, for tests of all that is around it. Worker processes and Ray actors import it."""

import dataclasses
import os
import signal
import time
from typing import Any

from picknet.batch import Clip, Kind
from picknet.batch.work import error_row


@dataclasses.dataclass(frozen=True)
class StubWork:
    """A row for each clip, made of its name; what the name says happens: error, hang, die."""

    kind: Kind = Kind.captions
    seconds: float = 0.0

    def __call__(self, clip: Clip) -> list[dict[str, Any]]:
        if self.seconds:
            time.sleep(self.seconds)
        if "hang" in clip.name:
            time.sleep(1000)
        if "die" in clip.name:
            os.kill(os.getpid(), signal.SIGKILL)
        if "error" in clip.name:
            return [error_row(clip, f"{clip.shown_name}: refused")]
        about = {"video": clip.shown_name, "clip": clip.key.hex(), "took": 0.25, "model": "stub"}
        if self.kind is Kind.timeline:
            return [about | {"start": float(part), "end": part + 1.0, "caption": f"part {part}"} for part in range(3)]
        return [
            about
            | {
                "caption": f"about {clip.shown_name}",
                "confidence": 0.5,
                "candidates": [{"caption": "a cat", "probability": 0.25}],
                "picks": [{"index": 3, "seconds": 1.5, "probability": None, "frame_number": 40}],
                "frames_seen": 30,
            }
        ]


def run_stub(sources: list[str], out: str, file_clips: int, seconds: float, jobs: int = 1) -> None:
    """A run of the local engine with small files, in a process that a test can kill."""
    from functools import partial
    from pathlib import Path

    from picknet.batch import Work, folder, run
    from picknet.batch.engines import locally

    folder.MAX_FILE_CLIPS = file_clips
    engine = partial(locally, jobs=jobs, timeout=None)
    run(sources, Path(out), Work(), engine=engine, do_clip=StubWork(seconds=seconds))
