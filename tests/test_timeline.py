"""Timelines: how segments are found, and files that other programs can read."""

import csv
import dataclasses
import html
import io
import itertools
import json
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from clips import write_audio
from PIL import Image

from picknet.captioner import load
from picknet.cli import main
from picknet.model.confidence import Confidence
from picknet.model.sentences import Sentence, Signals, Written
from picknet.picking.learned import PickNetPicker
from picknet.picking.picker import Pick
from picknet.picking.plain import AllPicker
from picknet.results import Segment
from picknet.show.page import Thumbnail
from picknet.show.storyboard import Storyboard
from picknet.timeline import (
    SCENE_COLUMNS,
    SHORTEST,
    as_chapters,
    as_csv,
    as_edl,
    as_json,
    as_jsonl,
    as_scenes,
    as_srt,
    as_text,
    as_vtt,
    from_cut_to_cut,
    parts,
    readable,
)
from picknet.video.file import UnreadableVideo
from picknet.video.frame import Frame
from picknet.video.live import BadSetting


def segment(start, end, text, *, picks=(), confidence=None, damage=None, not_sure=None, cuts=(), continues=False):
    chosen = tuple(Pick(index, float(index)) for index in picks)
    return Segment(start, end, text, confidence, chosen, damage, not_sure=not_sure, cuts=cuts, continues=continues)


def times_and_texts(segments):
    return [(one.start, one.end, one.text) for one in segments]


# --- Which segments --------------------------------------------------------------------------------------------------


def test_segments_that_can_be_read_stay_as_they_are():
    given = [segment(0, 4, "a cat"), segment(4, 5.5, "a dog"), segment(5.5, 60, "a cat")]
    assert list(readable(given)) == given


def test_neighbours_with_the_same_caption_become_one():
    given = [segment(0, 4, "a cat", picks=[1]), segment(4, 9, "a cat", picks=[5, 7]), segment(9, 12, "a dog")]
    joined = list(readable(given))
    assert times_and_texts(joined) == [(0, 9, "a cat"), (9, 12, "a dog")]
    assert [pick.index for pick in joined[0].picks] == [1, 5, 7]


def test_a_segment_too_short_to_be_read_joins_the_next():
    given = [segment(0, 1, "light", picks=[0]), segment(1, 6, "a cat", picks=[3]), segment(6, 7.4, "a dog", picks=[6])]
    joined = list(readable(given))
    # Nothing comes after the last: it goes along with the one before.
    assert times_and_texts(joined) == [(0, 7.4, "a cat")]
    assert [pick.index for pick in joined[0].picks] == [3]  # the picks that the sentence was made from


def test_many_short_scenes_do_not_vanish_into_one():
    given = [segment(i, i + 1, f"scene {i}") for i in range(6)]
    assert times_and_texts(readable(given)) == [(0, 2, "scene 0"), (2, 4, "scene 2"), (4, 6, "scene 4")]


def test_a_film_that_is_shorter_than_a_readable_segment_has_one():
    assert times_and_texts(readable([segment(0, 0.3, "a cat"), segment(0.3, 1.0, "a dog")])) == [(0, 1.0, "a dog")]
    assert list(readable([])) == []


def test_a_joined_segment_reports_the_damage_found_last():
    given = [segment(0, 4, "a cat"), segment(4, 8, "a cat", damage="breaks off")]
    assert [one.damage for one in readable(given)] == ["breaks off"]


def test_a_joined_segment_knows_the_cuts_in_it():
    given = [
        segment(0, 4, "a cat"), segment(4, 5, "a flash"), segment(5, 9, "a cat"), segment(9, 20, "a dog"),
        segment(20, 50, "a dog", continues=True), segment(50, 60, "a man", continues=True),
    ]  # fmt: skip
    cat, dog, man = readable(given)
    assert times_and_texts([cat, dog, man]) == [(0, 9, "a cat"), (9, 50, "a dog"), (50, 60, "a man")]
    assert [(one.cuts, one.continues) for one in (cat, dog, man)] == [((4, 5), False), ((), False), ((), True)]
    # The scenes: the flash has the caption of what it was joined to, the long one that of its longest part.
    scenes = from_cut_to_cut([cat, dog, man])
    assert times_and_texts(scenes) == [(0, 4, "a cat"), (4, 5, "a cat"), (5, 9, "a cat"), (9, 60, "a dog")]


