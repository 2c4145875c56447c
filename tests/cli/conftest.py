"""Fixtures that the tests of commands share."""

from pathlib import Path

import pytest
from clips import write_clip
from command import Outcome, Picknet

from picknet.cli import main


@pytest.fixture
def picknet(capsys: pytest.CaptureFixture[str]) -> Picknet:
    """The command, called in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Outcome(int(exit.value.code or 0), out, err)

    return run


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cat.mp4 and dog.mkv, a hidden file, and a text beside them."""
    folder = tmp_path_factory.mktemp("clips")
    write_clip(folder / "cat.mp4", num_frames=40)
    write_clip(folder / "dog.mkv", num_frames=12)
    (folder / "._cat.mp4").write_bytes(b"what a Mac leaves on foreign disks")
    (folder / "notes.txt").write_text("no video")
    return folder
