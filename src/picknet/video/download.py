"""A finite file at an http(s) address, downloaded once: then it is read like any other file."""

import base64
import contextlib
import http.client
import math
import shutil
import socket
import ssl
import tempfile
import threading
import time
import urllib.error
from collections.abc import Callable
from typing import IO, Any, Self
from urllib.parse import quote, unquote, urlsplit
from urllib.request import (
    AbstractHTTPHandler,
    BaseHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPRedirectHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from picknet.errors import PicknetError
from picknet.video.source import UnreadableVideo, without_password

_CHUNK = 1 << 18
_MIN_BYTES_PER_SECOND = 4096
"""A slower server is given up: one that sends a byte now and then would never run into the timeout."""
_ANSWER_TIMEOUTS = 3
"""Times the timeout, for redirects and headers, and for a host one of whose addresses does not answer."""
_URL_CHARACTERS = "/%:@!$&'()*+,;=~-._?"


def download(address: str, *, timeout: float) -> IO[bytes]:
    """Download a file into an unnamed temporary file, which disappears when it is closed.

    Downloading before decoding costs disk space, but every pass over the frames would otherwise download the file
    again, and servers without byte ranges could not serve an MP4 whose index is at its end.

    timeout: seconds to wait for a connection, and for each next piece of data. A slow server is given up: before the
        file begins, after `_ANSWER_TIMEOUTS` times this time; then, after this time, when it is slower than
        `_MIN_BYTES_PER_SECOND` on average.
    """
    seconds = _ANSWER_TIMEOUTS * timeout

    def connect(connection: http.client.HTTPConnection) -> None:
        http.client.HTTPConnection.connect(connection)
        deadline.watch(connection.sock)

    with Deadline(seconds, f"the file did not begin within {seconds:g} s") as deadline:
        opener = http_opener(ProxyHandler(), http_handler(connect))
        return download_with(opener, address, timeout=timeout, deadline=deadline, on_answer=deadline.cancel)


def download_with(
    opener: OpenerDirector,
    address: str,
    *,
    timeout: float,
    deadline: "Deadline",
    into: IO[bytes] | None = None,
    max_bytes: int | None = None,
    on_answer: Callable[[], object] = lambda: None,
) -> IO[bytes]:
    """The same with an opener whose connections the deadline watches.

    into: a file to write to instead. max_bytes: a larger file is refused. on_answer: called before the file is read.
    """
    name = without_password(address)
    try:
        with opener.open(_request(address), timeout=timeout) as response:
            on_answer()
            if response.length is None:
                raise UnreadableVideo(
                    f"{name}: the server gives no length, so it may have no end; `stream` describes such an address"
                )
            if max_bytes is not None and response.length > max_bytes:
                raise UnreadableVideo(f"{name}: has {response.length:,} bytes; at most {max_bytes:,} are possible")
            if into is not None:
                _save(response, response.length, name, into, timeout=timeout)
                return into
            return _saved(response, response.length, name, timeout=timeout)
    except Exception as error:  # the HTTP stack raises OSError, ValueError and errors of its own
        if deadline.is_over:  # whatever a connection that was ended looks like
            reason = deadline.reason
        elif isinstance(error, PicknetError):
            raise
        else:
            reason = _reason(error, timeout)
    # Outside of the block: the errors of the HTTP stack may contain the address.
    raise UnreadableVideo(f"{name}: {reason}")


class Deadline:
    """Ends connections when the time is over, whatever they wait for: a server could send a byte now and then."""

    def __init__(self, seconds: float, reason: str) -> None:
        """seconds: from entering the context. reason: what is told when it is over."""
        self.reason = reason
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._end = math.inf
        self._timer = threading.Timer(self._seconds, self.end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._end = min(self._end, time.monotonic() + self._seconds)
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for connected in self._sockets:
                connected.close()

    @property
    def is_over(self) -> bool:
        return self.seconds_left() == 0

    def seconds_left(self) -> float:
        return max(self._end - time.monotonic(), 0.0)

    def watch(self, connected: socket.socket) -> None:
        with self._lock:
            self._sockets.append(connected.dup())  # TLS takes the original over
        if self.is_over:
            self.end()

    def end(self, reason: str = "") -> None:
        """End it now. May be called from any thread, also before it began."""
        self.reason = reason or self.reason
        self._end = 0.0
        with self._lock:
            for connected in self._sockets:
                with contextlib.suppress(OSError):  # it is not connected, or not any more
                    connected.shutdown(socket.SHUT_RDWR)

    def cancel(self) -> None:
        """From now on there is no limit."""
        self._timer.cancel()
        if not self.is_over:
            self._end = math.inf


def _saved(response: http.client.HTTPResponse, length: int, name: str, *, timeout: float) -> IO[bytes]:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if length > free:
        raise UnreadableVideo(
            f"{name}: {length / 1e6:,.0f} MB do not fit into {tempfile.gettempdir()} ({free / 1e6:,.0f} MB free)"
        )
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
    try:
        _save(response, length, name, file, timeout=timeout)
    except BaseException:
        file.close()
        raise
    return file


def _save(response: http.client.HTTPResponse, length: int, name: str, file: IO[bytes], *, timeout: float) -> None:
    start = time.monotonic()
    while chunk := response.read1(_CHUNK):
        file.write(chunk)
        seconds = time.monotonic() - start
        if seconds > timeout and file.tell() < length and file.tell() < seconds * _MIN_BYTES_PER_SECOND:
            raise UnreadableVideo(
                f"{name}: slower than {_MIN_BYTES_PER_SECOND:,} bytes a second: "
                f"{file.tell():,} of {length:,} bytes after {seconds:.1f} s"
            )
    if file.tell() < length:
        raise UnreadableVideo(f"{name}: the connection broke off after {file.tell():,} of {length:,} bytes")


def http_opener(*handlers: BaseHandler) -> OpenerDirector:
    """Follows redirects to http and https only; the default one of urllib knows ftp:, file: and data: as well.

    handlers: those that connect.
    """
    opener = OpenerDirector()
    for handler in handlers:
        opener.add_handler(handler)
    for answer in (_Redirects, HTTPDefaultErrorHandler, HTTPErrorProcessor, UnknownHandler):
        opener.add_handler(answer())
    return opener


class _RefusedCertificate(OSError):
    """A server that may be another one."""


def http_handler(connect: Callable[[http.client.HTTPConnection], object]) -> AbstractHTTPHandler:
    """What connects on behalf of urllib. connect: gives a connection its socket, to which TLS is added if needed."""

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            connect(self)

    class Encrypted(http.client.HTTPSConnection, Plain):
        """Connects as above; the certificate has to be that of the host's name."""

        def connect(self) -> None:
            try:
                super().connect()
            except ssl.SSLCertVerificationError as error:
                host = self._tunnel_host or self.host  # type: ignore[attr-defined]  # behind a proxy, or without one
                raise _RefusedCertificate(
                    f"the certificate of {host} is refused ({error.verify_message}); SSL_CERT_FILE can name a file of "
                    "certificates to trust"
                ) from None

    class Handler(AbstractHTTPHandler):
        def http_open(self, request: Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, request)

        def https_open(self, request: Request) -> http.client.HTTPResponse:
            return self.do_open(Encrypted, request)

        http_request = https_request = AbstractHTTPHandler.do_request_

    return Handler()


class _Redirects(HTTPRedirectHandler):
    def http_error_302(self, req: Request, fp: Any, code: int, msg: str, headers: Any) -> Any:
        fp.close()  # its body would be read as a whole, and may have no end
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        parts = urlsplit(newurl)  # a user name in it is neither used nor shown
        newurl = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _request(address: str) -> Request:
    parts = urlsplit(address)
    path = quote(parts._replace(scheme="", netloc="", fragment="").geturl(), safe=_URL_CHARACTERS)
    request = Request(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}", headers={"User-Agent": "picknet"})
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        # Not sent to another host after a redirect.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(credentials).decode()}")
    return request


def _reason(error: Exception, timeout: float) -> str:
    """What went wrong, without the address."""
    if isinstance(error, urllib.error.HTTPError):
        if error.code in (401, 403):
            return "access denied: the user name or the password is missing or wrong"
        return f"the server answers {error.code} ({http.client.responses.get(error.code, 'unknown status')})"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, _RefusedCertificate):
        return str(cause)
    if isinstance(cause, TimeoutError):
        return f"no data for {timeout:g} s"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(cause, ValueError | http.client.InvalidURL):
        return "not a valid address"
    if isinstance(cause, OSError):
        return f"cannot be downloaded ({cause.strerror or type(cause).__name__})"
    return "cannot be downloaded (the server does not speak HTTP, or redirects elsewhere)"
