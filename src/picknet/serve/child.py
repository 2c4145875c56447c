"""The child process that decodes: it answers the questions of `decoding.py` about one video at a time.

It runs on what strangers made, so it has a limit on memory, and sends nothing back but JSON and raw bytes.
"""

import contextlib
import io
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator
from multiprocessing.connection import Connection
from queue import Empty, Queue
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from picknet.config import GlanceKind
from picknet.errors import PicknetError
from picknet.video.access import check_pixels
from picknet.video.file import Video
from picknet.video.frame import Frame
from picknet.video.live import Live
from picknet.video.pictures import UnreadablePicture
from picknet.video.source import UnreadableVideo
from picknet.workers import read_ahead

Pixels = NDArray[np.uint8]

MAX_WAITING = 4
"""Samples that are decoded before they are asked for."""
FRAME_SECONDS = 120.0
"""Without a frame, after which a video that is sent piece by piece is given up. A client that sends nothing is told
earlier."""
MAX_BYTES_BEFORE_A_FRAME = 64 << 20
"""Of such a video: an MP4 whose index is at its end is kept until it is complete."""


def decode(connection: Connection, memory: int) -> None:
    """Answer questions until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _limit_memory(memory)
    child = _Child()
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        connection.send_bytes(b"1")
        while True:
            question = json.loads(connection.recv_bytes())
            attached = connection.recv_bytes() if question.pop("is_attached") else b""
            value: Any
            try:
                value, *arrays = child.answer(attached=attached, **question)
            except PicknetError as error:
                value, arrays = {"error": str(error)}, []
            except MemoryError:
                return  # the parent notices
            header = {"value": value, "shapes": [array.shape for array in arrays]}
            connection.send_bytes(json.dumps(header).encode())
            for array in arrays:
                connection.send_bytes(np.ascontiguousarray(array).data.cast("B"))


def _limit_memory(memory: int) -> None:
    """Let this process allocate no more than `memory` bytes beyond what it has; on Linux only."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


class _Child:
    """The video that is open, and those of its frames that the parent still refers to."""

    def __init__(self) -> None:
        self._video: Video | None = None
        self._glance: GlanceKind = "grey"
        self._threads = 0
        self._samples: Generator[Frame, None, None] = _none()
        self._frames: dict[int, Frame] = {}
        self._num_frames = 0

    def answer(self, what: str, attached: bytes, **arguments: Any) -> tuple[Any, *tuple[Pixels, ...]]:
        """A JSON value, and arrays of uint8."""
        if what == "picture":
            return None, _pixels_of(attached)
        if what == "open":
            self._video = Video(arguments["path"], glance=arguments["glance"], threads=arguments["threads"])
            self._glance, self._threads = arguments["glance"], arguments["threads"]
            video = self._video
            return ({name: getattr(video, name) for name in ("seconds", "begin", "fps", "width", "height")},)
        if what == "close":
            self._samples.close()
            if self._video is not None:
                self._video.close()
            self._video, self._samples, self._frames = None, _none(), {}
            return (None,)
        if what == "pixels":
            return None, self._frames[arguments["id"]].pixels(arguments["size"])
        if what == "thumbnail":
            return None, self._frames[arguments["id"]].thumbnail(arguments["max_side"])
        if what == "live":
            self._glance = arguments["glance"]
            self._pieces = Pieces(arguments["name"], fps=arguments["fps"], glance=self._glance)
            return (None,)
        if what == "piece":
            return (self._pieces.put(attached, is_last=arguments["is_last"]),)
        if what == "arrived":
            return self._arrived(arguments["released"], arguments["wait"])
        assert self._video is not None
        if what == "length":
            return (self._video.length,)
        if what == "num_samples":
            return (self._video.num_samples(arguments["count"]),)
        if what == "sample":
            self._samples.close()
            samples = getattr(self._video, arguments["method"])(**arguments["arguments"])
            # Frames are decoded while the parent looks at others, unless there is only one core for this video.
            goes_ahead = self._threads != 1 and not self._video.has_large_pictures
            self._samples = read_ahead(samples, count=MAX_WAITING) if goes_ahead else samples
        return self._next(arguments["released"], arguments["count"])

    def _next(self, released: list[int], count: int) -> tuple[Any, *tuple[Pixels, ...]]:
        """The next `count` samples, fewer at the end. An error after some of them is told with the next question."""
        assert self._video is not None
        self._forget(released)
        frames: list[Frame] = []
        is_over = False
        try:
            for frame in itertools.islice(self._samples, count):
                frames.append(frame)
            is_over = len(frames) < count
        except PicknetError as error:
            if not frames:
                raise
            self._samples = _raising(error)
        return self._told(frames, {"damage": self._video.damage, "is_over": is_over})

    def _arrived(self, released: list[int], wait: float) -> tuple[Any, *tuple[Pixels, ...]]:
        self._forget(released)
        frame = self._pieces.take(wait)
        about = {"is_over": self._pieces.is_over, "waiting": self._pieces.waiting}
        return self._told([frame] if frame else [], about)

    def _forget(self, released: list[int]) -> None:
        for number in released:
            self._frames.pop(number, None)

    def _told(self, frames: list[Frame], about: dict[str, Any]) -> tuple[Any, *tuple[Pixels, ...]]:
        """Facts about frames, which are kept, and their glances: grey ones, then those of another kind."""
        told, grey, others = [], [], []
        for frame in frames:
            self._num_frames += 1
            self._frames[self._num_frames] = frame
            facts = {"index": frame.index, "seconds": frame.seconds, "number": frame.number}
            told.append({"id": self._num_frames, "kind": self._glance, **facts})
            grey.append(frame.glance())
            if self._glance != "grey":
                others.append(frame.glance_as(self._glance))
        return {**about, "frames": told}, *(np.stack(glances) for glances in (grey, others) if glances)


