"""The `picknet` command for tests: called in this process (the `picknet` fixture) or in one of its own."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux has")


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Picknet = Callable[..., Outcome]


def subprocess_of(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "picknet", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **{"stdout": subprocess.PIPE, **options})
