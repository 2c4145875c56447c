"""The service that most tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clips import write_clip
from services import Running, StubCaptioner, serving

from picknet.serve.service import Limits


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a clip of 2.4 seconds, one inside a folder, and a link that leads outside."""
    folder = tmp_path_factory.mktemp("films")
    clip = write_clip(folder / "clip.mp4")
    (folder / "inside").mkdir()
    (folder / "inside" / "clip.mp4").write_bytes(clip.read_bytes())
    outside = tmp_path_factory.mktemp("outside") / "secret.mp4"
    outside.write_bytes(clip.read_bytes())
    (folder / "link.mp4").symlink_to(outside)
    return folder


@pytest.fixture(scope="session")
def clip(films: Path) -> Path:
    return films / "clip.mp4"


@pytest.fixture(scope="session")
def running(films: Path) -> Iterator[Running]:
    """A service with one worker, a queue of one, and small limits."""
    limits = Limits(workers=1, queue=1, upload=200_000, duration=30.0, timeout=10.0)
    with serving(StubCaptioner(), limits, root=films, samples=films / "inside") as started:
        yield started
