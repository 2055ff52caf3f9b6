"""Writes the API reference, one page, from the docstrings: what every public name takes, returns and raises.

    python python/reference.py [--folder report/reference]

Sources are read and not imported, so it needs neither torch nor the compiled part, whose docstrings stand in its stub.
"""

from __future__ import annotations

import argparse
import ast
import html
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SOURCES = Path(__file__).resolve().parent
MODULES = (
    *("gradwire", "gradwire.torch", "gradwire.kv", "gradwire.collectives", "gradwire.compress"),
    *("gradwire.power_sgd", "gradwire.gathered_sum", "gradwire.result"),
)
COMPILED = "gradwire._core"
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example|Source):\s*(.*)$")
_ITEM = re.compile(r"^(?P<name>[\w.*, ]+?):\s+(?P<text>\S.*)$")

Definition = ast.FunctionDef | ast.ClassDef
Kind = Literal["text", "code", "section"]


@dataclass(frozen=True)
class Entry:
    """A public name.

    Attributes:
        module: where it is defined, which need not be where it is offered.
        name: as it is offered: "KVStore.push".
        signatures: without "def": "push(self, key: Key, ...)"; several where it is overloaded, one for a class.
        doc: the docstring, cleaned; "" without one.
        parameters: names that a caller may give.
        raised: exceptions that its own body raises.
        members: of a class: public methods and properties.
    """

    module: str
    name: str
    signatures: tuple[str, ...]
    doc: str
    parameters: tuple[str, ...] = ()
    raised: frozenset[str] = frozenset()
    is_property: bool = False
    members: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Module:
    name: str
    doc: str
    entries: tuple[Entry, ...]

    def everything(self) -> Iterator[Entry]:
        """Yields its entries, each before its members."""
        for entry in self.entries:
            yield entry
            yield from entry.members


# ---- reading -----------------------------------------------------------------------------------------------


def _file(module: str) -> Path:
    stem = SOURCES.joinpath(*module.split("."))
    found = [
        p for p in (stem / "__init__.py", stem.with_suffix(".py"), stem.with_suffix(".pyi")) if p.exists()
    ]
    if not found:
        raise FileNotFoundError(f"reference: there is no source of {module} in {SOURCES}")
    return found[0]


def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yields statements, those under `if TYPE_CHECKING:` among them: names that are imported when first used."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.If) else [node]


def public_names(module: str) -> list[str]:
    """Returns __all__, or where there is none what a module defines without an underscore: functions and classes."""
    defined = []
    for node in _top_level(_tree(module)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if _find(module, name)]
        if isinstance(node, Definition) and not node.name.startswith("_"):
            defined.append(node.name)
    return list(dict.fromkeys(defined))


def _find(module: str, name: str) -> tuple[str, list[Definition]] | None:
    """Returns where a name is defined, and its definitions, of which overloads have several. None: it is no function or
    class."""
    found: list[Definition] = []
    for node in _top_level(_tree(module)):
        if isinstance(node, Definition) and node.name == name:
            found.append(node)
        if isinstance(node, ast.ImportFrom) and node.module and not found:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith("gradwire."):
                    return _find(node.module, alias.name)
    return (module, found) if found else None


def read(module: str) -> Module:
    """Reads one module.

    Raises:
        FileNotFoundError: it has no source here.
    """
    entries = []
    for name in public_names(module):
        place, nodes = _find(module, name) or (module, [])
        entries.append(_entry(place, "", nodes))
    return Module(module, _doc(_tree(module)), tuple(entries))


def _doc(node: ast.Module | Definition) -> str:
    return ast.get_docstring(node) or ""


def _is_marked(node: Definition, mark: str) -> bool:
    marks = [ast.unparse(each).partition("(")[0] for each in node.decorator_list]
    return any(each.split(".")[-1] == mark for each in marks)


