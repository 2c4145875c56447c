"""The Ray engine: Ray Data maps blocks of clips over a pool of actors; the driver writes the table.

Ray starts lost actors again and repeats their blocks. That cannot double a row: the driver gets each block once, and
only what it has written counts as done.
"""

import contextlib
import itertools
import json
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from picknet.batch.engines import DoClip
from picknet.batch.sources import Clip
from picknet.batch.table import Row
from picknet.batch.work import CLIP_COLUMN, DescribeClips
from picknet.errors import PicknetError
from picknet.video.access import max_pixels

MIN_RAY = (2, 50)
MAX_BLOCK_CLIPS = 128
"""Clips in a block, which is what an actor gets at a time, and repeats if it is lost."""
BLOCKS_PER_ACTOR = 32
"""Blocks are smaller where there would be fewer, so that actors finish at about the same time."""
ROUND_BLOCKS = 1024
"""Blocks that Ray has at a time, more only for many actors: it keeps tens of kilobytes for each in the driver."""
CONNECT_SECONDS = 5.0


class RayFailure(PicknetError):
    """Ray is missing, cannot be reached, or gave up."""


def on_ray(
    work: DoClip,
    clips: Iterator[Clip],
    num_clips: int,
    *,
    jobs: int | None,
    timeout: float | None,
    address: str | None = None,
    cores_per_actor: float = 1.0,
    on_note: Callable[[str], object] = lambda note: None,
) -> Iterator[list[Row]]:
    """The rows of a block of clips at a time.

    jobs: the largest number of actors, by default one for each core of the cluster. address: of a running cluster;
    None starts Ray on this machine, unless this process is connected already. on_note: called with what may be wrong.
    """
    ray = _connected(address)
    most_cores = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
    if cores_per_actor > most_cores:  # Ray would wait for such a node for ever
        wanted, cores = f"--cores-per-actor {cores_per_actor:g}", f"{most_cores:g} core{'s' * (most_cores != 1)}"
        if address is None:
            raise RayFailure(f"{wanted}: this machine has {cores}")
        on_note(f"{wanted}: no node has more than {cores} now; actors wait for a larger one")
    if jobs is None:
        jobs = max(int(ray.cluster_resources().get("CPU", 1) / cores_per_actor), 1)
    size = min(max(num_clips // (jobs * BLOCKS_PER_ACTOR), 1), MAX_BLOCK_CLIPS)
    blocks = (ray.put(_table(some)) for some in iter(lambda: list(itertools.islice(clips, size)), []))
    while round_blocks := list(itertools.islice(blocks, max(ROUND_BLOCKS, jobs * BLOCKS_PER_ACTOR))):
        described = ray.data.from_arrow_refs(round_blocks).map_batches(
            DescribeClips,
            fn_constructor_args=(work,),
            fn_constructor_kwargs={
                "timeout": timeout,
                "own_cores": max(round(cores_per_actor), 1),
                "max_pixels": max_pixels(),
                "folder": os.getcwd(),
            },
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=jobs),
            num_cpus=cores_per_actor,
        )
        try:
            for table in described.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield table.to_pylist()
        except ray.exceptions.RayError as error:
            raise RayFailure(reason(str(error))) from error


def _table(clips: list[Clip]) -> pa.Table:
    """What `DescribeClips` reads."""
    return pa.table({CLIP_COLUMN: [json.dumps(clip) for clip in clips]})  # file names need not be Unicode, JSON is


def reason(message: str) -> str:
    """One line about a failure of Ray. Of an actor's error only the traceback arrives, somewhere in the message."""
    ours = re.findall(r"^picknet\.[\w.]+: (.+)$", message, re.M)
    return ours[-1] if ours else f"Ray gave up ({_one_line(message)}); give the same command to go on"


def _connected(address: str | None) -> Any:
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")  # the command has its own
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise RayFailure(f'the engine ray needs Ray ({error}): pip install "picknet[ray]"') from error
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < MIN_RAY:
        raise RayFailure(f"Ray {ray.__version__} is installed: {'.'.join(map(str, MIN_RAY))} or later is needed")
    if not ray.is_initialized():
        try:
            if place := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address or ""):
                # Ray itself would try for minutes.
                socket.create_connection((place[1], int(place[2])), CONNECT_SECONDS).close()
            with _own_sigterm(), _without_greeting():
                ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            # Among them: no cluster at the address, and a cluster of another version of Ray or Python.
            raise RayFailure(f"Ray at {address or 'this machine'}: {_one_line(str(error))}") from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what matters is raised
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    return ray


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces by ones with exit codes of their own."""
    before = signal.getsignal(signal.SIGTERM)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    except SystemExit as error:  # what those of Ray raise
        raise SystemExit(128 + signal.SIGTERM) from error
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _without_greeting() -> Iterator[None]:
    """Keep off standard error what Ray's core prints there about RAY_BACKEND_LOG_LEVEL; failures are exceptions."""
    with open(os.devnull, "wb") as nothing:
        kept = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _one_line(message: str) -> str:
    """Without colours, and not too long."""
    return " ".join(re.sub(r"\x1b\[\d+m", "", message).split())[:300]
