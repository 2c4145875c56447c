import csv
import io
import json
from pathlib import Path

import pytest
import servers
from clips import write_clip
from command import Picknet, on_linux


def test_a_film_that_cannot_be_read_leaves_no_file(picknet: Picknet, model_folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.mp4"
    bad.write_text("no video")
    code, out, err = picknet("timeline", bad, "--model", model_folder, "--out", tmp_path / "new.vtt")
    assert (code, out, err) == (1, "", f"picknet: {bad}: not a known video format\n")
    assert list(tmp_path.iterdir()) == [bad]


def test_the_header_stands_once_even_if_the_first_film_fails(
    picknet: Picknet, clips: Path, model_folder: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.mp4"
    bad.write_text("no video")
    films = (bad, clips / "cat.mp4", bad, clips / "dog.mkv")
    code, out, _ = picknet("timeline", *films, "--model", model_folder, "--format", "csv")
    assert code == 1
    assert {row["video"] for row in csv.DictReader(io.StringIO(out))} == {str(films[1]), str(films[3])}


def test_a_minus_is_standard_output_for_several_films(picknet: Picknet, clips: Path, model_folder: Path) -> None:
    options = ("timeline", clips, "--model", model_folder, "--format", "csv")
    assert picknet(*options, "--out", "-") == picknet(*options)


def test_a_rate_is_a_dial_from_few_picks_to_many(picknet: Picknet, clips: Path, attending_folder: Path) -> None:
    def num_picks(*options: object) -> int:
        command = ("timeline", clips / "cat.mp4", "--model", attending_folder, "--fps", 25, "--format", "jsonl")
        _, out, _ = picknet(*command, *options)
        return sum(len(json.loads(line)["picks"]) for line in out.splitlines())

    assert num_picks("--rate", 0.25) < num_picks() < num_picks("--rate", 4)


def test_what_timeline_cannot_read_is_refused_with_a_way_out(picknet: Picknet) -> None:
    code, _, err = picknet("timeline", "-", "file:///tmp/a.mp4")
    assert code == 1
    assert err.splitlines() == [
        "picknet: -: standard input is read by picknet caption, stream and pick --budget, and has to be alone",
        "picknet: file:///tmp/a.mp4: not supported; pass the plain path",
    ]


@on_linux
@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_limit_on_time_changes_no_timeline(
    picknet: Picknet, clips: Path, model_folder: Path, tmp_path: Path, format: str
) -> None:
    bad = tmp_path / "bad.mp4"
    bad.write_text("no video")
    films = (bad, clips / "cat.mp4", clips / "dog.mkv")
    without, limited = (tmp_path / name for name in ("without", "limited"))
    options = ("timeline", *films, "--model", model_folder, "--format", format)
    expected = picknet(*options, "--sheet", without)
    assert picknet(*options, "--sheet", limited, "--timeout", 100) == expected
    assert {one.name: one.read_bytes() for one in limited.iterdir()} == {
        one.name: one.read_bytes() for one in without.iterdir()
    }
    assert expected.code == 1


@on_linux
def test_a_film_that_takes_too_long_is_given_up(
    picknet: Picknet, clips: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = ("--model", model_folder, "--out", tmp_path / "cat.srt", "--timeout", 0.1)
    expected = f"picknet: {clips / 'cat.mp4'}: took longer than 0.1 s and was stopped\n"
    assert picknet("timeline", clips / "cat.mp4", *options) == (1, "", expected)
    assert not any(tmp_path.iterdir())


def test_the_end_of_a_film_that_stores_no_length_is_that_of_its_last_frame(
    picknet: Picknet, model_folder: Path, tmp_path: Path
) -> None:
    times = [0, 40, 80, 120, 900, 3900]  # a recording of a screen
    film = write_clip(tmp_path / "film.mkv", num_frames=6, milliseconds=times, seekable=False)
    for fps in (0.1, 1, 25):
        _, out, _ = picknet("timeline", film, "--model", model_folder, "--format", "csv", "--fps", fps)
        assert float(list(csv.DictReader(io.StringIO(out)))[-1]["end"]) == pytest.approx(3.9 * 6 / 5)


@pytest.mark.parametrize("format", ["srt", "edl"])
def test_a_film_at_an_address_is_read_once_and_has_the_clock_of_players(
    picknet: Picknet, model_folder: Path, tmp_path: Path, format: str
) -> None:
    film = write_clip(tmp_path / "film.mkv", milliseconds=[3000 + 40 * n for n in range(60)], with_audio=True)
    options = ("--model", model_folder, "--format", format)
    requests: list[str] = []
    with servers.download(film.read_bytes(), requests=requests) as server:
        code, out, err = picknet("timeline", f"http://127.0.0.1:{server.port}/film.mkv", *options)
    assert (code, err, len(requests)) == (0, "", 1)
    here = picknet("timeline", film, *options).out
    if format == "srt":
        assert "00:00:03,000 --> " in out
        assert out == here
    assert len(out.splitlines()) == len(here.splitlines())
