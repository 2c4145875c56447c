"""Picked frames as images, as files and as parts of a chat message."""

import base64
import copy
import io
import itertools
import json
import pickle

import numpy as np
import pytest
from clips import picture
from PIL import Image

from picknet.picking.picker import Pick
from picknet.show.frames import BadImage, PickedFrame, anthropic_parts, encode, openai_parts, write_frames


def picked_frame(number, *, seconds=0.0, width=96, height=64):
    return PickedFrame(picture(number, width=width, height=height), Pick(number, seconds, 0.75))


def read(encoded):
    return Image.open(io.BytesIO(encoded.content))


# --- Images -----------------------------------------------------------------------------------------------------------


def test_a_picked_frame_is_a_pil_image_that_knows_its_time():
    frame = picked_frame(7, seconds=3.2)
    assert isinstance(frame, Image.Image)
    assert (frame.mode, frame.size) == ("RGB", (96, 64))
    assert np.array_equal(np.asarray(frame), picture(7))
    assert (frame.seconds, frame.index, frame.probability) == (3.2, 7, 0.75)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda frame: pickle.loads(pickle.dumps(frame))])
def test_a_picked_frame_keeps_its_time_when_pickled_or_copied(copied):
    frame = picked_frame(7, seconds=3.2)
    other = copied(frame)
    assert other == frame
    assert other.pick == frame.pick


def test_a_picked_frame_can_be_scaled_and_saved_like_any_image(tmp_path):
    frame = picked_frame(7, seconds=3.2)
    frame.thumbnail((48, 48))
    frame.save(tmp_path / "a.png")
    assert (frame.size, frame.seconds) == ((48, 32), 3.2)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (48, 32)


def test_an_encoded_image_has_the_format_and_size_it_reports():
    frame = picked_frame(7)
    png = encode(frame, image_format="png")
    assert (png.media_type, png.width, png.height) == ("image/png", 96, 64)
    assert np.array_equal(np.asarray(read(png)), picture(7))  # PNG loses nothing
    jpeg = encode(frame)
    assert (jpeg.media_type, read(jpeg).format) == ("image/jpeg", "JPEG")
    assert np.abs(np.asarray(read(jpeg), int) - picture(7)).mean() < 2
    assert base64.b64decode(jpeg.base64, validate=True) == jpeg.content


@pytest.mark.parametrize(
    ("size", "max_side", "expected"),
    [((96, 64), 48, (48, 32)), ((64, 96), 48, (32, 48)), ((96, 64), 96, (96, 64)), ((96, 64), 500, (96, 64))],
)
def test_the_longer_side_is_scaled_down_to_max_side_and_never_enlarged(size, max_side, expected):
    frame = picked_frame(7, width=size[0], height=size[1])
    encoded = encode(frame, max_side=max_side)
    assert (encoded.width, encoded.height) == read(encoded).size == expected
    assert frame.size == size


def test_impossible_images_are_refused():
    with pytest.raises(BadImage, match="image_format is 'gif': jpeg and png are possible"):
        encode(picked_frame(7), image_format="gif")
    with pytest.raises(BadImage, match="max_side is 0: 1 pixel or more is possible"):
        encode(picked_frame(7), max_side=0)
    ribbon = Image.new("L", (65_501, 300))
    with pytest.raises(BadImage, match=r"^a picture of 65,501 × 300 pixels cannot be a JPEG, whose sides are at most "):
        encode(ribbon)
    assert encode(ribbon, image_format="png").width == 65_501
    assert encode(ribbon, max_side=1000).width == 1000


# --- Files ------------------------------------------------------------------------------------------------------------


def test_names_sort_by_time_over_hours(tmp_path):
    times = [0.0, 0.04, 59.9996, 3599.5, 36000.25, 360000.0]
    frames = [picked_frame(number, seconds=seconds) for number, seconds in enumerate(times)]
    paths = []
    write_frames(frames, tmp_path / "frames", about={"video": "a.mp4"}, written=paths.append)
    assert [path.name for path in paths] == [
        "0001-00h00m00.000s.jpg",
        "0002-00h00m00.040s.jpg",
        "0003-00h01m00.000s.jpg",
        "0004-00h59m59.500s.jpg",
        "0005-10h00m00.250s.jpg",
        "0006-100h00m00.000s.jpg",
    ]
    assert paths == sorted(paths)
    index = json.loads((tmp_path / "frames" / "index.json").read_text())
    assert index["video"] == "a.mp4"
    assert [row["seconds"] for row in index["picks"]] == times
    assert index["picks"][1] == {
        "file": "0002-00h00m00.040s.jpg", "index": 1, "seconds": 0.04, "probability": 0.75, "frame_number": None,
        "width": 96, "height": 64,
    }  # fmt: skip


def test_the_index_has_the_size_of_each_written_image(tmp_path):
    write_frames([picked_frame(7)], tmp_path, about={}, image_format="png", max_side=24)
    (row,) = json.loads((tmp_path / "index.json").read_text())["picks"]
    with Image.open(tmp_path / row["file"]) as image:
        assert (row["width"], row["height"]) == image.size == (24, 16)


def test_each_frame_is_written_before_the_next_is_read(tmp_path):
    events = []

    def frames():
        for number in range(3):
            events.append(f"made {number}")
            yield picked_frame(number)

    write_frames(frames(), tmp_path, about={}, written=lambda path: events.append("written"))
    assert events == ["made 0", "written", "made 1", "written", "made 2", "written"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interruption_leaves_whole_files_and_an_index_of_them(tmp_path, error):
    def frames():
        yield picked_frame(1)
        yield picked_frame(2, seconds=1.0)
        raise error

    with pytest.raises(error):
        write_frames(frames(), tmp_path, about={})
    names = ["0001-00h00m00.000s.jpg", "0002-00h00m01.000s.jpg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "index.json"]
    assert [row["file"] for row in json.loads((tmp_path / "index.json").read_text())["picks"]] == names


def test_a_failure_before_the_first_frame_leaves_nothing(tmp_path):
    with pytest.raises(BadImage):
        write_frames([picked_frame(1)], tmp_path / "frames", about={}, image_format="gif")
    assert not (tmp_path / "frames").exists()


# --- Messages ---------------------------------------------------------------------------------------------------------


def test_the_time_precedes_each_image_of_a_message():
    frames = [picked_frame(1), picked_frame(2, seconds=3.2)]
    one, two = (encode(frame, image_format="png", max_side=32).base64 for frame in frames)
    assert openai_parts(frames, image_format="png", max_side=32) == [
        {"type": "text", "text": "0:00.0"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{one}"}},
        {"type": "text", "text": "0:03.2"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{two}"}},
    ]
    assert anthropic_parts(frames, image_format="png", max_side=32) == [
        {"type": "text", "text": "0:00.0"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": one}},
        {"type": "text", "text": "0:03.2"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": two}},
    ]
    assert openai_parts(itertools.islice(frames, 0)) == []
