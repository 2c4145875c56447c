"""Videos at addresses that clients name: only of hosts that the service allows, and never inside its own network.

A client could otherwise read through the service what only its machine can reach. So each connection, those after a
redirect as well, is made to an address that was looked up and checked here: what the name resolves to a moment later
does not matter.
"""

import contextlib
import http.client
import ipaddress
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import IO
from urllib.parse import urlsplit
from urllib.request import AbstractHTTPHandler, Request

from picknet.errors import BadSetting
from picknet.video.download import download, http_opener
from picknet.video.source import UnreadableVideo, without_password

STALL_SECONDS = 15.0
"""To wait for a connection, and for each next piece of data."""
PORTS = {"http": 80, "https": 443}
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")


class Hosts:
    """The hosts that clients may name, and nothing else. Thread-safe."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """allowed: names such as media.example, which allows the ports of http and https, or media.example:8080."""
        self._allowed = frozenset(_checked(entry.strip().lower()) for entry in allowed if entry.strip())
        self._at_work: set[_Deadline] = set()
        self._is_closed = False

    def fetch(self, address: str, file: IO[bytes], *, max_bytes: int, seconds: float) -> None:
        """Download a video into an open file.

        max_bytes: its size at most. seconds: that this may take, from looking up the host to the last byte.
        """
        self.check(address)
        with _Deadline(0.0 if self._is_closed else seconds) as deadline, self._counted(deadline):
            opener = http_opener(_handler(self, deadline))
            try:
                download(address, timeout=min(STALL_SECONDS, seconds), into=file, max_bytes=max_bytes, opener=opener)
            except UnreadableVideo:
                if not deadline.is_over:
                    raise
                limit = f"took longer than {seconds:g} s, which is the limit"
                reason = "the service is stopping" if self._is_closed else limit
                raise UnreadableVideo(f"{without_password(address)}: {reason}") from None

    def close(self) -> None:
        """End all downloads."""
        self._is_closed = True
        for deadline in list(self._at_work):
            deadline.end()

    @contextlib.contextmanager
    def _counted(self, deadline: "_Deadline") -> Iterator[None]:
        self._at_work.add(deadline)
        try:
            yield
        finally:
            self._at_work.discard(deadline)

    def check(self, address: str) -> None:
        """Raise `BadSetting` unless the address may be connected to, as far as its text tells."""
        if not self._allowed:
            raise BadSetting(
                "source: this service fetches no addresses; send the video, or start it with --allow-sources HOST"
            )
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise BadSetting("source: not a valid address") from None
        if parts.scheme not in PORTS or not host:
            raise BadSetting("source: an address that begins with http:// or https:// is needed")
        self.check_host(host, port or PORTS[parts.scheme])

    def check_host(self, host: str, port: int) -> None:
        """Raise `BadSetting` unless the host may be connected to at this port."""
        host = host.lower().rstrip(".")
        if f"{host}:{port}" not in self._allowed and not (host in self._allowed and port in PORTS.values()):
            raise BadSetting(
                f"source: {host}:{port} is not one of the hosts that --allow-sources lists: "
                f"{', '.join(sorted(self._allowed))}"
            )

    def addresses(self, host: str, port: int) -> list[tuple[str, int]]:
        """What an allowed host resolves to. All of it has to be public."""
        self.check_host(host, port)
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if not all(map(is_public, found)):
            raise BadSetting(f"source: {host} is not a public address; those inside a network are not fetched")
        return [(address, port) for address in found]


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the internet: not private, loopback, link-local, multicast or reserved."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # with a scope, as link-local addresses have it
        return False
    if isinstance(ip, ipaddress.IPv6Address) and (ip not in _GLOBAL_UNICAST or ip.sixtofour or ip.teredo):
        return False  # among them those that stand for an IPv4 address
    return ip.is_global and not ip.is_multicast


def _checked(entry: str) -> str:
    try:
        parts = urlsplit(f"//{entry}")
        is_host = parts.netloc == entry and bool(parts.hostname) and "@" not in entry and (parts.port or 1) > 0
    except ValueError:
        is_host = False
    if not is_host or "*" in entry:
        raise BadSetting(f"--allow-sources {entry}: a host name such as media.example or media.example:8080 is needed")
    return entry


class _Deadline:
    """Ends connections when the time is over, whatever they wait for: a server could send a byte now and then."""

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self.end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_over = False

    def __enter__(self) -> "_Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for connected in self._sockets:
                connected.close()

    def watch(self, connected: socket.socket) -> None:
        with self._lock:
            self._sockets.append(connected.dup())  # TLS takes the original over
        if self.is_over:
            self.end()

    def end(self) -> None:
        self.is_over = True
        with self._lock:
            for connected in self._sockets:
                with contextlib.suppress(OSError):  # it has been closed by the other side
                    connected.shutdown(socket.SHUT_RDWR)


def _handler(hosts: Hosts, deadline: _Deadline) -> AbstractHTTPHandler:
    """What connects on behalf of urllib: to checked addresses of allowed hosts only."""

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            problem = OSError("no address")
            for address in hosts.addresses(self.host, self.port):
                try:
                    self.sock = socket.create_connection(address, self.timeout)
                except OSError as error:
                    problem = error
                    continue
                deadline.watch(self.sock)
                return
            raise problem

    class Encrypted(http.client.HTTPSConnection, Plain):
        """Connects as above; the certificate has to be that of the host's name."""

    class Handler(AbstractHTTPHandler):
        def http_open(self, request: Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, request)

        def https_open(self, request: Request) -> http.client.HTTPResponse:
            return self.do_open(Encrypted, request)

        http_request = https_request = AbstractHTTPHandler.do_request_

    return Handler()
