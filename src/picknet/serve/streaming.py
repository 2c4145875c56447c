"""Live captions over a WebSocket: pictures or the bytes of a video come in, an update goes out after every pick.

A client that sends faster than the model works is held back: no more than `MAX_WAITING` messages are taken from its
connection before they are looked at. Nothing is stored.
"""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Iterator
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect

from picknet.errors import PicknetError
from picknet.picking.picker import Picker, glance_kind
from picknet.serve.decoding import RemoteLive, TooSlow
from picknet.serve.guard import TOKEN_PROTOCOL, error_body, status_of
from picknet.serve.service import Service
from picknet.video.frame import Frame

MAX_WAITING = 2
MAX_WAITING_BYTES = 4 << 20
"""Of a video: that the decoder has not read."""
PATIENCE = 60.0
"""Seconds without a message after which a stream is closed."""
ANSWER_SECONDS = 15.0
"""For decoding one picture, and for taking a piece of a video."""
POLL_SECONDS = 0.5
FRAME_POLL_SECONDS = 0.05
"""How often the decoder is asked for frames while no piece of a video arrives."""
VIDEO_FPS = 1.0
"""Frames a second to look at, by default, as `picknet stream` does."""

TRY_AGAIN_LATER, BAD_SETTING, BAD_DATA, GOING_AWAY, NORMAL = 1013, 1008, 1007, 1001, 1000

_GONE = (WebSocketDisconnect, RuntimeError, OSError)
"""What sending to a client raises that has gone."""

Arrival = tuple[bytes, float]
"""A message, and the seconds since the first one."""


async def follow(
    service: Service, socket: WebSocket, *, fps: float | None, rate: float, min_confidence: float | None
) -> None:
    """Describe what a client sends until it says "end", goes away, or sends nothing for a while.

    fps: pictures are 1/fps seconds apart, by default by the time at which they arrive; of a video, frames a second to
    look at.
    """
    await _accept(socket)
    gauge = service.metrics.open_streams
    if service.is_stopping.is_set() or not service.take_stream():
        await socket.close(TRY_AGAIN_LATER, "too many streams, or the service is stopping; try again later")
        return
    gauge.inc()
    try:
        await _Stream(service, socket, fps).run(rate=rate, min_confidence=min_confidence)
    finally:
        service.release_stream()
        gauge.dec()


async def refuse(socket: WebSocket, status: int, message: str) -> None:
    """Tell a client why there is no stream, once it is accepted: a browser shows pages nothing of a refusal."""
    with contextlib.suppress(*_GONE):
        await _accept(socket)
        await socket.send_json(error_body(status, message))
        await socket.close(BAD_SETTING, "a setting is not possible")


async def _accept(socket: WebSocket) -> None:
    protocols = socket.headers.get("sec-websocket-protocol", "").split(",")
    offered = next((one.strip() for one in protocols if one.strip().startswith(TOKEN_PROTOCOL)), None)
    await socket.accept(subprotocol=offered)