def _entry(module: str, prefix: str, nodes: Sequence[Definition]) -> Entry:
    """One name of one or more definitions; where the source itself is here, the implementation of overloads counts."""
    own = [node for node in nodes if not _is_marked(node, "overload")] or list(nodes)
    first = own[0]
    name = prefix + first.name
    docs = "\n\n".join(filter(None, map(_doc, own)))
    if isinstance(first, ast.ClassDef):
        return _class_entry(module, name, first, docs)
    names = [a.arg for node in own if isinstance(node, ast.FunctionDef) for a in _arguments(node)]
    return Entry(
        module,
        name,
        tuple(_signature(node) for node in own if isinstance(node, ast.FunctionDef)),
        docs,
        tuple(dict.fromkeys(names)),
        frozenset(_raised(first)),
        _is_marked(first, "property"),
    )


def _class_entry(module: str, name: str, node: ast.ClassDef, doc: str) -> Entry:
    """A class; its constructor's docstring follows its own, and without one the constructor is nobody's business."""
    methods = _methods(module, node)
    made = _entry(module, "", methods["__init__"][1]) if "__init__" in methods else None
    documented = made is not None and bool(made.doc)
    if made is not None and documented:
        signatures = tuple(
            re.sub(r"^__init__\(self(, )?(.*)\) -> None$", rf"{name}(\2)", s) for s in made.signatures
        )
    elif _is_marked(node, "dataclass"):
        fields = ", ".join(ast.unparse(field) for field in node.body if isinstance(field, ast.AnnAssign))
        signatures = (f"{name}({fields})",)
    else:
        bases = ", ".join(map(ast.unparse, node.bases))
        signatures = (f"class {name}({bases})" if bases else f"class {name}",)
    return Entry(
        module,
        name,
        signatures,
        "\n\n".join(filter(None, (doc, made.doc if made is not None else ""))),
        made.parameters if made is not None and documented else (),
        made.raised if made is not None else frozenset(),
        members=tuple(
            _entry(place, f"{name}.", group)
            for method, (place, group) in methods.items()
            if not method.startswith("_")
        ),
    )


def _methods(module: str, node: ast.ClassDef) -> dict[str, tuple[str, list[Definition]]]:
    """Returns by name where a method is defined, and its definitions; gradwire's own bases' methods come first."""
    methods: dict[str, tuple[str, list[Definition]]] = {}
    for base in map(ast.unparse, node.bases):
        if base == node.name:  # TimeoutError of Python's TimeoutError
            continue
        place, found = _find(module, base) or (module, [])
        for each in found:
            if isinstance(each, ast.ClassDef):
                methods |= _methods(place, each)
    own: dict[str, list[Definition]] = {}
    for child in node.body:
        if isinstance(child, ast.FunctionDef):
            own.setdefault(child.name, []).append(child)
    return methods | {name: (module, group) for name, group in own.items()}


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    given = node.args
    every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [a for a in every if a is not None and a.arg not in ("self", "cls")]


def _signature(node: ast.FunctionDef) -> str:
    if _is_marked(node, "property"):
        return f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def _raised(node: Definition) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Raise) and isinstance(each.exc, ast.Call):
            yield ast.unparse(each.exc.func).split(".")[-1]


# ---- writing -----------------------------------------------------------------------------------------------


def render(doc: str) -> str:
    """Returns a docstring as HTML: paragraphs, indented code, and the sections of Google's style as lists."""
    blocks: list[tuple[Kind, list[str]]] = []
    kind: Kind | None = None
    for line in doc.splitlines():
        now = _kind(line, kind)
        if now is not None and (now != kind or _SECTION.match(line)):
            blocks.append((now, []))
        if now is not None:
            blocks[-1][1].append(line)
        kind = now
    return "\n".join(_block(kind, lines) for kind, lines in blocks)