def test_a_scene_has_the_caption_of_its_longest_part():
    later = [segment(30, 60, "a dog", continues=True), segment(60, 110, "a man", continues=True)]
    # Longer than each of the others, though not than both together.
    assert times_and_texts(from_cut_to_cut([segment(0, 30, "a cat"), *later])) == [(0, 110, "a man")]


def test_a_segment_without_known_cuts_is_a_scene():
    given = [segment(0, 4, "a cat"), segment(4, 9, "a cat")]
    assert list(from_cut_to_cut(given)) == given
    assert list(from_cut_to_cut([])) == []


def test_a_long_scene_is_split_into_parts_of_half_a_minute():
    frames = [Frame.from_pixels(np.zeros((4, 4, 3), np.uint8), index=i, seconds=7.0 + i) for i in range(65)]
    # The scene starts at 7 s: its parts at 7, 37 and 67 s.
    assert [[frame.index for frame in part] for part in parts(iter(frames))] == [
        list(range(30)),
        list(range(30, 60)),
        list(range(60, 65)),
    ]


# --- Films -----------------------------------------------------------------------------------------------------------

FILM_SIZE = (120, 160)


def pictures(count, *, seed=0):
    """Pictures of coloured tiles that have nothing in common: (count, 120, 160, 3)"""
    tiles = np.random.default_rng(seed).integers(0, 256, (count, 6, 8, 3), dtype=np.uint8)
    return tiles.repeat(20, axis=1).repeat(20, axis=2)


def write_film(path, shots, *, fps=4):
    """Each shot is (picture, seconds)."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=fps, options={"g": "12"})
        stream.height, stream.width = FILM_SIZE
        stream.pix_fmt = "yuv420p"
        number = 0
        for picture, seconds in shots:
            for _ in range(round(seconds * fps)):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, fps)
                output.mux(stream.encode(frame))
                number += 1
        output.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def captioner(model_folder):
    return load(model_folder)


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Shots of 5, 7 and 10 seconds."""
    path = tmp_path_factory.mktemp("films") / "film.mp4"
    return write_film(path, zip(pictures(3), (5, 7, 10), strict=True))


def shots(*lengths, fps=1):
    """Frames of shots that last so many seconds."""
    shown = np.repeat(pictures(len(lengths)), [seconds * fps for seconds in lengths], axis=0)
    return [Frame.from_pixels(picture, index=i, seconds=i / fps) for i, picture in enumerate(shown)]


def first_only():
    return PickNetPicker(lambda inputs: {"logits": np.array([[0.0, -9.0]])})


@pytest.fixture
def literal(captioner, monkeypatch):
    """A captioner whose sentence is its memory: the same for the same picks, another for others."""

    def write(state, *, beam, count=1):
        sentence = Sentence(literally(state), -1.0)
        return Written((sentence,), Signals(frozenset(), -1.0, 0.0, 1.0, float(len(state.h))))

    monkeypatch.setattr(captioner.describer.writer, "write", write)
    return captioner


def literally(state):
    # In 16 bits, h stays the same after some frames of the same picture; what was seen is a sum.
    return state.h.tobytes().hex() + state.seen.tobytes().hex()


def memory_of(captioner, frame):
    return literally(captioner.runtime.encode(captioner.features(frame), captioner.runtime.start()))


def test_a_scene_begins_with_its_first_frame_and_is_described_as_it_would_be_alone(literal):
    frames = shots(5, 7, 1, 4, 40)
    alone = {at: memory_of(literal, frames[at]) for at in (0, 5, 12, 17)}
    assert len(set(alone.values())) == 4
    # A shot of a second is a single strange frame: together with the next one it makes a scene. A scene of 40 seconds
    # has two parts, but they say the same.
    assert times_and_texts(literal.timeline(frames, picker=first_only())) == [
        (0, 5, alone[0]),
        (5, 12, alone[5]),
        (12, 17, alone[12]),
        (17, 57, alone[17]),
    ]


