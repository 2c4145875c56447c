"""Captions, streams and picks of a real, tiny model; threads that share it; the public names."""

import dataclasses
import io
import itertools
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest
from clips import number_of, write_audio, write_clip
from decoders import table_decoder
from folders import unsealed

import picknet
from picknet.captioner import NothingToCaption, load, pick
from picknet.config import BadConfig
from picknet.model import folder as folder_module
from picknet.model.confidence import BadCalibration, Confidence
from picknet.model.folder import BadModel
from picknet.model.match import Match
from picknet.model.memory import SceneMemory
from picknet.model.runtime import Runtime
from picknet.model.sentences import EMPTY_WORDS, content_words
from picknet.model.tags import Tags
from picknet.picking.budget import BudgetPicker
from picknet.picking.learned import PickNetPicker
from picknet.picking.picker import Pick
from picknet.picking.plain import AllPicker, CoinPicker, KMeansPicker, RandomPicker, UniformPicker
from picknet.text import BOS, EOS
from picknet.video.frame import Frame
from picknet.video.live import BadSetting, Live
from picknet.walk import EndlessSource

SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "cockatoo.mp4"


def test_empty_words_and_word_endings_are_not_content():
    assert content_words("a man is riding his horse") == {"man", "rid", "hors"}
    assert content_words("the man rides on a horse") == {"man", "rid", "hors"}
    assert content_words("a man is slicing a piece of meat") == content_words("the man sliced some meat")
    assert content_words("a red bus") == {"red", "bus"}
    assert content_words("a girl") != content_words("a boy")


# --- With a real model folder: tiny, untrained, written by the exporter ----------------------------------------------


@pytest.fixture(scope="module")
def captioner(model_folder):
    return load(model_folder)


