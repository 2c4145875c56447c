"""What every request has to pass before anything of it is read: host, origin, token, size, pace, and a free place.

It is ASGI middleware around the application, so that nothing of a refused request is parsed.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.exceptions import HTTPException

from picknet.config import BadConfig
from picknet.errors import BadSetting, PicknetError
from picknet.picking.picker import BadPicker
from picknet.serve.fetching import STOPPING, Stopping
from picknet.serve.jobs import Busy
from picknet.serve.service import NoSpace, NoSuchFile, Service
from picknet.serve.web import PAGE_FILES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/healthz", "/readyz", *PAGE_FILES})
"""For load balancers, which have no token and learn nothing but yes or no, and for the page, which asks for it."""
UPLOAD_PATIENCE = 30.0
"""Seconds without a byte after which an upload is given up."""
MIN_BYTES_PER_SECOND = 4096
"""After that time, a slower upload is given up as well: a byte now and then would hold its place for ever."""
DISCARDED_BYTES, DISCARD_SECONDS = 2**22, 2.0
"""How much of a refused request is read, and for how long: a client that still sends when the connection closes loses
the answer."""
RETRY_SECONDS = 2
"""After which a client may try again."""
TOKEN_PROTOCOL = "picknet.token."
"""A browser cannot set headers of a WebSocket, so the token may be a subprotocol: this and the token, percent-encoded:
a subprotocol may not hold `/` or `=`."""

_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "upload_too_slow",
    409: "not_finished",
    413: "too_large",
    416: "bad_range",
    422: "unusable_video",
    429: "busy",
    500: "internal_error",
    503: "stopping",
    507: "no_space",
}


def status_of(error: PicknetError) -> int:
    """The status of an answer that tells this error."""
    if isinstance(error, BadSetting | BadConfig | BadPicker):
        return 400
    special = {NoSuchFile: 404, Busy: 429, Stopping: 503, NoSpace: 507}
    return next((status for kind, status in special.items() if isinstance(error, kind)), 422)


def error_body(status: int, message: str) -> dict[str, Any]:
    """What every error looks like."""
    sendable = message.encode("utf-8", "backslashreplace").decode()  # it may hold half a character from a client
    return {"error": {"code": _CODES.get(status, "error"), "message": sendable}}


class Refused(HTTPException):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        headers = {}
        if status in (429, 503):
            headers["retry-after"] = str(RETRY_SECONDS)
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        if status in (401, 403, 408, 413, 429, 503):
            headers["connection"] = "close"  # the rest of the body is not read, or only a little of it
        super().__init__(status, message, headers)


class Guard:
    """The application behind all checks; with counts of requests and security headers on every answer."""

    def __init__(
        self, app: App, service: Service, *, token: str | None = None, hosts: Collection[str] | None = None
    ) -> None:
        """token: that clients must send. hosts: the names by which they may call the service; None for any."""
        self._app = app
        self._service = service
        self._token = token
        self._hosts = hosts
        self._num_open = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except Refused as refused:
            await receive()
            # Closed before it is accepted: the client gets a 403, and no more.
            await send({"type": "websocket.close", "code": 1008, "reason": refused.detail})
            return
        await self._app(scope, receive, send)

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        start = time.monotonic()
        status = 0

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(one for one in added if one[0] not in present)]
            await send(message)

        takes_place = scope["method"] == "POST"
        body = _Body(receive, self._service.limits.upload)
        try:
            self._check(scope)
            if takes_place:
                self._check_place(body, scope)
                self._count(+1)
            try:
                await self._app(scope, body.receive, counted_send)
            finally:
                if takes_place:
                    self._count(-1)
        except Refused as refused:
            if status:
                raise  # an answer has begun
            await body.discard(scope)
            await _answer(counted_send, refused)
        except asyncio.CancelledError:
            if not self._service.is_stopping.is_set():
                raise
            if not status:  # what has begun to be answered breaks off
                await _answer(counted_send, Refused(503, STOPPING))
        finally:
            endpoint = _endpoint(scope)
            self._service.metrics.requests.labels(endpoint, str(status)).inc()
            self._service.metrics.request_seconds.labels(endpoint).observe(time.monotonic() - start)

    def _check(self, scope: Message) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            host_name, site = urlsplit(f"//{host}").hostname, origin and urlsplit(origin).netloc
        except ValueError:
            raise Refused(400, "the header Host or Origin is not an address") from None
        if self._hosts is not None and host_name not in self._hosts:
            # Another name for this machine's own address is how a web page gets at services of its visitors.
            raise Refused(403, f"the host name is not one of {', '.join(sorted(self._hosts))}")
        if origin is not None and site != host:
            raise Refused(403, "requests from pages of other sites are not answered")
        if self._token is None or scope["path"] in OPEN_PATHS:
            return
        if not secrets.compare_digest(_token(headers).encode(), self._token.encode()):
            raise Refused(401, "a token is needed: send the header 'Authorization: Bearer TOKEN'")

    def _check_place(self, body: "_Body", scope: Message) -> None:
        if self._service.is_stopping.is_set():
            raise Refused(503, STOPPING)
        limits = self._service.limits
        if self._num_open >= limits.num_workers + limits.queue:
            raise Refused(429, f"{self._num_open} requests are waiting, which is the limit; try again later")
        length = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"0")
        if length.isdigit() and int(length) > limits.upload:
            raise body.too_large()

    def _count(self, change: int) -> None:
        self._num_open += change
        self._service.metrics.open_requests.set(self._num_open)


class _Body:
    """The body of a request, whose size and pace are watched while it arrives."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._is_complete = False
        self._began = time.monotonic()

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), UPLOAD_PATIENCE)
        except TimeoutError:
            raise Refused(408, f"no byte of the upload arrived for {UPLOAD_PATIENCE:g} s") from None
        self._num_bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._num_bytes > self._max_bytes:
            raise self.too_large()
        seconds = time.monotonic() - self._began
        if not self._is_complete and seconds > UPLOAD_PATIENCE and self._num_bytes < seconds * MIN_BYTES_PER_SECOND:
            raise Refused(408, f"the upload is slower than {MIN_BYTES_PER_SECOND:,} bytes a second")
        return message

    async def discard(self, scope: Message) -> None:
        """Read some of what has not been read."""
        if not self._num_bytes and any(name.lower() == b"expect" for name, _ in scope["headers"]):
            return  # the client waits for a word before it sends anything
        num_bytes = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self._is_complete and num_bytes < DISCARDED_BYTES:
                    message = await self._receive()
                    num_bytes += len(message.get("body", b""))
                    self._is_complete = not message.get("more_body", False)

    def too_large(self) -> Refused:
        return Refused(413, f"the request is larger than {self._max_bytes:,} bytes, which is the limit")


def _token(headers: MutableMapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    protocols = (protocol.strip() for protocol in headers.get("sec-websocket-protocol", "").split(","))
    tokens = (unquote(one.removeprefix(TOKEN_PROTOCOL)) for one in protocols if one.startswith(TOKEN_PROTOCOL))
    return next(tokens, "")


def _endpoint(scope: Message) -> str:
    """The path of a route, so that clients cannot add to the number of figures."""
    route = scope.get("route")
    return getattr(route, "path", "other")


async def _answer(send: Send, refused: Refused) -> None:
    content = json.dumps(error_body(refused.status_code, refused.detail)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(content)), **(refused.headers or {})}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status_code, "headers": encoded})
    await send({"type": "http.response.body", "body": content})