def _kind(line: str, before: Kind | None) -> Kind | None:
    """What a line belongs to, going by what the one before it did; None: an empty line between two blocks."""
    if _SECTION.match(line) or (before == "section" and (not line or line.startswith(" "))):
        return "section"
    if not line.strip():
        return None
    return "code" if line.startswith("    ") else "text"


def _block(kind: Kind, lines: list[str]) -> str:
    if kind == "code":
        return f"<pre>{_escape(_dedent(lines))}</pre>"
    if kind == "text":
        return f"<p>{_inline(' '.join(lines))}</p>"
    title, first = _SECTION.findall(lines[0])[0]
    return _section(title, [first, *lines[1:]])


def _section(title: str, lines: list[str]) -> str:
    if title == "Example":
        return f"<h5>Example</h5><pre>{_escape(_dedent(lines[1:]))}</pre>"
    items: list[tuple[str, list[str]]] = []
    text = _dedent(lines[1:]).splitlines()
    for line in [lines[0], *text] if lines[0] else text:
        match = None if line.startswith(" ") or title in ("Returns", "Source") else _ITEM.match(line)
        if match:
            items.append((match["name"], [match["text"]]))
        elif items:
            items[-1][1].append(line.strip())
        elif line.strip():
            items.append(("", [line.strip()]))
    rows = "".join(f"<dt>{_escape(name)}</dt><dd>{_inline(' '.join(words))}</dd>" for name, words in items)
    return f"<h5>{title}</h5><dl>{rows}</dl>"


def _dedent(lines: Sequence[str]) -> str:
    kept = [line for line in lines if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in kept), default=0)
    return "\n".join(line[margin:] for line in lines).strip("\n")


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


def _inline(text: str) -> str:
    return re.sub(r"`+([^`]+)`+", r"<code>\1</code>", _escape(text))


def anchor(module: Module, entry: Entry) -> str:
    return f"{module.name}.{entry.name}"


def _entry_html(module: Module, entry: Entry) -> str:
    level = 4 if "." in entry.name else 3
    signatures = "\n".join(entry.signatures)
    return (
        f'<h{level} id="{anchor(module, entry)}">{_escape(entry.name)}</h{level}>'
        f"<pre>{_escape(signatures)}</pre>{render(entry.doc)}"
    )


def _module_html(module: Module) -> str:
    body = "\n".join(_entry_html(module, entry) for entry in module.everything())
    return f'<h2 id="{module.name}">{module.name}</h2>{render(module.doc)}\n{body}'


def _contents(modules: Sequence[Module]) -> str:
    rows = []
    for module in modules:
        links = ", ".join(f'<a href="#{anchor(module, e)}">{_escape(e.name)}</a>' for e in module.entries)
        rows.append(f'<dt><a href="#{module.name}">{module.name}</a></dt><dd>{links}</dd>')
    return f"<dl>{''.join(rows)}</dl>"


def page(modules: Sequence[Module]) -> str:
    """Returns the whole reference as HTML, without a script, font or file from elsewhere."""
    from gradwire.report.page import document
    from gradwire.settings.definitions import DEFINITIONS

    settings = "".join(
        f"<dt>{d.variable}</dt><dd>{_inline(d.help)} (default: {_escape(str(d.default))})</dd>"
        for d in DEFINITIONS
    )
    sections = [
        "<h1>gradwire: API reference</h1>",
        _contents(modules),
        *map(_module_html, modules),
        f'<h2 id="settings">Settings, from the environment</h2><dl>{settings}</dl>',
    ]
    return document("gradwire: API reference", sections)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = SOURCES.parent / "report" / "reference"
    parser.add_argument(
        "--folder", type=Path, default=default, help="where the page goes (default: %(default)s)"
    )
    given = parser.parse_args()
    sys.path.insert(0, str(SOURCES))
    modules = [read(module) for module in MODULES]
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / "index.html"
    path.write_text(page(modules), encoding="utf-8")
    print(f"{sum(1 for module in modules for _ in module.everything())} names: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
