"""Install the built wheel and sdist, each into a new environment without the repository, and use them.

    python tests/installs.py dist

Each has to caption a sample as the README shows, and to serve its page. Dependencies are those of constraints.txt.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = "samples/cockatoo.mp4"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIST", help="the folder with one wheel and one sdist")
    folder = parser.parse_args().folder
    built = [*folder.glob("picknet-*.whl"), *folder.glob("picknet-*.tar.gz")]
    if len(built) != 2:
        sys.exit(f"{folder}: has {len(built)} files of picknet: one wheel and one sdist are needed")
    for file in built:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:  # Windows keeps open files
            check(file.resolve(), Path(place))
        print(f"{file.name}: installed, captioned, served in {time.monotonic() - start:.0f} s", flush=True)


def check(file: Path, place: Path) -> None:
    """Install a file and use what was installed; an error that is raised says what did not work."""
    programs = place / "env" / ("Scripts" if os.name == "nt" else "bin")
    python, picknet = programs / "python", programs / "picknet"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PYTHONUTF8": "1", "PICKNET_CACHE": str(place / "cache")}

    def output(*command: object) -> str:
        done = subprocess.run([str(word) for word in command], cwd=place, env=environment, stdout=subprocess.PIPE)
        if done.returncode:
            sys.exit(f"{file.name}: {' '.join(map(str, command))}: exit code {done.returncode}")
        return done.stdout.decode().strip()

    venv.create(place / "env", with_pip=True)
    constraints = ROOT / "constraints.txt"
    output(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, f"picknet[serve] @ {file.as_uri()}")
    where = output(python, "-c", "import picknet; print(picknet.__file__)")
    expect(file, "the module's place", Path(where).is_relative_to(place / "env") or where, True)
    version = re.match(r"picknet-([\d.]+\d)", file.name)
    expect(file, "picknet --version", output(picknet, "--version"), f"picknet {version and version[1]}")

    shutil.copy(ROOT / SAMPLE, place)
    shown = re.search(rf"^{SAMPLE}: (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    expect(file, "the caption", output(picknet, "caption", Path(SAMPLE).name), shown and shown[1])

    command = [str(picknet), "serve", "--port", "0"]
    service = subprocess.Popen(command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert service.stderr is not None
        address = service.stderr.readline().split()[-1]
        for path, content in {"/healthz": "ok", "/": "<title>"}.items():
            with urllib.request.urlopen(address + path, timeout=30) as answer:
                expect(file, path, content in answer.read().decode(), True)
    finally:
        service.terminate()
        service.wait(60)


def expect(file: Path, what: str, got: object, expected: object) -> None:
    if got != expected:
        sys.exit(f"{file.name}: {what} is {got!r}, expected {expected!r}")


if __name__ == "__main__":
    main()
