"""Pages for files of the repository that the documentation links to, so that these links work in the site too.

A README becomes a page, and so do its own links; a source file becomes a page of highlighted code; anything else (a
chart, a table of results) is copied.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

from docs_site.links import links, rewritten

FOLDER = "source"
_LANGUAGES = {
    ".cpp": "cpp",
    ".cu": "cuda",
    ".h": "cpp",
    ".json": "json",
    ".md": "markdown",
    ".py": "python",
    ".pyi": "python",
    ".sh": "sh",
    ".toml": "toml",
    ".txt": "text",
    ".yml": "yaml",
    ".yaml": "yaml",
}
_NAMES = {"CMakeLists.txt": "cmake", "Makefile": "make"}
_LARGEST_PAGE = 150_000
_FRONT = "---\nsearch: {exclude: true}\ntitle: %s\n---\n\n"


class Repository:
    """Says where in the site a file of the repository stands.

    Attributes:
        root: the repository's root folder.
        docs: the pages' folder, relative to root.
    """

    def __init__(self, root: Path, docs: str) -> None:
        self.root = root
        self.docs = docs

    def place(self, page: str) -> str:
        """Returns the path in the repository of what a page of the site shows."""
        if not page.startswith(f"{FOLDER}/"):
            return posixpath.join(self.docs, page)
        path = page.removeprefix(f"{FOLDER}/")
        return path if (self.root / path).exists() else path.removesuffix(".md")

    def target(self, link: str, place: str) -> str | None:
        """Returns the path in the repository that a link leads to, or None: a link to elsewhere, or into its own page.

        Args:
            link: without an anchor.
            place: the file that has the link.
        """
        if not link or ":" in link or link.startswith("/"):
            return None
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(link)))
        if path.startswith("..") or not (self.root / path).exists():
            return None
        if (self.root / path).is_dir():
            path = posixpath.join(path, "README.md")
            return path if (self.root / path).exists() else None
        return path

    def page(self, path: str) -> str:
        """Returns the path in the site's sources of a file of the repository."""
        if path.startswith(f"{self.docs}/"):
            return path.removeprefix(f"{self.docs}/")
        return f"{FOLDER}/{path}" if path.endswith(".md") or not self.is_code(path) else f"{FOLDER}/{path}.md"

    def is_code(self, path: str) -> bool:
        """Whether a file is shown as a page of code."""
        file = self.root / path
        named = file.name in _NAMES or file.suffix in _LANGUAGES
        return named and file.suffix != ".md" and file.stat().st_size <= _LARGEST_PAGE

    def rewritten(self, text: str, page: str) -> str:
        """Returns a page's text with links to where the site has what they lead to."""
        place = self.place(page)

        def new_target(target: str) -> str:
            link, hash_sign, anchor = target.partition("#")
            path = self.target(link, place)
            if path is None:
                return target
            return posixpath.relpath(self.page(path), posixpath.dirname(page) or ".") + hash_sign + anchor

        return rewritten(text, new_target)

    def linked(self, pages: Mapping[str, str]) -> list[str]:
        """Returns all files outside the documentation that pages lead to, in one step or several.

        Args:
            pages: texts by their place in the repository.
        """
        found: set[str] = set()
        pending = list(pages.items())
        while pending:
            place, text = pending.pop()
            for path in self._targets(text, place):
                if path.startswith(f"{self.docs}/") or path in found:
                    continue
                found.add(path)
                if path.endswith(".md"):
                    pending.append((path, (self.root / path).read_text(encoding="utf-8")))
        return sorted(found)

    def _targets(self, text: str, place: str) -> Iterator[str]:
        for link in links(text):
            path = self.target(link.target.partition("#")[0], place)
            if path is not None:
                yield path

    def text(self, path: str) -> str:
        """Returns the Markdown of a file's page."""
        content = (self.root / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            return _FRONT % (posixpath.dirname(path) or posixpath.basename(path)) + content
        file = Path(path)
        language = _NAMES.get(file.name) or _LANGUAGES[file.suffix]
        fence = "`" * 12
        head = f"# {file.name} {{ .source-title }}\n\nFrom the repository: `{path}`\n\n"
        return _FRONT % file.name + head + f'{fence} {language} linenums="1"\n{content.rstrip()}\n{fence}\n'
