"""`gradwire doctor`: what is installed on this machine, what is missing, all settings, and what to do next."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import subprocess
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradwire.launch import programs
from gradwire.settings import definitions as settings
from gradwire.settings.encryption import JobKey
from gradwire.settings.units import format_duration
from gradwire.terminal.machine import gradwire_version, interfaces, machine_description, netlab_reason
from gradwire.terminal.wide_table import print_table

_TRY_SECONDS = 20.0
_CORRECT_IT = "correct or unset GRADWIRE_SERVER_PROGRAM, or install gradwire again"
TESTED_TORCH = "2.13.0"
"""The version in requirements.txt, by which all tests are run."""
OLDEST_TORCH, NEWEST_TORCH = "2.6", "2.14"
"""By which the tests that concern PyTorch have been run (tests/other_torch.py)."""
_OF_THE_LOADER = 127  # exit code of a program whose libraries are not found, or do not fit


@dataclass(frozen=True)
class Finding:
    """All that was found. `missing` gives the reason for each missing part."""

    version: str
    transports: list[str]
    codecs: list[dict[str, Any]]
    stores: list[str]
    missing: dict[str, str]
    libraries: dict[str, str]
    machine: dict[str, str | int]
    interfaces: dict[str, list[str]]
    settings: list[settings.Resolved]
    unknown: list[str]

    @property
    def faults(self) -> list[str]:
        """What must be corrected before a job can run."""
        faults = [row.error for row in self.settings if row.error is not None]
        return faults + [
            f"{name}: {self.missing[name]}" for name in ("core", "server") if name in self.missing
        ]

    @property
    def next_steps(self) -> list[str]:
        """What to do next: correct what is wrong, else commands that work with what is here."""
        if self.faults:
            return ["Correct what is marked with ! above, then run gradwire doctor again."]
        steps = [f"Correct or unset: {text.partition(' ')[0]}" for text in self.unknown]
        if "torch" in self.missing:
            steps.append("Install PyTorch, which gradwire.torch needs: pip install torch")
        elif is_newer(installed := self.libraries.get("torch", ""), NEWEST_TORCH):
            steps.append(
                f"torch {installed} is newer than {NEWEST_TORCH}, the newest that gradwire was tested with. If "
                f"something fails there: pip install torch=={TESTED_TORCH}"
            )
        elif is_newer(OLDEST_TORCH, installed):
            steps.append(
                f"torch {installed} is older than {OLDEST_TORCH}, the oldest that gradwire was tested with: pip "
                "install --upgrade torch"
            )
        steps += [
            "Start your training script on two workers: gradwire run -n 2 python train.py",
            "See what compression gains and costs there (the script calls gradwire.result.write()): gradwire ab -n 2 "
            "--arm none --arm int8 --report report -- python train.py",
        ]
        if "netlab" not in self.missing:
            steps.append("Add --bandwidth 1gbit to that to try a slower network on this machine.")
        return [*steps, "List the codecs: gradwire codecs"]

    def record(self) -> dict[str, Any]:
        """Returns the record that --json writes."""
        values = {
            row.definition.variable: {
                "value": _shown(row.value),
                "origin": row.origin,
                "error": row.error,
                "default": row.definition.default,
                "help": row.definition.help,
            }
            for row in self.settings
        }
        return {
            "version": self.version,
            "transports": self.transports,
            "codecs": [codec["name"] for codec in self.codecs],
            "stores": self.stores,
            "missing": self.missing,
            "settings": values,
            "unknown": self.unknown,
            "libraries": self.libraries,
            "machine": self.machine,
            "interfaces": self.interfaces,
            "next": self.next_steps,
        }


def examine() -> Finding:
    """Examines everything. Reports what is missing or wrong, and never raises for it."""
    missing: dict[str, str] = {}
    libraries: dict[str, str] = {}
    machine = machine_description()
    transports: list[str] = []
    codecs: list[dict[str, Any]] = []
    stores: list[str] = []
    try:
        core = importlib.import_module("gradwire._core")
        stores = importlib.import_module("gradwire.kv").stores()
        codecs = core.codecs()
        transports = ["zmq", "inproc"]
        build = core.build_info()
        libraries["zmq"] = build["zmq"]
        if build["curve"]:
            libraries["encryption"] = "CURVE"
        else:
            missing["encryption"] = "this libzmq was built without CURVE; gradwire run --encrypt needs it"
        machine["simd"] = build["simd"]
        if build["cuda_devices"]:
            machine["cuda"] = f"CUDA devices: {build['cuda_devices']}"
        else:
            missing["cuda"] = build["cuda_missing"]
        _examine_mpi(transports, libraries, missing)
        _examine_nccl(libraries, missing)
    except ImportError as error:
        missing["core"] = core_fault(error)
    except AttributeError as error:
        missing["core"] = f"the compiled part is of another version ({error}); install gradwire again"
    rows = settings.resolve()
    if "core" not in missing:
        rows = _as_a_job_reads(rows)
    program = {row.definition.name: row.value for row in rows}["server_program"]
    try:
        path = programs.find_server_program(settings.Settings(server_program=program))
        _try_server_program(path)
        libraries["gradwire-server"] = path
    except OSError as error:
        missing["server"] = str(error).removeprefix("run: ")
    if (reason := netlab_reason()) is not None:
        missing["netlab"] = reason
    for module, use in (("torch", "gradwire.torch"), ("numpy", "arrays in gradwire.kv")):
        try:
            libraries[module] = importlib.metadata.version(module)
        except importlib.metadata.PackageNotFoundError:
            missing[module] = f"not installed; {use} needs it"
    return Finding(
        version=gradwire_version(),
        transports=transports,
        codecs=codecs,
        stores=stores,
        missing=missing,
        libraries=libraries,
        machine=machine,
        interfaces=interfaces(),
        settings=rows,
        unknown=settings.unknown_variables(),
    )


def is_newer(version: str, than: str) -> bool:
    """Compares versions by their first two numbers; what has none is neither newer nor older."""
    first, second = (
        tuple(int(part) for part in text.split(".")[:2] if part.isdecimal()) for text in (version, than)
    )
    return bool(first and second) and first > second


def core_fault(error: ImportError) -> str:
    """Describes why the compiled part cannot be loaded, and what to do."""
    return (
        f"the compiled part cannot be loaded ({error}); unset LD_LIBRARY_PATH if it names another version of that "
        "library, or install gradwire again"
    )


def _as_a_job_reads(rows: list[settings.Resolved]) -> list[settings.Resolved]:
    """Adds the errors that a job would find after reading the settings."""
    values = {row.definition.name: row.value for row in rows}
    found = importlib.import_module("gradwire.launch.settings_check").faults(values)
    if not any(row.error for row in rows):
        try:
            settings.Settings(**values)
        except ValueError as error:
            found.setdefault("rank", str(error).removeprefix("settings: "))
    return [
        row
        if row.error is not None or row.definition.name not in found
        else replace(row, error=f"settings: {row.definition.variable}: {found[row.definition.name]}")
        for row in rows
    ]


def _try_server_program(path: str) -> None:
    """Runs the server program's --help.

    Raises: OSError: it does not run, or is another program.
    """
    try:
        tried = subprocess.run(
            [path, "--help"], capture_output=True, text=True, errors="replace", timeout=_TRY_SECONDS
        )
    except OSError as error:
        raise OSError(f"{path} cannot be run ({error.strerror}); {_CORRECT_IT}") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"{path} --help has not ended within {_TRY_SECONDS:g} s; {_CORRECT_IT}") from None
    if tried.returncode != 0:
        said = (tried.stderr.strip() or "without a message").splitlines()[-1]
        cure = _CORRECT_IT
        if tried.returncode == _OF_THE_LOADER and "LD_LIBRARY_PATH" in os.environ:
            cure = (
                "unset LD_LIBRARY_PATH if it names another version of that library, or install gradwire again"
            )
        raise OSError(f"{path} --help ended with exit code {tried.returncode} ({said}); {cure}")
    if "--announce" not in tried.stdout:
        raise OSError(f"{path} is not gradwire-server, whose --help names --announce; {_CORRECT_IT}")


def _examine_nccl(libraries: dict[str, str], missing: dict[str, str]) -> None:
    nccl = importlib.import_module("gradwire.stores.nccl")
    reason = nccl.why_not()
    if reason is not None:
        missing["nccl"] = f"{reason}; the store nccl needs it"
    with contextlib.suppress(ConnectionError):  # `reason` has said so
        libraries["nccl"] = nccl.version()


def _examine_mpi(transports: list[str], libraries: dict[str, str], missing: dict[str, str]) -> None:
    mpi = importlib.import_module("gradwire.stores.mpi")
    try:
        found = mpi.describe()
    except mpi.MpiUnavailable as reason:
        missing["mpi"] = f"{reason}; stores dist_sync_mpi and allreduce_mpi need it"
        return
    transports.append("mpi")
    libraries["mpi"] = f"{found['version'].split(', ')[0]} ({found['thread_level']})"


def show(finding: Finding, console: Console) -> None:
    """Prints a finding as tables, on a plain_console()."""
    machine = finding.machine
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(finding.libraries.items()))
    addresses = "; ".join(f"{name} {' '.join(row)}" for name, row in finding.interfaces.items())
    summary = Table.grid(padding=(0, 2))
    rows = [
        ("version", finding.version),
        (
            "machine",
            ", ".join(f"{value} cores" if key == "cores" else str(value) for key, value in machine.items()),
        ),
        ("libraries", libraries),
        ("transports", ", ".join(finding.transports)),
        ("codecs", ", ".join(codec["name"] for codec in finding.codecs)),
        ("stores", ", ".join(finding.stores)),
        ("interfaces", addresses),
    ]
    for name, text in rows:
        summary.add_row(Text(name, style="bold"), text or "-")
    console.print(summary)
    if finding.missing:
        _title("missing", console)
        grid = Table.grid(padding=(0, 2))
        for name, reason in finding.missing.items():
            grid.add_row(f"  {name}", reason)
        console.print(grid)
    _title("settings", console)
    changed = [row for row in finding.settings if row.origin != "default" or row.error]
    if changed:
        print_table(_settings_table(changed), console)
    others = [row for row in finding.settings if row not in changed]
    defaults = [
        f"{row.definition.variable}={_write_value(row.definition.name, row.value).replace(' ', '')}"
        for row in others
        if row.value is not None
    ]
    unset = [row.definition.variable for row in others if row.value is None]
    console.print(f"at their defaults: {', '.join(defaults)}", highlight=False)
    console.print(f"not set: {', '.join(unset)}", highlight=False)
    console.print("What each is: gradwire doctor --json -, and the reference of settings.", highlight=False)
    for text in [*finding.faults, *finding.unknown]:
        console.print(Text.assemble(("!", "bold red"), f" {text}"))
    _title("what to do next", console)
    for text in finding.next_steps:
        console.print(f"  {text}", highlight=False, soft_wrap=True)


def _title(text: str, console: Console) -> None:
    console.print(f"\n{text}", style="bold", highlight=False)


_WIDEST_VALUE = 20  # a path has several lines
_NARROWEST_TEXT = 24


def _settings_table(rows: list[settings.Resolved]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True)
    table.add_column("value", overflow="fold", max_width=_WIDEST_VALUE)
    table.add_column("from", no_wrap=True)
    table.add_column("what it is", min_width=_NARROWEST_TEXT)
    for row in rows:
        set_by_hand = row.origin != "default"
        style = "red" if row.error else "bold" if set_by_hand else "dim"
        name = row.definition.name
        table.add_row(
            row.definition.variable,
            _write_value(name, row.value),
            row.origin,
            row.definition.help,
            style=style,
        )
    return table


def _write_value(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return _binary_size(value)
    return format_duration(value) if isinstance(value, float) else str(_shown(value))


def _shown(value: Any) -> Any:
    """Hides a secret: the text says only that it is set."""
    return "given, not shown" if isinstance(value, JobKey) else value


def _binary_size(size: int) -> str:
    """Writes 262144 as 256KiB, the form in which such defaults are round."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale}{unit}"
    return str(size)
