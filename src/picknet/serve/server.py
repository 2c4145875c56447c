"""Listening: which addresses are safe, and how the service starts and stops."""

import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from picknet.errors import PicknetError
from picknet.serve.app import create_app
from picknet.serve.connection import Connection, StreamConnection
from picknet.serve.guard import Guard
from picknet.serve.service import Limits, Service

STOP_SECONDS = 30
"""For requests that are at work when the service is stopped."""
MAX_CONNECTIONS = 1024
BACKLOG = 128
"""Connections that may be accepted at a time, before any of them can be refused."""
MAX_PICTURE_BYTES = 8 << 20
"""Of a message on a WebSocket."""
MIN_TOKEN = 16
"""Characters of a token."""


class UnsafeAddress(PicknetError):
    """An address that others can reach, without a token."""


class AddressInUse(PicknetError):
    """An address at which the service cannot listen."""


def check_address(host: str, *, token: str | None, insecure: bool) -> None:
    """Refuse to let strangers in by accident."""
    if token is not None and len(token) < MIN_TOKEN:
        raise UnsafeAddress(f"the token has {len(token)} characters: {MIN_TOKEN} or more are needed")
    if token is not None and not all("!" <= character <= "~" for character in token):
        raise UnsafeAddress(
            "the token has a space, a control character or one that is not ASCII: only visible ASCII characters are "
            "possible"
        )
    if not (_is_loopback(host) or token or insecure):
        raise UnsafeAddress(
            f"{host}: other machines can reach this address; pass --token, or --insecure if that is what you want"
        )


def _configured(service: Service, *, host: str, token: str | None = None) -> uvicorn.Config:
    """The application with all checks. Without a token only the machine's own names are answered."""
    hosts = {"localhost", "127.0.0.1", "::1", host} if _is_loopback(host) and not token else None
    _silence_noise()
    return uvicorn.Config(
        Guard(create_app(service), service, token=token, hosts=hosts),
        http=Connection,
        ws=StreamConnection,
        backlog=BACKLOG,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws_max_size=MAX_PICTURE_BYTES,
        ws_per_message_deflate=False,  # pictures are packed already; a few bytes could become gigabytes
        ws_ping_interval=None,  # of a client that is held back, the answer would wait behind what it has sent
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_keep_alive=15,
        limit_concurrency=_max_connections(service.limits),
    )


def _max_connections(limits: Limits) -> int:
    """As many as there can be open files beside those of the work: asyncio does not cope with too few."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return MAX_CONNECTIONS
    # Ten for each worker and its decoders, two for each upload that waits.
    reserve = 2 * BACKLOG + 10 * limits.num_workers + 2 * limits.queue
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MAX_CONNECTIONS + reserve
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return MAX_CONNECTIONS
    with contextlib.suppress(OSError, ValueError):  # the system may have a limit of its own
        more = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    return min(MAX_CONNECTIONS, max(soft - reserve, soft // 4))


def _silence_noise() -> None:
    """Say nothing on standard error about clients that send nonsense: they are told."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: not any(noise in str(record.msg) for noise in ("Invalid UTF-8 sequence", "Invalid HTTP request"))
    )


def run(
    service: Service,
    *,
    host: str,
    port: int,
    token: str | None = None,
    ready: Callable[[str], object] = lambda address: None,
) -> None:
    """Serve until SIGINT or SIGTERM, and then finish what is at work. ready: called with the address."""
    with contextlib.closing(service), _listen(host, port) as listening:
        service.decoders.start()
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listening.getsockname()[1]}")
        server = Server(service, host=host, token=token)
        try:
            server.run(sockets=[listening])
        except (KeyboardInterrupt, SystemExit):
            # uvicorn raises a signal again after it has stopped in order, which is how a service usually ends.
            if not server.started:
                raise


class Server(uvicorn.Server):
    """Tells the service of the signal at once: long answers end, so that the server need not wait for them."""

    def __init__(self, service: Service, *, host: str, token: str | None = None) -> None:
        super().__init__(_configured(service, host=host, token=token))
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # In a thread, since a signal handler must not wait for a lock that the interrupted code may hold.
        threading.Thread(target=self._service.stop, name="picknet stop").start()
        super().handle_exit(sig, frame)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as stack:
            listening = stack.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()  # who connects from now on waits until the server has started
            stack.pop_all()
    except OSError as error:
        raise AddressInUse(f"{host}:{port}: cannot listen there ({error.strerror or error})") from error
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
