"""Videos from strangers, decoded in child processes with limits on time and memory.

A child decodes one video at a time and answers questions about it: the next sampled frame, the pixels of a frame. The
model stays in the service's process. A child that is too slow or dies costs the request that it worked for; the next
one gets a new child.

Answers are JSON and raw bytes, never pickles, so that a child that a file has taken over cannot run code in its parent.
"""

import contextlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import LifoQueue
from typing import Any

import numpy as np

from picknet.config import GlanceKind
from picknet.errors import PicknetError
from picknet.serve.child import Pixels, decode
from picknet.video.file import Video
from picknet.video.frame import Frame, NoSuchGlance
from picknet.video.pictures import UnreadablePicture
from picknet.video.source import UnreadableVideo

Check = Callable[[], None]
"""Raises an error once the work is not wanted any more."""

CHECK_SECONDS = 0.25
"""How often `Check` is asked while a child is at work."""
FRAMES_AT_ONCE = 4
"""Samples that an answer has: a question for each would take longer than the glance."""
START_SECONDS = 60.0
"""For a child to start, on a machine that is busy."""
MAX_ANSWER_BYTES = 1 << 30
GIB = 1 << 30


class TooSlow(PicknetError):
    """A video that took longer to decode than is allowed."""


class LostDecoder(PicknetError):
    """A video whose decoder died: of a bug that the file triggers, or of too little memory."""


class Decoders:
    """Child processes that decode, each started when it is first needed and again after its death. Thread-safe."""

    def __init__(self, count: int, *, memory: int = 2 * GIB) -> None:
        """memory: bytes that a child may allocate, beyond what Python and its libraries take."""
        self._all = [_Decoder(memory) for _ in range(count)]
        self._idle: LifoQueue[_Decoder] = LifoQueue()  # one that has started is used before another is started
        for decoder in self._all:
            self._idle.put(decoder)

    def start(self) -> None:
        """Start all children in the background, so that the first requests need not wait for them."""
        for decoder in self._all:
            decoder.launch()

    def close(self) -> None:
        for decoder in self._all:
            decoder.end()

    @contextlib.contextmanager
    def video(
        self,
        path: str | os.PathLike[str],
        *,
        name: str,
        seconds: float,
        glance: GlanceKind = "grey",
        threads: int = 0,
        check: Check = lambda: None,
        on_frame: Callable[[float], object] = lambda seconds: None,
    ) -> "Iterator[RemoteVideo]":
        """A video file, open within the block.

        name: what results and messages call it. seconds: that it may take, the whole block included. threads: that
        decode; 0 for one on each core.
        on_frame: called with the seconds of every frame that is sampled.
        """
        with self._questions(name, seconds, check) as ask:
            video = RemoteVideo(ask, os.fspath(path), name=name, glance=glance, threads=threads, on_frame=on_frame)
            try:
                yield video
            finally:
                video.close()

    def picture(self, content: bytes, *, seconds: float) -> Pixels:
        """The content of a picture file: RGB (H, W, 3)"""
        with self._questions("picture", seconds, lambda: None) as ask:
            return ask("picture", attached=content).pixels()

    @contextlib.contextmanager
    def live(self, *, name: str, seconds: float, fps: float, glance: GlanceKind = "grey") -> "Iterator[RemoteLive]":
        """A video that is sent piece by piece within the block.

        seconds: that each answer of the child may take. fps: frames a second to sample.
        """
        with self._questions(name, seconds, lambda: None, each=True) as ask:
            try:
                yield RemoteLive(ask, name=name, fps=fps, glance=glance)
            finally:
                ask.abandon()

    @contextlib.contextmanager
    def _questions(
        self, name: str, seconds: float, check: Check, *, each: bool = False
    ) -> "Iterator[_Questions]":
        decoder = self._idle.get()
        try:
            decoder.end_if_dead()
            yield _Questions(decoder, name, seconds, check, each=each)
        finally:
            self._idle.put(decoder)


class _Remote:
    """Frames in a child process. They stay there, each for as long as something here refers to it."""

    def __init__(self, ask: "_Questions") -> None:
        self._ask = ask
        self._released: list[int] = []
        self.decoding_seconds = 0.0
        """Time spent waiting for the child."""

    def asked(self, what: str, **arguments: Any) -> "_Answer":
        start = time.monotonic()
        try:
            return self._ask(what, **arguments)
        finally:
            self.decoding_seconds += time.monotonic() - start

    def release(self, number: int) -> None:
        self._released.append(number)

    def _frames(self, what: str, **arguments: Any) -> "tuple[list[RemoteFrame], Any]":
        """The frames of an answer, and its other facts."""
        released, self._released = self._released, []
        answer = self.asked(what, released=released, **arguments)
        glances = zip(*answer.arrays, strict=True)
        about = zip(answer.value["frames"], glances, strict=True)
        return [RemoteFrame(self, facts, *seen) for facts, seen in about], answer.value


