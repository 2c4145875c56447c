"""The password and the tokens of an address are sent to its server and printed nowhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import servers
from command import Picknet


@pytest.fixture
def address(clips: Path) -> Iterator[str]:
    with servers.download((clips / "cat.mp4").read_bytes(), credentials="u:secret") as server:
        yield f"http://u:secret@127.0.0.1:{server.port}/a.mp4?token=hidden.5"


@pytest.mark.parametrize(
    "command",
    [
        *(("caption", "--format", name) for name in ("text", "json", "csv")),
        *(("timeline", "--format", name) for name in ("text", "json", "jsonl", "csv", "edl", "chapters")),
        *(("pick", "--budget", "2", "--format", name) for name in ("json", "jsonl", "csv", "base64", "openai")),
    ],
)
def test_results_name_an_address_without_its_password(
    picknet: Picknet, clips: Path, model_folder: Path, address: str, command: tuple[str, ...]
) -> None:
    model = () if command[0] == "pick" else ("--model", model_folder)
    also = () if command[-1] in ("edl", "chapters") else (clips / "dog.mkv",)
    code, out, err = picknet(*command, *model, address, *also)
    assert (code, err) == (0, "")
    assert "secret" not in out
    assert "hidden" not in out
    if command[-1] not in ("openai", "chapters"):
        assert "a.mp4?token=***" in out


def test_files_and_failures_name_an_address_without_its_password(
    picknet: Picknet, clips: Path, model_folder: Path, address: str, tmp_path: Path
) -> None:
    videos = (address, clips / "dog.mkv", "--model", model_folder)
    assert picknet("timeline", *videos, "--out", tmp_path, "--sheet", tmp_path).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.txt", "dog.png", "dog.txt"]
    wrong = address.replace("u:secret", "u:secret2")
    code, out, err = picknet("caption", wrong, "--model", model_folder, "--format", "json")
    assert code == 1
    assert "secret" not in out + err
    assert "u:***@" in out
    code, _, err = picknet("caption", address, "--model", model_folder, "--timeout", 0.1)
    assert code == 1
    assert "secret" not in err
    assert "u:***@" in err
