import gzip
import math
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picknet import metrics
from picknet.meteor.lexicon import installed_files
from picknet.metrics import (
    METRICS,
    Cider,
    Measured,
    Meteor,
    MissingReferences,
    Scores,
    bleu,
    cider,
    measure,
    meteor,
    rouge_l,
    score,
)
from picknet.text import tokenise

SHARED = Path(__file__).resolve().parents[2] / "shared"

Captions = dict[str, list[list[str]]]


@pytest.fixture(scope="module")
def validation() -> Captions:
    """The captions of MSVD's validation clips."""
    path = SHARED / "msvd" / "captions" / "sents_val_lc_nopunc.txt"
    if not path.exists():
        pytest.skip("needs the folder `shared` beside the repository")
    captions: Captions = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        video, _, caption = line.partition("\t")
        captions.setdefault(video, []).append(caption.split())
    return captions


def one_against_others(captions: Captions, index: int, *, num_others: int | None = None):
    """The caption `index` of every video that has it, and the (next `num_others`) others of that video."""
    candidates = {video: several[index] for video, several in captions.items() if index < len(several)}
    references = {video: (captions[video][index + 1 :] + captions[video][:index])[:num_others] for video in candidates}
    return candidates, references


def as_coco(candidates, references):
    """(references, candidates) as the COCO code takes them: sentences in lists."""
    return (
        {video: [" ".join(tokens) for tokens in references[video]] for video in candidates},
        {video: [" ".join(tokens)] for video, tokens in candidates.items()},
    )


# --- Worked by hand ---------------------------------------------------------------------------------------------------


def test_bleu_of_a_short_candidate_is_the_brevity_penalty() -> None:
    values = bleu({"v": ["the", "cat", "sat"]}, {"v": [["the", "cat", "sat", "down"]]})
    # Every n-gram matches; the length ratio is 3/4. There is no 4-gram: the COCO code then reads 1e-15 / 1e-9.
    penalty = math.exp(1 - 4 / 3)
    assert values == pytest.approx((penalty, penalty, penalty, penalty * 1e-6**0.25), rel=1e-6)


def test_bleu_counts_a_word_at_most_as_often_as_one_reference_has_it() -> None:
    # "the" occurs once in each reference, so one of the three counts; the closest length is 3, not 5.
    references = {"v": [["the", "cat", "sat"], ["on", "the", "mat", "it", "sat"]]}
    assert bleu({"v": ["the", "the", "the"]}, references)[0] == pytest.approx(1 / 3, rel=1e-6)


def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence() -> None:
    # "a c d" is common: precision 3/4, recall 3/5, (1 + 1.44) · 0.45 / (0.6 + 1.44 · 0.75) = 1.098 / 1.68
    assert rouge_l({"v": list("abcd")}, {"v": [list("acdef")]}) == pytest.approx(1.098 / 1.68, abs=1e-12)


CATS_AND_DOGS = {"cat": [["a", "cat"]], "dog": [["a", "dog"]]}


def test_cider_of_the_reference_itself() -> None:
    # "a" is in both videos and weighs nothing. "cat" and "a cat" match fully; there are no longer n-grams: 10/4 · 2.
    assert Cider(CATS_AND_DOGS).score({"cat": ["a", "cat"]}) == {"cat": pytest.approx(5.0, abs=1e-12)}


def test_cider_clips_repeated_words_and_punishes_length() -> None:
    # One "cat" of two counts: 1/2. "a cat" matches, "cat cat" is in no reference and weighs as much: 1/√2.
    # The caption is one bigram longer than the reference.
    expected = 10 / 4 * (1 / 2 + 1 / math.sqrt(2)) * math.exp(-1 / 72)
    assert Cider(CATS_AND_DOGS).score({"cat": ["a", "cat", "cat"]}) == {"cat": pytest.approx(expected, abs=1e-12)}


