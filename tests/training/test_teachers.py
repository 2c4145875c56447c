"""Which captions teach: each rule on captions made by hand, and what must survive."""

import sys
from pathlib import Path

import pytest

from picknet.config import BadConfig, TextConfig
from picknet.data import BadData
from picknet.data.split import Clip
from picknet.text import Vocabulary
from picknet.training.teachers import english_words, teachers

CLEAN = TextConfig(clean=True, max_words=12)


def clips(*captions_of_clips):
    return [Clip(f"clip{i}", Path("x.mp4"), tuple(captions)) for i, captions in enumerate(captions_of_clips)]


def learned(*captions_of_clips, usual=()):
    """What is learned from the first clip, beside clips that use the words of `usual` sentences fifty times."""
    others = [[sentence] for sentence in usual for _ in range(50)]
    result = teachers(clips(*captions_of_clips, *others), CLEAN)
    return [" ".join(caption) for caption in result.captions["clip0"]], result.counts


def only(caption, **given):
    """What is learned from the only caption of a clip; None if it is left out."""
    captions, _ = learned([caption], ["a dog barks at night"], **given)
    return captions[0] if captions else None


def test_captions_are_as_people_wrote_them_unless_they_are_to_be_cleaned():
    result = teachers(clips(["a man cooking his kichen", "Oh!"]), TextConfig())
    assert result.captions == {"clip0": [["a", "man", "cooking", "his", "kichen"], ["oh"]]}
    assert not result.counts


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a man cleans the bathrom", "a man cleans the bathroom"),  # a letter missing,
        ("a man cleans the bathrooom", "a man cleans the bathroom"),  # too many,
        ("a man cleans the bathraom", "a man cleans the bathroom"),  # wrong
        ("a man cleans the bahtroom", "a man cleans the bathroom"),  # and swapped
        ("a man cleansthe bathroom", "a man cleans the bathroom"),  # two words
        ("a man cleans the bathroom.his dog barks", "a man cleans the bathroom his dog barks"),
        ("a man & his dog bark", "a man and his dog bark"),
        ("a man stands infront of a dog", "a man stands in front of a dog"),
        ("a man doesn t clean the bathroom", "a man does n't clean the bathroom"),
    ],
)
def test_a_misspelled_word_is_mended_to_a_far_more_frequent_one(written, meant):
    assert only(written, usual=["the man cleans the bathroom"]) == meant


def test_a_misspelled_word_becomes_unknown_if_no_captions_use_what_it_may_mean():
    assert only("a man cleans the bathrom") == "a man cleans the <unk>"


def test_a_misspelled_word_becomes_unknown_if_it_may_mean_two():
    assert only("all the grils are new", usual=["the girls are new", "the grills are new"]) == "all the <unk> are new"


def test_the_clip_s_other_captions_decide_what_was_meant():
    captions = ["all the grils are new", "a man buys a grill", "two grills in a shop"]
    meant, counts = learned(captions, usual=["the girls are new", "the grills are new"])
    assert meant[0] == "all the grills are new"
    assert counts["mended"] == 1


def test_two_slips_are_mended_only_to_a_word_of_the_clip_s_other_captions():
    usual = ["a woman cuts a cucumber"]
    assert only("a woman cuts a cocumbar", usual=usual) == "a woman cuts a <unk>"
    captions = ["a woman cuts a cocumbar", "a woman slices a cucumber", "cucumber is cut by a woman"]
    assert learned(captions, usual=usual)[0][0] == "a woman cuts a cucumber"


@pytest.mark.parametrize(
    "words",
    [
        "skateboarder wakeboarding closeup guitarist snowboarders",
        "t-shirt close-up black-and-white merry-go-round three-wheeled",
        "2 3d 10:30 1950s 4th mp3 4x4",
        "obama spongebob minecraft disney lamborghini tv bmx nba",
        "color colour aeroplane airplane favourite theatre theater",
        "tortillas okra sari omurice masala sushi",
        "selfie gameplay slideshow hoodie frisbees backflip",
        "mr. st. u.s.",
        "dog 's does n't o'clock",
    ],
)
def test_names_compounds_numbers_and_variants_survive(words):
    caption = f"a man and {words} here"
    assert only(caption) == caption


def test_a_word_that_captions_of_several_clips_agree_on_is_a_name():
    clip = ["zorblax runs in a park", "the dog zorblax is running"]
    captions, _ = learned(clip, clip, clip)
    assert captions == clip
    assert only(clip[0]) == "<unk> runs in a park"


