import csv
import io
import json
from pathlib import Path

from command import Picknet
from folders import unsealed
from PIL import Image


def test_an_empty_source_is_named_as_such(picknet: Picknet) -> None:
    assert picknet("stream", "") == (1, "", "picknet: '': no such file, camera or address\n")


def test_a_stream_is_written_to_a_file_in_the_format_of_its_suffix(
    picknet: Picknet, clips: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = ("stream", clips / "cat.mp4", "--fps", 5, "--model", model_folder)
    code, out, err = picknet(*options, "--out", tmp_path / "log.csv", "--quiet")
    assert (code, out, err) == (0, "", "")
    with (tmp_path / "log.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    _, out, err = picknet(*options, "--format", "json")
    updates = [json.loads(line) for line in out.splitlines()]
    assert err.startswith(f"picknet: {clips / 'cat.mp4'}: ")
    assert [row["caption"] for row in rows] == [update["caption"] for update in updates]
    assert (rows[0]["total_picks"], rows[0]["changed"], rows[0]["confidence"]) == ("1", "true", "")
    _, text, _ = picknet(*options)
    assert [line.split("  ", 1)[1] for line in text.splitlines()] == [update["caption"] for update in updates]


def test_a_table_has_the_confidence_with_four_digits(
    picknet: Picknet, clips: Path, attending_folder: Path, tmp_path: Path
) -> None:
    folder = unsealed(attending_folder, tmp_path / "model")
    (folder / "card.json").write_text(json.dumps({"confidence": {"msvd": {"weights": {"bias": -1.0}}}}))
    _, out, _ = picknet("stream", clips / "cat.mp4", "--fps", 5, "--model", folder, "--format", "csv")
    assert {row["confidence"] for row in csv.DictReader(io.StringIO(out))} == {"0.2689"}


def test_without_a_source_or_a_model_an_older_log_stays(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "log.csv"
    out.write_text("before")
    assert picknet("stream", tmp_path / "no.mp4", "--out", out).code == 1
    assert picknet("stream", clips / "cat.mp4", "--model", tmp_path, "--out", out).code == 1
    assert out.read_text() == "before"


def test_a_sheet_shows_each_pick_with_the_caption_at_that_time(
    picknet: Picknet, clips: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = ("stream", clips / "cat.mp4", "--fps", 5, "--model", model_folder)
    code, out, _ = picknet(*options, "--sheet", tmp_path / "sheets" / "online.png")
    assert (code, out) == (0, picknet(*options).out)  # the sheet changes nothing else
    with Image.open(tmp_path / "sheets" / "online.png") as sheet:
        assert sheet.width == 1600
    code, _, err = picknet(*options, "--sheet", tmp_path / "online.xyz")
    assert (code, "a sheet ends in .png" in err) == (2, True)