def test_scores_of_raw_captions_are_times_100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "installed_files", lambda: None)
    scores = score({"cat": "A cat."}, {"cat": ["a cat"], "dog": ["a dog!"]})
    assert scores == Scores(
        bleu1=pytest.approx(100, rel=1e-6),
        bleu2=pytest.approx(100, rel=1e-6),
        bleu3=pytest.approx(100 * 1e-6 ** (1 / 3), rel=1e-6),
        bleu4=pytest.approx(100 * 1e-12 ** (1 / 4), rel=1e-6),
        rouge_l=pytest.approx(100),
        meteor=None,
        cider=pytest.approx(500),
    )


# --- Against the COCO code --------------------------------------------------------------------------------------------


def assert_same_as_coco(candidates, references) -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider as CocoCider
    from pycocoevalcap.rouge.rouge import Rouge

    coco = as_coco(candidates, references)
    corpus_cider, cider_of_video = CocoCider().compute_score(*coco)
    assert list(Cider(references).score(candidates).values()) == pytest.approx(list(cider_of_video), abs=1e-9)
    assert cider(candidates, references) == pytest.approx(corpus_cider, abs=1e-9)

    corpus_rouge, rouge_of_video = Rouge().compute_score(*coco)
    assert rouge_l(candidates, references) == pytest.approx(corpus_rouge, abs=1e-9)
    for (video, tokens), expected in zip(candidates.items(), rouge_of_video, strict=True):
        assert rouge_l({video: tokens}, references) == pytest.approx(expected, abs=1e-9)

    corpus_bleu, bleu_of_video = Bleu(4).compute_score(*coco, verbose=0)
    assert bleu(candidates, references) == pytest.approx(corpus_bleu, abs=1e-9)
    for (video, tokens), *expected in zip(candidates.items(), *bleu_of_video, strict=True):
        assert bleu({video: tokens}, references) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("index", [0, 7])
def test_scores_are_those_of_the_coco_code(validation: Captions, index: int) -> None:
    pytest.importorskip("pycocoevalcap")
    assert_same_as_coco(*one_against_others(validation, index))


def test_validation_captions_score_as_in_the_coco_code(validation: Captions) -> None:
    pytest.importorskip("pycocoevalcap")
    for index in range(0, max(map(len, validation.values())), 3):
        # Few captions and references, or the COCO code would take a minute.
        assert_same_as_coco(*one_against_others(validation, index, num_others=4))


captions_of_few_words = st.lists(st.sampled_from("abc"), max_size=7)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(captions_of_few_words, st.lists(captions_of_few_words, min_size=1, max_size=4)), min_size=1))
def test_repetitive_and_empty_captions_score_as_in_the_coco_code(cases) -> None:
    pytest.importorskip("pycocoevalcap")
    # One word of its own: without any reference word the COCO code stumbles over an empty list.
    cases = [*cases, (["d", "a"], [["a", "d"]])]
    assert_same_as_coco(
        {str(number): candidate for number, (candidate, _) in enumerate(cases)},
        {str(number): references for number, (_, references) in enumerate(cases)},
    )


# --- CIDEr as a reward ------------------------------------------------------------------------------------------------


def random_captions(rng: random.Random, num_captions: int) -> list[list[str]]:
    return [rng.choices("abcdefghij", k=rng.randint(3, 9)) for _ in range(num_captions)]


def test_a_reward_does_not_depend_on_the_batch_it_is_in() -> None:
    rng = random.Random(1)
    split = {f"v{number}": random_captions(rng, 5) for number in range(20)}
    reward = Cider(split)
    videos = ["v3", "v3", "v0", "v3"]
    candidates = random_captions(rng, 4)
    alone = [reward.scores([video], [tokens])[0] for video, tokens in zip(videos, candidates, strict=True)]
    assert reward.scores(videos, candidates).tolist() == alone
    assert min(alone) > 0
    # The stock scorer, given only that video, would weigh every n-gram log(1/1) = 0.
    assert Cider({"v3": split["v3"]}).scores(["v3"], [candidates[0]])[0] == 0