def test_a_mistake_that_captions_agree_on_is_no_name_if_others_write_it_right():
    clip = ["a woman with a tomatto", "a tomatto is cut", "she peels a tomato", "the tomato", "a tomato is cut"]
    captions, _ = learned(clip, clip, clip)
    assert captions[:2] == ["a woman with a tomato", "a tomato is cut"]


@pytest.mark.parametrize(
    ("caption", "reason"),
    [
        ("cucumber", "too short"),
        ("a man", "too short"),
        ("the big the", "too short"),
        ("!!!", "too short"),
        ("a man is " + "very " * 10 + "happy", "too long"),
        ("un hombre toca la guitarra", "not in English"),
        ("ein mann schneidet eine gurke", "not in English"),
        ("i love this song so much", "remarks"),
        ("please subscribe to this channel", "remarks"),
        ("there is no image here to describe", "remarks"),
        ("the video does not load", "remarks"),
        ("the person is doing the something", "remarks"),
    ],
)
def test_what_describes_nothing_is_left_out(caption, reason):
    captions, counts = learned([caption, "a man plays the guitar"])
    assert captions == ["a man plays the guitar"]
    assert counts == {reason: 1}


def test_a_mistake_under_ten_clips_is_left_out_rather_than_mended():
    nine = teachers(clips(*[["a man cooking his kichen"]] * 9), CLEAN)
    ten = teachers(clips(*[["a man cooking his kichen"]] * 10, ["a man is cooking"]), CLEAN)
    assert nine.counts["mended"] == 9
    assert nine.captions["clip0"] == [["a", "man", "cooking", "his", "kitchen"]]
    assert ten.counts["copied with their mistakes"] == 10
    assert ten.captions["clip0"] == []


def test_a_good_sentence_may_describe_many_clips():
    many = teachers(clips(*[["a man is playing the guitar"]] * 20), CLEAN)
    assert all(map(len, many.captions.values()))


GUITAR = ["a man is playing a guitar", "a man plays the guitar", "a boy plays guitar", "the guitarist sings a song"]
OTHERS = [["a woman cuts an onion"], ["a dog runs in the snow"], ["children are dancing"], ["a car drives by"]]


def test_a_caption_of_another_clip_is_left_out():
    captions, counts = learned([*GUITAR * 3, "someone slices an onion"], *OTHERS)
    assert captions == GUITAR * 3
    assert counts["of another clip"] == 1


def test_a_caption_that_shares_one_word_of_content_agrees():
    captions, _ = learned([*GUITAR * 3, "someone strums guitars"], *OTHERS)
    assert captions[-1] == "someone strums guitars"


def test_few_captions_do_not_outvote_one():
    captions, _ = learned([*GUITAR, "someone slices an onion"], *OTHERS)
    assert captions[-1] == "someone slices an onion"


def test_clips_that_are_all_alike_keep_their_captions():
    captions, _ = learned(*[["a cat is sleeping", "the cat sleeps"] * 6] * 5)
    assert len(captions) == 12


def test_captions_in_another_language_are_an_error_that_says_what_to_do():
    german = clips(["ein mann schneidet eine gurke", "ein junge spielt gitarre"])
    assert len(teachers(german, TextConfig()).captions["clip0"]) == 2
    with pytest.raises(BadData, match=r"leaves no captions \(.*: 2 not in English\); set it to false to learn"):
        teachers(german, CLEAN)


def test_the_counts_are_reported():
    result = teachers(clips(["a man stands infront of a car", "guitar", "a man", "a car drives by"]), CLEAN)
    assert str(result) == "captions to learn from: 2, of which 1 mended; left out: 2 too short"


def test_of_an_old_vocabulary_only_english_words_are_kept():
    vocabulary = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "a", "kichen", "-lrb-", "zorblax", "'s", "[msrvtt]"))
    names = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "zorblax"))
    kept = [vocabulary.words[number] for number in english_words(vocabulary, also=names)]
    assert kept == ["<pad>", "<bos>", "<eos>", "<unk>", "a", "zorblax", "'s", "[msrvtt]"]


def test_a_missing_word_list_is_an_error_only_where_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "spellchecker", None)
    assert teachers(clips(["a man"]), TextConfig()).captions
    with pytest.raises(BadConfig, match="which needs pyspellchecker: pip install"):
        teachers(clips(["a man"]), CLEAN)
