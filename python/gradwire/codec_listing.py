"""`gradwire codecs`: every codec with its parameters, and the grammar of a codec spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradwire.terminal.json_option import write_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_ELEMENTS = 1 << 20  # in which headers and scales weigh what they do in a partition
_GRAMMAR = (
    ("CODEC", "2bit", "a codec with its defaults"),
    ("CODEC:NAME=VALUE,...", "2bit:threshold=0.5", "with parameters of its own"),
    (
        "...,reply=REPLY",
        "2bit:threshold=auto,reply=2bit",
        "how servers send sums back: exact, fp32 or the codec",
    ),
    ("...,weights=FORMAT", "2bit:weights=delta:int8", "how servers with an optimizer send weights"),
    ("auto:budget=BUDGET", "auto:budget=0.3 points", "gradwire.torch chooses a codec for each parameter"),
)


def names(incomplete: str = "") -> list[str]:
    """Lists the codecs that begin so, for shell completion: none where the compiled part cannot be loaded."""
    try:
        from gradwire import compress
    except ImportError:
        return []
    return [name for name in (*compress.list(), "auto") if name.startswith(incomplete)]


def records() -> list[dict[str, Any]]:
    """Describes every codec: name, summary, parameters (name, default, help), bits an element that a worker sends under
    the defaults, whether it loses information, and whether servers can send the exact sum."""
    from gradwire import _core

    return [_record(row, row["name"]) for row in _core.codecs()]


def record_of(spec: str) -> dict[str, Any]:
    """Describes the codec of a spec, as records() does, but with the bits under the parameters of the spec.

    Raises: ValueError: there is no such codec or parameter; names the nearest.
    """
    from gradwire import _core, compress
    from gradwire.controller.budget import requested

    if requested(spec) is not None:
        return _record_of_auto()
    name = compress.Compression.parse(spec).spec.partition(":")[0]
    return _record(next(row for row in _core.codecs() if row["name"] == name), spec)


def _record(row: dict[str, Any], spec: str) -> dict[str, Any]:
    return {
        "codec": row["name"],
        "summary": row["summary"],
        "bits_per_element": bits_per_element(spec),
        "lossy": row["lossy"],
        "exact_reply": row["exact_reply"],
        "parameters": row["parameters"],
    }


def _record_of_auto() -> dict[str, Any]:
    """Describes what is no codec, but stands in the place of one: bits are those of the codecs that it chooses."""
    from gradwire.controller.budget import AUTO, DEFAULT
    from gradwire.controller.plan import CANDIDATES

    budget = "accuracy that may be lost ('0.3 points'), or relative error of a step's mean ('5% error')"
    return {
        "codec": AUTO,
        "summary": f"gradwire.torch chooses a codec for each parameter: {', '.join(CANDIDATES)}",
        "bits_per_element": None,
        "lossy": True,
        "exact_reply": False,
        "parameters": [{"name": "budget", "default": DEFAULT, "help": budget}],
    }


def bits_per_element(spec: str) -> float:
    """Returns the bits of a payload over the elements of its gradient, once scales are agreed on."""
    import numpy as np

    from gradwire import compress

    compression = compress.Compression.parse(spec)
    codec = compress.make(compression.spec)
    gradient = np.random.default_rng(0).standard_normal(_ELEMENTS, dtype=np.float32)
    payload, scales = codec.encode(gradient), None
    if codec.agrees_scales:  # the first payload is dense
        reply = codec.encode_reply([payload], _ELEMENTS, reply=compression.reply)
        scales = codec.decode_reply(reply, 1, _ELEMENTS, reply=compression.reply)[1]
        payload = codec.encode(gradient, scales=scales)
    return 8 * payload.size / _ELEMENTS


def list_codecs(codec: str | None, json_file: str | None, console: Console) -> None:
    """Shows all codecs and the grammar of a spec, or one codec with what its parameters mean; writes the record.

    Args: codec: a spec. None: all codecs.

    Raises: ValueError: there is no such codec or parameter; names the nearest.
    """
    found = records() if codec is None else [record_of(codec)]
    write_json(found, json_file)
    if json_file != "-":
        if codec is None:
            _show(found, console)
        else:
            _explain(codec, found[0], console)


def _explain(spec: str, row: dict[str, Any], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text.assemble((spec, "bold"), f": {row['summary']}"))
    if row["bits_per_element"] is not None:
        console.print(f"{row['bits_per_element']:.3g} bits an element; {_sum_sent(row)}.", highlight=False)
    if not row["parameters"]:
        console.print("It has no parameters.")
        return
    table = Table.grid(padding=(0, 2))
    for parameter in row["parameters"]:
        table.add_row(f"  {parameter['name']}={parameter['default']}", parameter["help"])
    console.print("\nParameters, with their defaults", style="bold", highlight=False)
    console.print(table, highlight=False)


def _sum_sent(row: dict[str, Any]) -> str:
    if row["exact_reply"]:
        return "servers can send the exact sum"
    return f"servers can send {'no exact sum of lossy payloads' if row['lossy'] else 'the sum'}"


def _show(found: list[dict[str, Any]], console: Console) -> None:
    from rich.table import Table

    from gradwire.terminal.wide_table import print_table

    print_table(_table(found), console)
    grammar = Table.grid(padding=(0, 2))
    for _ in range(3):
        grammar.add_column(overflow="fold")
    for form, example, meaning in _GRAMMAR:
        grammar.add_row(f"  {form}", example, meaning)
    console.print("\nHow to write a codec", style="bold", highlight=False)
    console.print(grammar, highlight=False)
    console.print(
        "\nGive it to gradwire.torch (compression=, codec=), kv.set_gradient_compression(), --arm, --codec, "
        "--compression or GRADWIRE_COMPRESSION.",
        highlight=False,
    )
    console.print(
        "With Adam and AdamW take int8, or on slow links nf4 or nf2; with SGD and momentum on slow links 2bit, whose "
        "threshold gradwire.torch sets to auto.",
        highlight=False,
    )


def _table(found: list[dict[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("codec", no_wrap=True)
    table.add_column("bits an\nelement", justify="right", no_wrap=True)
    table.add_column("exact\nsums", no_wrap=True)
    table.add_column("parameters and defaults", min_width=20)
    table.add_column("what it is", min_width=20)
    for row in found:
        parameters = ", ".join(f"{p['name']}={p['default']}" for p in row["parameters"])
        table.add_row(
            row["codec"],
            f"{row['bits_per_element']:.3g}",
            "yes" if row["exact_reply"] or not row["lossy"] else "no",
            parameters or "-",
            row["summary"],
        )
    return table
