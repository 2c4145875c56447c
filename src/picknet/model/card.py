"""The model card: facts for people in `card.json`, and the same as a page in Markdown beside it.

The page has the form of "Model Cards for Model Reporting" (Mitchell et al., 2019). It says nothing that is not in
`card.json` or the settings, and `write_card` writes both files, so that they cannot disagree.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from picknet.config import Config
from picknet.files import write_text
from picknet.model.confidence import entries
from picknet.model.manifest import renewed
from picknet.text import Vocabulary

CARD = "card.json"
PAGE = "README.md"
Rows = list[tuple[str, str]]
BAR_LENGTH = 40
BULLET = "-"
"""The name of a row that is one of a list."""
DIAGRAM = "good  clips  # the share of good captions, | the mean confidence"
"""The value of the row above a reliability diagram, whose name is that of the first column."""

SECTIONS: Mapping[str, Sequence[str]] = {
    "About": ("about",),
    "Intended use": ("intended_use",),
    "Out-of-scope use": ("out_of_scope",),
    "Training": ("trained_on", "recipe", "picker", "clips", "stages"),
    "Terms of the data": ("data_terms",),
    "Scores": ("metrics", "scores"),
    "Confidence": ("confidence",),
    "Known failures": ("known_failures",),
    "Cost": ("cost",),
    "Licence": ("licence",),
    "Versions": ("versions",),
}
"""What belongs under each heading, by its name in `card.json`."""
EXPECTED = ("Intended use", "Out-of-scope use", "Training", "Terms of the data", "Scores", "Known failures", "Licence")
"""Headings that the page has even where nothing is stated, so that the gap can be seen."""


def write_card(folder: Path, card: Mapping[str, Any], config: Config, vocabulary: Vocabulary) -> None:
    """Write `card.json` and its page into a model folder."""
    with renewed(folder, CARD):
        write_text(folder / CARD, json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / PAGE, page(card, config, vocabulary))


def page(card: Mapping[str, Any], config: Config, vocabulary: Vocabulary) -> str:
    """The model card in Markdown."""
    left_out = config.model.left_out
    model = [
        ("CNN", f"{config.model.cnn}, {config.model.image_size} × {config.model.image_size} pixels"),
        ("sampled frames", f"{config.video.num_frames} of a video"),
        ("words", f"{len(vocabulary):,}" + (f", {left_out:,} rare ones left out" if left_out else "")),
        ("styles", ", ".join(["its own", *vocabulary.styles])),
        ("beam", str(config.beam)),
    ]
    parts = ["# Model card", str(card.get("description", "Not described.")), "## Model", _named(model)]
    for title, rows in sections(card).items():
        if rows:
            parts += [f"## {title}", *_blocks(rows)]
        elif title in EXPECTED:
            parts += [f"## {title}", "Not stated."]
    parts.append(f"Written by picknet from `{CARD}` and `config.toml` in this folder.")
    return "\n\n".join(parts) + "\n"


def _blocks(rows: Rows) -> list[str]:
    head = next((place for place, (_, value) in enumerate(rows) if value == DIAGRAM), len(rows))
    rows, diagram = rows[:head], rows[head:]
    bullets = [f"- {value}" for name, value in rows if name == BULLET]
    named = [row for row in rows if row[0] != BULLET]
    drawn = ["```text", *(f"{name:10}  {value}" for name, value in diagram), "```"] if diagram else []
    return [block for block in (_named(named), "\n".join(bullets), "\n".join(drawn)) if block]


def _named(rows: Rows) -> str:
    return "\n".join(f"- **{_one_line(name)}**: {_one_line(value)}" for name, value in rows)


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- The facts as names and values ---


def sections(card: Mapping[str, Any]) -> dict[str, Rows]:
    """The facts of a card but for its description, under headings; those that nobody expected under the last one."""
    found: dict[str, Rows] = {}
    for title, names in SECTIONS.items():
        if title == "Confidence":
            found |= {
                f"{title} ({style})" if style else title: report(facts) or _rows("confidence", facts)
                for style, facts in entries(card).items()
            }
        else:
            found[title] = [row for name in names if name in card for row in _rows(name, card[name])]
    placed = {"description", *(name for names in SECTIONS.values() for name in names)}
    return found | {"More": [row for name, value in card.items() if name not in placed for row in _rows(name, value)]}


def report(facts: Any) -> Rows:
    """What a card says about the confidence in one style, with a reliability diagram; nothing for an older card.

    In a bin, # reach to the share of good captions, and | stands at the mean confidence.
    """
    expected = {"own", "sure", "weights", "words", "auc_interval", "ece_by_chance", "reliability"}
    if not isinstance(facts, Mapping) or not facts.keys() >= expected:
        return []
    try:
        return _report(facts)
    except (TypeError, KeyError, ValueError, IndexError, AttributeError):
        return []  # a card of somebody else's


def _report(facts: Mapping[str, Any]) -> Rows:
    own, sure, weights, words = facts["own"], facts["sure"], facts["weights"], facts["words"]
    low, high = facts["auc_interval"]
    mean = f"a mean confidence of {own['confidence']:.2f}, and {own['good']:.0%} of them good"
    good = f"{sure['good']:.0%} of them good" if sure["clips"] else "so none of them good"
    signs = ", ".join(f"{name} {weight:+.2f}" for name, weight in weights.items())
    if order := sorted(words, key=words.__getitem__):
        first, last = (f"{word} ({words[word]:+.2f})" for word in (order[0], order[-1]))
        signs += f"; 1 word, {first}" if len(words) == 1 else f"; {len(words)} words, from {first} to {last}"
    chosen = [
        f"{weight:g} for {what}"
        for what, name in (("tags", "tags_weight"), ("the match", "match_weight"))
        if (weight := facts.get(name))
    ]
    return [
        ("means", f"the probability that a caption is good: {facts['good']}, against captions by people"),
        ("fitted on", facts["fitted_on"]),
        ("clips", f"{facts['clips']:,}, {facts['good_clips']:,} of them with a good caption"),
        *([("its own clips", f"{own['clips']:,}, {mean}")] if own["clips"] < facts["clips"] else []),
        ("AUC", f"{facts['auc']:.3f} ({low:.3f} … {high:.3f})"),
        ("calibration error", f"{facts['ece']:.3f}; a perfect confidence would show {facts['ece_by_chance']:.3f}"),
        (f"above {sure['above']:g}", f"{sure['clips']:,} clip{'' if sure['clips'] == 1 else 's'}, {good}"),
        ("weights", signs),
        *([("captions chosen", f"with a weight of {' and '.join(chosen)}")] if chosen else []),
        ("confidence", DIAGRAM),
        *((f"{part['confidence']:.2f}", _bar(part)) for part in facts["reliability"]),
    ]


def _bar(part: Mapping[str, Any]) -> str:
    bar = list(("#" * round(BAR_LENGTH * part["good"])).ljust(BAR_LENGTH + 1))
    bar[round(BAR_LENGTH * part["confidence"])] = "|"
    return f"{part['good']:.2f}  {part['clips']:5,}  {''.join(bar)}".rstrip()


def _rows(name: str, value: Any) -> Rows:
    """What a card says under a name, as names and values."""
    if name == "stages" and isinstance(value, dict):
        return [(stage, _stage(stage, facts)) for stage, facts in value.items()]
    if name == "clips" and isinstance(value, dict):
        return [(f"{split} clips", _clips(facts)) for split, facts in value.items()]
    if isinstance(value, dict):
        return [(_words(key), _text(one)) for key, one in value.items()]
    if isinstance(value, list):
        return [(BULLET, _text(one)) for one in value]
    return [(_words(name), _text(value))]


def _stage(stage: str, facts: Any) -> str:
    """Validation during training is greedy; the scores below it use a beam."""
    if not isinstance(facts, dict):
        return _text(facts)
    frames = "{} evenly spaced frames a clip" if stage == "supervision" else "{} picks a clip"
    labels = {"epoch": "epoch {} kept", "val_cider": "validation CIDEr {} (greedy)", "val_picks": frames}
    return ", ".join(
        labels[name].format(value) if name in labels else f"{_words(name)} {value}" for name, value in facts.items()
    )


def _clips(facts: Any) -> str:
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), int) for name in ("used", "missing")):
        return _text(facts)
    return f"{facts['used']:,} used, {facts['missing']:,} missing"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
