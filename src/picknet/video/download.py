"""A finite file at an http(s) address, downloaded once: then it is read like any other file."""

import base64
import http.client
import shutil
import tempfile
import time
import urllib.error
from typing import IO
from urllib.parse import quote, unquote, urlsplit
from urllib.request import (
    BaseHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
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
_URL_CHARACTERS = "/%:@!$&'()*+,;=~-._?"


def download(
    address: str,
    *,
    timeout: float,
    into: IO[bytes] | None = None,
    max_bytes: int | None = None,
    opener: OpenerDirector | None = None,
) -> IO[bytes]:
    """Download a file into an unnamed temporary file, which disappears when it is closed.

    Downloading before decoding costs disk space, but every pass over the frames would otherwise download the file
    again, and servers without byte ranges could not serve an MP4 whose index is at its end.

    timeout: seconds to wait for a connection, and for each next piece of data; after this time, the download is given
        up when it is slower than `_MIN_BYTES_PER_SECOND` on average.
    into: a file to write to instead. max_bytes: a larger file is refused. opener: instead of one that follows
        redirects to any host.
    """
    name = without_password(address)
    try:
        with (opener or http_opener(ProxyHandler(), HTTPHandler(), HTTPSHandler())).open(
            _request(address), timeout=timeout
        ) as response:
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
    except PicknetError:
        raise
    except Exception as error:  # noqa: BLE001 - the HTTP stack raises OSError, ValueError and errors of its own
        reason = _reason(error, timeout)
    # Outside of the block: the errors of the HTTP stack may contain the address.
    raise UnreadableVideo(f"{name}: {reason}")


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
    for answer in (HTTPRedirectHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor, UnknownHandler):
        opener.add_handler(answer())
    return opener


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
    if isinstance(cause, TimeoutError):
        return f"no data for {timeout:g} s"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(cause, ValueError | http.client.InvalidURL):
        return "not a valid address"
    if isinstance(cause, OSError):
        return f"cannot be downloaded ({cause.strerror or type(cause).__name__})"
    return "cannot be downloaded (the server does not speak HTTP, or redirects elsewhere)"
