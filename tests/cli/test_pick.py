import csv
import errno
import io
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from clips import number_of, picture, write_audio, write_clip
from command import Picknet, on_linux, subprocess_of
from PIL import Image

from picknet.video.frame import Frame
from picknet.video.live import LostSource


def test_pick_writes_full_size_frames_with_their_times_and_an_index(picknet: Picknet, tmp_path: Path) -> None:
    video = write_clip(tmp_path / "cat.mp4", num_frames=30, width=320, height=180)
    out = tmp_path / "new" / "frames"
    code, printed, _ = picknet("pick", video, "--out", out, "--picker", "uniform", "--k", 2)
    names = ["0001-00h00m00.280s.jpg", "0002-00h00m00.880s.jpg"]  # frames 7 and 22 at 25 a second
    assert code == 0
    assert printed.splitlines() == [str(out / name) for name in names]
    size = {"width": 320, "height": 180}
    assert json.loads((out / "index.json").read_text()) == {
        "video": str(video),
        "picker": "uniform",
        "frames_seen": 30,
        "damage": None,
        "num_picks": 2,
        "picks": [
            {"file": names[0], "index": 7, "seconds": 0.28, "probability": None, "frame_number": 7, **size},
            {"file": names[1], "index": 22, "seconds": 0.88, "probability": None, "frame_number": 22, **size},
        ],
    }
    for name, number in zip(names, (7, 22), strict=True):
        with Image.open(out / name) as image:
            assert (image.size, image.format) == ((320, 180), "JPEG")
            assert number_of(np.asarray(image)) == number


def test_frames_of_a_turned_video_are_upright(picknet: Picknet, tmp_path: Path) -> None:
    video = write_clip(tmp_path / "phone.mp4", num_frames=3, width=96, height=64, rotation=90)
    code, printed, _ = picknet("pick", video, "--out", tmp_path / "frames", "--budget", 1, "--image-format", "png")
    assert (code, printed) == (0, f"{tmp_path}/frames/0001-00h00m00.000s.png\n")
    with Image.open(printed.strip()) as image:
        assert (image.size, image.format) == ((64, 96), "PNG")
        # As coded, red is on the left of the lower half. Turned left by 90°, it is at the bottom of the right half.
        red, blue = image.getpixel((48, 80)), image.getpixel((48, 16))
    assert red[0] > 150 > red[2]
    assert blue[2] > 150 > blue[0]


