"""The documentation is true: its commands parse or run, what it names exists, and its figures are the model card's."""

import ast
import functools
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from clips import write_clip
from PIL import Image, ImageChops

import picknet
from picknet.captioner import load
from picknet.cli import app, main
from picknet.config import BadConfig, Config, load_config, parse_config
from picknet.model.card import page
from picknet.model.folder import DEFAULT_MODEL, SHIPPED, ModelFolder

ROOT = Path(__file__).resolve().parents[1]
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SAMPLE = Path("samples/cockatoo.mp4")
SAMPLES = ROOT / "samples" / "README.md"

every_document = pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
needs_the_model = pytest.mark.skipif(not (SHIPPED / DEFAULT_MODEL).is_dir(), reason="no model in the package yet")


def blocks(document: Path, *languages: str) -> Iterator[str]:
    """Fenced code blocks of these languages."""
    for language, code in re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(encoding="utf-8"), re.M | re.S):
        if language in languages:
            yield code


def spans(document: Path) -> list[str]:
    """Inline code, outside of fenced blocks."""
    prose = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", prose)


class CommandLine(NamedTuple):
    arguments: list[str]
    output: list[str]
    """Output lines shown below the command."""


def command_lines(program: str) -> list[Any]:
    """All command lines of a program in the documents, as pytest parameters."""
    found = []
    for document in DOCS:
        for code in blocks(document, "console", "bash", "sh"):
            for command in re.split(r"^\$ ", code.replace("\\\n", ""), flags=re.M):
                line, *output = command.rstrip("\n").split("\n")
                words = shlex.split(line, comments=True)
                if words and words[0] == program:
                    name = f"{document.name}: {' '.join(words)}"
                    found.append(pytest.param(CommandLine(words[1:], output), id=name))
    return found


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Arguments and options of a command line; raises a usage error if it does not parse."""
    name, *rest = full(arguments)
    with COMMANDS[name].make_context(f"picknet {name}", rest) as context:
        return dict(context.params)


def full(arguments: list[str]) -> list[str]:
    """`picknet VIDEO` is short for `picknet caption VIDEO`."""
    return ["caption", *arguments] if re.fullmatch(r"VIDEO|\S+\.mp4", arguments[0]) else arguments


# --- Commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", command_lines("picknet"))
def test_every_picknet_command_in_the_documents_parses(line: CommandLine) -> None:
    options = parsed(line.arguments)
    if options.get("config"):
        load_config(ROOT / options["config"], options.get("settings") or [])
    else:
        parse_config("", options.get("settings") or [])


def that_need_only_videos() -> list[Any]:
    """Commands that can be run with the samples, each once."""
    cases = {}
    for case in command_lines("picknet"):
        (line,) = case.values
        name, *rest = full(line.arguments)
        describes_files = name in ("caption", "pick", "timeline") or (name == "stream" and rest[0].endswith(".mp4"))
        if (describes_files and not {"--model", "--realtime"} & set(rest)) or line.arguments == ["info"]:
            cases.setdefault((*line.arguments, "->", *line.output), case)
    return list(cases.values())


SHARE = re.compile(r"\b0\.\d+")
"""A probability."""
load_once = functools.cache(load)
"""Loading the model takes longer than most commands, so they share one."""


@pytest.fixture(scope="module")
def short_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes the place of the reader's own videos: 12 seconds, long enough for every budget, in 12 small frames."""
    return write_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", num_frames=12, fps=1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the samples at the paths the documents use."""
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("picknet.captioner.load", load_once)
    return tmp_path