def _raising(error: PicknetError) -> Generator[Frame, None, None]:
    raise error
    yield


def _none() -> Generator[Frame, None, None]:
    yield from ()


class Pieces(io.RawIOBase):
    """The bytes of a video as they come, and the frames of it. A thread reads the one and queues the other."""

    def __init__(self, name: str, *, fps: float, glance: GlanceKind) -> None:
        self.name = name
        self.is_over = False
        self._changed = threading.Condition()
        self._bytes = bytearray()
        self._is_complete = False
        self._num_bytes = 0
        self._any_frame = False
        self._frames: Queue[Frame | PicknetError | None] = Queue(1)
        live = Live(cast(BinaryIO, self), fps=fps, timeout=FRAME_SECONDS, glance=glance, note=lambda line: None)
        threading.Thread(target=self._read, args=(live,), daemon=True).start()

    def put(self, piece: bytes, *, is_last: bool) -> int:
        """The number of bytes that wait to be decoded."""
        with self._changed:
            self._num_bytes += len(piece)
            if self._num_bytes > MAX_BYTES_BEFORE_A_FRAME and not self._any_frame:
                limit = MAX_BYTES_BEFORE_A_FRAME >> 20
                raise UnreadableVideo(f"{self.name}: its first {limit} MiB have no frame that can be decoded")
            self._bytes += piece
            self._is_complete = self._is_complete or is_last
            self._changed.notify()
            return len(self._bytes)

    @property
    def waiting(self) -> int:
        return len(self._bytes)

    def take(self, wait: float) -> Frame | None:
        try:
            frame = self._frames.get(timeout=wait) if wait else self._frames.get_nowait()
        except Empty:
            return None
        if isinstance(frame, PicknetError):
            raise frame
        self._any_frame = True
        self.is_over = frame is None
        return frame

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes or self._is_complete)
            size = min(len(buffer), len(self._bytes))
            buffer[:size] = self._bytes[:size]
            del self._bytes[:size]
            return size

    def _read(self, live: Live) -> None:
        try:
            for frame in live:
                self._frames.put(frame)
            self._frames.put(None)
        except PicknetError as error:
            self._frames.put(error)
        except MemoryError:
            os._exit(1)  # the parent notices


def _pixels_of(content: bytes) -> Pixels:
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG", "WEBP")) as picture:
            check_pixels(picture.width, picture.height, "picture", what="it has")
            return np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    except UnreadableVideo:
        raise
    except Exception as error:  # Pillow's readers raise errors of every kind on damage
        raise UnreadablePicture("picture: cannot be read; JPEG, PNG and WebP are possible") from error
