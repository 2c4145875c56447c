import gzip
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from picknet.text import BOS, EOS, PAD, SPECIAL_WORDS, UNK, BadVocabulary, Vocabulary, tokenise

SHARED = Path(__file__).resolve().parents[2] / "shared"


# --- Tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("a man is playing", "a man is playing"),
        ("  A Man\tis\nplaying.  ", "a man is playing"),
        ("", ""),
        ("... !", ""),
        # punctuation is dropped, other symbols are kept
        ('A "dog", a cat; and - well - a cow?', "a dog a cat and well a cow"),
        ("rock & roll 100% for $0.30", "rock & roll 100 % for $ 0.30"),
        ("run!!", "run !!"),
        ("a man (left) talks", "a man -lrb- left -rrb- talks"),
        # single tokens
        ("a tri-colored dog, 10-15 and/or 1/2", "a tri-colored dog 10-15 and/or 1/2"),
        ("R&B and r&b", "r&b and r & b"),
        ("a dog sits.under", "a dog sits.under"),
        ("at 10:30 for 1,000 #fun @home", "at 10:30 for 1,000 #fun @home"),
        ("a t-shirt =D", "a t-shirt =d"),
        # words that are split in two
        ("it's a dog's life, they're told", "it 's a dog 's life they 're told"),
        ("she can't, won't and doesn't", "she ca n't wo n't and does n't"),
        ("i cannot say what's gonna be", "i can not say what 's gon na be"),
        ("the 1950's, the '90s and 50s", "the 1950 's the '90s and 50s"),
        ("o'clock, rock 'n' roll, the boys' room", "o'clock rock 'n' roll the boys room"),
        # full stops that belong to their word
        ("Mr. Smith of the U.S. lives on Main St.", "mr. smith of the u.s. lives on main st."),
        ("fruit, nuts, etc.", "fruit nuts etc."),
        ("near LA. a la.", "near la. a la"),
        ("No. 5 says no.", "no. 5 says no"),
        ("vitamin C. The cat of J. Smith", "vitamin c the cat of j. smith"),
        # beyond ASCII
        ("the woman’s “café” – sautéed", "the woman 's café sautéed"),
        ("a smile \U0001f600", "a smile"),
    ],
)
def test_tokens_match_the_coco_code(caption: str, tokens: str) -> None:
    assert tokenise(caption) == tokens.split()


def test_tokens_match_the_java_code_on_every_fourth_shared_caption() -> None:
    tokenizer = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    captions = shared_captions()[::4]  # all of them take half a minute
    theirs = tokenizer.PTBTokenizer().tokenize({index: [{"caption": text}] for index, text in enumerate(captions)})
    # Theirs glues "1 1/2" with a no-break space, which its metrics then split again.
    different = [text for index, text in enumerate(captions) if tokenise(text) != theirs[index][0].split()]
    assert different == []


def shared_captions() -> list[str]:
    if not SHARED.is_dir():
        pytest.skip("needs the folder `shared` beside the repository")
    captions = []
    for path in sorted(SHARED.glob("msvd/captions/sents_*.txt")):
        captions += [line.partition("\t")[2] for line in path.read_text(encoding="utf-8").splitlines()]
    with zipfile.ZipFile(SHARED / "msrvtt" / "train_val_videodatainfo.json.zip") as archive:
        captions += [s["caption"] for s in json.loads(archive.read("train_val_videodatainfo.json"))["sentences"]]
    for path in sorted(SHARED.glob("pretrain/*/captions*.json.gz")):
        content = json.loads(gzip.decompress(path.read_bytes()))
        if "annotations" in content:
            captions += [annotation["caption"] for annotation in content["annotations"]]
        else:
            captions += [caption for several in content.values() for caption in several]
    assert len(captions) > 390_000
    return captions


# --- Vocabulary -------------------------------------------------------------------------------------------------------

CAPTIONS = [["a", "dog", "runs"], ["a", "cat", "runs"], ["a", "bird", "sings"]]


def test_special_words_have_four_different_ids() -> None:
    assert sorted({PAD, BOS, EOS, UNK}) == [0, 1, 2, 3]
    assert [SPECIAL_WORDS[word_id] for word_id in (PAD, BOS, EOS, UNK)] == ["<pad>", "<bos>", "<eos>", "<unk>"]


