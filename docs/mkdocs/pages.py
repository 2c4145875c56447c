"""Pages of the site that are written elsewhere in the repository, and links that work on GitHub and on the site."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
TAKEN = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "samples/README.md": "samples.md",
    "src/picknet/models/msvd/README.md": "model-card.md",
}
"""File of the repository: page of the site. The start page has its own text, and stands for the README in links."""
SOURCES = {page: source for source, page in TAKEN.items() if page != "index.md"}
ICON = "src/picknet/serve/page/icon.svg"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in SOURCES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "icon.svg", abs_src_path=str(ROOT / ICON)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links are relative to the file's place in the repository; the site has one flat folder of pages."""
    name = page.file.src_uri
    folder = posixpath.dirname(SOURCES.get(name, f"docs/{name}"))

    def on_the_site(link: re.Match[str]) -> str:
        path, hash_sign, anchor = link[1].partition("#")
        target = posixpath.normpath(posixpath.join(folder, path))
        if not (ROOT / target).exists():
            return link[0]  # the strict build reports it
        place = TAKEN.get(target) or target.removeprefix("docs/")
        if place == target:
            place = f"{config.extra['repository']}/blob/main/{target}"
        return f"]({place}{hash_sign}{anchor})"

    return re.sub(r"\]\((?!\w+:|#)([^)\s]+)\)", on_the_site, markdown)