def test_a_budget_is_kept_to_and_with_exact_spent(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    for budget in (1, 5, 40):
        _, most, _ = picknet("pick", clips / "cat.mp4", "--out", tmp_path / f"most{budget}", "--budget", budget)
        _, all_of_it, _ = picknet(
            "pick", clips / "cat.mp4", "--out", tmp_path / f"all{budget}", "--budget", budget, "--exact"
        )
        assert 1 <= len(most.splitlines()) <= budget
        assert len(all_of_it.splitlines()) == budget
    code, out, err = picknet("pick", clips / "cat.mp4", "--out", tmp_path / "no", "--budget", 41, "--exact")
    assert (code, out) == (1, "")
    assert err == f"picknet: {clips}/cat.mp4: exactly 41 frames were asked for, but it has 40\n"
    raw = write_clip(tmp_path / "raw.h264", num_frames=40)  # whose length is not stored
    code, out, err = picknet("pick", raw, "--budget", 20, "--exact", "--format", "jsonl")
    assert (code, len(out.splitlines()), err) == (0, 20, "")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "--budget 0: 1 to 1,000 frames are possible"),
        (["--budget", "-1"], "--budget -1: 1 to 1,000 frames are possible"),
        (["--budget", "10000"], "--budget 10000: 1 to 1,000 frames are possible"),
        (["--model", "msvd", "--picker", "all"], "--model msvd: the picker all uses no model"),
        (["--budget", "3", "--exact", "--picker", "uniform"], "--exact needs a --budget, and no --picker beside it"),
        (["--exact"], "--exact needs a --budget, and no --picker beside it"),
        (["--rate", "0"], "--rate 0: more than 0 is possible; 1 is the model's own, 2 picks more, 0.5 fewer"),
        (["--rate", "2", "--picker", "uniform"], "--rate 2: does not apply to uniform, only to picknet"),
        (["--rate", "2", "--budget", "3"], "--rate 2: --budget says how many; add --picker picknet, or"),
        (["--k", "2", "--budget", "3"], "--k 2: --budget says how many; add --picker picknet, or leave one of them"),
        (["--k", "2", "--rate", "3"], "--rate 3: --k 2 says how many frames picknet picks; leave one of them out"),
        (["--max-side", "0"], "Invalid value for '--max-side': "),
        (["--image-format", "gif"], "Invalid value for '--image-format': "),
    ],
)
def test_picks_that_cannot_be_are_a_usage_error(
    picknet: Picknet, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = picknet("pick", "cat.mp4", "--out", tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"picknet: {message}")
    assert err.count("\n") == 1


def test_without_a_folder_pick_has_to_print_the_frames_themselves(picknet: Picknet) -> None:
    code, out, err = picknet("pick", "cat.mp4", "--budget", 3)
    assert (code, out) == (2, "")
    assert err == (
        "picknet: no output: pass --out DIR for the images, or a --format that needs no folder: "
        "json, jsonl, csv, base64, openai, anthropic\n"
    )


def test_settings_of_images_need_images(picknet: Picknet) -> None:
    for option, given in (("--max-side", 48), ("--image-format", "png")):
        code, out, err = picknet("pick", "cat.mp4", "--format", "csv", option, given)
        assert (code, out, err) == (2, "", f"picknet: {option} {given}: csv holds no images; pass --out DIR for them\n")


def test_pick_prints_ready_parts_of_messages(
    picknet: Picknet, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("pick", clips / "cat.mp4", "--picker", "uniform", "--k", 2, "--max-side", 48)
    _, out, _ = picknet(*options, "--format", "openai")
    times, images = (json.loads(out)[start::2] for start in (0, 1))
    assert times == [{"type": "text", "text": "0:00.4"}, {"type": "text", "text": "0:01.2"}]  # 10 and 30 of 40 at 25
    assert [list(image) for image in images] == [["type", "image_url"]] * 2
    start = "data:image/jpeg;base64,"
    sent = [image["image_url"]["url"] for image in images]
    assert all(url.startswith(start) for url in sent)
    _, out, _ = picknet(*options, "--format", "anthropic")
    parts = json.loads(out)
    assert parts[0] == times[0]
    data = [url.removeprefix(start) for url in sent]
    assert [part["source"] for part in parts[1::2]] == [
        {"type": "base64", "media_type": "image/jpeg", "data": one} for one in data
    ]
    _, out, _ = picknet(*options, "--format", "base64")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line.pop("data") for line in lines] == data
    assert [round(line.pop("seconds"), 6) for line in lines] == [0.4, 1.2]
    same = {"video": f"{clips}/cat.mp4", "probability": None, "width": 48, "height": 32, "media_type": "image/jpeg"}
    # Of 40 frames at 25 a second, 30 are sampled.
    assert lines == [{**same, "index": index, "frame_number": number} for index, number in ((7, 10), (22, 30))]
    assert list(tmp_path.iterdir()) == []


def test_pick_prints_its_index_as_json_lines_or_csv(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    arguments = ("pick", clips / "cat.mp4", clips / "dog.mkv", "--picker", "uniform", "--k", 2)
    rows = {}
    for place in ((), ("--out", tmp_path / "frames")):
        _, out, _ = picknet(*arguments, *place, "--format", "json")
        videos = [json.loads(line) for line in out.splitlines()]
        shutil.rmtree(tmp_path / "frames", ignore_errors=True)
        _, out, _ = picknet(*arguments, *place, "--format", "jsonl")
        rows[bool(place)] = [json.loads(line) for line in out.splitlines()]
        assert rows[bool(place)] == [{"video": one["video"], **row} for one in videos for row in one["picks"]]
        shutil.rmtree(tmp_path / "frames", ignore_errors=True)
        _, out, _ = picknet(*arguments, *place, "--format", "csv")
        assert [row["seconds"] for row in csv.DictReader(io.StringIO(out))] == ["0.4", "1.2", "0.12", "0.36"]
        assert out.splitlines()[0] == "video,file,index,seconds,probability,frame_number,width,height"
        assert out.count("video,file") == 1
    assert json.loads((tmp_path / "frames" / "dog" / "index.json").read_text()) == videos[1]
    assert [row["file"] for row in rows[True]] == [
        "0001-00h00m00.400s.jpg", "0002-00h00m01.200s.jpg", "0001-00h00m00.120s.jpg", "0002-00h00m00.360s.jpg",
    ]  # fmt: skip
    assert "file" not in rows[False][0]


def test_a_budget_of_a_picker_keeps_some_of_its_picks(picknet: Picknet, clips: Path, model_folder: Path) -> None:
    def picks(*options: object) -> list[int]:
        _, out, _ = picknet("pick", clips / "cat.mp4", "--format", "jsonl", *options)
        return [json.loads(line)["index"] for line in out.splitlines()]

    several = picks("--picker", "uniform", "--k", 8)
    few = picks("--picker", "uniform", "--k", 8, "--budget", 3)
    assert len(few) == 3
    assert set(few) < set(several)
    assert few != several[:3]
    assert len(picks("--picker", "picknet", "--model", model_folder, "--budget", 1)) == 1


def test_a_rate_is_a_dial_from_few_picks_to_many(picknet: Picknet, clips: Path, attending_folder: Path) -> None:
    def picks(*options: object) -> list[int]:
        command = ("pick", clips / "cat.mp4", "--model", attending_folder, "--frames", 30, "--format", "json", *options)
        code, out, err = picknet(*command)
        assert (code, err) == (0, "")
        return [pick["index"] for pick in json.loads(out)["picks"]]

    few, own, many = picks("--rate", 0.25), picks(), picks("--rate", 4)
    assert 1 <= len(few) < len(own) < len(many)
    assert picks("--rate", 1) == own
    # A budget keeps the likeliest.
    assert set(picks("--rate", 4, "--picker", "picknet", "--budget", 3)) < set(many)


@pytest.mark.parametrize("folder", ["model_folder", "attending_folder"])
def test_k_is_the_exact_number_of_picks(
    picknet: Picknet, clips: Path, folder: str, request: pytest.FixtureRequest
) -> None:
    def picks(*options: object) -> list[dict[str, object]]:
        command = ("pick", clips / "cat.mp4", "--model", request.getfixturevalue(folder), "--frames", 20)
        code, out, err = picknet(*command, "--format", "jsonl", *options)
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    for k in (1, 3, 7, 20):
        found = picks("--k", k)
        assert len({pick["index"] for pick in found}) == k
        # Only the first frame of the paper's picker has none.
        assert all(pick["probability"] is not None or pick["index"] == 0 for pick in found)
    assert len(picks("--k", 21)) == 20
    assert len(picks("--k", 7, "--picker", "picknet", "--budget", 3)) == 3


def test_parts_of_messages_can_be_printed_beside_the_files(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    arguments = ("--budget", 1, "--format", "openai", "--out", tmp_path / "frames")
    _, out, _ = picknet("pick", clips / "cat.mp4", clips / "dog.mkv", *arguments)
    assert [len(json.loads(line)) for line in out.splitlines()] == [2, 2]
    assert (tmp_path / "frames" / "dog" / "0001-00h00m00.000s.jpg").exists()


def test_of_several_videos_each_has_a_folder_and_bad_ones_none(
    picknet: Picknet, clips: Path, tmp_path: Path
) -> None:
    (tmp_path / "Cat.avi").write_text("no video")
    same_name = shutil.copy(clips / "dog.mkv", tmp_path / "Cat.mkv")
    out = tmp_path / "frames"
    arguments = (clips, tmp_path / "Cat.avi", same_name, "no.mp4", "--out", out, "--budget", 1)
    code, printed, err = picknet("pick", *arguments)
    assert code == 1
    name = "0001-00h00m00.000s.jpg"
    # Cat is the same as cat where capitals do not count.
    assert printed.splitlines() == [str(out / folder / name) for folder in ("cat", "dog", "Cat-3")]
    assert err.splitlines() == [
        "picknet: no.mp4: no such file or folder",
        f"picknet: {tmp_path}/Cat.avi: not a known video format",
    ]
    assert sorted(path.name for path in out.iterdir()) == ["Cat-3", "cat", "dog"]


def test_a_cut_video_is_picked_from_and_the_cut_is_told(picknet: Picknet, tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "whole.mkv", num_frames=60).read_bytes()
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(whole[: len(whole) // 2])
    code, _, err = picknet("pick", cut, "--out", tmp_path / "frames", "--budget", 2)
    damage = json.loads((tmp_path / "frames" / "index.json").read_text())["damage"]
    assert code == 0
    assert err == f"picknet: {cut}: {damage}; picked from what could be read\n"


def test_pick_leaves_a_folder_with_other_things_alone(picknet: Picknet, clips: Path) -> None:
    before = sorted(clips.iterdir())
    for place in (clips, clips / "notes.txt"):
        code, _, err = picknet("pick", clips / "cat.mp4", "--out", place, "--picker", "all")
        assert code == 2
        assert err == f"picknet: {place}: exists and is not an empty folder; name a new one\n"
    assert sorted(clips.iterdir()) == before


def test_a_folder_that_cannot_be_written_is_told_before_a_video_is_read(
    picknet: Picknet, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("picknet.captioner.picked", None)
    inside_a_file = clips / "notes.txt" / "frames"
    code, out, err = picknet("pick", clips / "cat.mp4", "--out", inside_a_file, "--budget", 2)
    assert (code, out) == (1, "")
    assert err == f"picknet: {inside_a_file}: cannot be written (Not a directory)\n"


def test_on_a_full_disk_the_frames_that_were_written_are_kept(
    picknet: Picknet, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_written = 0

    def write_bytes(path: Path, content: bytes) -> None:
        nonlocal num_written
        num_written += 1
        with path.open("wb") as file:
            file.write(content[: 100 if num_written == 3 else None])
        if num_written == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    out = tmp_path / "frames"
    code, printed, err = picknet("pick", clips / "cat.mp4", "--out", out, "--picker", "uniform", "--k", 4)
    names = [Path(line).name for line in printed.splitlines()]
    assert code == 1
    assert len(names) == 2
    assert err.startswith(f"picknet: {out}/0003-00h00m")
    assert err.endswith("s.jpg: cannot be written (No space left on device)\n")
    assert sorted(path.name for path in out.iterdir()) == [*names, "index.json"]
    assert [row["file"] for row in json.loads((out / "index.json").read_text())["picks"]] == names


def test_a_live_source_needs_a_budget(picknet: Picknet, tmp_path: Path) -> None:
    for options in ([], ["--budget", 3, "--exact"], ["--budget", 3, "--picker", "uniform"]):
        code, _, err = picknet("pick", "rtsp://me:geheim@camera/1", "--out", tmp_path / "frames", *options)
        assert code == 2
        assert err == (
            "picknet: rtsp://me:***@camera/1: a live source, which may have no end; pick from it with --budget N, "
            "without --exact and --picker\n"
        )


@pytest.mark.parametrize("command", ["caption", "timeline"])
def test_a_live_source_among_files_is_refused_without_its_password(picknet: Picknet, command: str) -> None:
    code, _, err = picknet(command, "rtsp://me:geheim@camera/1")
    message = "a live source, which may have no end; use picknet stream"
    assert (code, err) == (1, f"picknet: rtsp://me:***@camera/1: {message}\n")


def test_a_pipe_is_picked_from_in_one_pass(tmp_path: Path) -> None:
    film = write_clip(tmp_path / "film.mkv", num_frames=100, seekable=False)
    with film.open("rb") as pipe:
        process = subprocess_of("pick", "-", "--budget", 3, "--out", tmp_path / "frames", stdin=pipe)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    index = json.loads((tmp_path / "frames" / "index.json").read_text())
    assert (index["video"], index["frames_seen"]) == ("standard input", 4)  # of four seconds
    assert out.splitlines() == [str(tmp_path / "frames" / row["file"]) for row in index["picks"]]
    assert index["picks"][0]["seconds"] == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (write_audio, "no video stream found (streams: audio)"),
        (lambda path: path.write_bytes(b""), "nothing came, or what it sends is not a known video format"),
    ],
)
def test_a_pipe_without_a_picture_is_an_error_and_leaves_no_folder(
    tmp_path: Path, content: Callable[[Path], object], told: str
) -> None:
    content(tmp_path / "sound.mp4")
    with (tmp_path / "sound.mp4").open("rb") as pipe:
        process = subprocess_of("pick", "-", "--budget", 3, "--out", tmp_path / "frames", stdin=pipe)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (1, "", f"picknet: standard input: {told}\n")
    assert not (tmp_path / "frames").exists()


@on_linux
@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_live_source_is_picked_from_until_it_is_enough(
    picknet: Picknet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals, code: int
) -> None:
    def endless(_: object) -> Iterator[Frame]:
        for number in range(4):
            yield Frame.from_pixels(picture(64 * number), index=number, seconds=float(number))
        signal.raise_signal(ending)
        pytest.fail("not interrupted")

    monkeypatch.setattr("picknet.video.live.Live.__iter__", endless)
    source = "http://127.0.0.1:1/1"
    out = picknet("pick", source, "--budget", 3, "--out", tmp_path / "frames")
    assert (out.code, out.err) == (code, "")
    index = json.loads((tmp_path / "frames" / "index.json").read_text())
    assert (index["video"], index["frames_seen"]) == (source, 4)
    assert out.out.splitlines() == [str(tmp_path / "frames" / row["file"]) for row in index["picks"]]


def test_of_a_source_that_is_lost_what_was_picked_is_kept(
    picknet: Picknet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: object) -> Iterator[Frame]:
        yield Frame.from_pixels(picture(7), index=0, seconds=0.0)
        raise LostSource("http://camera: lost after 1.0 s (it went dark)")

    monkeypatch.setattr("picknet.video.live.Live.__iter__", lost)
    code, out, err = picknet("pick", "http://camera", "--budget", 3, "--out", tmp_path / "frames")
    assert (code, out) == (1, f"{tmp_path}/frames/0001-00h00m00.000s.jpg\n")
    assert err == "picknet: http://camera: lost after 1.0 s (it went dark)\n"


@on_linux
@pytest.mark.parametrize("options", [("--budget", 3, "--format", "csv"), ("--picker", "random", "--format", "base64")])
def test_a_limit_on_time_changes_no_pick(
    picknet: Picknet, clips: Path, model_folder: Path, tmp_path: Path, options: tuple[object, ...]
) -> None:
    bad = tmp_path / "bad.mp4"
    bad.write_text("no video")
    model = () if "random" in options else ("--model", model_folder)
    command = ("pick", bad, clips / "cat.mp4", clips / "dog.mkv", *options, *model)
    expected = picknet(*command)
    assert picknet(*command, "--timeout", 100) == expected
    assert expected.code == 1
    assert expected.out.count("\n") > 6


@on_linux
def test_a_video_that_takes_too_long_to_pick_from_is_given_up(
    picknet: Picknet, clips: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = ("--model", model_folder, "--budget", 2, "--out", tmp_path / "frames", "--timeout", 0.1)
    expected = f"picknet: {clips / 'cat.mp4'}: took longer than 0.1 s and was stopped\n"
    assert picknet("pick", clips / "cat.mp4", *options) == (1, "", expected)
    assert not any(tmp_path.iterdir())


def test_a_live_source_has_no_limit_on_time(picknet: Picknet) -> None:
    outcome = picknet("pick", "rtsp://127.0.0.1/1", "--budget", 2, "--format", "csv", "--timeout", 5)
    assert outcome == (2, "", "picknet: --timeout: does not apply to a live source\n")
