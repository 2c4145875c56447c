"""A caption as server-sent events, while a thread works on it."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

from picknet.errors import PicknetError
from picknet.serve.guard import error_body, status_of
from picknet.serve.jobs import Cancelled
from picknet.serve.service import Clip, Service


def told(service: Service, clip: Clip, arguments: dict[str, Any]) -> AsyncIterator[str]:
    """The events of a caption: `glance`, `pick`, and at last `caption` or `error`. The clip is deleted.

    A client that goes away ends the work, so that the place of its request is not taken twice.
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()
    is_unwanted = threading.Event()
    start = time.monotonic()

    def tell(name: str, data: Any) -> None:
        loop.call_soon_threadsafe(events.put_nowait, (name, data))

    def check() -> None:
        if is_unwanted.is_set():
            raise Cancelled(f"{clip.name}: cancelled")

    def work() -> None:
        service.metrics.stage_seconds.labels("captions", "wait").observe(time.monotonic() - start)
        try:
            tell("caption", service.caption(clip, tell=tell, check=check, **arguments))
        except PicknetError as error:
            tell("error", error_body(status_of(error), str(error)))
        except BaseException:
            tell("error", error_body(500, "internal error; the service's log says more"))
            raise
        finally:
            clip.delete()
            loop.call_soon_threadsafe(events.put_nowait, None)

    working = service.pool.submit(work)  # before the first event is asked for, which may never happen

    async def read() -> AsyncIterator[str]:
        try:
            while (event := await events.get()) is not None:
                yield f"event: {event[0]}\ndata: {json.dumps(event[1])}\n\n"
            await asyncio.wrap_future(working)  # a bug is raised, and logged
        finally:
            is_unwanted.set()
            if working.cancel():
                clip.delete()

    return read()
