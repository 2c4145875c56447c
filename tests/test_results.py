"""Results: one JSON shape, readable text, and pictures in a notebook."""

import base64
import dataclasses
import io
import json
import math
import re

import numpy as np
import pytest
from clips import number_of, write_clip
from PIL import Image

from picknet.captioner import load
from picknet.model.confidence import written
from picknet.model.sentences import Sentence
from picknet.picking.picker import Pick
from picknet.picking.plain import UniformPicker
from picknet.results import Caption, Picked, Segment, Update
from picknet.show.notebook import MAX_IMAGES

PICKS = (Pick(0, 0.0), Pick(7, 1.26666666667, 0.61, 38))
PICK_DICTS = [
    {"index": 0, "seconds": 0.0, "probability": None, "frame_number": None},
    {"index": 7, "seconds": 1.266667, "probability": 0.61, "frame_number": 38},
]
CAPTION = Caption(
    "a cat is eating", PICKS, 30, "cat.mp4", "msvd", None, math.log(0.25), 0.734,
    (Sentence("a cat is eating", math.log(0.25)), Sentence("a dog", math.log(0.125))), 5.0000000001, 2,
    width=640, height=360,
)  # fmt: skip
UPDATE = Update(1.26666666667, "a cat", True, PICKS, 8, 5, 0.5, 1, 0.0200000001, None, "camera 0", "msvd")
SEGMENT = Segment(0.0, 12.34567, "a cat", None, PICKS, "it is cut", "cat.mp4", "msvd")


def test_a_caption_as_json():
    assert CAPTION.to_dict() == {
        "video": "cat.mp4",
        "caption": "a cat is eating",
        "confidence": 0.734,
        "not_sure": None,
        "num_picks": 2,
        "picks": PICK_DICTS,
        "frames_seen": 30,
        "seconds": 5.0,
        "width": 640,
        "height": 360,
        "model": "msvd",
        "candidates": [
            {"caption": "a cat is eating", "probability": 0.25},
            {"caption": "a dog", "probability": math.exp(math.log(0.125))},
        ],
        "damage": None,
        "error": None,
    }


def test_an_update_as_json_has_the_picks_in_memory_and_the_number_of_all():
    assert UPDATE.to_dict() == {
        "video": "camera 0",
        "seconds": 1.266667,
        "caption": "a cat",
        "changed": True,
        "confidence": 0.5,
        "not_sure": None,
        "num_picks": 2,
        "picks": PICK_DICTS,
        "total_picks": 5,
        "frames_seen": 8,
        "scene": 1,
        "lag": 0.02,
        "model": "msvd",
        "damage": None,
    }
    assert UPDATE.pick == PICKS[-1]


def test_a_segment_and_picked_frames_as_json():
    assert SEGMENT.to_dict() == {
        "video": "cat.mp4",
        "start": 0.0,
        "end": 12.34567,
        "caption": "a cat",
        "confidence": None,
        "not_sure": None,
        "num_picks": 2,
        "picks": PICK_DICTS,
        "model": "msvd",
        "damage": "it is cut",
    }
    assert Picked((), 30, None, "cat.mp4").to_dict() == {
        "video": "cat.mp4", "num_picks": 0, "picks": [], "frames_seen": 30, "damage": None,
    }  # fmt: skip


def test_a_failed_caption_is_valid_json():
    failed = Caption("", (), 0, "a.mp4", "msvd", None, -math.inf, num_scenes=0, error="a.mp4: no such file")
    content = json.loads(json.dumps(failed.to_dict(), allow_nan=False))
    assert (content["caption"], content["error"], content["picks"]) == ("", "a.mp4: no such file", [])
    assert content.keys() == CAPTION.to_dict().keys()
    assert repr(failed) == "Caption(video='a.mp4', error='a.mp4: no such file')"


@pytest.mark.parametrize("result", [CAPTION, UPDATE, SEGMENT])
def test_a_result_that_is_not_sure_says_so_to_people_and_why_to_programs(result):
    assert result.display_text == result.text
    reason = "confidence 0.31 is below 0.5"
    unsure = dataclasses.replace(result, text="", confidence=0.314, not_sure=reason)
    assert unsure.display_text == "not sure (0.31)"
    assert (unsure.to_dict()["caption"], unsure.to_dict()["not_sure"]) == ("", reason)
    assert "not sure, confidence=0.31" in repr(unsure)
    assert "not sure (0.31)" in unsure._repr_html_()


