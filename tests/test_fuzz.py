"""A short run of the fuzzer, and that it finds what it looks for. `make fuzz` is the long run."""

from pathlib import Path

import fuzz
import pytest
from command import on_linux


@pytest.fixture(scope="module")
def corpus(attending_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> fuzz.Corpus:
    return fuzz.Corpus.made(tmp_path_factory.mktemp("fuzz") / "videos", attending_folder)


@on_linux
def test_damaged_input_ends_in_a_caption_or_an_error_for_people(corpus: fuzz.Corpus) -> None:
    report = fuzz.fuzz(corpus, seed=1, cases=range(100), seconds=10)
    assert report.failures == {}
    assert report.outcomes.total() > 5


def test_a_case_is_the_same_whenever_it_is_written(corpus: fuzz.Corpus, tmp_path: Path) -> None:
    written = []
    for attempt in ("first", "second"):
        for number in range(12):
            folder = tmp_path / attempt / str(number)
            folder.mkdir(parents=True)
            fuzz.write_case(corpus, 3, number, folder)
        place = tmp_path / attempt
        files = sorted(path for path in place.rglob("*") if path.is_file())
        # A playlist may hold the name of its folder.
        contents = [path.read_bytes().replace(str(place).encode(), b"") for path in files]
        written.append(list(zip([path.relative_to(place) for path in files], contents, strict=True)))
    assert written[0] == written[1]
    assert len({content for _, content in written[0]}) > 10


@on_linux
def test_what_goes_wrong_in_the_child_is_a_failure(corpus: fuzz.Corpus, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(fuzz, "serve", broken)
    monkeypatch.setattr(fuzz, "MAX_WAIT", 3.0)
    monkeypatch.setattr(fuzz, "KINDS", {"video": 1})
    report = fuzz.fuzz(corpus, seed=0, cases=range(3), seconds=30, keep=tmp_path / "kept")
    hangs, ends, answers = (failure.partition(": ")[2] for failure in report.failures.values())
    assert hangs.startswith("no end after ")
    assert (ends, answers) == ("the process ended with 3", "wrong")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["0", "1", "2"]


def broken(connection, model) -> None:
    """Stands for `serve`: hangs, then ends, then answers."""
    import os
    import time

    connection.send(None)
    _, path, _ = connection.recv()
    number = int(path.parent.name)
    if number == 0:
        time.sleep(60)
    if number == 1:
        os._exit(3)
    connection.send(("wrong", True, 0))
    time.sleep(60)