@needs_the_model
@pytest.mark.parametrize("line", that_need_only_videos())
def test_commands_that_need_only_videos_run_and_print_the_output_shown(
    line: CommandLine, folder: Path, short_clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = parsed(line.arguments)
    for video in options.get("videos") or [options.get("source") or str(SAMPLE)]:
        place = folder / video if Path(video).suffix else folder / video / "clip.mp4"  # a folder gets one clip
        if not place.exists() and "*" not in video:
            place.parent.mkdir(exist_ok=True)
            shutil.copy(short_clip, place)
    with pytest.raises(SystemExit) as exit:
        main(line.arguments)
    out, err = capsys.readouterr()
    notes = re.findall(r"^picknet: .*doubtful.*\n", err, flags=re.M)  # of what a reader sees on a terminal
    out, err = out + "".join(notes), re.sub("|".join(map(re.escape, notes)), "", err)
    summary = f"picknet: {options['source']}: " if "source" in options else ""  # a stream ends with one
    assert (exit.value.code or 0, err if not summary else err[: len(summary)]) == (0, summary)
    if line.output:
        shown = f"$ picknet {shlex.join(line.arguments)}"
        told = f"below {shown!r} the document should show:\n{out}"
        assert SHARE.sub("0.…", out).splitlines() == [SHARE.sub("0.…", one) for one in line.output], told
        # In 16 bits or in 32, as the processor can: probabilities are not the same to the last digit.
        shares = [[float(found) for found in SHARE.findall(text)] for text in (out, "\n".join(line.output))]
        assert shares[0] == pytest.approx(shares[1], rel=0.2, abs=0.02), told


@needs_the_model
def test_commands_for_a_folder_of_clips_run_one_after_the_other(folder: Path, short_clip: Path) -> None:
    pytest.importorskip("pyarrow", reason="a development dependency")
    (folder / "clips").mkdir()
    shutil.copy(short_clip, folder / "clips")
    lines = [case.values[0].arguments for case in command_lines("picknet")]
    commands = [line for line in lines if line[:2] == ["batch", "clips/"] and "--engine" not in line]
    assert len(commands) >= 4
    for command in commands:  # the first describes the clip, the others find it in the table
        with pytest.raises(SystemExit) as exit:
            main([*command, "--quiet"])
        assert not exit.value.code, shlex.join(command)
    assert len(list((folder / "captions").glob("captions-*.parquet"))) == 1


@needs_the_model
def test_the_first_picture_of_the_readme_is_the_sheet_of_the_shipped_model(folder: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    picture = ROOT / re.search(r"!\[.*?\]\((docs/.+?\.png)\)", readme)[1]  # type: ignore[index]
    with pytest.raises(SystemExit):
        main(["caption", f"samples/{picture.stem}.mp4", "--sheet", "new.png"])
    remedy = f"draw it again: picknet caption samples/{picture.stem}.mp4 --sheet docs/{picture.name}"
    with Image.open("new.png") as new, Image.open(picture) as old:
        assert new.size == old.size, remedy
        difference = ImageChops.difference(new.convert("L"), old.convert("L")).histogram()
    # Another decoder changes pixels a little; another pick or sentence changes thousands of them by a lot.
    assert sum(difference[64:]) < 500, remedy


@needs_the_model
@pytest.mark.parametrize(
    "code",
    [code for document in DOCS for code in blocks(document, "python") if str(SAMPLE) in code],
    ids=lambda code: code.split("\n")[0],
)
@pytest.mark.usefixtures("folder")
def test_python_that_needs_only_the_sample_runs(code: str) -> None:
    exec(compile(code, "documentation", "exec"), {})


@every_document
def test_python_in_the_documents_uses_public_names(document: Path) -> None:
    for code in blocks(document, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "picknet":
                assert node.attr in dir(picknet)


@every_document
def test_python_in_the_documents_can_train_as_a_script(document: Path) -> None:
    """The processes that decode clips import the script again, and must not train again."""
    for code in blocks(document, "python"):
        for statement in ast.parse(code).body:
            calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
            if "picknet.train" in map(ast.unparse, calls):
                assert isinstance(statement, ast.If)
                assert ast.unparse(statement.test) == "__name__ == '__main__'"


def options_of(*commands: str) -> set[str]:
    own = {option for command in commands for parameter in COMMANDS[command].params for option in parameter.opts}
    return own | {"--help", "--version", "--install-completion"}


@every_document
def test_commands_and_options_in_the_text_exist(document: Path) -> None:
    for span in spans(document):
        program, *words = span.split()
        if program == "picknet" and words:
            commands = [word for word in full(words)[:1] if not word.startswith("-")]
            assert set(commands) <= COMMANDS.keys(), span
            assert {word for word in words if word.startswith("--")} <= options_of(*commands), span
        if program == "make" and len(words) == 1:
            assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), span
        if program.startswith("--") and document.name == "training.md":
            assert program in options_of(*COMMANDS), span


@every_document
def test_extras_that_are_named_exist(document: Path) -> None:
    for extras in re.findall(r"(?:picknet|\.)\[([\w,]+)\]", document.read_text(encoding="utf-8")):
        assert set(extras.split(",")) <= PROJECT["project"]["optional-dependencies"].keys()


# --- Names, files and links -------------------------------------------------------------------------------------------


def find_module(name: str) -> Path | None:
    """`room/module.py` or `module.py` of the package, `test_*.py` at any depth of the tests, or a benchmark."""
    if (place := ROOT / "src" / "picknet" / name).is_file():
        return place
    places = [*(ROOT / "tests").rglob(name), *(ROOT / "benchmarks").glob(name), *(ROOT / "examples").glob(name)]
    return places[0] if len(places) == 1 else None


@functools.cache
def names_in(path: Path) -> set[str]:
    """All names a module defines."""
    return defined_names(ast.parse(path.read_text(encoding="utf-8")).body)


def defined_names(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Functions, classes with their members, and constants."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            names |= defined_names(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {prefix + name.id for name in targets if isinstance(name, ast.Name)}
    return names


@every_document
def test_every_function_class_and_test_that_is_named_exists(document: Path) -> None:
    missing = []
    for span in spans(document):
        if match := re.fullmatch(r"((?:\w+/)*\w+\.py)(?::([\w.]+))?", span.removeprefix("examples/")):
            if span.startswith(("src/", "tests/", "benchmarks/", "docs/")):
                continue  # checked as files of the repository
            path, name = find_module(match[1]), match[2]
            if path is None or (name and name not in names_in(path)):
                missing.append(span)
    assert missing == []


def test_the_paper_page_names_code_and_tests() -> None:
    cited = [span for span in spans(ROOT / "docs" / "paper.md") if ".py:" in span]
    assert sum(span.startswith("test_") for span in cited) > 50
    assert sum(not span.startswith("test_") for span in cited) > 50


@every_document
def test_files_of_the_repository_that_are_named_exist(document: Path) -> None:
    for span in spans(document):
        if re.match(r"(benchmarks|configs|docs|examples|samples|src|tests)/", span) and "*" not in span:
            assert (ROOT / span).exists(), span


def test_every_sample_is_listed_with_its_licence_and_they_are_small() -> None:
    text = SAMPLES.read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\S+\.mp4)` \|.*\| (CC0 1\.0|public domain) \|$", text, re.M)
    files = sorted(SAMPLES.parent.glob("*.mp4"))
    assert [name for name, _ in listed] == [file.name for file in files]
    assert sum(file.stat().st_size for file in files) < 3_000_000


def anchors(document: Path) -> set[str]:
    """The headings of a document as GitHub's anchors."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_every_link_and_picture_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if not re.match(r"https?:|mailto:", target):
            path, _, anchor = target.partition("#")
            linked = document.parent / path if path else document
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), target


PACKAGE = ROOT / "src" / "picknet"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CONTRACTS = PROJECT["tool"]["importlinter"]["contracts"]


def test_the_architecture_lists_the_rooms_layer_by_layer() -> None:
    (contract,) = (each for each in CONTRACTS if each.get("containers") == ["picknet"])
    expected = [
        (len(contract["layers"]) - height, name + ("/" if (PACKAGE / name).is_dir() else ".py"))
        for height, layer in enumerate(contract["layers"])
        for name in map(str.strip, layer.split("|"))
    ]
    rows = re.findall(r"^\| (\d+) \| `(\w+(?:\.py|/))` \|", ARCHITECTURE.read_text(encoding="utf-8"), re.M)
    assert [(int(layer), module) for layer, module in rows] == expected


def test_the_architecture_lists_every_module_of_every_room() -> None:
    modules = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("*/*.py") if not path.name.startswith("__")
    }
    assert modules - set(spans(ARCHITECTURE)) == set()


def test_the_architecture_lists_every_import_contract() -> None:
    rows = re.findall(r"^\| ([^|`]+) \|", ARCHITECTURE.read_text(encoding="utf-8"), re.M)
    assert {contract["name"] for contract in CONTRACTS} <= {row.strip() for row in rows}


