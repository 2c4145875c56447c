"""Films with known events: those that `benchmarks/films.py` makes are described as they are."""

import json
from pathlib import Path

import av
import numpy as np
import pytest
from clips import number_of, write_clip

from picknet.data import BadData
from picknet.study.films import Part, read_films, within

ROOT = Path(__file__).resolve().parents[2]
NUM_FRAMES = 60


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("cv2")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import films

    monkeypatch.setattr(films, "FILM_SECONDS", (48.0, 56.0))
    monkeypatch.setattr(films, "STILLS_SECONDS", 60.0)
    monkeypatch.setattr(films, "MIN_STRETCH_SECONDS", 2.0)
    return films


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips of six seconds, whose frames show their numbers."""
    folder = tmp_path_factory.mktemp("data")
    for name in "abcdef":
        write_clip(folder / f"{name}.mp4", num_frames=NUM_FRAMES, fps=10)
    captions = [{"clip": name, "caption": "a cat", "split": "val"} for name in "abcdef"]
    (folder / "captions.json").write_text(json.dumps(captions))
    return folder


def numbers_in(path: Path) -> list[int]:
    with av.open(str(path)) as video:
        return [number_of(frame.to_ndarray(format="gray")) for frame in video.decode(video=0)]


def test_events_are_where_the_description_says(maker, data: Path, tmp_path: Path) -> None:
    films = maker.make_films(data, tmp_path, dataset="folder", num_films=5, kinds=["stills"])
    assert [film.cut for film in films] == ["camera", "after", "before", "camera", "after"]
    for film in films:
        numbers = numbers_in(film.path)
        assert len(numbers) == round(10 * film.seconds)
        assert len(film.events) == 5
        for event in film.events:
            first, last = round(10 * event.start), round(10 * event.end)
            assert numbers[first:last] == list(range(NUM_FRAMES))
        for quiet in film.quiet:
            shown = set(numbers[round(10 * quiet.start) : round(10 * quiet.end)])
            # One still; a camera's is the first frame of a clip, as is that of the event to come.
            assert shown in ([{0}, {NUM_FRAMES - 1}] if film.cut == "after" else [{0}]) or "fades" in quiet.kinds
        parts = sorted((*film.events, *film.quiet), key=lambda part: part.start)
        assert [part.end for part in parts] == [*(part.start for part in parts[1:]), film.seconds]
    assert films[4].seconds == pytest.approx(60.0, abs=1.0)
    assert "repeated" in films[3].events[3].kinds
    assert films[3].events[3].clip == films[3].events[1].clip


def test_the_same_seed_makes_the_same_films_and_another_one_others(maker, data: Path, tmp_path: Path) -> None:
    def made(folder: str, *, num_films: int = 2, **given: object) -> list[bytes]:
        films = maker.make_films(data, tmp_path / folder, dataset="folder", num_films=num_films, **given)
        return [path.read_bytes() for film in films for path in (film.path, film.path.with_suffix(".json"))]

    first = made("first")
    assert made("again", jobs=2) == first
    assert made("other", num_films=1, seed=1) != first[:2]


def test_every_kind_of_quiet_changes_the_still_and_only_it(maker) -> None:
    still = np.random.default_rng(0).integers(40, 200, size=(360, 320), dtype=np.uint8)
    for name, make in maker.QUIET.items():
        effect, kept = make(np.random.default_rng(1), 60.0), still.copy()
        shown = [effect(still, at / 10) for at in range(600)]
        assert all(picture.shape == (360, 320) and picture.dtype == np.uint8 for picture in shown), name
        assert (still == kept).all(), name
        assert any((picture != still).any() for picture in shown) == (name != "stills"), name


def test_the_picks_of_each_part() -> None:
    parts = [Part(2.0, 4.0, ()), Part(4.0, 5.0, ())]
    assert within(parts, [0.0, 2.0, 3.9, 4.0, 5.0]) == [[1, 2], [3]]


def test_a_folder_without_films_and_a_broken_description_are_reported(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no film with its JSON file"):
        read_films(tmp_path)
    (tmp_path / "a.mp4").touch()
    (tmp_path / "a.json").write_text('{"events": []}')
    with pytest.raises(BadData, match=r"a\.json: not the description of a film"):
        read_films(tmp_path)