@pytest.fixture(scope="module")
def frames():
    """Twelve frames, a quarter of a second apart: four pictures of coloured tiles, three times each."""
    tiles = np.random.default_rng(0).integers(0, 256, (4, 3, 4, 3), dtype=np.uint8)
    pictures = tiles.repeat(20, axis=1).repeat(20, axis=2)  # (4, 60, 80, 3)
    return [Frame.from_pixels(pictures[i // 3], index=i, seconds=i / 4) for i in range(12)]


def changes():
    """A picker that picks whenever the picture changes: 0, 3, 6 and 9."""

    def policy(inputs):
        changed = bool((inputs["glances"] != inputs["templates"]).any())
        return {"logits": np.array([[0.0, 40.0 if changed else -40.0]])}

    return PickNetPicker(policy)


def one_scene(frame):
    """A scene rule without cuts."""
    return False


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("make_picker", [changes, lambda: None, AllPicker])
def test_the_stream_ends_where_the_offline_caption_does(captioner, frames, make_picker, beam):
    caption = captioner.caption(frames, picker=make_picker(), beam=beam)
    updates = list(captioner.stream(frames, picker=make_picker(), beam=beam, new_scene=one_scene))
    assert updates[-1].text == caption.text
    assert tuple(update.pick for update in updates) == caption.picks
    assert [update.total_picks for update in updates] == list(range(1, len(caption.picks) + 1))


def test_a_caption_lists_what_was_sampled_and_picked(captioner, frames, model_folder):
    caption = captioner.caption(iter(frames), picker=changes())
    assert [pick.index for pick in caption.picks] == [0, 3, 6, 9]
    assert [pick.seconds for pick in caption.picks] == [0.0, 0.75, 1.5, 2.25]
    assert caption.frames_seen == 12
    assert caption.video == "frames"
    assert caption.model == str(model_folder)
    assert caption.damage is None
    assert caption.log_probability < 0
    assert len(caption.text.split()) <= captioner.config.text.max_words


def test_an_update_counts_the_frames_up_to_its_pick(captioner, frames):
    updates = list(captioner.stream(frames, picker=changes(), new_scene=one_scene))
    assert [(update.seconds, update.frames_seen) for update in updates] == [(0.0, 1), (0.75, 4), (1.5, 7), (2.25, 10)]
    assert updates[0].changed
    texts = [update.text for update in updates]
    assert [update.changed for update in updates[1:]] == [a != b for a, b in itertools.pairwise(texts)]


def test_an_endless_stream_is_read_frame_by_frame(captioner, frames):
    read = 0

    def endless():
        nonlocal read
        for frame in itertools.cycle(frames):
            read += 1
            yield frame

    updates = captioner.stream(endless(), picker=AllPicker())
    assert [next(updates).frames_seen for _ in range(3)] == [1, 2, 3]
    assert read == 3


def test_only_picked_frames_are_converted_to_pixels(captioner, frames, monkeypatch):
    seen = []
    pixels = Frame.pixels
    monkeypatch.setattr(Frame, "pixels", lambda frame, size=None: seen.append(frame.index) or pixels(frame, size))
    captioner.caption(frames, picker=UniformPicker(3))
    assert seen == [2, 6, 10]


def test_frames_in_the_cnn_at_the_same_time_are_encoded_in_order(captioner, frames):
    memory, state = SceneMemory(captioner.runtime), captioner.runtime.start()
    for frame in frames:
        memory.add(frame)
        state = captioner.runtime.encode(captioner.features(frame), state)
    np.testing.assert_allclose(memory.state().h, state.h, atol=1e-6)


def test_a_picker_that_plans_ahead_has_only_its_picks_decoded(captioner, tmp_path, monkeypatch):
    path = write_clip(tmp_path / "clip.mp4")
    seen = []
    glance = Frame.glance
    monkeypatch.setattr(Frame, "glance", lambda frame: seen.append(frame.index) or glance(frame))
    planned = captioner.caption(path, picker=UniformPicker(3))
    assert sorted(set(seen)) == [5, 15, 25]  # their glances, to count the scenes

    class Looking:
        def pick(self, frames):
            return UniformPicker(3).pick(frames)

    looking = captioner.caption(path, picker=Looking())
    assert planned == looking
    assert planned.frames_seen == 30


def test_the_memory_depends_on_every_pick_and_their_order(captioner, frames):
    def video(chosen):
        state = captioner.runtime.start()
        for frame in chosen:
            pixels = frame.pixels(captioner.config.model.image_size)[None]
            state = captioner.runtime.encode(captioner.runtime.features(pixels), state)
        return state.h

    forwards, backwards = video([frames[0], frames[3]]), video([frames[3], frames[0]])
    assert not np.allclose(forwards, backwards, atol=1e-6)
    assert not np.allclose(forwards, video([frames[0]]), atol=1e-6)


def test_different_videos_get_different_sentences(captioner, frames):
    # Not a property of the code, but without it the comparisons of sentences here would show nothing.
    assert len({captioner.caption([frame]).text for frame in frames}) > 1


def test_k_means_clusters_the_captioners_own_features(captioner, frames):
    # Four different pictures, three times each.
    picker = KMeansPicker(4, features=captioner.feature)
    picks = captioner.caption(frames, picker=picker).picks
    assert sorted(pick.index // 3 for pick in picks) == [0, 1, 2, 3]


def test_a_source_without_frames_is_an_error_for_a_caption_and_an_empty_stream(captioner):
    with pytest.raises(NothingToCaption, match=r"^frames: there is no frame to caption$"):
        captioner.caption([])
    assert list(captioner.stream([])) == []


def test_impossible_settings_are_refused(captioner, frames):
    for beam in (0, 101):
        with pytest.raises(BadConfig, match=rf"^beam is {beam}; possible: 1 to 100$"):
            captioner.caption(frames, beam=beam)
    for candidates in (0, -1, 51):
        with pytest.raises(BadSetting, match=rf"^candidates is {candidates}: 1 to 50 are possible$"):
            captioner.caption(frames, candidates=candidates)
    with pytest.raises(BadSetting, match=r"^num_frames is 0: at least 1 frame is needed$"):
        captioner.caption("clip.mp4", num_frames=0)
    with pytest.raises(BadSetting, match=r"^picker is 'uniform': an object such as UniformPicker\(k=4\) "):
        captioner.caption(frames, picker="uniform")
    with pytest.raises(BadSetting, match=r"^fps is 0: more than 0 frames a second are needed$"):
        captioner.stream("clip.mp4", fps=0)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_sentence_begins_with_its_style(attending_folder, frames, beam, monkeypatch):
    plain, styled = load(attending_folder), load(attending_folder, style="msrvtt")
    state = plain.runtime.encode(plain.features(frames[0]), plain.runtime.start())
    decode, begun = Runtime.decode, []

    def listening(self, words, memory, states):
        if not states.any():  # the first word of all sentences
            begun.append(words[0])
        return decode(self, words, memory, states)

    monkeypatch.setattr(Runtime, "decode", listening)
    for captioner in (plain, styled):
        sentences = [captioner.describe(state, beam=beam), *captioner.describe_all(state, beam=beam)]
        assert sentences[0].text == sentences[1].text
        captioner.describer.writer.candidates(state, count=2, beam=beam)
    assert begun == [BOS] * 4 + [plain.runtime.vocabulary.styles["msrvtt"]] * 4
    # What is said of the same picks is another sentence, or as likely as another would be.
    assert plain.describe(state).log_probability != styled.describe(state).log_probability


def test_confidence_is_given_only_for_the_style_it_was_calibrated_for_and_the_note_says_so(attending_folder, tmp_path):
    folder = unsealed(attending_folder, tmp_path / "model")
    card = json.loads((folder / "card.json").read_text())
    stored = {"msvd": {"weights": {"bias": 0.0, "likelihood": 1.0}}}
    (folder / "card.json").write_text(json.dumps(card | {"confidence": stored}))
    calibrated, styled, plain = load(folder), load(folder, style="msrvtt"), load(attending_folder)
    assert (calibrated.describer.confidence is not None, calibrated.confidence_note) == (True, None)
    assert styled.describer.confidence is None
    assert styled.confidence_note.endswith(" has no confidence for the style msrvtt; fit one with `picknet calibrate`")
    assert plain.describer.confidence is None
    assert plain.confidence_note.endswith(" has no confidence; fit one with `picknet calibrate`")
    stored["msrvtt"] = {"weights": {"bias": 2.0}}
    (folder / "card.json").write_text(json.dumps(card | {"confidence": stored}))
    styled = load(folder, style="msrvtt")
    assert (styled.describer.confidence.bias, styled.confidence_note) == (2.0, None)


def test_a_category_that_a_model_has_not_learned_changes_nothing(model_folder):
    captioner = load(model_folder)
    assert captioner.in_category("music") is captioner.in_category(None) is captioner


def test_an_unknown_style_is_named_with_the_possible_ones(model_folder, attending_folder):
    with pytest.raises(BadSetting, match=r"^style is 'coco', which the model .* was not trained on; possible: msrvtt$"):
        load(attending_folder, style="coco")
    with pytest.raises(BadSetting, match=r"was not trained on; it has only its own style$"):
        load(model_folder, style="msrvtt")


def test_candidates_leave_the_caption_as_it_is_and_come_first(captioner, frames):
    for frame in frames[::3]:
        caption = captioner.caption([frame])
        several = captioner.caption([frame], candidates=5)
        assert dataclasses.replace(several, candidates=several.candidates[:1]) == caption
        assert (several.candidates[0].text, several.candidates[0].log_probability) == (
            caption.text,
            caption.log_probability,
        )
        assert several.candidates[0].probability == pytest.approx(math.exp(caption.log_probability))


@pytest.fixture
def _men_and_women(captioner, monkeypatch):
    """A decoder that writes "a man is playing" with 0.7 · 0.7 · 0.6, "a man is running" 0.196, "the man is playing"
    0.18, "a woman is playing" 0.126, "the man is running" 0.12, "a woman is running" 0.084."""
    a, the, man, woman, is_, playing, running = captioner.runtime.vocabulary.encode(
        ["a", "the", "man", "woman", "is", "playing", "running"]
    )
    step = table_decoder(
        {
            BOS: {a: 0.7, the: 0.3},
            a: {man: 0.7, woman: 0.3},
            the: {man: 1.0},
            man: {is_: 1.0},
            woman: {is_: 1.0},
            is_: {playing: 0.6, running: 0.4},
            playing: {EOS: 1.0},
            running: {EOS: 1.0},
        },
        num_words=len(captioner.runtime.vocabulary),
    )
    monkeypatch.setattr(captioner.runtime, "decode", lambda words, video, states: step(words, states))


@pytest.mark.usefixtures("_men_and_women")
def test_each_candidate_has_a_word_that_no_better_one_has(captioner):
    # "the man is playing" tells nothing new after the first, and so do the last two after "a woman is playing".
    expected = [("a man is playing", 0.294), ("a man is running", 0.196), ("a woman is playing", 0.126)]
    for count in (1, 2, 3, 4, 50):
        candidates = captioner.describer.writer.candidates(captioner.runtime.start(), count=count, beam=2)
        assert [one.text for one in candidates] == [text for text, _ in expected[:count]]
        assert [one.probability for one in candidates] == pytest.approx([known for _, known in expected[:count]])


@pytest.mark.usefixtures("_men_and_women")
def test_with_a_weight_for_tags_the_caption_has_the_words_to_expect(captioner, monkeypatch):
    # All have the same length, 5 with <eos>. For features in the direction (1, 0) "running" is expected, "playing"
    # is not; their agreement is ± 0.7. log P / 5^0.7 differs by log(0.294 / 0.196) / 3.09 = 0.13.
    runtime, writer = captioner.runtime, captioner.describer.writer
    weights = np.array([[0.3, -0.3], [0.0, 0.0]], np.float32)
    tags = Tags(["runn", "play"], np.full(2, 0.5, np.float32), np.zeros(2, np.float32), weights)
    monkeypatch.setattr(runtime, "tags", tags)
    state = runtime.start()._replace(seen=np.array([[3.0, 0.0]], np.float32))
    for weight, caption in ((0.0, "a man is playing"), (0.05, "a man is playing"), (0.2, "a man is running")):
        monkeypatch.setattr(writer, "tags_weight", weight)
        sentences, signals = writer.write(state, beam=4, count=3)
        assert sentences[0].text == caption
        assert sentences[0] == captioner.describe(state, beam=4) == captioner.describe_all(state, beam=4)[0]
        # The likeliest is kept beside one that is not.
        assert {one.text for one in sentences} == {"a man is playing", "a man is running", "a woman is playing"}
        assert signals.words == frozenset(caption.split()) - EMPTY_WORDS
        assert signals.tags == pytest.approx(2**-0.5 if "running" in caption else -(2**-0.5), abs=1e-5)
        # Each is expected in 0.3 of the captions more, or less, than usual, and weighs -log(0.5 + 0.001).
        assert signals.expectation == pytest.approx(2**0.5 * 0.3 * -math.log(0.501), abs=1e-5)
    assert captioner.describe(state, beam=1).text == "a man is playing"  # a single sentence leaves no choice


@pytest.mark.usefixtures("_men_and_women")
def test_with_a_weight_for_the_match_the_caption_fits_what_is_seen(captioner, monkeypatch):
    # In the space "running" lies in the direction of the features, "playing" opposite; the other words are unknown.
    runtime, writer = captioner.runtime, captioner.describer.writer
    one = np.ones(1, np.float32)
    vectors, usual = np.array([[127], [-127]], np.int8), np.zeros(1, np.float32)
    features, mean = np.array([[100], [0]], np.int8), np.zeros(2, np.float32)
    match = Match(["running", "playing"], mean, features, one, vectors, np.ones(2, np.float32), usual)
    state = runtime.start()._replace(seen=np.array([[3.0, 0.0]], np.float32))
    assert writer.write(state, beam=4).signals.match is None
    monkeypatch.setattr(writer, "match", match)
    for weight, caption in ((0.0, "a man is playing"), (0.05, "a man is playing"), (0.2, "a man is running")):
        monkeypatch.setattr(writer, "match_weight", weight)
        sentences, signals = writer.write(state, beam=4, count=3)
        assert sentences[0].text == caption
        assert sentences[0] == captioner.describe(state, beam=4)
        assert signals.match == pytest.approx(1.0 if "running" in caption else -1.0)
    unseen = runtime.start()._replace(seen=np.zeros((1, 2), np.float32))
    written = writer.write(unseen, beam=4)
    assert (written.sentences[0].text, written.signals.match) == ("a man is playing", 0.0)


def test_a_candidates_probability_is_that_of_exactly_its_words(captioner, frames):
    runtime = captioner.runtime
    state = runtime.encode(runtime.features(frames[0].pixels(captioner.config.model.image_size)[None]), runtime.start())
    for sentence in captioner.describer.writer.candidates(state, count=4, beam=2):
        written, total = np.zeros_like(state.h), 0.0
        for word, following in itertools.pairwise([BOS, *runtime.vocabulary.encode(sentence.text.split()), EOS]):
            log_probabilities, written = runtime.decode(np.array([word]), state, written)
            total += float(log_probabilities[0, following])
        assert sentence.log_probability == pytest.approx(total, abs=1e-4)


def random_memory(captioner, count, num_picks):
    """Encoder states of `count` videos: features of noise, few of them strong."""
    rng = np.random.default_rng(num_picks)
    memory = captioner.runtime.start(count)
    for _ in range(num_picks):
        features = rng.gamma(0.3, 1.0, (count, captioner.config.model.grid**2, 1280)).astype(np.float32)
        features *= rng.gamma(0.1, 10.0, (count, 1, 1280)).astype(np.float32)  # each video has its own strong ones
        memory = captioner.runtime.encode(features, memory)
    return memory


@pytest.mark.parametrize("num_picks", [1, 4, 6])
def test_the_shipped_model_describes_many_videos_together_as_each_alone(num_picks):
    captioner = load()
    memory = random_memory(captioner, 40, num_picks)
    together = captioner.describe_all(memory, beam=1)
    alone = [captioner.describe(memory.of(np.array([row])), beam=1) for row in range(40)]
    assert [sentence.text for sentence in together] == [sentence.text for sentence in alone]
    assert [sentence.log_probability for sentence in together] == pytest.approx(
        [sentence.log_probability for sentence in alone], abs=1e-3
    )
    assert len({len(sentence.text.split()) for sentence in alone}) > 1  # some end while others go on


@pytest.mark.parametrize("beam", [None, 1, 3])
def test_many_videos_are_described_with_the_beam_asked_for(captioner, beam):
    memory = random_memory(captioner, 4, 2)
    together = captioner.describe_all(memory, beam=beam)
    alone = [captioner.describe(memory.of(np.array([row])), beam=beam) for row in range(4)]
    assert [sentence.text for sentence in together] == [sentence.text for sentence in alone]


def test_only_a_calibrated_model_gives_a_confidence(captioner, frames, monkeypatch):
    assert captioner.caption(frames[:1]).confidence is None
    monkeypatch.setattr(captioner.describer, "confidence", Confidence(3.0, {"likelihood": 2.0}))
    caption = captioner.caption(frames[:1], candidates=2)
    mean = caption.log_probability / (len(caption.text.split()) + 1)
    assert caption.confidence == pytest.approx(1 / (1 + math.exp(-3 - 2 * mean)))


def test_the_confidence_is_read_from_the_models_card(model_folder, tmp_path):
    folder = unsealed(model_folder, tmp_path / "model")
    (folder / "card.json").write_text('{"confidence": {"bias": 1, "slope": 2.5, "clips": 99}}')
    assert load(folder).describer.confidence == Confidence(1.0, {"likelihood": 2.5})
    (folder / "card.json").write_text('{"confidence": {"bias": 1}}')
    with pytest.raises(BadCalibration, match=r"card.json: the confidence of its own style cannot be read; remove it"):
        load(folder)


def test_blank_frames_get_no_sentence_whatever_the_confidence(captioner, frames, monkeypatch):
    black = [Frame.from_pixels(np.zeros((60, 80, 3), np.uint8), index=i, seconds=i / 4) for i in range(8)]
    monkeypatch.setattr(captioner.describer, "confidence", Confidence(9.0, {}))
    for result in (
        captioner.caption(black, candidates=2),
        next(captioner.stream(black)),
        next(captioner.timeline(black)),
    ):
        assert (result.text, result.display_text) == ("", "not sure (1.00)")
        assert result.not_sure == "nothing to see: every picked frame is blank"
    assert captioner.caption([*black, frames[8]], picker=AllPicker()).text
    # In a stream a scene that begins black has a caption as soon as there is something to see.
    updates = captioner.stream([*black[:2], frames[2]], picker=AllPicker())
    assert [bool(update.text) for update in updates] == [False, False, True]


def test_a_caption_below_the_least_confidence_is_left_out(captioner, frames, monkeypatch):
    with pytest.raises(BadSetting, match=r"^min_confidence is 0.5: the model .* has no confidence; fit one with"):
        captioner.caption(frames, min_confidence=0.5)
    monkeypatch.setattr(captioner.describer, "confidence_note", None)
    monkeypatch.setattr(captioner.describer, "confidence", Confidence(-1.0, {}))  # 1 / (1 + e) = 0.27
    for result in (
        captioner.caption(frames, candidates=2, min_confidence=0.5),
        next(captioner.caption_many([frames], min_confidence=0.5)),
        next(captioner.stream(frames, min_confidence=0.5)),
        next(captioner.timeline(frames, min_confidence=0.5)),
    ):
        assert (result.text, result.not_sure) == ("", "confidence 0.27 is below 0.5")
        assert result.confidence == pytest.approx(0.268941, abs=1e-6)
        assert result.picks
        assert getattr(result, "candidates", ()) == ()
        assert getattr(result, "error", None) is None
    assert captioner.caption(frames, min_confidence=0.27).not_sure == "confidence 0.2689 is below 0.27"
    sure = captioner.caption(frames, candidates=2, min_confidence=0.25)
    assert (sure.text, sure.candidates, sure.not_sure) == (sure.candidates[0].text, sure.candidates, None)
    assert sure.text == captioner.caption(frames).text
    with pytest.raises(BadSetting, match=r"^min_confidence is 1.5: 0 to 1 are possible$"):
        captioner.caption(frames, min_confidence=1.5)


def test_the_signals_of_a_caption(captioner, frames):
    described = captioner.describer.describe(AllPicker().pick(frames), beam=2)
    signals, best = described.signals, described.sentences[0]
    assert signals.words <= set(best.text.split())
    assert "is" not in signals.words
    assert signals.likelihood == pytest.approx(best.log_probability / (len(best.text.split()) + 1))
    assert 0 < signals.entropy < math.log(len(captioner.runtime.vocabulary))
    assert 0 < signals.agreement <= 1
    state = captioner.runtime.start()
    for frame in frames:
        state = captioner.runtime.encode(captioner.features(frame), state)
    assert signals.state == pytest.approx(float(np.linalg.norm(state.h)), rel=1e-3)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Two seconds at 25 frames a second, MPEG-4 in AVI."""
    return write_clip(tmp_path_factory.mktemp("clips") / "two seconds.avi", num_frames=50, codec="mpeg4")


def test_a_video_file_is_sampled_evenly_for_a_caption_and_by_time_for_a_stream(captioner, clip):
    caption = captioner.caption(clip, picker=AllPicker(), num_frames=5)
    # The middle frames of five parts of ten frames: 5, 15, 25, 35, 45, a 25th of a second each.
    assert [pick.seconds for pick in caption.picks] == pytest.approx([0.2, 0.6, 1.0, 1.4, 1.8], abs=1e-3)
    assert (caption.frames_seen, caption.video, caption.damage) == (5, str(clip), None)
    assert captioner.caption(str(clip), picker=AllPicker()).frames_seen == captioner.config.video.num_frames == 30
    updates = list(captioner.stream(clip, fps=4, picker=AllPicker()))
    # The first frame at or after each quarter of a second: 0, 7 (0.28 s), 13 (0.52 s), 19 (0.76 s), 25 (1 s), ...
    assert [update.seconds for update in updates[:5]] == pytest.approx([0.0, 0.28, 0.52, 0.76, 1.0], abs=1e-3)
    assert len(updates) == 8


def test_a_cut_video_is_captioned_from_what_is_left_and_reports_the_damage(captioner, clip, tmp_path):
    content = clip.read_bytes()
    damaged = tmp_path / "damaged.avi"
    damaged.write_bytes(content[: len(content) * 3 // 4])
    caption = captioner.caption(damaged)
    assert caption.damage
    assert 0 < caption.frames_seen <= 30


def test_frames_picked_from_a_file_are_images_of_its_size(clip):
    images = pick(clip, picker=UniformPicker(3), num_frames=10)
    assert [number_of(np.asarray(image)) for image in images] == [7, 27, 42]  # samples 1, 5 and 8 of 2, 7, 12, …
    assert images[0].size == (96, 64)


def test_a_model_is_found_by_folder_by_run_and_by_name(model_folder, tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (run / "model").symlink_to(model_folder, target_is_directory=True)
    assert load(run).name == str(run)
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "msvd").symlink_to(model_folder, target_is_directory=True)
    monkeypatch.setattr(folder_module, "SHIPPED", tmp_path / "shipped")
    assert load("msvd").name == "msvd"
    assert load().name == "msvd"
    with pytest.raises(BadModel, match=r"^mvsd: no such model; possible are msvd, a model folder, or a run folder"):
        load("mvsd")


def test_a_package_without_its_default_model_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "SHIPPED", tmp_path)
    with pytest.raises(BadModel, match="the default model is not in this installation; name a model folder"):
        load()


def test_picked_frames_come_as_full_size_images(frames, model_folder):
    images = pick(frames, picker=UniformPicker(2))
    assert [(image.index, image.seconds, image.size) for image in images] == [
        (3, frames[3].seconds, (80, 60)), (9, frames[9].seconds, (80, 60)),
    ]  # fmt: skip
    assert np.array_equal(np.asarray(images[0]), frames[3].pixels())
    assert pick(frames, model=model_folder)[0].index == 0


class FixedPicker:
    """Picks the frames it has probabilities for."""

    def __init__(self, probabilities):
        self.probabilities = probabilities

    def pick(self, frames):
        for frame in frames:
            if frame.index in self.probabilities:
                yield frame, Pick(frame.index, frame.seconds, self.probabilities[frame.index])


def test_a_budget_keeps_the_first_and_the_surest_picks_in_order(frames):
    picker = FixedPicker({0: None, 1: 0.6, 2: 0.9, 3: 0.0, 4: 0.8})
    for budget, expected in ((1, [0]), (3, [0, 2, 4]), (99, [0, 1, 2, 3, 4])):
        assert [image.index for image in pick(frames, picker=picker, budget=budget)] == expected
    with pytest.raises(BadSetting, match="budget is 0: 1 frame or more is possible"):
        pick(frames, picker=picker, budget=0)


def test_a_budget_spreads_over_the_picks_of_a_picker_without_probabilities(frames):
    # Four pictures, three times each: one of each, not the first four of twelve.
    found = pick(frames, picker=UniformPicker(12), budget=4)
    assert [image.index // 3 for image in found] == [0, 1, 2, 3]
    assert len(pick(frames, picker=AllPicker(), budget=99)) == 12


def test_a_model_beside_a_picker_is_refused(frames, model_folder):
    with pytest.raises(BadSetting, match=r"with a picker no model picks; leave one of the two out$"):
        pick(frames, picker=AllPicker(), model=model_folder)


def test_a_captioner_picks_with_its_own_picker_with_a_budget_or_with_any(captioner, frames, clip, model_folder):
    assert [image.pick for image in captioner.pick(clip)] == list(captioner.caption(clip).picks)
    assert [image.pick for image in pick(clip, model=model_folder)] == list(captioner.caption(clip).picks)
    assert [image.index for image in captioner.pick(frames, budget=4)] == [
        image.index for image in pick(frames, budget=4, model=model_folder)
    ]
    assert [image.index for image in captioner.pick(frames, picker=UniformPicker(2))] == [3, 9]
    seconds = []
    found = captioner.picked(frames, budget=2, on_frame=seconds.append)
    assert seconds == [frame.seconds for frame in frames]
    assert (found.num_picks, found.frames_seen, found.video) == (2, 12, "frames")


# --- Sources ---------------------------------------------------------------------------------------------------------


def test_a_file_as_path_bytes_or_open_file_has_the_same_caption(captioner, clip):
    caption = captioner.caption(clip)
    content = clip.read_bytes()
    with clip.open("rb") as file:
        others = [captioner.caption(content), captioner.caption(io.BytesIO(content)), captioner.caption(file)]
    for other in others:
        assert dataclasses.replace(other, video=caption.video) == caption
    assert caption.seconds == pytest.approx(2.0, abs=0.05)
    assert [image.index for image in captioner.pick(content, picker=UniformPicker(3), num_frames=10)] == [1, 5, 8]
    assert [segment.text for segment in captioner.timeline(content)] == [
        segment.text for segment in captioner.timeline(clip)
    ]


def test_an_array_is_sampled_evenly_and_an_iterable_of_arrays_is_used_whole(captioner):
    array = np.stack([np.full((48, 64, 3), 2 * i, np.uint8) for i in range(100)])
    caption = captioner.caption(array, picker=AllPicker(), num_frames=5)
    # The middles of five parts of twenty frames.
    assert [(pick.index, pick.seconds) for pick in caption.picks] == [(0, 10), (1, 30), (2, 50), (3, 70), (4, 90)]
    assert captioner.caption(iter(array), picker=AllPicker(), num_frames=5).frames_seen == 100
    assert captioner.caption(array[[10, 30, 50, 70, 90]], picker=AllPicker()).text == caption.text
    assert [image.index for image in captioner.pick(array, picker=UniformPicker(2), num_frames=4)] == [1, 3]
    assert list(captioner.timeline(array, fps=10))[-1].end == pytest.approx(10.0)


def test_a_live_source_needs_a_budget_and_no_picker(captioner):
    for source in ("rtsp://me:secret@camera/1", Live("rtsp://me:secret@camera/1")):
        for settings in ({"picker": AllPicker(), "budget": 3}, {"budget": 3, "exact": True}, {}):
            with pytest.raises(EndlessSource, match=r"^rtsp://me:\*\*\*@camera/1: .* pick with a budget, not with "):
                captioner.pick(source, **settings)


@pytest.mark.parametrize("picker", [UniformPicker(3), BudgetPicker(3), RandomPicker(3), None])
def test_a_stream_refuses_pickers_that_look_ahead(captioner, frames, picker):
    picker = picker or captioner.counted_picker(3)
    with pytest.raises(BadSetting, match=rf"^picker is a {type(picker).__name__}, which has to see the last frame"):
        captioner.stream(frames, picker=picker)


def test_arguments_are_checked_at_the_call_not_at_the_first_result(captioner, frames):
    with pytest.raises(BadSetting, match=r"^fps is 0:"):
        captioner.timeline(frames, fps=0)
    with pytest.raises(BadConfig, match=r"^beam is 0;"):
        captioner.timeline(frames, beam=0)
    with pytest.raises(BadConfig, match=r"^beam is 0;"):
        captioner.stream(frames, beam=0)
    with pytest.raises(BadSetting, match=r"^timeout is 0:"):
        captioner.stream(frames, timeout=0)
    for settings, name in (({"jobs": 0}, "jobs"), ({"candidates": 0}, "candidates"), ({"num_frames": 0}, "num_frames")):
        with pytest.raises(BadSetting, match=rf"^{name} is 0"):
            captioner.caption_many([], **settings)
    with pytest.raises(BadSetting, match=r"^sources is one source: a list or another iterable"):
        captioner.caption_many("clip.mp4")


def test_a_picker_that_holds_all_frames_holds_little_of_large_ones(captioner, tmp_path, monkeypatch):
    path = write_clip(tmp_path / "clip.mp4", num_frames=12)
    held = []

    class Holding(KMeansPicker):
        def pick(self, frames):
            every = list(frames)
            held.append({(frame.is_large, frame.thumbnail(1000).shape[:2]) for frame in every})
            return super().pick(every)

    def picker():
        return Holding(3, features=captioner.feature, seed=0)

    caption, picked = captioner.caption(path, picker=picker()), captioner.picked(path, picker=picker())
    monkeypatch.setattr("picknet.video.frame.LARGE_PICTURE", 5000)
    again, picked_again = captioner.caption(path, picker=picker()), captioner.picked(path, picker=picker())
    size = captioner.config.model.image_size
    assert held == 2 * [{(False, (64, 96))}] + 2 * [{(size * size > 5000, (size, size))}]
    assert (again.picks, again.text, again.log_probability) == (caption.picks, caption.text, caption.log_probability)
    # Those that are picked are read again: they have their own size.
    pictures = [np.stack([frame.pixels() for frame, _ in found.frames]) for found in (picked, picked_again)]
    assert picked_again.picks == picked.picks
    assert np.array_equal(*pictures)


def test_the_scenes_among_the_picks_are_counted(captioner, frames):
    assert captioner.caption(frames, picker=changes()).num_scenes == 4
    assert captioner.caption(frames[:3], picker=AllPicker()).num_scenes == 1


def test_candidates_fall_in_probability_below_the_caption(captioner, monkeypatch):
    # By log P / length^0.7: "a man playing" -0.56, "a cat is running" -0.59, "a dog" -0.66, "a woman" -0.83. "a dog",
    # with 0.24, is likelier than the caption and left out; "a woman", with 0.165, is likelier than the cat.
    a, man, cat, woman, dog, is_, playing, running = captioner.runtime.vocabulary.encode(
        ["a", "man", "cat", "woman", "dog", "is", "playing", "running"]
    )
    step = table_decoder(
        {
            BOS: {a: 1.0},
            a: {dog: 0.24, man: 0.23, cat: 0.17, woman: 0.165},
            dog: {EOS: 1.0},
            woman: {EOS: 1.0},
            man: {playing: 1.0},
            cat: {is_: 1.0},
            is_: {running: 1.0},
            playing: {EOS: 0.99, is_: 0.01},
            running: {EOS: 0.95},
        },
        num_words=len(captioner.runtime.vocabulary),
    )
    monkeypatch.setattr(captioner.runtime, "decode", lambda words, video, states: step(words, states))
    found = captioner.describer.writer.candidates(captioner.runtime.start(), count=4, beam=4)
    assert [sentence.text for sentence in found] == ["a man playing", "a woman", "a cat is running"]
    assert [sentence.probability for sentence in found] == pytest.approx([0.2277, 0.165, 0.1615])


# --- Many videos and many threads ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Eight short clips of different pictures."""
    folder = tmp_path_factory.mktemp("many")
    tiles = np.random.default_rng(1).integers(0, 256, (8, 4, 6, 3), dtype=np.uint8)
    paths = []
    for number, picture in enumerate(tiles.repeat(12, axis=1).repeat(12, axis=2)):
        path = folder / f"{number}.mp4"
        with av.open(str(path), "w") as output:
            stream = output.add_stream("mpeg4", rate=10)
            stream.width, stream.height, stream.pix_fmt = 72, 48, "yuv420p"
            for shift in range(12):
                frame = av.VideoFrame.from_ndarray(np.roll(picture, 3 * shift, axis=1), format="rgb24")
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        paths.append(path)
    return paths


def test_eight_threads_on_one_captioner_get_the_captions_of_one_thread(clips):
    captioner = load()
    sources = [*clips, SAMPLE]
    alone = {source: captioner.caption(source, num_frames=2, beam=2) for source in sources}
    assert len({caption.log_probability for caption in alone.values()}) == len(sources)
    order = list(itertools.islice(itertools.cycle(clips), 78)) + [SAMPLE] * 2
    np.random.default_rng(0).shuffle(order)

    def seconds_a_caption(sources, *, jobs):
        with ThreadPoolExecutor(jobs) as pool:
            start = time.perf_counter()
            found = list(pool.map(lambda source: captioner.caption(source, num_frames=2, beam=2), sources))
            seconds = time.perf_counter() - start
        assert found == [alone[source] for source in sources]
        return seconds / len(sources)

    one = seconds_a_caption(order[:20], jobs=1)
    # No lower throughput, with slack for whatever else the machine does meanwhile.
    assert seconds_a_caption(order, jobs=8) < 1.5 * one


def test_many_captions_come_in_order_with_errors_in_their_places(captioner, clips, tmp_path):
    sound = write_audio(tmp_path / "sound.mp4")
    sources = [clips[0], sound, clips[1].read_bytes(), tmp_path / "nowhere.mp4", [], "rtsp://me:secret@x/1", clips[2]]
    found = list(captioner.caption_many(iter(sources), jobs=3))
    assert found[0] == captioner.caption(clips[0])
    assert found[2].text == captioner.caption(clips[1]).text
    assert found[6] == captioner.caption(clips[2])
    assert [(caption.video, caption.error) for caption in found if caption.error] == [
        (str(sound), f"{sound}: no video stream found (streams: audio)"),
        (str(tmp_path / "nowhere.mp4"), f"{tmp_path / 'nowhere.mp4'}: no such file"),
        ("frames", "frames: there is no frame to caption"),
        ("rtsp://me:***@x/1", "rtsp://me:***@x/1: a live source, which may have no end; `stream` describes those"),
    ]
    assert found[1].text == ""
    assert found[1].picks == ()


def test_a_bug_among_many_captions_is_raised(captioner, clips):
    class Broken:
        def pick(self, frames):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(captioner.caption_many(clips, picker=Broken(), jobs=2))


def test_many_sources_are_read_as_they_are_needed(captioner, clips):
    num_read = 0

    def sources():
        nonlocal num_read
        for _ in range(1_000_000):
            num_read += 1
            yield clips[0]

    found = captioner.caption_many(sources(), jobs=2)
    for count in range(1, 6):
        next(found)
        assert num_read <= count + 4
    found.close()
    assert num_read <= 9


def test_closing_many_captions_stops_the_one_at_work(captioner, frames):
    num_frames = 0

    def endless():
        nonlocal num_frames
        for frame in itertools.cycle(frames):
            num_frames += 1
            yield frame

    found = captioner.caption_many([frames, endless(), endless()], picker=changes(), jobs=3)
    next(found)
    found.close()  # would wait for ever otherwise
    stopped_at = num_frames
    time.sleep(0.05)
    assert num_frames == stopped_at


def test_a_random_picker_gives_the_same_captions_with_any_number_of_jobs(captioner, clips):
    sources = clips * 4
    picker = CoinPicker()
    expected = [captioner.caption(source, picker=picker, num_frames=4).picks for source in sources]
    found = [one.picks for one in captioner.caption_many(sources, picker=CoinPicker(), num_frames=4, jobs=8)]
    assert found == expected


# --- The package ------------------------------------------------------------------------------------------------------


def test_every_public_name_is_there():
    for name in picknet.__all__:
        assert getattr(picknet, name) is not None
    assert picknet.load is load
    assert dir(picknet) == sorted([*picknet.__all__, "train"])
    with pytest.raises(AttributeError, match="module 'picknet' has no attribute 'laod'"):
        picknet.laod  # noqa: B018


def test_training_without_its_extra_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import picknet; from picknet import *; evaluate; picknet.train"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert result.stderr.splitlines()[-1] == 'ImportError: picknet.train needs torch: pip install "picknet[train]"'


def test_import_picknet_loads_nothing_heavy_and_using_it_no_torch():
    code = (
        "import sys, picknet; print(*sorted({'numpy', 'av', 'openvino', 'torch'} & sys.modules.keys()));"
        "picknet.Captioner; print(*sorted({'openvino', 'torch', 'onnx', 'safetensors'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert result.stdout == "\n\n"


def test_a_live_address_is_refused_without_its_password_in_the_message(captioner):
    for call in (captioner.caption, captioner.timeline, captioner.pick):
        with pytest.raises(EndlessSource) as raised:
            call("rtsp://me:secret@camera/1")
        assert str(raised.value).startswith("rtsp://me:***@camera/1: a live source, which may have no end; ")


@pytest.mark.parametrize("sources", [b"", bytearray(3), "a.mp4", io.BytesIO(b"x"), np.zeros((2, 8, 8, 3), np.uint8), 5])
def test_one_source_in_place_of_many_is_refused_at_the_call(captioner, sources):
    with pytest.raises(BadSetting, match=r"^sources is one source: a list or another iterable of them is needed$"):
        captioner.caption_many(sources)


def test_a_bad_array_among_many_sources_is_an_error_of_its_own(captioner, frames):
    good, bad = [frames[0].pixels()], [np.zeros((8, 8), np.uint8)]
    captions = list(captioner.caption_many([good, bad, good]))
    assert [caption.error is None for caption in captions] == [True, False, True]
    assert captions[1].error == "a frame is RGB (H, W, 3) of uint8, not (8, 8) of uint8"


def test_a_picker_that_picks_nothing_is_named_as_the_reason(captioner, frames):
    class Nothing:
        def pick(self, frames):
            list(frames)
            return iter(())

    with pytest.raises(NothingToCaption, match=r"^frames: the picker picked none of 2 frames$"):
        captioner.caption(frames[:2], picker=Nothing())


def test_a_finite_live_source_keeps_its_name_and_is_picked_from_like_a_file(captioner, tmp_path):
    video = write_clip(tmp_path / "clip.mp4", num_frames=50)
    assert captioner.caption(Live(video, fps=5)).video == str(video)
    assert len(captioner.pick(Live(video, fps=5), picker=UniformPicker(2))) == 2


def test_a_single_frame_lasts_one_step_wherever_it_is(captioner, frames):
    frame = Frame.from_pixels(frames[0].pixels(), index=0, seconds=5.0)
    (segment,) = captioner.timeline([frame], fps=2.0)
    assert (segment.start, segment.end) == (5.0, 5.5)