def test_document_frequencies_may_come_from_a_larger_split() -> None:
    rng = random.Random(2)
    split = {f"v{number}": random_captions(rng, 5) for number in range(20)}
    part = {video: split[video] for video in ("v4", "v9")}
    candidates = dict(zip(part, random_captions(rng, 2), strict=True))
    expected = Cider(split).score(candidates)
    assert Cider(part, document_frequencies_from=split).score(candidates) == pytest.approx(expected, abs=1e-12)
    assert Cider(part).score(candidates) != pytest.approx(expected, abs=1e-3)


def test_references_outside_the_documents_count_as_rare() -> None:
    # "a cat" is in no document: its weight is that of a document frequency of 1, log 2, and all of it matches.
    documents = {"dog": [["the", "dog"]], "bird": [["the", "bird"]]}
    reward = Cider({"cat": [["a", "cat"]]}, document_frequencies_from=documents)
    assert reward.score({"cat": ["a", "cat"]}) == {"cat": pytest.approx(5.0, abs=1e-12)}


def test_an_empty_caption_and_an_empty_batch_are_scored() -> None:
    reward = Cider(CATS_AND_DOGS)
    assert reward.scores(["cat", "dog", "cat"], [[], ["a", "dog"], []]).tolist() == pytest.approx([0, 5, 0])
    empty = reward.scores([], [])
    assert empty.shape == (0,)
    assert empty.dtype == np.float64


@pytest.mark.parametrize("metric", [bleu, rouge_l, cider, meteor])
def test_a_video_without_references_is_named(metric) -> None:
    with pytest.raises(MissingReferences, match=r"bird: has no references"):
        metric({"cat": ["a"], "bird": ["a"]}, CATS_AND_DOGS)
    with pytest.raises(MissingReferences, match=r"bird: has no references"):
        metric({"bird": ["a"]}, {**CATS_AND_DOGS, "bird": []})
    with pytest.raises(MissingReferences, match=r"no captions to score"):
        metric({}, CATS_AND_DOGS)


def test_a_video_without_references_cannot_be_scored() -> None:
    with pytest.raises(MissingReferences, match=r"bird: no such video among the 2 that have references"):
        Cider(CATS_AND_DOGS).scores(["cat", "bird"], [["a"], ["a"]])
    with pytest.raises(MissingReferences, match=r"bird: has no references"):
        Cider({**CATS_AND_DOGS, "bird": []})


# --- Resamples --------------------------------------------------------------------------------------------------------


def test_a_resample_scores_as_its_videos_would_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "installed_files", lambda: None)
    candidates = {"cat": "a cat sits", "dog": "a dog is running", "man": "two men"}
    references = {"cat": ["a cat", "the cat is sitting"], "dog": ["a dog runs"], "man": ["a man", "two men run fast"]}
    measured = measure(candidates, references)
    # The cat twice and the dog once, as a corpus of three videos; document frequencies stay those of all references.
    drawn = {"cat": "cat", "again": "cat", "dog": "dog"}
    captions = {name: tokenise(candidates[video]) for name, video in drawn.items()}
    several = {name: [tokenise(text) for text in references[video]] for name, video in drawn.items()}
    fitted = Cider({video: [tokenise(text) for text in texts] for video, texts in references.items()})
    ciders = fitted.scores(list(drawn.values()), list(captions.values()))
    (scores,) = measured.resampled(np.array([[2 / 3, 1 / 3, 0.0]])).T
    *bleus, rouge, meteor_score, cider_score = scores / 100
    assert bleus == pytest.approx(bleu(captions, several), rel=1e-6)
    assert rouge == pytest.approx(rouge_l(captions, several))
    assert cider_score == pytest.approx(ciders.mean())
    assert math.isnan(meteor_score)


def test_a_resample_moves_meteor_by_as_much_as_the_mean_of_its_videos() -> None:
    measured = Measured(np.ones((2, 10)), np.zeros(2), Meteor(0.3, np.array([0.2, 0.6])), np.zeros(2))
    assert measured.scores().meteor == pytest.approx(30.0)
    # The first video alone: 0.2 where the mean of both is 0.4.
    assert measured.resampled(np.array([[1.0, 0.0]]))[METRICS.index("meteor"), 0] == pytest.approx(10.0)


