"""The site is built without a warning, and needs nothing from elsewhere. Needs what requirements-docs.txt lists."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from structure.repository import ROOT

sys.path.append(str(ROOT / "python"))

from docs_site import diagrams, docstrings

SECTIONS = ("tutorials", "howto", "reference", "explanation")


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source", "video") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@functools.cache
def parsed(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_every_page_is_in_the_site_and_its_navigation(site: Path) -> None:
    pages = sorted((ROOT / "python" / "docs").rglob("*.md"))
    home = (site / "index.html").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    for page in pages:
        name = page.relative_to(ROOT / "python" / "docs")
        assert (site / name.with_suffix(".html")).exists(), name
        assert name.as_posix() in listed, f"{name}: mkdocs.yml lists no such page"
    assert all(f'href="{section}/' in home for section in SECTIONS)
    assert len(pages) > 40


def test_it_works_offline(site: Path) -> None:
    for path in site.rglob("*.html"):
        elsewhere = [url for url in parsed(path).loaded if re.match(r"(https?:)?//", url)]
        assert not elsewhere, f"{path.relative_to(site)} loads {elsewhere}"
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"url\([\"']?https?:|@import [\"']https?:", text), path
    assert (site / "search" / "search_index.js").stat().st_size > 100_000  # what file:// can load


def test_links_lead_to_files_and_anchors(site: Path) -> None:
    broken = []
    for path in site.rglob("*.html"):
        if path.name == "404.html":  # served at any address, so its links are absolute
            continue
        for link in parsed(path).links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if there.is_dir():
                there /= "index.html"
            if not there.exists():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and there.suffix == ".html" and not parts.fragment.startswith("__"):
                anchor = urllib.parse.unquote(parts.fragment)
                if anchor not in parsed(there).anchors:
                    broken.append(f"{path.relative_to(site)}: {link}: no such anchor")
    assert not broken, "\n".join(broken[:50])


def test_marks_and_markup_are_gone(site: Path) -> None:
    for section in SECTIONS:
        for path in (site / section).rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            shown = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
            assert "<!-- generated:" not in text, path
            assert not re.search(r"\[/?bold\]|^```|notest:|\[!NOTE\]|\]\(\w", shown, re.MULTILINE), path


def test_diagrams_are_in_the_page(site: Path) -> None:
    pages = {
        path.name: path.read_text(encoding="utf-8").count('<svg class="gw-diagram"')
        for path in site.rglob("*.html")
    }
    assert pages["architecture.html"] >= 1
    assert pages["life_of_a_gradient.html"] >= 1


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_a_committed_diagram_is_what_the_script_draws(name: str) -> None:
    committed = (diagrams.ASSETS / f"{name}.svg").read_text(encoding="utf-8")
    assert committed == diagrams.DIAGRAMS[name](), "run python python/docs_site/diagrams.py"
    assert ElementTree.fromstring(committed).find("{http://www.w3.org/2000/svg}title") is not None


def test_every_name_of_the_api_is_there(site: Path) -> None:
    anchors = set().union(*(parsed(path).anchors for path in (site / "reference" / "api").glob("*.html")))
    for name in (
        "DistributedOptimizer",
        "HookState",
        "HookState.stats",
        "ddp_hook",
        "compress_reduce_scatter",
    ):
        assert f"gradwire.torch.{name}" in anchors
    for name in (
        "kv.create",
        "kv.KVStore.pushpull",
        "kv.KVStore.stats",
        "compress.Codec.encode",
        "sparse.RowSparse",
    ):
        assert f"gradwire.{name}" in anchors
    assert len([anchor for anchor in anchors if anchor.startswith("gradwire.")]) > 150


def test_docstrings_become_sections_and_code() -> None:
    text = "Does it.\n\nMore:\n\n    x = 1\n\n    y = 2\n\nArgs:\n    a: one.\n\nReturns: it,\n    once.\n"
    assert docstrings.normalized(text) == (
        "Does it.\n\nMore:\n\n```python\nx = 1\n\ny = 2\n```\n\nArgs:\n    a: one.\n\n"
        "Returns:\n    it,\n        once."
    )
    assert docstrings.normalized("Source: X 2019.") == "**Source:** X 2019."
    assert docstrings.normalized("Example:\n    x = 1\n") == "\n**Example:**\n\n```python\nx = 1\n```"
    assert "```sh\ngradwire x\n```" in docstrings.normalized("Start:\n\n    gradwire x\n")
