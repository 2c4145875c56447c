"""The documents as a site: it builds without a warning, and loads nothing from elsewhere."""

import re
from pathlib import Path

import pytest

import picknet

pytest.importorskip("material", reason="a development dependency")

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # paths in the settings of plugins are relative to it
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))  # a warning is an error
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    pages = {path.parent.name for path in site.glob("*/index.html")}
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert documents <= pages
    assert {"changelog", "contributing", "security", "examples", "samples", "model-card"} <= pages


def test_the_reference_describes_every_public_name(site: Path) -> None:
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    described = set(re.findall(r'<h3 id="picknet\.(?:\w+\.)*(\w+)"', page))
    assert described == set(dir(picknet)) - {"__version__"}
    assert re.search(r"<strong>num_frames</strong>: evenly spaced frames to sample", page)


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)\b[^>]*?\bsrc="?([^"\s>]+)', page)
        links = re.findall(r"<link\b[^>]*>", page)
        loaded += [re.search(r'href="?([^"\s>]+)', link)[1] for link in links if "canonical" not in link]  # type: ignore[index]
        assert loaded
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == [], path.name
        assert 'data-md-component="source"' not in page, "the theme's script would ask GitHub about the repository"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", path.read_text(encoding="utf-8")), path.name


def test_links_out_of_the_documents_lead_to_a_page_or_to_the_repository(site: Path) -> None:
    page = (site / "teams" / "index.html").read_text(encoding="utf-8")
    assert 'href="../security/"' in page
    assert 'href="../model-card/"' in page
    assert 'href="https://github.com/picknet/picknet/blob/main/examples/client.py"' in page
