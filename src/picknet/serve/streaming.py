"""Live captions over a WebSocket: pictures come in, an update goes out after every pick.

A client that sends faster than the model works is held back: no more than `MAX_WAITING` pictures are taken from its
connection before they are looked at. Nothing is stored.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

from fastapi import WebSocket

from picknet.errors import PicknetError
from picknet.serve.guard import TOKEN_PROTOCOL, error_body
from picknet.serve.service import Service
from picknet.video.frame import Frame

MAX_WAITING = 2
PATIENCE = 60.0
"""Seconds without a picture after which a stream is closed."""
PICTURE_SECONDS = 5.0
"""For decoding one picture."""
POLL_SECONDS = 0.5

TRY_AGAIN_LATER, BAD_DATA, GOING_AWAY, NORMAL = 1013, 1007, 1001, 1000


async def follow(
    service: Service, socket: WebSocket, *, fps: float | None, rate: float, min_confidence: float | None
) -> None:
    """Describe a client's pictures until it says "end", goes away, or sends nothing for a while.

    fps: the pictures are 1/fps seconds apart; None for the time at which they arrive.
    """
    protocols = socket.headers.get("sec-websocket-protocol", "").split(",")
    offered = next((one.strip() for one in protocols if one.strip().startswith(TOKEN_PROTOCOL)), None)
    await socket.accept(subprotocol=offered)
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


class _Stream:
    def __init__(self, service: Service, socket: WebSocket, fps: float | None) -> None:
        self._service = service
        self._socket = socket
        self._fps = fps
        self._loop = asyncio.get_running_loop()
        self._pictures: asyncio.Queue[tuple[bytes, float] | None] = asyncio.Queue(MAX_WAITING)
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
                    except (RuntimeError, OSError):  # the client has gone; the reader ends the stream
                        is_gone = True
            await describing
            self._is_over = True
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        with contextlib.suppress(RuntimeError, OSError):
            await self._socket.close(self._code, self._reason)

    async def _read(self) -> None:
        """Queue the client's pictures until it ends."""
        start: float | None = None
        last = time.monotonic()
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            while not self._service.is_stopping.is_set():
                done, _ = await asyncio.wait({receiving}, timeout=POLL_SECONDS)
                now = time.monotonic()
                if not done:
                    if now - last > PATIENCE:
                        self._code, self._reason = TRY_AGAIN_LATER, f"no picture for {PATIENCE:g} s"
                        return
                    continue
                message = receiving.result()
                content = message.get("bytes")
                if message["type"] == "websocket.disconnect" or content is None:
                    return  # any text is an end
                start, last = now if start is None else start, now
                await self._pictures.put((content, now - start))
                receiving = asyncio.ensure_future(self._socket.receive())
            self._code, self._reason = GOING_AWAY, "the service is stopping"
        finally:
            receiving.cancel()
            if not self._is_over:
                await self._pictures.put(None)

    # --- In a thread of its own ---

    def _describe(self, rate: float, min_confidence: float | None) -> None:
        try:
            picker = self._service.captioner.picker_at(rate, spread=False)
            for update in self._service.captioner.stream(self._frames(), picker=picker, min_confidence=min_confidence):
                self._service.metrics.picks.inc()
                self._say(update.to_dict())
        except PicknetError as error:
            self._code, self._reason = BAD_DATA, "a picture or a setting was not usable"
            self._say(error_body(422, str(error)))
        finally:
            self._say(None)

    def _frames(self) -> Iterator[Frame]:
        index = 0
        while (picture := self._next()) is not None:
            content, arrived = picture
            pixels = self._service.decoders.picture(content, seconds=PICTURE_SECONDS)
            yield Frame.from_pixels(pixels, index=index, seconds=index / self._fps if self._fps else arrived)
            index += 1

    def _next(self) -> tuple[bytes, float] | None:
        # The reader is the one that loses patience; the limit here is for a loop that has stopped.
        return asyncio.run_coroutine_threadsafe(self._pictures.get(), self._loop).result(2 * PATIENCE)

    def _say(self, update: dict[str, Any] | None) -> None:
        self._loop.call_soon_threadsafe(self._updates.put_nowait, update)
