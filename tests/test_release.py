"""What is published: the same version and addresses everywhere, and the right files."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from picknet.model.folder import DEFAULT_MODEL, SHIPPED

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

yaml: Any = pytest.importorskip("yaml", reason="a development dependency")


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_version_and_date_are_the_same_everywhere() -> None:
    release = re.search(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", CHANGES, re.M)
    citation = read("CITATION.cff")
    assert release
    assert release.groups() == (PROJECT["version"], citation["date-released"])
    assert citation["version"] == PROJECT["version"]
    assert f"[{release[1]}]: {PROJECT['urls']['Source']}/releases/tag/v{release[1]}" in CHANGES


def test_addresses_are_the_same_everywhere() -> None:
    urls, citation = PROJECT["urls"], read("CITATION.cff")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert citation["repository-code"] == urls["Source"]
    assert citation["url"] == urls["Documentation"]
    assert f"\nsite_url: {urls['Documentation']}\n" in site
    assert f"\n  repository: &repository {urls['Source']} " in site
    owner = urls["Source"].removeprefix("https://github.com/")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert set(re.findall(r"github(?:usercontent)?\.com/([\w-]+/[\w-]+)", text)) == {owner}


def test_the_citation_names_the_authors_and_the_paper() -> None:
    citation = read("CITATION.cff")
    assert citation["authors"] == PROJECT["authors"]
    assert citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    assert paper["url"] == PROJECT["urls"]["Paper"]


# --- Wheel and sdist --------------------------------------------------------------------------------------------------


def files_of(kind: str) -> set[str]:
    """The files that a build would pack, as paths in the repository."""
    pytest.importorskip("hatchling", reason="a development dependency")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    builder = {"sdist": SdistBuilder, "wheel": WheelBuilder}[kind](str(ROOT))
    return {Path(file.relative_path).as_posix() for file in builder.recurse_included_files()}


def test_the_wheel_is_the_package_with_its_model_and_its_page() -> None:
    package = ROOT / "src" / "picknet"
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files_of("wheel") == expected
    if (SHIPPED / DEFAULT_MODEL).is_dir():
        manifest = json.loads((SHIPPED / DEFAULT_MODEL / "manifest.json").read_text(encoding="utf-8"))
        model = f"src/picknet/models/{DEFAULT_MODEL}"
        assert {f"{model}/{name}" for name in manifest["parts"]} <= expected
    assert {"src/picknet/py.typed", "src/picknet/serve/page/index.html"} <= expected


def test_the_sdist_holds_no_data_but_the_samples() -> None:
    files = files_of("sdist")
    assert {name for name in files if re.search(r"\.(mp4|avi|mkv|webm|mov|npz|parquet|csv|jsonl)$", name)} == {
        path.relative_to(ROOT).as_posix()
        for folder in ("samples", "src/picknet/serve/samples")
        for path in (ROOT / folder).glob("*.mp4")
    }
    assert {name.split("/")[0] for name in files if "/" in name} == {"src", "configs", "docs", "examples", "samples"}
    assert {"LICENSE", "NOTICE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "README.md"} <= files


def test_links_of_the_description_are_whole_addresses() -> None:
    pytest.importorskip("hatch_fancy_pypi_readme", reason="a development dependency")
    from hatchling.builders.wheel import WheelBuilder

    text = WheelBuilder(str(ROOT)).metadata.core.readme
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 10
    assert [target for target in targets if not re.match(r"https?:|#", target)] == []
    repository = PROJECT["urls"]["Source"].replace("github.com", "raw.githubusercontent.com")
    assert f"]({repository}/v{PROJECT['version']}/docs/board.png)" in text


# --- Workflows and the image ------------------------------------------------------------------------------------------

WORKFLOWS = ["ci", "release"]


def steps(workflow: str) -> list[dict[str, Any]]:
    return [step for job in read(f".github/workflows/{workflow}.yml")["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflows_run_targets_tests_and_extras_that_exist(workflow: str) -> None:
    for command in (step["run"] for step in steps(workflow) if "run" in step):
        words = shlex.split(command)
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert targets
            assert all(f"\n{target}:" in MAKEFILE for target in targets), command
        for word in words:
            if word.startswith(("tests/", "samples/")):
                assert (ROOT / word).exists(), word
        for extras in re.findall(r"\.\[([\w,]+)\]", command):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_every_python_that_the_package_names_is_tested_everywhere() -> None:
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    jobs = read(".github/workflows/ci.yml")["jobs"]
    tested = [set(job["strategy"]["matrix"]["python"]) for job in jobs.values() if "strategy" in job]
    assert len(tested) == 3
    assert all(named <= versions for versions in tested)
    assert f">={min(named, key=lambda name: int(name[2:]))}" == PROJECT["requires-python"]


def test_the_image_serves_as_a_user_without_rights_and_asks_for_its_health() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", last, re.M)
    health = re.search(r"^HEALTHCHECK .*http://127\.0\.0\.1:8000(/\w+)", last, re.M)
    assert health
    assert f"| `GET {health[1]}`" in (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    assert re.search(r'^CMD \["serve", "--host", "0\.0\.0\.0"\]$', last, re.M)
    assert re.search(r'^ENTRYPOINT \["picknet"\]$', last, re.M)
    for extras in re.findall(r"\.\[([\w,]+)\]", text):
        assert extras in PROJECT["optional-dependencies"]
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    for needed in ("src", "constraints.txt", "pyproject.toml", "README.md", *PROJECT["license-files"]):
        assert f"\n!{needed}\n" in allowed


def test_compose_publishes_the_port_on_this_machine_only_and_needs_a_token() -> None:
    service = read("compose.yaml")["services"]["picknet"]
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["environment"]["PICKNET_TOKEN"].startswith("${PICKNET_TOKEN:?")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
