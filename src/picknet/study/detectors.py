"""PySceneDetect's detectors as pickers: the first frame of every scene that they find, at several thresholds.

The detectors see every frame of a video, as they are meant to. PySceneDetect is optional (the `bench` extra).
"""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from picknet.video.file import Video
from picknet.video.frame import Frame

Choice = tuple[int, ...]

THRESHOLDS: dict[str, tuple[float, ...]] = {
    "content": (5, 8, 12, 18, 27, 40),
    "adaptive": (1.2, 1.6, 2, 3, 5, 8),
    "histogram": (0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
}
"""PySceneDetect's own are 27, 3 and 0.2."""
LEAST_CONTENT = 5.0
"""The adaptive detector's least content value for each unit of its threshold: 15 at 3, as in PySceneDetect."""
ALL_FRAMES = 1000.0
"""Samples a second: more than any video has frames."""


def is_installed() -> bool:
    return importlib.util.find_spec("scenedetect") is not None


def detected(path: Path, samples: Sequence[Frame]) -> dict[tuple[str, str], Choice]:
    """(detector, threshold) -> the first sample, and the first one at or after the start of each other scene."""
    with Video(path) as video:
        starts = scene_starts(video.sample_by_time(fps=ALL_FRAMES), fps=video.fps)
    times = np.array([frame.seconds for frame in samples])
    found = {}
    for setting, seconds in starts.items():
        places = np.searchsorted(times, np.array([0.0, *seconds]) - 1e-3)
        found[setting] = tuple(sorted({int(place) for place in places if place < len(times)}))
    return found


def scene_starts(frames: Iterable[Frame], *, fps: float) -> dict[tuple[str, str], list[float]]:
    """(detector, threshold) -> the seconds at which scenes start. frames: all frames of a video."""
    import cv2
    from scenedetect import FrameTimecode

    measure, detectors = _detectors()
    starts: dict[tuple[str, str], list[float]] = {setting: [] for setting in detectors}
    seconds = []
    for number, frame in enumerate(frames):
        seconds.append(frame.seconds)
        at, picture = FrameTimecode(number, fps=fps), cv2.cvtColor(frame.pixels(), cv2.COLOR_RGB2BGR)
        measure(at, picture)
        for setting, detector in detectors.items():
            starts[setting] += [seconds[cut.frame_num] for cut in detector.process_frame(at, picture)]
    return starts


def _detectors() -> tuple[Callable[[Any, Any], object], dict[tuple[str, str], Any]]:
    """A function that measures a picture, and the detectors, which share what it measured."""
    from scenedetect import AdaptiveDetector, ContentDetector, HistogramDetector

    content, shared = ContentDetector(), dict[str, Any]()

    def measure(at: Any, picture: Any) -> None:
        shared["score"] = content._calculate_frame_score(at, picture)
        shared["histogram"] = HistogramDetector.calculate_histogram(picture, bins=128)

    made: dict[str, Callable[[float], Any]] = {
        "content": lambda threshold: ContentDetector(threshold=threshold),
        "adaptive": lambda threshold: AdaptiveDetector(threshold, min_content_val=LEAST_CONTENT * threshold),
        "histogram": lambda threshold: HistogramDetector(threshold=threshold),
    }
    detectors = {}
    for name, make in made.items():
        for threshold in THRESHOLDS[name]:
            detector = detectors[name, f"threshold={threshold:g}"] = make(threshold)
            detector._calculate_frame_score = lambda *given, **more: shared["score"]
            detector.calculate_histogram = lambda *given, **more: shared["histogram"]
    return measure, detectors
