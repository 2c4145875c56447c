"""Videos at addresses that clients name: only of hosts that the service allows, and never inside its own network.

A client could otherwise read through the service what only its machine can reach. So each connection, those after a
redirect as well, is made to an address that was looked up and checked here: what the name resolves to a moment later
does not matter.
"""

import contextlib
import http.client
import ipaddress
import re
import socket
from collections.abc import Iterable, Iterator
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import AbstractHTTPHandler

from picknet.errors import BadSetting, PicknetError
from picknet.video.download import Deadline, download_with, http_handler, http_opener
from picknet.video.source import UnreadableVideo

STALL_SECONDS = 15.0
"""To wait for a connection, and for each next piece of data."""
PORTS = {"http": 80, "https": 443}
STOPPING = "the service is stopping"
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_SPECIAL = [ipaddress.ip_network(block) for block in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")]
"""For protocols, relays and examples: not private in the tables of every Python."""
_NAME = re.compile(r"([\w-]{1,63}\.)*(?!\d+$)[\w-]{1,63}")
"""Of a host. What ends in a number is an IP address, or one in an old notation."""


class Stopping(PicknetError):
    """Work that ended because the service stops."""


class Hosts:
    """The hosts that clients may name, and nothing else. Thread-safe."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """allowed: names such as media.example, which allows the ports of http and https, or media.example:8080."""
        entries = sorted({_checked(entry.strip()) for entry in allowed if entry.strip()})
        self._allowed = {(host, at) for host, port in entries for at in ([port] if port else PORTS.values())}
        self._shown = ", ".join(f"{_bracketed(host)}:{port}" if port else _bracketed(host) for host, port in entries)
        self._at_work: set[Deadline] = set()
        self._is_closed = False

    def fetch(self, address: str, file: IO[bytes], *, max_bytes: int, deadline: Deadline) -> None:
        """Download a video into an open file.

        max_bytes: its size at most. deadline: for all, from looking up the host to the last byte.
        """
        self.check(address)
        with deadline, self._counted(deadline):
            opener = http_opener(_connecting(self, deadline))
            try:
                download_with(
                    opener, address, timeout=STALL_SECONDS, deadline=deadline, into=file, max_bytes=max_bytes
                )
            except UnreadableVideo:
                if deadline.is_over and self._is_closed:
                    raise Stopping(STOPPING) from None
                raise

    def close(self) -> None:
        """End all downloads."""
        self._is_closed = True
        for deadline in list(self._at_work):
            deadline.end(STOPPING)

    @contextlib.contextmanager
    def _counted(self, deadline: Deadline) -> Iterator[None]:
        self._at_work.add(deadline)
        if self._is_closed:
            deadline.end(STOPPING)
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

    def check_host(self, host: str, port: int, *, is_redirect: bool = False) -> None:
        """Raise `BadSetting` unless the host may be connected to at this port."""
        host = _normal(host)
        if (host, port) not in self._allowed:
            named = f"{_bracketed(host)}:{port}"
            what = f"it redirects to {named}, which" if is_redirect else named
            raise BadSetting(f"source: {what} is not one of the hosts that --allow-sources lists: {self._shown}")

    def addresses(self, host: str, port: int) -> list[Any]:
        """What an allowed host resolves to, as `socket.getaddrinfo` gives it. All of it has to be public."""
        self.check_host(host, port, is_redirect=True)  # the first address has been checked
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not all(is_public(str(entry[4][0])) for entry in found):
            raise BadSetting(f"source: {host} is not a public address; those inside a network are not fetched")
        return found


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the internet: not private, loopback, link-local, multicast or reserved."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # with a scope, as link-local addresses have it
        return False
    if isinstance(ip, ipaddress.IPv6Address) and (
        ip not in _GLOBAL_UNICAST or ip.sixtofour or ip.teredo or _is_isatap(ip)
    ):
        return False  # among them those that stand for an IPv4 address
    return ip.is_global and not ip.is_multicast and not any(ip in block for block in _SPECIAL)


def _is_isatap(ip: ipaddress.IPv6Address) -> bool:
    """Whether it ends in 0:5efe or 200:5efe and an IPv4 address."""
    return int(ip) >> 32 & 0xFDFF_FFFF == 0x5EFE


def _normal(host: str) -> str:
    host = host.lower().rstrip(".")
    return str(ipaddress.ip_address(host)) if _is_ip(host) else host


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _checked(entry: str) -> tuple[str, int]:
    """The host of an entry of --allow-sources, and its port; 0 for the usual ones."""
    try:
        parts = urlsplit(f"//{entry}")
        host, port = _normal(parts.hostname or ""), parts.port
        is_possible = parts.netloc == entry and "@" not in entry and port != 0
    except ValueError:
        host, port, is_possible = "", None, False
    if not is_possible or not (_is_ip(host) or _NAME.fullmatch(host)):
        raise BadSetting(f"--allow-sources {entry}: a host name such as media.example or media.example:8080 is needed")
    if f".{host}".endswith(".localhost") or (_is_ip(host) and not is_public(host)):
        raise BadSetting(f"--allow-sources {entry}: not a public address; those inside a network are not fetched")
    return host, port or 0


def _connecting(hosts: Hosts, deadline: Deadline) -> AbstractHTTPHandler:
    """What connects on behalf of urllib: to checked addresses of allowed hosts only."""

    def connect(connection: http.client.HTTPConnection) -> None:
        problem = OSError("no address")
        for family, kind, protocol, _, address in hosts.addresses(connection.host, connection.port):
            connection.sock = socket.socket(family, kind, protocol)
            try:
                deadline.watch(connection.sock)
                connection.sock.settimeout(min(STALL_SECONDS, deadline.seconds_left()))
                connection.sock.connect(address)
            except OSError as error:
                connection.sock.close()
                problem = error
            else:
                return
        raise problem

    return http_handler(connect)
