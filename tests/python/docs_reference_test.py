"""The reference pages have all that the code has, and nothing else; each public name says what it takes and raises."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import pytest
import typer.main
from gradwire import cli
from gradwire.settings.definitions import DEFINITIONS
from structure.repository import ROOT

sys.path.append(str(ROOT / "python"))

from docs_site import codecs_table, command_line, generated, settings_list

REFERENCE = ROOT / "python" / "docs" / "reference"
PARTS = {name: part() for name, part in generated.PARTS.items()}


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def first_cells(text: str) -> set[str]:
    """All names that stand as code in the first cells of a page's tables."""
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_a_page_asks_for_each_generated_part() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "python" / "docs").rglob("*.md")]
    for name in generated.PARTS:
        assert sum(f"<!-- generated: {name} -->" in text for text in texts) == 1, name
    assert "generated:" not in generated.filled(page("settings.md"))


def test_a_page_that_the_site_fills_in_says_where_to_read_it_without_the_site() -> None:
    """In a clone, and on a forge, its placeholder shows nothing."""
    placeholder = re.compile(r"^(?:<!-- generated: [\w-]+ -->|::: (?P<module>[\w.]+))$", re.MULTILINE)
    filled_in = 0
    for path in sorted(REFERENCE.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (first := placeholder.search(text)) is None:
            continue
        filled_in += 1
        before = " ".join(text[: first.start()].split())
        assert "`make docs` fills in" in before, path
        for found in placeholder.finditer(text):
            if found["module"]:
                assert f"`help({found['module']})`" in before, path
            else:
                assert re.search(r"In a terminal, `gradwire|In Python, `", before), path
    assert filled_in > 15


# Settings.


def test_every_setting_is_there_with_its_default_under_a_topic() -> None:
    assert settings_list.missing_topics() == set(), "docs_site/settings_list.py lists settings by topic"
    headings = re.findall(r"^### `(\w+)` \{ #(\w+) \}$", PARTS["settings"], re.MULTILINE)
    assert sorted(name for name, _ in headings) == sorted(definition.variable for definition in DEFINITIONS)
    assert all(anchor == name.lower() for name, anchor in headings)
    assert "## Others" not in PARTS["settings"]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: str(definition.name))
def test_a_default_reads_back_as_it_is_written(definition: Any) -> None:
    written = settings_list.default(definition).strip("`")
    assert written == "unset" or definition.parse(written) == definition.default
    assert definition.help
    assert settings_list.values(definition.name)


def test_units_and_values_are_those_of_the_types() -> None:
    assert settings_list.values("ipc") == "`auto`, `off`"
    assert settings_list.values("slow_abort").startswith("a duration")
    assert settings_list.values("fusion_bytes").startswith("a size")
    assert settings_list.values("rank") == settings_list.values("streams") == "a whole number"
    assert [settings_list.size(n) for n in (0, 100, 2**18, 10**8)] == ["0", "100", "256KiB", "100MB"]


# Commands.


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    for subname, subcommand in getattr(command, "commands", {}).items():
        if not subcommand.hidden:
            yield f"{name} {subname}", subcommand
            yield from commands(f"{name} {subname}", subcommand)


