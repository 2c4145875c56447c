"""Connections: those that send no request, or do not read their answer, are closed, and so are too many; streams end
in order."""

import asyncio
import contextlib
import json
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from picknet.serve.guard import MIN_BYTES_PER_SECOND, RETRY_SECONDS, error_body

PATIENCE = 30.0
"""Seconds for the headers of a request, and in which an answer has to be read at `MIN_BYTES_PER_SECOND`."""
SEND_BUFFER = 1 << 18
"""Bytes, of the system. It asks for more once a third of it has been read: a larger one would hide how fast a client
reads."""

_REFUSAL = json.dumps(error_body(429, "too many connections; try again later"))
_TOO_MANY = (
    f"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: {len(_REFUSAL)}\r\n"
    f"retry-after: {RETRY_SECONDS}\r\nconnection: close\r\n\r\n{_REFUSAL}"
).encode()


class Connection(H11Protocol):
    """uvicorn limits none of this: without it, a thousand clients that do nothing stop the service for everybody."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None  # uvicorn's own comes too late
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            transport.write(_TOO_MANY)
            transport.close()
            return
        with contextlib.suppress(OSError):  # the client has gone, on macOS
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._unwatch()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._unwatch()
        unread = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(PATIENCE, self._check, unread)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self, unread_before: int) -> None:
        is_at_work = self.cycle is not None and not self.cycle.response_complete
        if is_at_work and not self.flow.write_paused:
            return  # the guard limits what arrives
        unread = self.transport.get_write_buffer_size()
        if 0 < unread <= unread_before - PATIENCE * MIN_BYTES_PER_SECOND:
            self._watch()  # a long answer is being read
        else:
            self.transport.abort()


class StreamConnection(WebSocketsSansIOProtocol):
    """uvicorn would cut off streams when the service stops, before they have said what they know."""

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            super().shutdown()  # an open stream notices by itself that the service stops, and closes
