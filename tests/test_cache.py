"""The cache: an entry that is missing, damaged or cannot be written is compiled again."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from picknet import cache
from picknet.model import graphs
from picknet.model.runtime import Runtime

PROGRAM = """
import sys
import numpy as np
from picknet.model.runtime import Runtime
size = 64
pixels = np.arange(size * size * 3, dtype=np.int64).reshape(1, size, size, 3).astype(np.uint8)
print(Runtime(sys.argv[1]).features(pixels).astype(np.float64).sum().hex())
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PICKNET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An item for each graph that was compiled, not read from the cache."""
    compiled: list[str] = []

    class Core:
        def compile_model(self, graph: object, *arguments: object) -> object:
            compiled.append("one")
            return real.compile_model(graph, *arguments)

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    real = graphs._core()
    monkeypatch.setattr(graphs, "_core", Core)
    return compiled


def features(folder: Path) -> np.ndarray:
    size = 64
    pixels = np.arange(size * size * 3).reshape(1, size, size, 3).astype(np.uint8)
    return Runtime(folder).features(pixels)


def test_an_entry_is_read_as_it_was_written(place: Path) -> None:
    assert cache.read("a") is None
    cache.write("a", b"content")
    assert cache.read("a") == b"content"
    assert [entry.name for entry in place.iterdir()] == ["a.picknet"]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"", lambda data: data[::-1]]
)
def test_a_damaged_entry_counts_as_missing(place: Path, damage) -> None:
    cache.write("a", b"content")
    (place / "a.picknet").write_bytes(damage((place / "a.picknet").read_bytes()))
    assert cache.read("a") is None
    cache.write("a", b"content")
    assert cache.read("a") == b"content"


def test_an_entry_under_the_name_of_another_counts_as_missing(place: Path) -> None:
    cache.write("a", b"content")
    (place / "a.picknet").rename(place / "b.picknet")
    assert cache.read("b") is None


def test_the_least_recently_used_entries_are_deleted_and_other_files_stay(place: Path) -> None:
    place.mkdir()
    (place / "letter.txt").write_text("not an entry")
    os.utime(place / "letter.txt", (0, 0))
    for number in range(cache.MAX_ENTRIES):
        cache.write(f"{number}", b"")
        os.utime(place / f"{number}.picknet", (number, number))
    assert cache.read("0") == b""  # used just now
    cache.write("new", b"")
    expected = ["new", "0", *map(str, range(2, cache.MAX_ENTRIES))]
    assert {entry.name for entry in place.iterdir()} == {"letter.txt", *(f"{name}.picknet" for name in expected)}


def test_an_empty_variable_turns_the_cache_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PICKNET_CACHE", "")
    cache.write("a", b"content")
    assert cache.folder() is None
    assert cache.read("a") is None


def test_a_machine_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PICKNET_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache.folder() is None


def test_the_second_run_does_not_compile(place: Path, model_folder: Path, compilations: list[str]) -> None:
    first = features(model_folder)
    assert len(compilations) == 1
    np.testing.assert_array_equal(features(model_folder), first)
    assert len(compilations) == 1
    assert len(list(place.iterdir())) == 1


def test_another_version_of_openvino_compiles_again(
    place: Path, model_folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import openvino

    features(model_folder)
    monkeypatch.setattr(openvino, "get_version", lambda: "another")
    features(model_folder)
    assert (len(compilations), len(list(place.iterdir()))) == (2, 2)


def test_other_weights_are_compiled_again(
    place: Path, model_folder: Path, attending_folder: Path, compilations: list[str]
) -> None:
    features(model_folder)
    features(attending_folder)
    assert len(compilations) == 2


def test_an_entry_openvino_refuses_is_compiled_again(place: Path, model_folder: Path, compilations: list[str]) -> None:
    right = features(model_folder)
    (entry,) = place.iterdir()
    cache.write(entry.stem, b"not a compiled graph, with a valid checksum")
    np.testing.assert_array_equal(features(model_folder), right)
    np.testing.assert_array_equal(features(model_folder), right)
    assert len(compilations) == 2


def test_a_folder_that_cannot_be_written_is_not_an_error(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for impossible in (tmp_path / "file" / "cache", Path("/proc/picknet")):  # even root cannot write there
        monkeypatch.setenv("PICKNET_CACHE", str(impossible))
        assert features(model_folder).shape[0] == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands for a full disk")
def test_a_full_disk_is_not_an_error(place: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    (place / "full").symlink_to("/dev/full")
    monkeypatch.setattr("picknet.files._new_name", lambda target: place / "full")
    monkeypatch.setattr("picknet.files._create", lambda path: None)
    assert features(model_folder).shape[0] == 1
    assert list(place.iterdir()) == []


def test_processes_that_start_together_get_the_same_result(place: Path, model_folder: Path) -> None:
    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", PROGRAM, str(model_folder)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    together = [start(), start(), start()]
    printed = {process.communicate(timeout=120)[0] for process in together}
    afterwards = start().communicate(timeout=120)[0]
    assert printed == {afterwards}
    assert afterwards.strip()
    assert len(list(place.iterdir())) == 1


@pytest.mark.parametrize("told", ["std::bad_alloc", "Resource temporarily unavailable"])
def test_a_graph_for_which_there_is_no_memory_is_not_called_damaged(
    place: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    class Core:
        def compile_model(self, *_: object) -> object:
            raise RuntimeError(f"Exception from core.cpp:109:\n{told}\n")

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    real = graphs._core()
    monkeypatch.setattr(graphs, "_core", Core)
    with pytest.raises(MemoryError, match=r"cnn\.onnx: cannot be compiled$"):
        features(model_folder)


def test_a_compiled_graph_that_does_not_fit_into_memory_twice_is_used_and_not_kept(
    place: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Compiled:
        def __init__(self, compiled: object) -> None:
            self._compiled = compiled

        def export_model(self, _: object) -> None:
            raise ValueError("I/O operation on closed file.")  # as OpenVINO says it

        def __getattr__(self, name: str) -> object:
            return getattr(self._compiled, name)

    class Core:
        def compile_model(self, *arguments: object) -> object:
            return Compiled(real.compile_model(*arguments))

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    expected, real = features(model_folder), graphs._core()
    for entry in place.iterdir():
        entry.unlink()
    monkeypatch.setattr(graphs, "_core", Core)
    np.testing.assert_array_equal(features(model_folder), expected)
    assert list(place.iterdir()) == []
