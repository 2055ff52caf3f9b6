"""The API reference: every public name is in it and says what it takes, returns and raises."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from python.experiment_files import load

SCRIPT = Path(__file__).resolve().parents[2] / "python" / "reference.py"
# The bindings' own: exceptions and words that speak for themselves. gradwire's docstring has the exceptions.
WITHOUT_WORDS = {
    *("CallMismatch", "DecodeError", "MembershipChanged", "TimeoutError", "TransportError"),
    *("Codec.name", "Codec.has_exact_reply", "Codec.agrees_scales", "ErrorFeedback.elements"),
}


reference = load(SCRIPT)
MODULES = {name: reference.read(name) for name in reference.MODULES}
ENTRIES = [(module, entry) for module in MODULES.values() for entry in module.everything()]


@pytest.mark.parametrize("name", MODULES)
def test_what_is_read_is_what_python_offers(name: str) -> None:
    module = importlib.import_module(name)
    offered = {
        n: getattr(module, n) for n in getattr(module, "__all__", vars(module)) if not n.startswith("_")
    }
    callables = {
        n
        for n, value in offered.items()
        if inspect.isroutine(value) or inspect.isclass(value)
        if hasattr(module, "__all__") or getattr(value, "__module__", None) == name
    }
    assert {entry.name for entry in MODULES[name].entries} == callables


@pytest.mark.parametrize("name", MODULES)
def test_members_are_those_of_the_class(name: str) -> None:
    for entry in MODULES[name].entries:
        kind = getattr(importlib.import_module(name), entry.name)
        if inspect.isclass(kind):
            ours = [each for each in kind.__mro__ if each.__module__.startswith("gradwire")]
            known = {n for each in ours for n, v in vars(each).items() if not _is_plain(v)}
            public = {n for n in known if not n.startswith("_")}
            assert {member.name.split(".")[1] for member in entry.members} == public, entry.name


def _is_plain(value: Any) -> bool:
    """Data, which a dataclass or nanobind keeps in its class: documented under Attributes."""
    return not (
        callable(value)
        or isinstance(value, property | classmethod | staticmethod)
        or inspect.isdatadescriptor(value)
    )


def faults(entry: Any) -> list[str]:
    """What an entry's docstring lacks."""
    if not entry.doc:
        return [f"{entry.name} has no docstring"]
    found = []
    if entry.module != reference.COMPILED:  # of those the signatures have the types
        one = len(entry.parameters) == 1  # which is what the whole docstring is about
        found += [
            f"{entry.name} does not say what {parameter} is"
            for parameter in ([] if one else entry.parameters)
            if not re.search(rf"\b{parameter}\b", entry.doc)
            and f"{parameter}: HookState" not in entry.signatures[0]  # its type tells
        ]
    found += [
        f"{entry.name} does not say that it raises {error}"
        for error in entry.raised
        if error not in entry.doc
    ]
    return found


def test_every_public_name_says_what_it_takes_and_raises() -> None:
    without = {entry.name for _, entry in ENTRIES if not entry.doc}
    assert without == WITHOUT_WORDS
    assert not [fault for _, entry in ENTRIES if entry.doc for fault in faults(entry)]
    assert all(name in MODULES["gradwire"].doc for name in WITHOUT_WORDS if name.isalpha())


def test_a_class_that_users_do_not_construct_says_who_does() -> None:
    for module, entry in ENTRIES:
        kind = getattr(importlib.import_module(module.name), entry.name.split(".")[0])
        hidden = "__init__" in vars(kind) if inspect.isclass(kind) and "." not in entry.name else False
        if hidden and entry.signatures[0].startswith("class ") and entry.module != reference.COMPILED:
            assert re.search(r"[Mm]ade (by|without)|makes it", entry.doc), entry.name


SAMPLE = '''
def public(rows: int, *, scale: float = 1.0) -> list[int]:
    """Does it to rows.

    More of it,
    on two lines:

        code()

    Args:
        rows: how many, 1 to 9;
            more is an error.
        scale: of `values`, in metres.

    Returns: as many.

    Raises:
        ValueError: rows is 0.
    """
    if rows == 0:
        raise ValueError("rows=0")
    return [rows]


def silent(value): ...


def terse(one, other):
    """Takes one."""
    raise OSError("x")


def _hidden(): ...
'''


def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "gradwire").mkdir()
    (tmp_path / "gradwire" / "sample.py").write_text(SAMPLE)
    monkeypatch.setattr(reference, "SOURCES", tmp_path)
    return reference.read("gradwire.sample")


def test_planted_faults_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public, silent, terse = sample(tmp_path, monkeypatch).entries
    assert public.signatures == ("public(rows: int, *, scale: float=1.0) -> list[int]",)
    assert faults(public) == []
    assert faults(silent) == ["silent has no docstring"]
    assert faults(terse) == ["terse does not say what other is", "terse does not say that it raises OSError"]


def test_a_docstring_becomes_paragraphs_code_and_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = reference.render(sample(tmp_path, monkeypatch).entries[0].doc)
    assert html.splitlines() == [
        "<p>Does it to rows.</p>",
        "<p>More of it, on two lines:</p>",
        "<pre>code()</pre>",
        "<h5>Args</h5><dl><dt>rows</dt><dd>how many, 1 to 9; more is an error.</dd>"
        "<dt>scale</dt><dd>of <code>values</code>, in metres.</dd></dl>",
        "<h5>Returns</h5><dl><dt></dt><dd>as many.</dd></dl>",
        "<h5>Raises</h5><dl><dt>ValueError</dt><dd>rows is 0.</dd></dl>",
    ]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if "id" in given:
            self.anchors.append(given["id"] or "")
        if tag == "a":
            self.links.append((given["href"] or "").removeprefix("#"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_one_command_writes_a_page_with_every_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--folder", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert page.open == []
    names = [reference.anchor(module, entry) for module, entry in ENTRIES]
    assert len(names) > 80
    assert set(names) | set(MODULES) <= set(page.anchors)
    assert len(page.anchors) == len(set(page.anchors))
    assert page.links
    assert set(page.links) <= set(page.anchors)
    assert "GRADWIRE_COMPRESSION" in (tmp_path / "index.html").read_text(encoding="utf-8")
