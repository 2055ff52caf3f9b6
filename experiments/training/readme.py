"""Puts what is measured between the marks in a README.md, so that no figure there is typed by hand."""

from __future__ import annotations

from pathlib import Path


def fill(name: str, text: str, file: Path) -> None:
    """Replaces what stands between <!-- name --> and <!-- end name -->.

    Raises:
        ValueError: the file lacks the marks.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    page = file.read_text(encoding="utf-8")
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(
            f"readme: {file} lacks the lines {begin.strip()} and {end}; put them where it belongs"
        )
    file.write_text(f"{head}{begin}{text}\n{end}{tail}", encoding="utf-8")