def test_a_short_scene_joins_the_next_one_whose_caption_is_kept(literal):
    frames = shots(5, 7, 1, 4, 10, fps=4)
    alone = {at: memory_of(literal, frames[4 * at]) for at in (0, 5, 13, 17)}
    found = list(literal.timeline(frames, fps=4, picker=first_only()))
    assert times_and_texts(found) == [(0, 5, alone[0]), (5, 12, alone[5]), (12, 17, alone[13]), (17, 27, alone[17])]
    assert [[pick.seconds for pick in one.picks] for one in found] == [[0], [5], [13], [17]]
    assert [one.cuts for one in found] == [(), (), (13,), ()]
    assert [(one.start, one.end) for one in from_cut_to_cut(found)] == [(0, 5), (5, 12), (12, 13), (13, 17), (17, 27)]


def test_a_long_scene_whose_parts_have_different_captions_is_several_segments(literal):
    # With all frames picked, the memory of 30 frames differs from that of 10.
    found = list(literal.timeline(shots(40), picker=AllPicker()))
    assert [(one.start, one.end, len(one.picks)) for one in found] == [(0, 30, 30), (30, 40, 10)]
    (scene,) = from_cut_to_cut(found)
    assert (scene.start, scene.end, scene.text) == (0, 40, found[0].text)


def test_a_segment_has_the_caption_of_a_stream_at_the_end_of_its_scene(captioner):
    frames = shots(12)
    (one,) = captioner.timeline(frames)
    updates = list(captioner.stream(frames))
    assert (one.text, one.picks) == (updates[-1].text, tuple(update.pick for update in updates))
    assert (one.start, one.end) == (0, 12)  # the last frame is shown for a second, like the others


def test_segments_below_the_least_confidence_have_no_text(captioner, film, monkeypatch):
    with pytest.raises(BadSetting, match=r"^min_confidence is 0.5: the model .* has no confidence; fit one with"):
        captioner.timeline(film, min_confidence=0.5)
    every_part = [(one.start, one.end, one.picks) for one in captioner.timeline(film)]
    monkeypatch.setattr(captioner.describer, "confidence_note", None)
    for bias, expected in ((-3.0, True), (3.0, False)):
        monkeypatch.setattr(captioner.describer, "confidence", Confidence(bias, {}))
        found = list(captioner.timeline(film, min_confidence=0.5))
        assert [one.not_sure == "confidence 0.05 is below 0.5" for one in found] == [expected] * len(found)
        assert [one.text == "" for one in found] == [expected] * len(found)
        assert [(one.start, one.end, one.picks) for one in found] == every_part  # no cut is lost
        assert found[-1].end == pytest.approx(22)


def test_the_segments_of_a_file_cover_it_without_gaps(literal, film):
    segments = list(literal.timeline(film, fps=2))
    assert [one.start for one in segments][:3] == [0, 5, 12]
    assert segments[-1].end == pytest.approx(22)
    assert all(before.end == after.start for before, after in itertools.pairwise(segments))
    assert all(one.start <= pick.seconds < one.end for one in segments for pick in one.picks)


