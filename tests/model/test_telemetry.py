"""Nothing is reported to anybody, and nothing is left behind."""

import os
import subprocess
import sys
from pathlib import Path

from command import on_linux

WATCHED = """
import os, sys
def watch(event, arguments):
    if event.startswith("socket.") and event not in ("socket.__new__", "socket.gethostname"):
        os.write(2, f"{event} {arguments}".encode())  # at once: threads may outlive this program
sys.addaudithook(watch)
import numpy as np
import picknet
picknet.load(sys.argv[1]).caption(np.zeros((3, 64, 64, 3), np.uint8))
print(os.path.exists(f"/tmp/perf-{os.getpid()}.map"))
"""


@on_linux
def test_a_caption_opens_no_connection_and_leaves_no_file(model_folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: one for name, one in os.environ.items() if not name.startswith("ONEDNN")} | {"HOME": str(home)}
    command = [sys.executable, "-c", WATCHED, str(model_folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert list(home.rglob("*")) == []