class RemoteVideo(_Remote, Video):
    """A `Video` in a child process."""

    def __init__(
        self,
        ask: "_Questions",
        path: str,
        *,
        name: str,
        glance: GlanceKind,
        threads: int,
        on_frame: Callable[[float], object],
    ) -> None:
        super().__init__(ask)
        self._on_frame = on_frame
        self._last_damage: str | None = None
        self.name = name
        ask.hidden = path
        about = self.asked("open", path=path, glance=glance, threads=threads).value
        self.seconds: float | None = about["seconds"]
        self.begin: float = about["begin"]
        self.fps, self.width, self.height = about["fps"], about["width"], about["height"]

    def close(self) -> None:
        self._ask.finish()

    @property
    def damage(self) -> str | None:
        return self._last_damage

    @property
    def length(self) -> float:
        return self.seconds or float(self.asked("length").value)

    def num_samples(self, count: int) -> int:
        return int(self.asked("num_samples", count=count).value)

    def sample_evenly(self, *, count: int = 30, only: Collection[int] | None = None) -> Iterator[Frame]:
        return self._sampled("sample_evenly", count=count, only=None if only is None else sorted(only))

    def sample_by_time(self, *, fps: float = 1.0, only: Collection[int] | None = None) -> Iterator[Frame]:
        return self._sampled("sample_by_time", fps=fps, only=None if only is None else sorted(only))

    def sample_sparsely(self, *, fps: float = 1.0) -> Iterator[Frame]:
        return self._sampled("sample_sparsely", fps=fps)

    def _sampled(self, method: str, **arguments: Any) -> Iterator[Frame]:
        frames, about = self._frames("sample", method=method, arguments=arguments, count=FRAMES_AT_ONCE)
        while True:
            self._last_damage = about["damage"]
            while frames:
                self._on_frame(frames[0].seconds)
                yield frames.pop(0)  # nothing here refers to it any more
            if about["is_over"]:
                return
            frames, about = self._frames("next", count=FRAMES_AT_ONCE)


class RemoteLive(_Remote):
    """A video whose bytes are sent to a child process, and whose frames come back, both as they arrive."""

    def __init__(self, ask: "_Questions", *, name: str, fps: float, glance: GlanceKind) -> None:
        super().__init__(ask)
        self.is_over = False
        """Whether the last frame has been taken."""
        self.waiting = 0
        """Bytes that have been sent and not been read by the decoder."""
        self.asked("live", name=name, fps=fps, glance=glance)

    def send(self, piece: bytes) -> None:
        self.waiting = self.asked("piece", attached=piece, is_last=False).value

    def end(self) -> None:
        """All bytes have been sent."""
        self.asked("piece", is_last=True)

    def take(self, *, wait: float) -> "RemoteFrame | None":
        """The next frame if there is one within `wait` seconds."""
        frames, about = self._frames("arrived", wait=wait)
        self.is_over, self.waiting = about["is_over"], about["waiting"]
        return frames[0] if frames else None


class RemoteFrame(Frame):
    """A `Frame` in a child process: glances come with it, pixels when they are asked for."""

    __slots__ = ("_id", "_kind", "_other_glance", "_video")

    def __init__(self, video: _Remote, about: dict[str, Any], glance: Pixels, other: Pixels | None = None) -> None:
        self.index: int = about["index"]
        self.seconds: float = about["seconds"]
        self.number: int | None = about["number"]
        self._video = video
        self._id: int = about["id"]
        self._kind: GlanceKind = about["kind"]
        self._glance = glance
        self._other_glance = other

    def __del__(self) -> None:
        self._video.release(self._id)

    @property
    def is_large(self) -> bool:
        return False  # its picture is in the child

    def glance(self) -> Pixels:
        assert self._glance is not None
        return self._glance

    def glance_as(self, kind: GlanceKind) -> Pixels:
        if kind == "grey":
            return self.glance()[None]
        if kind == self._kind and self._other_glance is not None:
            return self._other_glance
        raise NoSuchGlance(f"the frame at {self.seconds:.1f} s has no {kind}: its video was opened for {self._kind}")

    def pixels(self, size: int | None = None) -> Pixels:
        return self._video.asked("pixels", id=self._id, size=size).pixels()

    def thumbnail(self, max_side: int) -> Pixels:
        return self._video.asked("thumbnail", id=self._id, max_side=max_side).pixels()


