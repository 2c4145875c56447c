"""A model folder says what its parts are, and every command that replaces one keeps that true."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import on_linux

from picknet.config import load_config
from picknet.model.card import write_card
from picknet.model.folder import PARTS, TAGS, BadModel, ModelFolder
from picknet.model.manifest import Fingerprint, read_manifest, renewed
from picknet.text import Vocabulary


@pytest.fixture
def copy(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "copy"))


def test_an_exported_model_lists_size_and_digest_of_each_part(model_folder: Path) -> None:
    listed = read_manifest(model_folder)
    assert listed == {part: Fingerprint.of(model_folder / part) for part in PARTS}
    found = subprocess.run(["sha256sum", model_folder / "words.txt"], capture_output=True, text=True, check=True).stdout
    assert listed["words.txt"] == ((model_folder / "words.txt").stat().st_size, found.split()[0])


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_was_changed_is_noticed(copy: Path, part: str) -> None:
    content = bytearray((copy / part).read_bytes())
    content[len(content) // 2] ^= 1  # a flipped bit: the size is the same
    (copy / part).write_bytes(content)
    with pytest.raises(BadModel) as caught:
        _ = ModelFolder(copy).weights_digest
    assert str(caught.value) == (
        f"{copy / part}: has another content than manifest.json: it is damaged or of another model; export the model "
        f"again, or where you changed it yourself, python -m picknet.model.manifest {copy}"
    )
    with (copy / part).open("ab") as file:
        file.write(b"more")
    with pytest.raises(BadModel, match=rf"{part}: has {len(content) + 4:,} bytes where {len(content):,} are in"):
        ModelFolder(copy)


def test_a_flipped_bit_in_the_weights_is_noticed_by_the_first_frame(copy: Path) -> None:
    import numpy as np

    from picknet.model.runtime import Runtime

    content = bytearray((copy / "weights.safetensors").read_bytes())
    content[-100] ^= 64
    (copy / "weights.safetensors").write_bytes(content)
    runtime = Runtime(copy)  # hashing them here would take as long as all the rest
    with pytest.raises(BadModel, match=r"weights\.safetensors: has another content than manifest\.json"):
        runtime.features(np.zeros((1, 64, 64, 3), np.uint8))


def test_training_does_not_start_from_other_weights_than_those_of_the_manifest(copy: Path) -> None:
    from picknet.training.export import load_network

    load_network(copy)
    content = bytearray((copy / "policy.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "policy.safetensors").write_bytes(content)
    with pytest.raises(BadModel, match=r"policy\.safetensors: has another content than manifest\.json"):
        load_network(copy)


def test_a_folder_without_a_manifest_can_be_used(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    assert ModelFolder(copy).manifest is None


INFINITE = '{"parts": {"words.txt": {"bytes": 1e999, "sha256": ""}}}'


def test_a_malformed_manifest_is_an_error(copy: Path) -> None:
    for content in ("", "{", "[]", '{"parts": 1}', '{"parts": {"words.txt": 1}}', INFINITE, "[" * 100_000):
        (copy / "manifest.json").write_text(content)
        with pytest.raises(BadModel, match=r"manifest\.json: is not a manifest \(.*\); export the model again$"):
            ModelFolder(copy)


@on_linux
@pytest.mark.parametrize("part", ["weights.safetensors", "policy.safetensors"])
def test_weights_that_become_a_pipe_or_disappear_are_an_error(copy: Path, part: str) -> None:
    folder = ModelFolder(copy, is_sealed=False)
    (copy / part).unlink()
    with pytest.raises(BadModel, match=rf"{part}: cannot be read \(No such file"):
        _ = folder.weights_digest
    os.mkfifo(copy / part)
    with pytest.raises(BadModel, match=rf"{part}: cannot be read \(is not a regular file\)"):
        _ = folder.weights_digest


def test_the_manifest_follows_a_new_card(copy: Path) -> None:
    config, words = load_config(copy / "config.toml"), Vocabulary.load(copy / "words.txt")
    write_card(copy, {"description": "new"}, config, words)
    assert ModelFolder(copy).card == {"description": "new"}
    assert read_manifest(copy) == {part: Fingerprint.of(copy / part) for part in PARTS}


def test_wherever_the_writer_of_a_part_is_killed_the_folder_can_be_used(copy: Path) -> None:
    with pytest.raises(KeyboardInterrupt), renewed(copy, "card.json"):
        ModelFolder(copy)  # with the old card
        (copy / "card.json").write_text('{"description": "new"}')
        assert ModelFolder(copy).card == {"description": "new"}
        raise KeyboardInterrupt
    assert "card.json" not in (ModelFolder(copy).manifest or {})


def test_one_command_writes_the_manifest_anew(copy: Path) -> None:
    def write() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "picknet.model.manifest", str(copy)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    (copy / "card.json").write_text('{"description": "by hand"}\n')
    done = write()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{copy}/manifest.json\n", "")
    assert ModelFolder(copy).card == {"description": "by hand"}
    (copy / "words.txt").write_text("no vocabulary\n")
    done = write()
    assert done.returncode == 1
    assert done.stderr.startswith(f"{copy}/words.txt: a vocabulary must begin with")


def test_the_shipped_models_are_those_of_their_manifests() -> None:
    from picknet.model.folder import SHIPPED

    for folder in SHIPPED.iterdir():
        if folder.is_dir():
            checked = ModelFolder(folder)
            assert checked.weights_digest
            assert set(checked.manifest or ()) == {*PARTS, TAGS}


def test_info_tells_whether_there_is_a_manifest(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from picknet.cli import main

    def info(*options: str) -> str:
        with pytest.raises(SystemExit):
            main(["info", str(copy), *options])
        out, err = capsys.readouterr()
        return out + err

    assert re.search(r"\n  manifest +all parts are as they were written\n", info())
    assert json.loads(info("--format", "json"))["manifest"] == sorted(PARTS)
    with pytest.raises(KeyboardInterrupt), renewed(copy, "card.json"):
        raise KeyboardInterrupt
    assert re.search(r"\n  manifest +does not list card\.json; all others are as they were written\n", info())
    os.remove(copy / "manifest.json")
    assert re.search(r"\n  manifest +none: nothing says whether the parts are those that were written\n", info())
    assert json.loads(info("--format", "json"))["manifest"] is False