@pytest.mark.parametrize(
    ("confidence", "limit", "expected"),
    [
        (0.1568, 0.5, "0.16"),
        (0.4986, 0.5, "0.4986"),
        (0.499996, 0.5, "0.499996"),
        (0.5, 0.5, "0.50"),
        (0.5049, 0.5, "0.50"),
        (0.2689, 0.27, "0.2689"),
        (0.2689, 0.5, "0.27"),
        (0.9999, 1.0, "0.9999"),
    ],
)
def test_a_confidence_has_two_digits_or_as_many_as_show_that_it_is_below_the_limit(confidence, limit, expected):
    assert written(confidence, limit=limit) == expected


def test_a_result_says_its_confidence_as_its_reason_does():
    given = {"text": "", "confidence": 0.4986, "not_sure": "confidence 0.4986 is below 0.5"}
    unsure = dataclasses.replace(SEGMENT, **given)
    assert unsure.display_text == "not sure (0.4986)"
    assert "not sure, confidence=0.4986" in repr(unsure)
    assert ", confidence=0.4986, " in repr(dataclasses.replace(CAPTION, confidence=0.4986))


def test_results_print_their_text_confidence_and_times():
    assert repr(CAPTION) == "Caption('a cat is eating', confidence=0.73, picks at 0.0, 1.3 s)"
    assert repr(UPDATE) == (
        "Update(1.3 s, 'a cat', confidence=0.50, picks at 0.0, 1.3 s, scene=1, changed=True)"
    )
    assert repr(SEGMENT) == "Segment(0.0-12.3 s, 'a cat', picks at 0.0, 1.3 s)"
    many = dataclasses.replace(SEGMENT, picks=tuple(Pick(i, float(i)) for i in range(30)))
    assert repr(many) == (
        "Segment(0.0-12.3 s, 'a cat', picks at 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0 s and 22 more)"
    )
    assert repr(Picked((), 30, None)) == "Picked(no picks, frames_seen=30)"


def test_results_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CAPTION.text = "another"


# --- Notebooks -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captioner(model_folder):
    return load(model_folder)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("clips") / "a <b> clip.mp4", num_frames=100)


def frame_numbers(content):
    """The numbers that the pictures of a page show."""
    found = re.findall(r"data:image/\w+;base64,([A-Za-z0-9+/=]+)", content)
    images = [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]
    return [number_of(np.asarray(image.convert("RGB"))) for image in images]


def test_a_caption_shows_its_picked_frames_read_again_from_the_file(captioner, clip):
    caption = captioner.caption(clip, picker=UniformPicker(3), num_frames=10)
    content = caption._repr_html_()
    # Samples 1, 5 and 8 of the frames 5, 15, 25, ...
    assert frame_numbers(content) == [15, 55, 85]
    assert "a &lt;b&gt; clip.mp4" in content
    assert "<script" not in content


def test_segments_updates_and_picked_frames_show_theirs(captioner, clip):
    (segment,) = captioner.timeline(clip, picker=UniformPicker(2))
    assert frame_numbers(segment._repr_html_()) == [pick.frame_number for pick in segment.picks]
    *_, update = captioner.stream(clip)
    assert frame_numbers(update._repr_html_()) == [pick.frame_number for pick in update.picks]
    found = captioner.picked(clip, picker=UniformPicker(40), num_frames=100)
    assert len(frame_numbers(found._repr_html_())) == MAX_IMAGES


def test_a_caption_without_its_file_shows_its_text_and_times(captioner, clip, tmp_path):
    copy = tmp_path / "gone.mp4"
    copy.write_bytes(clip.read_bytes())
    caption = captioner.caption(copy, picker=UniformPicker(2), num_frames=10)
    copy.unlink()
    assert frame_numbers(caption._repr_html_()) == []
    assert caption.text in caption._repr_html_()
    assert "picks at " in caption._repr_html_()
    copy.write_text("no video any more")
    assert "The picked frames cannot be shown: " in caption._repr_html_()
    of_bytes = captioner.caption(clip.read_bytes(), picker=UniformPicker(2), num_frames=10)
    assert frame_numbers(of_bytes._repr_html_()) == []
    strange = dataclasses.replace(caption, video="\0")
    assert caption.text in strange._repr_html_()


def test_a_failed_caption_shows_its_error(captioner):
    (failed,) = captioner.caption_many(["no <such> file.mp4"])
    assert "no &lt;such&gt; file.mp4: no such file" in failed._repr_html_()