# --- METEOR -----------------------------------------------------------------------------------------------------------

ONE = ({"v": ["a", "cat"]}, {"v": [["a", "cat"], ["a", "dog"]]})


HOSTILE = [
    "", "...", "a", "a a a a a a", "the , the . the", "an c0 in k0", "men 's dogs do n't", "1,000 e.g. well-known u.s.",
    "mr. it's 5's '' `` – -- —", "Ünïcödé 中文 😀 🧡 \u200b \x00 ß", "x " * 100 + "y", "a man is riding a horse . " * 3,
    "two girls dance in front of a mirror", "guys ride cars next to a lot of people",
]  # fmt: skip


@pytest.fixture
def meteor_files(validation: Captions, tmp_path: Path) -> Path:
    """METEOR's files with 400 random paraphrases in place of its millions, which Java reads for many seconds."""
    installed = installed_files()
    if installed is None:
        pytest.skip('needs pip install "picknet[meteor]"')
    generator = random.Random(0)
    captions = [caption for several in validation.values() for caption in several[:5]]

    def phrase() -> str:
        caption = generator.choice(captions)
        start = generator.randrange(len(caption))
        return " ".join(caption[start : start + generator.choice([1, 1, 1, 2, 3, 7])])

    shutil.copy(installed / "meteor-1.5.jar", tmp_path)
    (tmp_path / "data").mkdir()
    with gzip.open(tmp_path / "data" / "paraphrase-en.gz", "wt") as file:
        file.writelines(f"0.1\n{phrase()}\n{phrase()}\n" for _ in range(400))
    return tmp_path


def test_meteor_is_that_of_the_java_program(
    validation: Captions, meteor_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    candidates, references = {}, {}
    for number in range(3):
        for video, several in validation.items():
            candidates[f"{video} {number}"] = several[number]
            references[f"{video} {number}"] = several[number + 1 : number + 6]
    texts = [text.split() for text in HOSTILE]
    for number, text in enumerate(texts):
        candidates[f"hostile {number}"], references[f"hostile {number}"] = text, texts[:number] + texts[number + 1 :]
        candidates[f"half {number}"], references[f"half {number}"] = text[::2], [text]
    monkeypatch.setattr(metrics, "installed_files", lambda: meteor_files)
    ours = meteor(candidates, references)
    assert ours is not None

    options = ["-Dfile.encoding=UTF-8", "-Duser.language=en", "-jar", str(meteor_files / "meteor-1.5.jar")]
    options += ["-", "-", "-stdio", "-l", "en", "-norm", "-a", str(meteor_files / "data" / "paraphrase-en.gz")]
    lines = [[*references[video], tokens] for video, tokens in candidates.items()]
    asked = "".join(" ||| ".join(["SCORE", *map(" ".join, line)]) + "\n" for line in lines)
    answers = ask_java(options, asked)
    *by_video, corpus = map(float, ask_java(options, " ||| ".join(["EVAL", *answers]) + "\n"))
    assert ours.corpus == pytest.approx(corpus, abs=1e-9)
    np.testing.assert_allclose(ours.by_video, by_video, atol=1e-9)


def ask_java(options: list[str], text: str) -> list[str]:
    process = subprocess.run(["java", *options], input=text.encode(), capture_output=True, check=True, timeout=120)
    return process.stdout.decode().splitlines()


def test_there_is_no_meteor_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "installed_files", lambda: None)
    assert meteor({"v": ["a", "cat"]}, {"v": [["a", "cat"]]}) is None


def test_the_other_scores_survive_a_broken_meteor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "installed_files", lambda: tmp_path)
    with pytest.warns(UserWarning, match=r"no METEOR: .*: METEOR's files cannot be read"):
        scores = score({"cat": "A cat."}, {"cat": ["a cat"], "dog": ["a dog!"]})
    assert scores.meteor is None
    assert scores.cider == pytest.approx(500)
