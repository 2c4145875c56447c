"""The model card as a page: what is in card.json is on it, and what is missing is said."""

import json
from pathlib import Path

from picknet.config import Config, parse_config
from picknet.model.card import page, sections, write_card
from picknet.text import SPECIAL_WORDS, Vocabulary

WORDS = Vocabulary((*SPECIAL_WORDS, "a", "cat", "[msrvtt]"))
CONFIG: Config = parse_config("", ["beam=3", "video.num_frames=12"])


def section(text: str, title: str) -> str:
    """What is below a heading."""
    return text.split(f"\n## {title}\n\n")[1].split("\n\n## ")[0]


def test_lists_become_bullets_and_values_have_their_names_before_them() -> None:
    card = {
        "description": "A test.",
        "out_of_scope": ["people", "screens"],
        "scores": {"msvd_val": "CIDEr 108.4 (84.3 … 134.5)"},
        "stages": {"supervision": {"epoch": 9, "val_cider": 96.18}},
        "licence": {"code": "Apache-2.0"},
        "colour": "red | blue\ngreen",
    }
    text = page(card, CONFIG, WORDS)
    assert text.startswith("# Model card\n\nA test.\n\n## Model\n")
    assert "- **words**: 7\n- **styles**: its own, msrvtt\n- **beam**: 3\n" in text
    assert section(text, "Out-of-scope use") == "- people\n- screens"
    assert section(text, "Scores") == "- **msvd val**: CIDEr 108.4 (84.3 … 134.5)"
    assert "- **supervision**: epoch 9 kept, validation CIDEr 96.18 (greedy)" in section(text, "Training")
    assert "- **colour**: red | blue green" in section(text, "More")


def test_what_a_card_should_have_and_has_not_is_said() -> None:
    text = page({}, CONFIG, WORDS)
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "Model", "Intended use", "Out-of-scope use", "Training", "Terms of the data", "Scores", "Known failures",
        "Licence",
    ]  # fmt: skip
    assert all(section(text, title).startswith("Not stated.") for title in headings[1:])


def test_every_fact_of_a_card_has_a_place() -> None:
    names = ("intended_use", "data_terms", "metrics", "confidence", "cost", "versions", "anything")
    values = [value for rows in sections({name: f"the {name}" for name in names}).values() for _, value in rows]
    assert sorted(values) == sorted(f"the {name}" for name in names)


def test_a_reliability_diagram_keeps_its_columns() -> None:
    confidence = {
        "fitted_on": "60 clips of msvd val", "good": "CIDEr above 0.5", "clips": 60, "good_clips": 30,
        "own": {"clips": 60, "confidence": 0.5, "good": 0.5}, "sure": {"above": 0.7, "clips": 30, "good": 1.0},
        "auc": 1.0, "auc_interval": [1.0, 1.0], "ece": 0.0, "ece_by_chance": 0.0, "weights": {"bias": 1.0}, "words": {},
        "reliability": [{"clips": 5, "confidence": 0.1, "good": 0.2}],
    }  # fmt: skip
    drawn = section(page({"confidence": {"msvd": confidence}}, CONFIG, WORDS), "Confidence (msvd)")
    assert drawn.endswith(
        "- **weights**: bias +1.00\n\n```text\n"
        "confidence  good  clips  # the share of good captions, | the mean confidence\n"
        "0.10        0.20      5  ####|###\n```"
    )


    one = confidence | {"sure": {"above": 0.7, "clips": 1, "good": 0.0}, "words": {"man": -0.14}}
    report = dict(sections({"confidence": {"msvd": one}})["Confidence (msvd)"])
    assert report["above 0.7"] == "1 clip, 0% of them good"
    assert report["weights"] == "bias +1.00; 1 word, man (-0.14)"
    two = dict(sections({"confidence": {"msvd": one | {"words": {"man": -0.14, "dog": 0.2}}}})["Confidence (msvd)"])
    assert two["weights"] == "bias +1.00; 2 words, from man (-0.14) to dog (+0.20)"


def test_the_card_and_its_page_are_written_together(tmp_path: Path) -> None:
    card = {"description": "Größe", "known_failures": ["counts poorly"]}
    write_card(tmp_path, card, CONFIG, WORDS)
    assert json.loads((tmp_path / "card.json").read_text(encoding="utf-8")) == card
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == page(card, CONFIG, WORDS)
