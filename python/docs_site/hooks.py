"""What mkdocs calls while it builds the site: fills in generated tables and diagrams, and adapts links."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

from docs_site import generated, github_markdown  # noqa: E402
from docs_site.repository_pages import Repository  # noqa: E402

REPOSITORY = Repository(ROOT, "python/docs")
_FENCE = re.compile(r"^( *```)([\w+-]+)(?: +([^\n`]*))?$", re.MULTILINE)
_DIAGRAM = re.compile(r"^!\[([^\]]*)\]\((?:\.\./)*assets/([\w-]+)\.svg\)$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds pages for files of the repository that pages link to."""
    texts = {
        REPOSITORY.place(file.src_uri): Path(file.abs_src_path).read_text(encoding="utf-8")
        for file in files.documentation_pages()
        if file.abs_src_path
    }
    for path in REPOSITORY.linked(texts):
        uri = REPOSITORY.page(path)
        if uri.endswith(".md"):
            file = File.generated(config, uri, content=REPOSITORY.text(path))
        else:
            file = File.generated(config, uri, abs_src_path=str(ROOT / path))
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Returns a page's text as the site shows it."""
    markdown = generated.filled(markdown)
    markdown = REPOSITORY.rewritten(markdown, page.file.src_uri)
    markdown = github_markdown.adapted(markdown)
    markdown = _DIAGRAM.sub(_inline_diagram, markdown)
    return markdown if "/source/" in f"/{page.file.src_uri}" else _FENCE.sub(_fence, markdown)


def _fence(fence: re.Match[str]) -> str:
    """Leaves of a fence's words its title: the others say how the tests run the block."""
    title = re.search(r"\btitle=\"[^\"]*\"", fence[3] or "")
    return f"{fence[1]}{fence[2]}" + (f" {title.group()}" if title else "")


def _inline_diagram(image: re.Match[str]) -> str:
    """Puts a diagram into the page itself, so that it follows the page's colours."""
    svg = (ROOT / "python" / "docs" / "assets" / f"{image[2]}.svg").read_text(encoding="utf-8")
    return f'<figure class="diagram" markdown="0">\n{svg.strip()}\n</figure>'
