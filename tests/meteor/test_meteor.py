"""METEOR with a small lexicon and scores worked out by hand; `test_metrics.py` compares it with the Java program."""

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from picknet.meteor import paraphrases
from picknet.meteor.alignment import Aligner
from picknet.meteor.corpus import evaluate
from picknet.meteor.lexicon import Lexicon, MeteorFailed
from picknet.meteor.paraphrases import ParaphraseTable
from picknet.meteor.scores import score

FILES = {
    "function/english.words": "the\na\nis\n",
    "nonbreaking/english.prefixes": "# titles\nMr\n\nNo #NUMERIC_ONLY#\n",
    "synonym/english.exceptions": "ride\nrode ridden\n",
    "synonym/english.synsets": "auto\n7\ncar\n7 8\ndrive\n2\nride\n1 2\n",
}
PARAPHRASES = [("in front of", "before"), ("before", "ahead of"), ("big", "large"), ("large", "big")]
PARAPHRASES += [("before", "prior")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("meteor")
    with zipfile.ZipFile(folder / "meteor-1.5.jar", "w") as jar:
        for name, text in FILES.items():
            jar.writestr(name, text)
    (folder / "data").mkdir()
    with gzip.open(folder / "data" / "paraphrase-en.gz", "wt") as file:
        file.writelines(f"0.5\n{phrase}\n{paraphrase}\n" for phrase, paraphrase in PARAPHRASES)
    return folder


@pytest.fixture(scope="module")
def lexicon(folder: Path) -> Lexicon:
    return Lexicon(folder)


# --- Scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "reference", "expected"),
    [
        ("the cat ran", "the cat ran", 1.0),
        ("The CAT ran.", "the cat ran .", 1.0),
        # "the" counts 0.25, the others 0.75: precision and recall are (0.25 + 0.75) / 1.75. Two matches, two chunks.
        ("the cat ran", "the dog ran", 4 / 7 * (1 - 0.6)),
        # Weights 1 (exact) and 0.6 (stem); all words match in one chunk, so that there is no penalty.
        ("man rides", "man riding", 0.8),
        # Synonyms count 0.8; "rode" is an irregular form of "ride", "cars" a regular one of "car".
        ("car", "auto", 0.8),
        ("cars", "auto", 0.8),
        ("rode", "drive", 0.8),
        # Precision (1 + 0.6 + 1) / 3, recall (1 + 3 · 0.6 + 1) / 5.
        ("cat before dog", "cat in front of dog", 1 / (0.15 / (2.6 / 3) + 0.85 / (3.8 / 5))),
        ("cat in front of dog", "cat before dog", 1 / (0.15 / (3.8 / 5) + 0.85 / (2.6 / 3))),
        # Two matches of four words each; "x" and "y" match nothing. One chunk: fragmentation 1 / 2.
        ("big cat x x", "big cat y y", 0.5 * (1 - 0.6 * 0.5**0.2)),
        ("cat", "dog", 0.0),
        ("", "cat", 0.0),
        ("cat", "", 0.0),
        ("", "", 0.0),
    ],
)
def test_the_score_of_a_pair(lexicon: Lexicon, candidate: str, reference: str, expected: float) -> None:
    result = evaluate([(candidate, [reference])], lexicon, seconds=60)
    assert result.by_video.tolist() == pytest.approx([expected], abs=1e-12)
    assert result.corpus == pytest.approx(expected, abs=1e-12)


def test_the_best_reference_counts(lexicon: Lexicon) -> None:
    result = evaluate([("the cat ran", ["a dog", "the dog ran", "the cat ran", ""])], lexicon, seconds=60)
    assert result.by_video.tolist() == [1.0]


def test_the_corpus_is_scored_by_its_sums(lexicon: Lexicon) -> None:
    # Words that count 0.75 each: 2 of 2, and 1 of 3. The first caption is perfect, so its chunk is not counted.
    pairs = [("cat ran", ["cat ran"]), ("cat x y", ["cat u v"])]
    result = evaluate(pairs, lexicon, seconds=60)
    assert result.by_video.tolist() == pytest.approx([1.0, 1 / 3 * (1 - 0.6)])
    assert result.corpus == pytest.approx(3 / 5 * (1 - 0.6 * (1 / 3) ** 0.2))


# --- Alignment --------------------------------------------------------------------------------------------------------


def test_the_alignment_with_the_fewest_chunks_wins(lexicon: Lexicon) -> None:
    statistics = Aligner(lexicon, "the cat the dog", ["the dog"]).align("the dog")
    assert statistics.chunks == 1
    assert statistics.counts == [
        [[2, 1, 0, 0, 0], [2, 1, 0, 0, 0]],  # the candidate's content words and function words
        [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0]],
    ]