# --- Figures ----------------------------------------------------------------------------------------------------------

CARD = json.loads((ROOT / "configs" / "cards" / "msvd.json").read_text(encoding="utf-8"))


def scores(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"(CIDEr|METEOR|ROUGE-L|BLEU-4) (\d+\.\d)", text)}


@needs_the_model
def test_the_card_in_configs_has_the_scores_of_the_shipped_card() -> None:
    shipped = json.loads((SHIPPED / DEFAULT_MODEL / "card.json").read_text(encoding="utf-8"))
    assert {key: shipped[key] for key in CARD} == CARD


@needs_the_model
def test_the_model_card_in_markdown_says_what_its_json_says() -> None:
    folder = ModelFolder(SHIPPED / DEFAULT_MODEL)
    written = (folder.path / "README.md").read_text(encoding="utf-8")
    place = folder.path.relative_to(ROOT).as_posix()
    assert written == page(folder.card, folder.config, folder.vocabulary), f"picknet info --out {place}/README.md"


def test_the_model_card_answers_what_people_ask() -> None:
    assert CARD.keys() >= {
        "intended_use", "out_of_scope", "trained_on", "data_terms", "metrics", "scores", "known_failures", "cost",
        "licence",
    }  # fmt: skip
    assert CARD["data_terms"].keys() == CARD["trained_on"].keys() - {"policy", "confidence"}
    assert CARD["licence"].keys() == {"code", "weights", "data", "for a company"}