def test_the_timeline_of_a_cut_film_ends_at_the_cut(captioner, tmp_path):
    whole = write_film(tmp_path / "whole.avi", zip(pictures(3), (6, 6, 6), strict=True))
    content = whole.read_bytes()
    cut = tmp_path / "cut.avi"
    cut.write_bytes(content[: len(content) * 2 // 3])
    segments = list(captioner.timeline(cut))
    reached = re.match(r"the file breaks off after ([\d.]+) of 18.0 s", segments[-1].damage)[1]
    assert segments[-1].end == pytest.approx(float(reached), abs=0.5)


def test_a_scene_without_picks_belongs_to_the_segment_before(captioner, film):
    class Early:
        def pick(self, frames):
            return ((frame, Pick(frame.index, frame.seconds)) for frame in frames if frame.seconds < 10)

    assert list(captioner.timeline(film, picker=Early()))[-1].end == pytest.approx(22)


def test_bad_films_and_rates_are_refused(captioner, tmp_path):
    with pytest.raises(UnreadableVideo, match=r"no video stream found"):
        list(captioner.timeline(write_audio(tmp_path / "sound.mp4")))
    for fps in (0, -1, float("nan"), float("inf")):
        with pytest.raises(BadSetting, match=rf"^fps is {fps}: more than 0 frames a second are needed$"):
            captioner.timeline("film.mp4", fps=fps)
    assert list(captioner.timeline([])) == []


def resident_megabytes():
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory in use as Linux tells it")
def test_memory_does_not_grow_with_the_length_of_a_film(literal, tmp_path):
    shown = pictures(50)
    film = write_film(tmp_path / "hour.mp4", [(shown[i % 50], 20) for i in range(180)], fps=1)
    board = Storyboard(tmp_path / "board.jpg", title="hour.mp4")
    used, last = [], 0.0
    for one in literal.timeline(film):
        one = dataclasses.replace(one, text=one.text[:20])
        board.add(one, [Thumbnail(pick.index, pick.seconds, shown[0]) for pick in one.picks])
        used.append(resident_megabytes())
        assert one.start == last
        last = one.end
    board.end()
    assert last == pytest.approx(3600)
    assert len(used) > 130
    assert max(used) - max(used[: len(used) // 3]) < 30


# --- Files -----------------------------------------------------------------------------------------------------------

SEGMENTS = [
    segment(0.0, 12.3456, "a man is playing a guitar", picks=[3, 10], confidence=0.7251),
    segment(12.3456, 14.0, "a woman & a dog < 3 are running through a very long street of many houses", picks=[13]),
    segment(14.0, 3599.9996, "", picks=[20]),
    segment(3599.9996, 363600.5, "a cat -- the cat is \N{LATIN SMALL LETTER E WITH ACUTE}", picks=[4000]),
]
"""Among them: a sentence without a word, a time that rounds up to a full hour, and one of a hundred hours."""
SAID = [one for one in SEGMENTS if one.text]


def checked(cues):
    """cues: (start, end, text) as a reader of somebody else's has them -> the same, fit for a player"""
    cues = list(cues)
    for start, end, text in cues:
        assert end - start >= SHORTEST
        assert text.strip()
        assert all(len(html.unescape(line)) <= 42 for line in text.splitlines())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(cues))
    return [(round(start, 3), round(end, 3), " ".join(html.unescape(text).split())) for start, end, text in cues]


def by_ffmpeg(path):
    """What the demuxer that most players use finds: start, end and the coded text."""
    with av.open(str(path)) as container:
        (stream,) = container.streams
        assert stream.type == "subtitle"
        for packet in container.demux():
            if packet.size:
                start = packet.pts * packet.time_base
                yield float(start), float(start + packet.duration * packet.time_base), bytes(packet).decode()


def test_subrip_is_read_by_an_independent_parser(tmp_path):
    srt = pytest.importorskip("srt")
    content = "".join(as_srt(SEGMENTS))
    cues = list(srt.parse(content, ignore_errors=False))
    assert [cue.index for cue in cues] == [1, 2, 3]
    found = checked((cue.start.total_seconds(), cue.end.total_seconds(), cue.content) for cue in cues)
    assert found == [
        (0.0, 12.346, SAID[0].text),
        (12.346, 14.0, SAID[1].text.replace("< ", "")),  # it would be the beginning of a tag
        (3600.0, 363600.5, SAID[2].text),
    ]


def test_webvtt_is_read_by_a_parser_of_somebody_elses():
    webvtt = pytest.importorskip("webvtt")
    cues = webvtt.from_string("".join(as_vtt(SEGMENTS)))
    assert [(cue.start, cue.end) for cue in cues] == [
        ("00:00:00.000", "00:00:12.346"),
        ("00:00:12.346", "00:00:14.000"),
        ("01:00:00.000", "101:00:00.500"),
    ]
    found = checked((cue.start_in_seconds, cue.end_in_seconds, cue.raw_text) for cue in cues)
    assert [text for *_, text in found] == [one.text for one in SAID]


@pytest.mark.parametrize(("write", "suffix"), [(as_srt, ".srt"), (as_vtt, ".vtt")])
def test_subtitles_are_read_by_ffmpeg(write, suffix, tmp_path):
    path = tmp_path / f"film{suffix}"
    path.write_text("".join(write(SEGMENTS)), encoding="utf-8")
    found = checked(by_ffmpeg(path))
    assert [(start, end) for start, end, _ in found] == [(0.0, 12.346), (12.346, 14.0), (3600.0, 363600.5)]
    assert found[0][2] == "a man is playing a guitar"


def test_subtitles_can_be_put_into_a_film(tmp_path):
    # What a player or an uploader does with a file of subtitles: its cues become a track of the film.
    (tmp_path / "film.srt").write_text("".join(as_srt(SEGMENTS[:2])), encoding="utf-8")
    with av.open(str(tmp_path / "film.srt")) as given, av.open(str(tmp_path / "film.mkv"), "w") as output:
        track = output.add_stream_from_template(given.streams.subtitles[0])
        for packet in given.demux():
            if packet.size:
                packet.stream = track
                output.mux(packet)
    found = checked(by_ffmpeg(tmp_path / "film.mkv"))
    assert [text for *_, text in found] == ["a man is playing a guitar", SEGMENTS[1].text.replace("< ", "")]


UNSURE = [
    segment(0.0, 2.0, "a cat", confidence=0.8),
    segment(2.0, 8.0, "", confidence=0.3141, not_sure="confidence 0.31 is below 0.5"),
    segment(8.0, 9.0, "a dog", confidence=0.6),
]


def test_a_segment_that_is_not_sure_is_told_in_text_and_has_no_words_in_files():
    assert "".join(as_text(UNSURE)).splitlines()[1] == "0:00:02-0:00:08  not sure (0.31)"
    assert json.loads(list(as_jsonl(UNSURE))[1])["not_sure"] == "confidence 0.31 is below 0.5"
    assert "".join(as_srt(UNSURE)).count("-->") == "".join(as_vtt(UNSURE)).count("-->") == 2
    edl = "".join(as_edl(UNSURE, fps=25, video="film.mp4"))
    assert (edl.count("* FROM CLIP NAME"), edl.count("* COMMENT")) == (3, 2)
    chapters = "".join(as_chapters(UNSURE))
    assert (chapters.count("[CHAPTER]"), chapters.count("title=")) == (3, 2)
    assert list(csv.DictReader(io.StringIO("".join(as_csv(UNSURE, video="film.mp4")))))[1]["caption"] == ""


def test_neighbours_that_are_not_sure_become_one_only_if_they_would_say_the_same():
    reason = "confidence 0.31 is below 0.5"
    given = [
        segment(0, 3, "a cat", not_sure=reason),
        segment(3, 6, "a cat", not_sure=reason),
        segment(6, 9, "a dog", not_sure=reason),
        segment(9, 12, "a dog"),
    ]
    assert [(one.start, one.end, one.not_sure) for one in readable(given)] == [
        (0, 6, reason), (6, 9, reason), (9, 12, None)
    ]  # fmt: skip


def test_text_is_a_line_for_each():
    assert "".join(as_text(SEGMENTS[:2])) == (
        "0:00:00-0:00:12  a man is playing a guitar\n"
        "0:00:12-0:00:14  a woman & a dog < 3 are running through a very long street of many houses\n"
    )


def test_json_is_one_object_with_all_segments():
    segments = [SEGMENTS[0], segment(12.3456, 14.0, "", damage="it is cut")]
    content = json.loads("".join(as_json(segments, video="a", model="m")))
    assert content == {
        "video": "a",
        "model": "m",
        "segments": [one.to_dict() for one in segments],
        "damage": "it is cut",
    }
    assert (content["segments"][0]["start"], content["segments"][0]["end"]) == (0.0, 12.3456)
    nothing = {"video": "a", "model": "m", "segments": [], "damage": None}
    assert json.loads("".join(as_json([], video="a", model="m"))) == nothing


def test_json_lines_are_an_object_for_each_segment():
    lines = "".join(as_jsonl(SEGMENTS)).splitlines()
    assert [json.loads(line) for line in lines] == [one.to_dict() for one in SEGMENTS]


CUTS = [segment(0.0, 5.005, "a cat"), segment(5.005, 12.0, "a dog, eating"), segment(12.0, 3723.4, "a man")]


def test_a_scene_list_is_that_of_pyscenedetect():
    # What PySceneDetect 0.7.2 writes for cuts at frames 125 and 300, of 25 a second and of 29.97.
    content = "".join(as_scenes([segment(0, 5, "a"), segment(5, 12, "b")], fps=25))
    assert content == (
        "Scene Number,Start Frame,Start Timecode,Start Time (seconds),End Frame,End Timecode,End Time (seconds),"
        "Length (frames),Length (timecode),Length (seconds)\n"
        "1,1,00:00:00.000,0.000,125,00:00:05.000,5.000,125,00:00:05.000,5.000\n"
        "2,126,00:00:05.000,5.000,300,00:00:12.000,12.000,175,00:00:07.000,7.000\n"
    )
    ends = (0, 125 * 1001 / 30000, 300 * 1001 / 30000)
    rows = "".join(as_scenes([segment(*ends[:2], "a"), segment(*ends[1:], "b")], fps=30000 / 1001)).splitlines()
    assert rows[2] == "2,126,00:00:04.171,4.171,300,00:00:10.010,10.010,175,00:00:05.839,5.839"


@pytest.mark.parametrize("fps", [25.0, 30000 / 1001, 12.5, 0.7, 13.4, 33.7])
def test_a_scene_list_has_the_rows_that_pyscenedetect_itself_writes(fps):
    """Also where the rate is an average, by which it has numbers of frames, but no times. It rounds lengths for
    themselves, so that they may be a frame longer than from the start to the end."""
    scenedetect = pytest.importorskip("scenedetect", minversion="0.7")
    from scenedetect.common import Timecode
    from scenedetect.output import write_scene_list

    scenes = []
    for one in CUTS:
        times = (Timecode(round(1000 * seconds), Fraction(1, 1000)) for seconds in (one.start, one.end))
        scenes.append(tuple(scenedetect.FrameTimecode(time, fps) for time in times))
    expected = io.StringIO()
    write_scene_list(expected, scenes, include_cut_list=False)
    header, *rows = csv.reader(io.StringIO(expected.getvalue()))
    found = list(csv.reader(io.StringIO("".join(as_scenes(CUTS, fps=fps)))))
    assert found[0] == list(SCENE_COLUMNS) == header
    length = SCENE_COLUMNS.index("Length (frames)")
    for ours, theirs in zip(found[1:], rows, strict=True):
        assert abs(int(ours.pop(length)) - int(theirs.pop(length))) <= 1
        assert ours == theirs


def test_an_edl_has_an_event_for_each_segment_in_frames():
    assert "".join(as_edl(CUTS, fps=25, video="films/my film.mp4")) == (
        "TITLE: my film\n"
        "FCM: NON-DROP FRAME\n\n"
        "001  AX       V     C        00:00:00:00 00:00:05:00 00:00:00:00 00:00:05:00\n"
        "* FROM CLIP NAME: my film.mp4\n"
        "* COMMENT: a cat\n\n"
        "002  AX       V     C        00:00:05:00 00:00:12:00 00:00:05:00 00:00:12:00\n"
        "* FROM CLIP NAME: my film.mp4\n"
        "* COMMENT: a dog, eating\n\n"
        "003  AX       V     C        00:00:12:00 01:02:03:10 00:00:12:00 01:02:03:10\n"
        "* FROM CLIP NAME: my film.mp4\n"
        "* COMMENT: a man\n\n"
    )
    # An hour at 29.97 frames a second is 107,892 frames, and 30 of them make a second of the time code.
    lines = "".join(as_edl([segment(0, 3600, "a")], fps=30000 / 1001, video="a")).splitlines()
    assert lines[3].endswith("00:00:00:00 00:59:56:12")


@pytest.mark.parametrize("fps", [0.5, 1.43, 12.5, 33.7, 240])
def test_an_edl_tells_the_time_where_a_rate_has_no_time_codes(fps):
    lines = "".join(as_edl([segment(0, 7.04, "a"), segment(7.04, 3600, "b")], fps=fps, video="a")).splitlines()
    assert lines[3].endswith("00:00:00:00 00:00:07:01")
    assert lines[7].endswith("00:00:07:01 01:00:00:00")


def test_chapters_are_read_back_by_ffmpeg(tmp_path):
    title = "a = b; # c \\ d\nin two lines"
    segments = [segment(0.0, 5.005, title), segment(5.005, 3600.5, "a caf\N{LATIN SMALL LETTER E WITH ACUTE}")]
    path = tmp_path / "chapters.txt"
    path.write_text("".join(as_chapters(segments, title="film; 1")), encoding="utf-8")
    with av.open(str(path), format="ffmetadata") as container:
        assert container.metadata["title"] == "film; 1"
        chapters = container.chapters()
    found = [
        (float(one["start"] * one["time_base"]), float(one["end"] * one["time_base"]), one["metadata"]["title"])
        for one in chapters
    ]
    assert found == [(0.0, 5.005, title), (5.005, 3600.5, segments[1].text)]


def test_csv_is_a_row_for_each():
    rows = list(csv.DictReader(io.StringIO("".join(as_csv(SEGMENTS[:2], video='a "film", twice')))))
    assert rows[0] == {
        "video": 'a "film", twice',
        "start": "0.000",
        "end": "12.346",
        "caption": "a man is playing a guitar",
        "confidence": "0.7251",
        "picks": "3 10",
        "seconds": "3.000 10.000",
        "not_sure": "",
    }
    assert rows[1]["confidence"] == ""
    unsure = dataclasses.replace(SEGMENTS[0], text="", not_sure="confidence 0.31 is below 0.5")
    (row,) = csv.DictReader(io.StringIO("".join(as_csv([unsure], video="a\rb,forged"))))
    assert (row["video"], row["caption"], row["not_sure"]) == ("a\rb,forged", "", "confidence 0.31 is below 0.5")


# --- The command -----------------------------------------------------------------------------------------------------


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return exit.value.code or 0, out, err


@pytest.fixture
def timeline(capsys, model_folder, monkeypatch, captioner):
    monkeypatch.setattr("picknet.captioner.load", lambda model, style: captioner)
    return lambda *arguments: run(capsys, "timeline", *arguments)


def test_the_suffix_of_the_file_tells_the_format(timeline, film, tmp_path):
    starts = {".srt": "1\n00:00:00,000 --> ", ".vtt": "WEBVTT\n\n00:", ".json": '{"video": ', ".csv": "video,start,"}
    starts |= {".txt": "0:00:00-0:00:", ".jsonl": '{"video": ', ".edl": "TITLE: film", ".ffmeta": ";FFMETADATA1"}
    for suffix, start in starts.items():
        out = tmp_path / "new folder" / f"film{suffix}"
        assert timeline(film, "--out", out) == (0, f"{out}\n", "")
        assert out.read_text().startswith(start)
        code, printed, err = timeline(film, "--format", {".txt": "text", ".ffmeta": "chapters"}.get(suffix, suffix[1:]))
        assert (code, printed, err) == (0, out.read_text(), "")


def test_a_scene_list_is_asked_for_by_name_and_ends_in_csv(timeline, film, tmp_path):
    out = tmp_path / "film.csv"
    assert timeline(film, "--format", "scenes", "--out", out) == (0, f"{out}\n", "")
    assert out.read_text().startswith("Scene Number,Start Frame,")
    timeline(film, "--format", "scenes", "--out", tmp_path / "lists")
    assert os.listdir(tmp_path / "lists") == ["film.csv"]


def test_several_films_are_told_together_or_into_a_folder(timeline, film, tmp_path):
    other = tmp_path / "film.avi"
    write_film(other, [(pictures(1)[0], 3)])
    code, out, _ = timeline(film, other)
    assert code == 0
    assert {line.split(": ")[0] for line in out.splitlines()} == {str(film), str(other)}
    _, out, _ = timeline(film, other, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["video"] for row in rows} == {str(film), str(other)}
    _, out, _ = timeline(film, other, "--format", "json")
    assert [json.loads(line)["video"] for line in out.splitlines()] == [str(film), str(other)]
    folder = tmp_path / "subtitles"
    _, out, _ = timeline(film, other, "--format", "vtt", "--out", folder)
    assert out.splitlines() == [str(folder / "film.vtt"), str(folder / "film-2.vtt")]


def test_a_bad_film_among_good_ones_is_reported(timeline, film, tmp_path):
    sound = write_audio(tmp_path / "sound.mp4")
    code, out, err = timeline(sound, film, tmp_path / "nowhere.mp4", "--format", "srt", "--out", tmp_path / "out")
    assert (code, out) == (1, f"{tmp_path / 'out' / 'film.srt'}\n")
    assert err.splitlines() == [
        f"picknet: {tmp_path / 'nowhere.mp4'}: no such file or folder",
        f"picknet: {sound}: no video stream found (streams: audio)",
    ]
    assert os.listdir(tmp_path / "out") == ["film.srt"]


def test_a_damaged_film_is_told_as_far_as_it_goes(timeline, tmp_path):
    whole = write_film(tmp_path / "whole.avi", [(pictures(1)[0], 9)])
    cut = tmp_path / "cut.avi"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    code, out, err = timeline(cut)
    assert code == 0
    assert out.startswith("0:00:00-0:00:0")
    assert re.fullmatch(rf"picknet: {cut}: the file breaks off after .* s.*; described what could be read\n", err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "film.doc"], "--out film.doc: unknown suffix; pass --format, or use one of .txt, .json, .jsonl,"),
        (["--out", "film.srt", "--format", "vtt"], "--out film.srt: the suffix means srt, but --format is vtt"),
        (["two", "--out", "film.srt"], "--out film.srt: one file cannot hold the timelines of 2 films; name a folder"),
        (["--out", "film.srt", "--format", "scenes"], "--out film.srt: the suffix means srt, but --format is scenes"),
        (["two", "--format", "edl"], "--format edl: is for one film; for 2 of them name a folder, --out FOLDER"),
        (["two", "--format", "srt"], "--format srt: is for one film; for 2 of them name a folder, --out FOLDER"),
        (["--sheet", "board.doc"], "--sheet board.doc: a sheet ends in .png, .jpg, .jpeg, .webp; a folder's name"),
        (["--fps", "0"], "Invalid value for '--fps': "),
        (["--rate", "0"], "--rate 0: more than 0 is possible; 1 is the model's own, 2 picks more, 0.5 fewer"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(arguments, message, timeline, film):
    code, out, err = timeline(film, *(film if word == "two" else word for word in arguments))
    assert (code, out) == (2, "")
    assert err.startswith(f"picknet: {message}")


def test_a_place_that_cannot_be_written_is_told_before_the_film_is_watched(timeline, film, tmp_path, monkeypatch):
    monkeypatch.setattr("picknet.captioner.Captioner.timeline", lambda *_, **__: pytest.fail("watched"))
    (tmp_path / "file").write_text("")
    for option, name in (("--out", "film.srt"), ("--sheet", "board.png")):
        code, out, err = timeline(film, option, tmp_path / "file" / name)
        assert (code, out) == (1, "")
        assert err.startswith(f"picknet: {tmp_path / 'file'}: cannot be written (")


def test_a_file_that_was_there_stays_when_the_new_one_cannot_be_finished(timeline, film, tmp_path, monkeypatch):
    out = tmp_path / "film.srt"
    out.write_text("before")

    def interrupted(*_, **__):
        yield SEGMENTS[0]
        raise KeyboardInterrupt

    monkeypatch.setattr("picknet.captioner.Captioner.timeline", interrupted)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # from then on Ctrl-C would be ignored, here as well
    kept = f"picknet: {out}.part: holds the results so far\npicknet: interrupted\n"
    assert timeline(film, "--out", out) == (130, "", kept)
    assert out.read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["film.srt", "film.srt.part"]
    assert (tmp_path / "film.srt.part").read_text() == "".join(as_srt(SEGMENTS[:1]))
    code, printed, _ = timeline(film, "--format", "srt")
    assert (code, printed) == (130, "".join(as_srt(SEGMENTS[:1])))  # what was told is kept


def test_the_storyboard_of_a_film_shows_its_picks(timeline, film, tmp_path):
    code, _, err = timeline(film, "--sheet", tmp_path / "board.jpg")
    assert (code, err) == (0, "")
    with Image.open(tmp_path / "board.jpg") as page:
        assert page.width == 1600
    assert timeline(film, film, "--sheet", tmp_path / "boards")[0] == 0
    assert sorted(os.listdir(tmp_path / "boards")) == ["film-2.png", "film.png"]


def test_a_sentence_without_an_end_keeps_few_pictures():
    from picknet.cli.timelines import _Watcher

    frames = (Frame.from_pixels(np.zeros((4, 4, 3), np.uint8), index=i, seconds=i / 2) for i in range(1000))
    times = []
    watch = _Watcher(AllPicker(), times.append, keep=True)
    picks = [pick for _, pick in watch.pick(frames)]
    assert times == [i / 2 for i in range(1000)]
    kept = watch.take(picks)
    assert 16 < len(kept) <= 64
    assert kept[0].index == 0
    assert watch.take(picks) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_a_bar_tells_the_time_left(film, model_folder, tmp_path):
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "picknet", "timeline", film, "--model", model_folder, "--out", tmp_path / "a.srt"]
    environment = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, text=True, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:  # the end of a pseudo-terminal
            break
        if not block:
            break
        shown += block
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert (process.returncode, out) == (0, f"{tmp_path / 'a.srt'}\n")
    assert re.search(rb"describing \(seconds\).*\d+/22.*-?\d:\d\d:\d\d", shown)