def test_an_exact_match_is_preferred_to_a_stem(lexicon: Lexicon) -> None:
    statistics = Aligner(lexicon, "rides ride", ["ride"]).align("ride")
    assert statistics.counts[0][0] == [2, 1, 0, 0, 0]


def test_a_pair_that_the_table_has_twice_is_matched_only_beside_other_matches(lexicon: Lexicon) -> None:
    # Two matches of the same words: neither is certain. To the search, half a word on each side is worth nothing, and a
    # chunk of its own has a cost.
    alone = Aligner(lexicon, "big", ["large"]).align("large")
    assert (alone.chunks, score(alone)) == (0, 0.0)
    adjacent = Aligner(lexicon, "big cat", ["large cat"]).align("large cat")
    assert adjacent.counts == [[[2, 1, 0, 0, 1], [0] * 5], [[2, 1, 0, 0, 1], [0] * 5]]
    assert score(adjacent) == pytest.approx(0.8)


def test_words_with_one_hash_code_are_one_word_as_in_the_program(lexicon: Lexicon) -> None:
    # 31 · 97 + 110 = 31 · 99 + 48
    assert evaluate([("an", ["c0"])], lexicon, seconds=60).corpus == 1.0


def test_time_is_limited(lexicon: Lexicon) -> None:
    with pytest.raises(MeteorFailed, match=r"^not finished after 0\.01 s$"):
        evaluate([("cat dog " * 2000, ["dog cat " * 2000])], lexicon, seconds=0.01)


# --- Words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man , 1,000 dogs,and more", "a man , 1,000 dogs , and more"),
        ("it's the dogs' '90s, 90's", "it 's the dogs ' ' 90s , 90 's"),
        ("a well-known a-b-c", "a well known a b-c"),
        ("wait...what", "wait ... what"),
        ("Mr. Smith is No. 5. No. He left.", "mr. smith is no. 5 . no . he left ."),
        ("in the U.S. today", "in the us today"),
        ("an end. and more", "an end. and more"),
        ("“so” ``it'' ‘is’", "\" so \" \" it \" ' is '"),
        ("50%(or so)", "50 % ( or so )"),
        ("Élan 中 \x00", "élan 中"),
    ],
)
def test_words_are_separated_as_by_the_program(lexicon: Lexicon, text: str, words: str) -> None:
    assert lexicon.words_of(text) == words.split()


# --- Files ------------------------------------------------------------------------------------------------------------


def test_the_table_from_the_cache_is_the_parsed_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "data" / "paraphrase-en.gz"
    parsed = ParaphraseTable.parse(path)
    ParaphraseTable.load(path)  # is cached now
    monkeypatch.setattr(ParaphraseTable, "parse", lambda path: pytest.fail("parsed again"))
    stored = ParaphraseTable.load(path)
    for name in ("hashes", "first", "paraphrases"):
        np.testing.assert_array_equal(getattr(stored, name), getattr(parsed, name))


def test_paraphrases_have_the_order_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paraphrases, "_BYTES_AT_ONCE", 7)  # lines end anywhere
    table = ParaphraseTable.parse(folder / "data" / "paraphrase-en.gz")
    words = ["before", "ahead", "of", "prior", "in", "front", "of"]
    numbers = {(start, length): number for start, length, number in table.phrases_in(words)}
    assert list(numbers) == [(0, 1), (1, 2), (3, 1), (4, 3)]
    everything = table.marked(numbers.values())
    assert table.paraphrases_of(numbers[0, 1], everything) == [numbers[1, 2], numbers[3, 1]]
    assert table.paraphrases_of(numbers[0, 1], table.marked([numbers[3, 1]])) == [numbers[3, 1]]
    assert table.paraphrases_of(numbers[4, 3], everything) == [numbers[0, 1]]
    assert table.paraphrases_of(numbers[1, 2], everything) == []


def damaged(folder: Path, place: Path, name: str, content: bytes | None) -> Path:
    for file in ("meteor-1.5.jar", "data/paraphrase-en.gz"):
        (place / file).parent.mkdir(exist_ok=True)
        (place / file).write_bytes((folder / file).read_bytes())
    (place / name).unlink()
    if content is not None:
        (place / name).write_bytes(content)
    return place


@pytest.mark.parametrize("name", ["meteor-1.5.jar", "data/paraphrase-en.gz"])
@pytest.mark.parametrize("content", [None, b"", b"not what it should be", gzip.compress(b"0.5\nbig\nlar", mtime=0)])
def test_damaged_files_are_named(folder: Path, tmp_path: Path, name: str, content: bytes | None) -> None:
    place = damaged(folder, tmp_path, name, content)
    with pytest.raises(MeteorFailed, match=f"^{tmp_path}: METEOR's files cannot be read \\("):
        Lexicon(place)