@dataclass
class _Answer:
    value: Any
    arrays: list[Pixels] = field(default_factory=list)

    def pixels(self) -> Pixels:
        return self.arrays[0]


class _Questions:
    """Questions to a child about one video: within a time, and with errors that name the video by `name`."""

    def __init__(self, decoder: "_Decoder", name: str, seconds: float, check: Check, *, each: bool = False) -> None:
        """each: the seconds are those of each question, not of all of them together."""
        self._each = each
        self._decoder = decoder
        self._name = name
        self._seconds = seconds
        self._check = check
        self._end = time.monotonic() + seconds
        self.hidden = ""
        """The path, which no message may show."""
        self._is_over = False

    def finish(self) -> None:
        """Let the child forget the video; no more questions are possible."""
        if not self._is_over and self._decoder.is_running:
            self._check = lambda: None  # a cancelled job closes its video, too
            with contextlib.suppress(TooSlow, LostDecoder):  # the child is gone, and the video with it
                self("close")
        self._is_over = True

    def abandon(self) -> None:
        """End the child, and with it whatever is still at work there."""
        self._is_over = True
        self._decoder.end()

    def __call__(self, what: str, *, attached: bytes = b"", **arguments: Any) -> _Answer:
        if self._is_over:
            raise RuntimeError(f"{self._name}: asked for {what} after it was closed")
        self._check()
        try:
            self._decoder.start()
            if self._each:
                self._end = time.monotonic() + self._seconds
            self._decoder.send({"what": what, **arguments}, attached)
            while not self._decoder.has_answer(min(CHECK_SECONDS, self._end - time.monotonic())):
                if time.monotonic() >= self._end:
                    self._decoder.end()
                    raise TooSlow(f"{self._name}: took longer than {self._seconds:g} s, which is the limit")
                self._check()
            answer = self._decoder.receive()
        except (EOFError, OSError, ValueError):
            self._decoder.end()
            raise LostDecoder(f"{self._name}: its decoder failed or needed too much memory") from None
        except TooSlow:
            raise
        except BaseException:
            self._decoder.end()  # or its answer would be taken for that to the next question
            raise
        if isinstance(answer.value, dict) and (problem := answer.value.get("error")):
            kind = UnreadablePicture if what == "picture" else UnreadableVideo
            raise kind(str(problem).replace(self.hidden, self._name) if self.hidden else str(problem))
        return answer


class _Decoder:
    """One child process."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._lock = threading.Lock()  # a service that stops ends its children from another thread
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._is_ready = False

    def launch(self) -> None:
        """Start the process, unless there is one."""
        with self._lock:
            if self._connection is not None:
                return
            context = multiprocessing.get_context("spawn")
            connection, theirs = context.Pipe()
            process = context.Process(target=decode, args=(theirs, self._memory), daemon=True)
            process.start()
            theirs.close()
            self._process, self._connection, self._is_ready = process, connection, False

    def start(self) -> None:
        """The same, and wait until it takes questions."""
        self.launch()
        if not self._is_ready:
            if not self.has_answer(START_SECONDS):
                raise EOFError
            self._opened().recv_bytes(1)
            self._is_ready = True

    @property
    def is_running(self) -> bool:
        return self._connection is not None

    def send(self, question: dict[str, Any], attached: bytes) -> None:
        connection = self._opened()
        connection.send_bytes(json.dumps({**question, "is_attached": bool(attached)}).encode())
        if attached:
            connection.send_bytes(attached)

    def has_answer(self, seconds: float) -> bool:
        return self._opened().poll(max(seconds, 0.0))

    def receive(self) -> _Answer:
        connection = self._opened()
        header = json.loads(connection.recv_bytes(MAX_ANSWER_BYTES))
        arrays = [
            np.frombuffer(connection.recv_bytes(MAX_ANSWER_BYTES), np.uint8).reshape(shape)
            for shape in header["shapes"]
        ]
        return _Answer(header["value"], arrays)

    def end_if_dead(self) -> None:
        """Forget a process that died while nothing was asked, as of too little memory on the machine: a new one is
        started.
        """
        if (process := self._process) is not None and not process.is_alive():
            self.end()

    def end(self) -> None:
        with self._lock:
            process, self._process, self._connection = self._process, None, None
        if process is not None:
            process.kill()
            process.join()

    def _opened(self) -> Connection:
        if self._connection is None:
            raise EOFError
        return self._connection