@pytest.mark.parametrize(
    ("row", "key"),
    [("MSVD, three folds", "msvd_folds"), ("MSVD, validation", "msvd_val"), ("MSR-VTT, 399", "msrvtt_whole")],
)
def test_the_readme_has_the_scores_of_the_card(row: str, key: str) -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("| MS") and row in line)
    assert len(scores(line)) == 4
    assert scores(line) == scores(CARD["scores"][key])


@pytest.mark.parametrize("key", ["msvd_folds", "msvd_val", "msrvtt_whole"])
def test_the_results_page_has_the_scores_of_the_card(key: str) -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    score = scores(CARD["scores"][key])
    in_order = [score[name] for name in ("BLEU-4", "ROUGE-L", "METEOR", "CIDEr")]
    assert " | ".join(map(str, in_order)) in text


@needs_the_model
def test_the_readme_names_the_samples_that_the_shipped_picker_picks() -> None:
    indices = [pick.index for pick in load_once().caption(ROOT / "samples" / "board.mp4").picks]
    expected = f"samples {', '.join(map(str, indices[:-1]))} and {indices[-1]} of 30"
    assert expected in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


# --- Promises ---------------------------------------------------------------------------------------------------------

STABLE = ROOT / "docs" / "stability.md"


def promised(section: str) -> dict[str, set[str]]:
    """A table of the page: the first cell of each row, and the code spans of the second."""
    text = STABLE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `?([^|`]+?)`? \| (`.+`) \|$", text, re.M)
    return {name: set(re.findall(r"`([^`]+)`", names)) for name, names in rows}


def test_promised_commands_and_options_exist() -> None:
    promises = promised("Commands and options")
    assert len(promises) == 10
    for command, options in promises.items():
        assert options <= options_of(command.removeprefix("picknet ")), command


@needs_the_model
def test_promised_keys_are_those_of_the_results() -> None:
    captioner = load_once()
    caption = captioner.caption(ROOT / SAMPLE)
    results = {
        "caption": caption,
        "update of a stream": next(iter(captioner.stream(ROOT / SAMPLE))),
        "segment of a timeline": next(iter(captioner.timeline(ROOT / SAMPLE))),
        "pick": caption.picks[0],
        "candidate": caption.candidates[0],
    }
    assert promised("JSON") == {name: set(result.to_dict()) for name, result in results.items()}


def test_the_reference_lists_every_public_name_once() -> None:
    listed = re.findall(r"^::: picknet\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted({*dir(picknet)} - {"__version__"})


# --- Settings ---------------------------------------------------------------------------------------------------------


def known_settings() -> dict[str, Any]:
    """Name and default of every setting."""
    settings: dict[str, Any] = {}
    for name, value in vars(Config()).items():
        group = vars(value) if hasattr(value, "__dataclass_fields__") else None
        settings |= {f"{name}.{key}": default for key, default in group.items()} if group else {name: value}
    return settings


def documented_settings() -> dict[str, Any]:
    """Name and default of every setting in the tables of training.md."""
    settings: dict[str, Any] = {}
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    for table in re.findall(r"^\| setting \|.*?(?=^[^|]|\Z)", text, re.M | re.S):
        header, _, *rows = ([cell.strip(" `") for cell in line.split(" | ")] for line in table.strip().splitlines())
        for row in rows:
            name = row[0].strip("| `")
            for column, cell in zip(header[1:-1], row[1:-1], strict=True):
                if cell != "–":
                    key = name if column == "default" else f"{column}.{name}"
                    assert key not in settings, key
                    settings[key] = float(Fraction(cell)) if re.fullmatch(r"\d/\d", cell) else json.loads(cell)
    return settings


def test_every_setting_is_documented_with_its_default() -> None:
    # Lists in the tables are tuples in the config.
    known = {name: list(value) if isinstance(value, tuple) else value for name, value in known_settings().items()}
    documented = documented_settings()
    assert documented.keys() == known.keys()
    assert documented == known


@every_document
def test_settings_in_the_text_exist_and_take_the_value_given(document: Path) -> None:
    groups = "|".join(name for name, value in vars(Config()).items() if hasattr(value, "__dataclass_fields__"))
    for span in spans(document):
        if match := re.fullmatch(rf"((?:{groups})\.(?!py\b|onnx\b)\w+)(?: ?= ?(.+))?", span):
            name, value = match.groups()
            assert name in known_settings(), span
            if value:
                try:
                    parse_config("", [f"{name}={value}"])
                except BadConfig as error:
                    pytest.fail(f"{span}: {error}")