COMMANDS = dict(commands("gradwire", typer.main.get_command(cli.app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_with_its_options(name: str) -> None:
    own = re.split(rf"^###? {name} {{.*}}$", PARTS["command-line"], flags=re.MULTILINE)
    assert len(own) == 2
    section = re.split(r"^###? gradwire .*$", own[1], maxsplit=1, flags=re.MULTILINE)[0]
    shown = [param for param in COMMANDS[name].params if not getattr(param, "hidden", False)]
    options = {each for p in shown if command_line.is_option(p) for each in [*p.opts, *p.secondary_opts]}
    assert options <= first_cells(section)
    assert not re.search(r"\[/?bold\]", section)
    for param in shown:
        assert command_line.meaning(param), (name, param.name)


def test_helps_become_paragraphs_and_examples() -> None:
    text = "It does [bold]this[/bold]\nand that.\n\n[bold]Examples[/bold]\n  gradwire x --y Z\n  gradwire z\n"
    assert command_line.markdown(text) == (
        "It does **this** and that.\n\n**Examples**\n\n```sh\ngradwire x --y Z\ngradwire z\n```"
    )


# Codecs, stores, metrics.


def test_every_codec_is_there_with_its_parameters() -> None:
    assert re.findall(r"^\| \[`(\w+)`\]", PARTS["codecs"], re.MULTILINE) == gw.compress.list()
    assert re.findall(r"^### `(\w+)`", PARTS["codec-parameters"], re.MULTILINE) == gw.compress.list()
    assert "`threshold` | `0.5`" in codecs_table.parameters()


def test_every_store_is_there() -> None:
    names = first_cells(page("stores.md").partition("## What each one can do")[0])
    assert names >= set(gw.kv.stores())
    assert not {name for name in names if re.fullmatch(r"[a-z0-9_]+", name)} - set(gw.kv.stores())


@pytest.mark.usefixtures("no_job")
def test_every_metric_is_there() -> None:
    store = gw.kv.create("local")
    of_stats = page("metrics.md").partition("## What reading costs")[0]
    plain = of_stats.partition("## `stats(servers=True)`")
    assert first_cells(plain[0]) == set(store.stats())
    try:
        of_servers = set(store.stats(servers=True)) - set(store.stats())
    finally:
        store.close()
    assert first_cells(plain[2]) == of_servers


def test_every_metric_that_is_written_is_there() -> None:
    names = [metric.prometheus_name for metric in gw.metrics.METRICS]
    assert re.findall(r"^\| `(gradwire_\w+)` \|", PARTS["metrics"], re.MULTILINE) == names
    howto = (ROOT / "python" / "docs" / "howto" / "metrics.md").read_text(encoding="utf-8")
    for text in (page("metrics.md"), howto):
        named = set(re.findall(r"(?<!#)\bgradwire_\w+", text))  # not the anchors of settings
        assert named
        assert named <= set(names)


# The API.

MODULES = (
    *("gradwire.torch", "gradwire.kv", "gradwire.compress", "gradwire.collectives", "gradwire.samplers"),
    *(
        "gradwire.elastic",
        "gradwire.sparse",
        "gradwire.result",
        "gradwire.gathered_sum",
        "gradwire.power_sgd",
    ),
    *("gradwire.metrics", "gradwire.horovod.torch", "gradwire.byteps.torch"),
    *(f"gradwire.integrations.{name}" for name in ("lightning", "accelerate", "transformers")),
)
# Of their docstrings more is asked below: the others follow the words of the library that they stand in for.
OWN = [name for name in MODULES if not name.startswith(("gradwire.horovod", "gradwire.byteps"))]
# nanobind's, whose signatures in the stub have the types, and which say what they raise in words.
COMPILED = "gradwire._core"
# Offered by a module to the package's others, and on no page.
INTERNAL = {"SparseKeys"}


def public(name: str) -> dict[str, Any]:
    """What a module offers: functions and classes."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        n for n, value in vars(module).items() if getattr(value, "__module__", None) == name
    ]
    found = {n: getattr(module, n) for n in names if not n.startswith("_") and n not in INTERNAL}
    return {n: value for n, value in found.items() if inspect.isroutine(value) or inspect.isclass(value)}


def test_every_public_module_has_a_page_and_torch_comes_first() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (REFERENCE / "api").glob("*.md")}
    shown = {name for text in pages.values() for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}
    assert shown == {*MODULES, "gradwire.horovod.mxnet", "gradwire.byteps.mxnet", "gradwire.mxnet"}
    listed = re.findall(r"reference/api/(\w+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert listed[0] == "torch"
    assert {f"{name}.md" for name in listed} == set(pages)


def test_the_page_of_torch_lists_all_that_the_module_offers() -> None:
    listed = re.findall(r"^ +- (\w+)$", page("api/torch.md"), re.MULTILINE)
    assert sorted(listed) == sorted(public("gradwire.torch"))
    assert listed[0] == "DistributedOptimizer"


def test_every_error_is_on_its_page() -> None:
    errors = {
        name
        for name, value in vars(gw._core).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert {f"gradwire.{name}" for name in errors if name in gw.__all__} == first_cells(page("api/errors.md"))


def functions(module: str) -> Iterator[tuple[str, Any]]:
    for name, value in public(module).items():
        if getattr(value, "__module__", "").startswith(COMPILED):
            continue
        yield name, value
        if inspect.isclass(value) and value.__module__.startswith("gradwire"):
            for method, each in vars(value).items():
                if inspect.isfunction(each) and (method == "__init__" or not method.startswith("_")):
                    yield f"{name}.{method}", each


def faults(name: str, value: Any) -> list[str]:
    """What a docstring lacks: of functions the parameters, and the errors that they raise themselves."""
    doc = value.__doc__ or ""
    if name.endswith(".__init__"):
        if not doc:
            return []  # nobody else is to construct it, or its class says what it takes
    elif not doc:
        return [f"{name} has no docstring"]
    if inspect.isclass(value):
        return []
    parameters = [p for p in inspect.signature(value).parameters if p not in ("self", "cls")]
    known = f"{doc}\n{inspect.getdoc(value) or ''}"
    missing = (
        [p for p in parameters if not re.search(rf"\b{re.escape(p)}s?\b", known)]
        if len(parameters) > 1
        else []
    )
    return [f"{name} does not say what {p} is" for p in missing] + [
        f"{name} does not say that it raises {error}" for error in raised(value) if error not in doc
    ]


def raised(value: Any) -> set[str]:
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(value)))
    except (OSError, SyntaxError, IndentationError):
        return set()
    found = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return {ast.unparse(each.func).split(".")[-1] for each in found if isinstance(each, ast.Call)}


@pytest.mark.parametrize("module", OWN)
def test_every_public_name_says_what_it_takes_and_raises(module: str) -> None:
    assert [fault for name, value in functions(module) for fault in faults(name, value)] == []


def silent(one: int) -> None: ...


def terse(one: int, other: int) -> None:
    """Takes one."""
    raise OSError("x")


def test_planted_faults_are_found() -> None:
    assert faults("silent", silent) == ["silent has no docstring"]
    assert faults("terse", terse) == [
        "terse does not say what other is",
        "terse does not say that it raises OSError",
    ]
