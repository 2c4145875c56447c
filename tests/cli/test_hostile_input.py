"""What hostile files do to commands over many files: nothing."""

import json
import time
from pathlib import Path

import av
import pytest
from clips import write_clip
from command import Picknet

from picknet.video.frame import Frame


def test_the_limit_on_pixels_is_an_option(
    picknet: Picknet, model_folder: Path, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICKNET_MAX_PIXELS", "")  # restored after the test, whatever the command sets
    for command in ("caption", "timeline", "stream", "pick"):
        options = ["--budget", 2, "--format", "json"] if command == "pick" else []
        code, out, err = picknet(
            command, clips / "cat.mp4", "--model", model_folder, "--max-pixels", 6143, *options
        )
        assert (code, out) == (1, "")
        assert err == (
            f"picknet: {clips / 'cat.mp4'}: its pictures have 96 × 64 = 6,144 pixels: at most 6,143 are decoded; "
            "--max-pixels or PICKNET_MAX_PIXELS sets another limit\n"
        )
    code, out, _ = picknet("caption", clips / "cat.mp4", "--model", model_folder, "--max-pixels", 6144)
    assert code == 0
    assert out


def test_the_limit_on_pixels_holds_in_the_processes_of_a_batch(
    picknet: Picknet, model_folder: Path, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICKNET_MAX_PIXELS", "")
    code, _, _ = picknet(
        "batch", clips / "cat.mp4", "--model", model_folder, "--max-pixels", 6143, "--out", tmp_path, "-f", "jsonl"
    )
    assert code == 1
    row = json.loads(next(tmp_path.glob("*.jsonl")).read_text())
    assert "its pictures have 96 × 64 = 6,144 pixels: at most 6,143 are decoded" in row["error"]


def test_a_playlist_among_videos_is_one_line(picknet: Picknet, model_folder: Path, clips: Path, tmp_path: Path) -> None:
    playlist = tmp_path / "list.mp4"
    playlist.write_text(f"ffconcat version 1.0\nfile {clips / 'cat.mp4'}\n")
    code, out, err = picknet("caption", playlist, clips / "cat.mp4", "--model", model_folder)
    assert code == 1
    assert out.startswith(f"{clips / 'cat.mp4'}: ")
    assert err == (
        f"picknet: {playlist}: a playlist, which refers to other files; `stream` follows the playlist at an address\n"
    )


def test_a_film_whose_frames_are_decades_apart_takes_no_time(
    picknet: Picknet, model_folder: Path, tmp_path: Path
) -> None:
    decades = 10**12  # milliseconds
    film = write_clip(tmp_path / "film.mkv", num_frames=4, milliseconds=[0, 1000, decades, decades + 1000])
    start = time.monotonic()
    for suffix in ("srt", "edl", "json", "ffmeta"):
        out = tmp_path / f"film.{suffix}"
        assert picknet("timeline", film, "--model", model_folder, "--out", out).code == 0
        assert out.stat().st_size > 0
    sheet = tmp_path / "board.png"
    assert picknet("timeline", film, "--model", model_folder, "--sheet", sheet).code == 0
    assert sheet.stat().st_size > 0
    code, out, _ = picknet("pick", film, "--model", model_folder, "--budget", 4, "--format", "json")
    assert code == 0
    assert [pick["seconds"] for pick in json.loads(out)["picks"]][-1] == 10**9 + 1
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("command", ["caption", "timeline", "pick"])
def test_a_frame_that_cannot_be_scaled_costs_its_video_only(
    picknet: Picknet, model_folder: Path, clips: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    class Broken:
        def reformat(self, *_: object, **__: object) -> None:
            raise av.ArgumentError(22, "Invalid argument")

    scale = Frame._reformatted
    monkeypatch.setattr(Frame, "_reformatted", lambda frame, _, *size, **how: scale(frame, Broken(), *size, **how))
    options = ("--budget", 2, "--format", "json") if command == "pick" else ()
    code, out, err = picknet(command, clips, "--model", model_folder, *options)
    assert (code, out) == (1, "")
    for line, name in zip(err.splitlines(), ("cat.mp4", "dog.mkv"), strict=True):
        assert line.startswith(f"picknet: {clips / name}: the frame at ")
        assert line.endswith(" s: 96 × 64 pixels of yuv420p cannot be scaled (Invalid argument)")