def test_words_are_sorted_by_count_then_alphabetically() -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS, min_count=1)
    assert vocabulary.words == (*SPECIAL_WORDS, "a", "runs", "bird", "cat", "dog", "sings")
    assert len(vocabulary) == 10


def test_rare_words_are_unknown() -> None:
    vocabulary = Vocabulary.from_captions(iter(CAPTIONS), min_count=2)
    assert vocabulary.words == (*SPECIAL_WORDS, "a", "runs")
    assert vocabulary.encode(["a", "dog", "runs"]) == [4, UNK, 5]


def test_encoding_keeps_the_first_words_and_adds_no_bos_or_eos() -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS, min_count=1)
    assert vocabulary.encode(["a", "dog", "runs"]) == [4, 8, 5]
    assert vocabulary.encode(["a", "dog", "runs"], max_words=2) == [4, 8]
    assert vocabulary.encode([]) == []


def test_decoding_stops_at_eos_and_skips_bos_and_pad() -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS, min_count=1)
    assert vocabulary.decode([BOS, 4, 8, PAD, 5, EOS, 4, 4]) == "a dog runs"
    assert vocabulary.decode([4, UNK]) == "a <unk>"
    assert vocabulary.decode([EOS]) == ""


def test_a_special_word_in_a_caption_is_unknown() -> None:
    vocabulary = Vocabulary.from_captions([["a", "<eos>", "<eos>"]], min_count=1)
    assert vocabulary.words == (*SPECIAL_WORDS, "a")
    assert vocabulary.encode(["a", "<eos>", "<pad>"]) == [4, UNK, UNK]


def test_a_saved_vocabulary_loads_unchanged(tmp_path: Path) -> None:
    vocabulary = Vocabulary.from_captions([["café", "n't", "1/2", "-lrb-"]], min_count=1)
    vocabulary.save(tmp_path / "words.txt")
    assert Vocabulary.load(tmp_path / "words.txt") == vocabulary
    content = (tmp_path / "words.txt").read_bytes()
    assert content == "<pad>\n<bos>\n<eos>\n<unk>\n-lrb-\n1/2\ncafé\nn't\n".encode()


HEAD = "<pad>\n<bos>\n<eos>\n<unk>\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "words.txt: cannot be read (No such file or directory)"),
        (b"", "words.txt: a vocabulary must begin with the words <pad> <bos> <eos> <unk> (got: nothing)"),
        (b"<pad>\n<eos>\n<bos>\n<unk>\na\n", "words <pad> <bos> <eos> <unk> (got: <pad> <eos> <bos> <unk>)"),
        (f"{HEAD}a\ndog\na\n".encode(), "words.txt: line 7: 'a' is already on line 5 (expected each word once)"),
        (f"{HEAD}a\n\ndog\n".encode(), "line 6: '' is not a word (expected one word per line, without spaces)"),
        (f"{HEAD}a dog\n".encode(), "line 5: 'a dog' is not a word (expected one word per line, without spaces)"),
        (f"{HEAD}café\n".encode("latin-1"), "words.txt: not UTF-8 text (byte 27: "),
        (f"{HEAD}cat\n".encode("utf-16"), "words.txt: not UTF-8 text (byte 0: invalid start byte)"),
    ],
)
def test_a_malformed_words_file_is_an_error_of_one_line(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadVocabulary) as caught:
        Vocabulary.load(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_style_words_begin_a_caption_and_are_never_written() -> None:
    vocabulary = Vocabulary.from_captions(CAPTIONS, min_count=1).with_styles(["msrvtt"])
    assert vocabulary.styles == {"msrvtt": 10}
    assert [vocabulary.first_word(style) for style in (None, "msrvtt", "unknown")] == [BOS, 10, BOS]
    both = vocabulary.with_styles(["music"])
    assert [both.first_word(category, "msrvtt") for category in ("music", "sports", None)] == [11, 10, 10]
    assert vocabulary.never_written == [PAD, BOS, UNK, 10]
    assert vocabulary.decode([10, 4, 8, EOS]) == "a dog"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_words_without_an_end_are_refused():
    with pytest.raises(BadVocabulary, match=r"^/dev/zero: is too large; possible: at most 4,194,304 bytes$"):
        Vocabulary.load("/dev/zero")