class _Stream:
    def __init__(self, service: Service, socket: WebSocket, fps: float | None) -> None:
        self._service = service
        self._socket = socket
        self._fps = fps
        self._loop = asyncio.get_running_loop()
        self._arrivals: asyncio.Queue[Arrival | None] = asyncio.Queue(MAX_WAITING)
        self._asked: concurrent.futures.Future[Arrival | None] | None = None
        self._updates: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._is_over = False
        self._code, self._reason = NORMAL, ""

    async def run(self, *, rate: float, min_confidence: float | None) -> None:
        describing = self._loop.run_in_executor(self._service.stream_pool, self._describe, rate, min_confidence)
        reading = asyncio.create_task(self._read())
        is_gone = False
        try:
            while (update := await self._updates.get()) is not None:
                if not is_gone:
                    try:
                        await self._socket.send_json(update)
                    except _GONE:  # the reader ends the stream
                        is_gone = True
            await describing
            self._is_over = True
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        with contextlib.suppress(*_GONE):
            await self._socket.close(self._code, self._reason)

    async def _read(self) -> None:
        """Queue what the client sends until it ends."""
        start: float | None = None
        last = time.monotonic()
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            while not self._service.is_stopping.is_set():
                done, _ = await asyncio.wait({receiving}, timeout=POLL_SECONDS)
                now = time.monotonic()
                if not done:
                    if now - last > PATIENCE:
                        self._code, self._reason = TRY_AGAIN_LATER, f"nothing was sent for {PATIENCE:g} s"
                        return
                    continue
                message = receiving.result()
                content = message.get("bytes")
                if message["type"] == "websocket.disconnect" or content is None:
                    return  # any text is an end
                start, last = now if start is None else start, now
                await self._arrivals.put((content, now - start))
                receiving = asyncio.ensure_future(self._socket.receive())
            self._code, self._reason = GOING_AWAY, "the service is stopping"
        finally:
            receiving.cancel()
            if not self._is_over:
                await self._arrivals.put(None)

    # --- In a thread of its own ---

    def _describe(self, rate: float, min_confidence: float | None) -> None:
        captioner = self._service.captioner
        try:
            # The last pick may come after the last frame, so the decoder is closed later than that.
            with contextlib.ExitStack() as opened:
                picker = captioner.picker_at(rate, spread=False)
                frames = self._frames(picker, opened)
                for update in captioner.stream(frames, picker=picker, min_confidence=min_confidence):
                    self._service.metrics.picks.inc()
                    self._say(update.to_dict())
        except PicknetError as error:
            status = status_of(error)
            if status == 400:
                self._code, self._reason = BAD_SETTING, "a setting is not possible"
            else:
                self._code, self._reason = BAD_DATA, "what was sent is not usable"
            self._say(error_body(status, str(error)))
        finally:
            self._say(None)

    def _frames(self, picker: Picker, opened: contextlib.ExitStack) -> Iterator[Frame]:
        first = self._next()
        if first is None:
            return
        if _is_picture(first[0]):
            yield from self._of_pictures(first)
        else:
            fps = self._fps or VIDEO_FPS
            live = self._service.stream_decoders.live(
                name="stream", seconds=ANSWER_SECONDS, fps=fps, glance=glance_kind(picker)
            )
            yield from self._of_video(first[0], opened.enter_context(live))

    def _of_pictures(self, arrival: Arrival | None) -> Iterator[Frame]:
        index = 0
        while arrival is not None:
            content, seconds = arrival
            pixels = self._service.stream_decoders.picture(content, seconds=ANSWER_SECONDS)
            yield Frame.from_pixels(pixels, index=index, seconds=index / self._fps if self._fps else seconds)
            index += 1
            arrival = self._next()

    def _of_video(self, first: bytes, video: RemoteLive) -> Iterator[Frame]:
        video.send(first)
        is_complete, last = False, time.monotonic()
        while not video.is_over:
            frame = video.take(wait=FRAME_POLL_SECONDS if is_complete else 0.0)
            if frame is not None:
                last = time.monotonic()
                yield frame
            elif is_complete:
                if time.monotonic() - last > PATIENCE:
                    raise TooSlow(f"stream: took longer than {PATIENCE:g} s to decode, which is the limit")
            elif video.waiting > MAX_WAITING_BYTES:
                time.sleep(FRAME_POLL_SECONDS)
            else:
                with contextlib.suppress(TimeoutError):
                    arrival = self._next(FRAME_POLL_SECONDS)
                    is_complete, last = arrival is None, time.monotonic()
                    video.end() if arrival is None else video.send(arrival[0])

    def _next(self, seconds: float = 2 * PATIENCE) -> Arrival | None:
        """The next message; None at the end. TimeoutError if there is none within so many seconds.

        The reader is the one that loses patience; the default is for a loop that has stopped.
        """
        if self._asked is None:
            self._asked = asyncio.run_coroutine_threadsafe(self._arrivals.get(), self._loop)
        arrival = self._asked.result(seconds)
        self._asked = None
        return arrival

    def _say(self, update: dict[str, Any] | None) -> None:
        self._loop.call_soon_threadsafe(self._updates.put_nowait, update)


def _is_picture(content: bytes) -> bool:
    """Whether the first message is a JPEG, PNG or WebP."""
    return content.startswith((b"\xff\xd8\xff", b"\x89PNG")) or (content[:4] == b"RIFF" and content[8:12] == b"WEBP")
