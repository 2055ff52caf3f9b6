"""The command line itself: help, misuse, exit codes, one clean line for an error."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from gradwire import cli, codec_listing
from gradwire.autotune.command import tune
from gradwire.bench import command as bench
from gradwire.launch.hosts import HostSlots, is_this_machine, read_hosts
from gradwire.plan.command import plan
from rich.console import Console

PROGRAMS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def gradwire(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire.cli", *arguments]
    env = {**os.environ, "COLUMNS": "120", **environ}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2), (0, 1, 2)])
def test_closed_streams_cost_a_job_nothing(closed: tuple[int, ...], tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    shut = " ".join(f"{number}>&-" for number in closed)
    words = [
        sys.executable,
        "-m",
        "gradwire.cli",
        "run",
        "-n",
        "1",
        "-s",
        "0",
        "--json",
        str(record),
        "echo",
        "hi",
    ]
    done = subprocess.run(
        ["sh", "-c", f"exec {shlex.join(words)} {shut}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(record.read_text())["exit_code"] == 0


@pytest.mark.parametrize(
    ("words", "shown"),
    [((), "Start here"), (("bench",), "allreduce"), (("netlab",), "Removes labs")],
)
def test_a_group_without_a_command_prints_its_help(words: tuple[str, ...], shown: str) -> None:
    """It had been "gradwire: . See: gradwire --help", and nothing else."""
    done = gradwire(*words)
    assert done.returncode == 2, "a script whose command is empty has failed"
    assert done.stderr == ""
    assert f"Usage: {' '.join(('gradwire', *words))}" in done.stdout
    assert shown in done.stdout
    assert done.stdout.rstrip() == gradwire(*words, "--help").stdout.rstrip()


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("ab", "-n", "1", "--arm", "none", "--report", "/proc/zz", "--", "true"), "--report"),
        (("tune", "-n", "1", "--report", "/proc/zz", "--", "true"), "--report"),
        (("bench", "codec", "--report", "/proc/zz"), "--report"),
        (("bench", "allreduce", "-n", "1", "--report", "/proc/zz"), "--report"),
        (("plan", "--model", "vgg16", "--sweep", "workers", "--svg", "/proc/zz.svg"), "--svg"),
        (("timeline", "nofile.json", "--svg", "/proc/zz.svg"), "--svg"),
        (("version", "--json", "/proc/zz.json"), "--json"),
        (("run", "-n", "1", "--timeline", "/dev/full", "true"), "--timeline"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(words: tuple[str, ...], option: str) -> None:
    done = gradwire(*words)
    assert done.returncode == 2
    assert option in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("GRADWIRE_COMPRESSION", "2bitz", "run: GRADWIRE_COMPRESSION=2bitz: "),
        ("GRADWIRE_INTERFACE", "eht0", "run: GRADWIRE_INTERFACE=eht0: there is no interface 'eht0'"),
    ],
)
def test_a_misspelt_name_in_a_setting_is_refused_before_anything_starts(
    name: str, value: str, text: str, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    for where in ({name: value}, {}):
        given = () if where else ("--env", f"{name}={value}")
        done = gradwire("run", "-n", "1", *given, "touch", str(touched), **where)
        assert done.returncode == 2
        assert text in done.stderr
    assert not touched.exists()


@pytest.mark.parametrize("columns", ["30", "40", "60", "80", "200"])
def test_no_width_cuts_a_value(columns: str) -> None:
    server = f"/nowhere/{'x' * 40}/gradwire-server"
    text = gradwire("doctor", COLUMNS=columns, GRADWIRE_SERVER_PROGRAM=server).stdout
    assert text.count("\n") < 400
    packed = "".join(text.split())
    assert "100000000" in packed, "GRADWIRE_PAYLOAD_BYTES"
    assert "default" in packed
    plan = gradwire(
        "plan", "--model", "vgg16", "-n", "4", "-s", "2", "--codec", "2bit:reply=2bit", COLUMNS=columns
    )
    packed = "".join(plan.stdout.split())
    assert "2bit:reply=2bit" in packed or "2bit:rep" in packed
    assert "servers" in packed


def test_help_groups_the_commands_and_says_where_to_start() -> None:
    done = gradwire("--help")
    assert done.returncode == 0
    for words in ("gradwire run -n 2", "gradwire doctor", "gradwire ab -n 2", "gradwire codecs"):
        assert words in done.stdout
    at = [done.stdout.index(f"─ {panel} ─") for panel in ("Train", "Compare", "Measure", "Inspect")]
    assert at == sorted(at)
    assert "netlab" not in done.stdout
    assert "<bool>" not in done.stdout, "a flag takes no value"


def test_version_is_an_option_too() -> None:
    done = gradwire("--version")
    assert done.returncode == 0
    assert done.stdout == f"gradwire {gradwire('version').stdout}"


@pytest.mark.parametrize(
    ("words", "position", "found"),
    [
        ("gradwire co", 1, "codecs"),
        ("gradwire run --env-w", 2, "--env-worker"),
        ("gradwire ab --arm 2b", 3, "2bit"),
        ("gradwire run --launcher ku", 3, "kubernetes"),
        ("gradwire plan --model vg", 3, "vgg16"),
    ],
)
def test_a_shell_completes_commands_options_and_values(words: str, position: int, found: str) -> None:
    done = gradwire(_GRADWIRE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(position))
    assert found in done.stdout.split()


def test_codecs_are_listed_with_their_grammar() -> None:
    done = gradwire("codecs")
    assert done.returncode == 0, done.stderr
    for text in ("2bit", "threshold=0.5", "CODEC:NAME=VALUE,...", "reply=REPLY"):
        assert text in done.stdout
    one = gradwire("codecs", "2bit").stdout
    assert "agreed by all workers every round" in " ".join(one.split())
    rows = {row["codec"]: row for row in json.loads(gradwire("codecs", "--json", "-").stdout)}
    assert (rows["none"]["bits_per_element"], rows["none"]["lossy"]) == (32.0, False)
    assert rows["2bit"]["bits_per_element"] == pytest.approx(2.0)
    assert rows["int8"]["bits_per_element"] == pytest.approx(8 + 32 / 256)
    assert {"name": "block", "default": "256"}.items() <= rows["int8"]["parameters"][0].items()
    wrong = gradwire("codecs", "2bits")
    assert wrong.returncode == 2
    assert "did you mean 2bit?" in wrong.stderr


def test_a_codec_with_parameters_is_explained_as_it_was_given() -> None:
    done = gradwire("codecs", "int8:block=1024,reply=int8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("int8:block=1024,reply=int8: ")
    assert "8.03 bits an element" in done.stdout
    assert "block=256" in done.stdout, "the default"
    [row] = json.loads(gradwire("codecs", "int8:block=1024", "--json", "-").stdout)
    assert (row["codec"], row["bits_per_element"]) == ("int8", pytest.approx(8 + 32 / 1024))
    wrong = gradwire("codecs", "int8:blok=1024", "--json", "-")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean block?" in wrong.stderr


@pytest.mark.parametrize(
    "name", [*codec_listing.names(), *(example for _, example, _ in codec_listing._GRAMMAR)]
)
def test_whatever_is_offered_is_explained(name: str) -> None:
    row = codec_listing.record_of(name)
    assert row["codec"] == name.partition(":")[0]
    console = Console(file=io.StringIO(), width=1000)
    codec_listing.list_codecs(name, None, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith(f"{name}: {row['summary']}\n")
    assert all(parameter["help"] in text for parameter in row["parameters"])


@pytest.mark.parametrize("command", ["run", "ab", "plan", "timeline", "doctor", "codecs", "key", "version"])
def test_every_command_has_help_and_json(command: str) -> None:
    done = gradwire(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["rnu"], "gradwire: no such command 'rnu': did you mean run? See: gradwire --help\n"),
        (["train"], "gradwire: no such command 'train': did you mean run? See: gradwire --help\n"),
        (["bench", "cdec"], "no such command 'cdec': did you mean codec? See: gradwire bench --help"),
        (
            ["zzzz"],
            "no such command 'zzzz': expected one of run, key, ab, tune, plan, doctor, codecs, timeline,",
        ),
        (["run", "--encrpt"], "No such option: --encrpt: did you mean --encrypt? See: gradwire run --help"),
        (["run", "--codec", "int8"], "--codec: did you mean --compression? See: gradwire run --help"),
        (["ab", "--codec", "int8"], "--codec: did you mean --arm? See: gradwire ab --help"),
        (["plan", "--compression", "int8"], "--compression: did you mean --codec? See: gradwire plan --help"),
        (
            ["run", "--kv-store", "x"],
            "No such option: --kv-store; options of your own program stand behind its name. See: gradwire run",
        ),
        (["doctor", "--bogus"], "gradwire: No such option: --bogus. See: gradwire doctor --help\n"),
        (["run", "true"], "Missing option '-n' / '-np' / '--num-workers'. See: gradwire run --help"),
        (
            ["run", "-n", "0", "true"],
            "Invalid value for '-n' / '-np' / '--num-workers': ",
        ),
        (["run", "-n", "2"], "Missing argument 'CMD...'. See: gradwire run --help"),
        (["run", "-n", "1", "--launcher", "ssh", "true"], "--launcher ssh needs hosts: give -H node1:2"),
        (
            ["run", "-n", "1", "--launcher", "pbs", "true"],
            "--launcher pbs is not a launcher: expected one of",
        ),
        (
            ["run", "-n", "1", "--launcher", "shs", "true"],
            "--launcher shs is not a launcher: expected one of",
        ),
        (["run", "-n", "1", "--sync-dst-dir", "x", "true"], "--sync-dst-dir needs --launcher ssh or mpi"),
        (["run", "-n", "1", "-H", "node7:2", "true"], "-H names node7, but --launcher local starts all"),
        (["run", "-n", "3", "-H", "localhost:2", "true"], "-H has 2 slots for 3 workers"),
        (["run", "-n", "1", "-H", "localhost:x", "true"], "'x' is not a number of slots"),
        (["run", "-n", "1", "--ssh", "", "true"], "run: --ssh is empty: expected a program"),
        (
            ["run", "-n", "1", "--ssh", "'", "true"],
            "run: --ssh ' is not valid (No closing quotation): expected a",
        ),
        (["run", "-n", "1", "--env", "K", "true"], "run: --env K is not valid: expected NAME=VALUE"),
        (["ab", "-n", "1", "--report", "r", "--arm", "a", "--arm", "a", "true"], "--arm a is given twice"),
        (
            ["run", "-n", "1", "--json", "/no/such/x.json", "true"],
            "there is no folder /no/such: make it first",
        ),
        (["bench", "codec", "--json", "/"], "/ is a folder: expected a file, or - for stdout"),
    ],
)
def test_misuse_is_one_line_and_2(arguments: list[str], text: str) -> None:
    done = gradwire(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.startswith("gradwire: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


# That is, whatever version of typer says it.
@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        (("plan", "-n", "abc"), "--num-workers", "abc"),
        (("plan", "-n", "65537"), "--num-workers", "65537"),
        (("bench", "ps", "-n", "1", "--repeat", "0.5"), "--repeat", "0.5"),
        (("ab", "--target", "Input"), "--target", "Input"),
        (("ab", "--target", "nan"), "--target", "nan"),
        (("ab", "--target", "inf"), "--target", "inf"),
        (("ab", "--first-seed", "99999999999999999999"), "--first-seed", "99999999999999999999"),
        (("plan", "--sweep", "rate"), "--sweep", "rate"),
        *((("plan", "--model", "vgg16", name, "1x"), name, "1x") for name in ("--latency", "--step-time")),
        *((("bench", name, "-n", "1", "--bytes", "1x"), "--bytes", "1x") for name in ("ps", "allreduce")),
        *(
            ((*words, "--bandwidth", "10GB", "true"), "--bandwidth", "10GB")
            for words in (("ab",), ("tune",), ("plan",), ("bench", "ps"), ("bench", "allreduce"))
        ),
        (("plan", "--model", "vgg16", "--calibration", "none.json"), "--calibration", "none.json"),
        (("plan", "--calibrate", "x.json", "--codec-speeds", "/"), "--codec-speeds", "/"),
    ],
)
def test_a_value_that_is_refused_is_named_with_its_option(
    words: tuple[str, ...], option: str, value: str
) -> None:
    done = gradwire(*words)
    assert done.returncode == 2
    assert re.fullmatch(rf"gradwire: .*{option}\b.*\W{re.escape(value)}\W.*\n", done.stderr), done.stderr


@pytest.mark.parametrize("command", [cli.ab, tune, plan, bench.codec, bench.ps, bench.all_reduce])
def test_every_count_has_a_most(command: Callable[..., None]) -> None:
    hints = get_type_hints(command, include_extras=True)
    counts = {name: hint for name, hint in hints.items() if int in (of := get_args(hint)) or int | None in of}
    assert counts
    assert not [name for name, hint in counts.items() if hint.__metadata__[0].max is None]


def test_a_count_above_the_most_is_refused() -> None:
    for words in (
        ("ab", "-n"),
        ("ab", "--seeds"),
        ("bench", "allreduce", "-n"),
        ("bench", "codec", "--elements"),
    ):
        done = gradwire(*words, "99999999999999")
        assert done.returncode == 2
        assert re.search(rf"{words[-1]}'.*: .*99999999999999\b.*", done.stderr), done.stderr


def test_too_little_memory_is_one_line() -> None:
    words = [
        sys.executable,
        "-m",
        "gradwire.cli",
        "bench",
        "codec",
        "--codec",
        "none",
        "--elements",
        str(2**32),
    ]
    limited = ["sh", "-c", f"ulimit -v 8000000; exec {shlex.join(words)}"]  # kilobytes
    done = subprocess.run(limited, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "gradwire: this machine has too little memory for that (Unable to allocate "
    )
    assert done.stderr.count("\n") == 1


def test_what_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "first"
    done = gradwire("ab", "-n", "1", "--report", str(folder), "--arm", "a", "--arm", "a", "true")
    assert done.returncode == 2
    assert "--arm a is given twice" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_bad_setting_is_one_line_and_2() -> None:
    done = gradwire("run", "-n", "1", "-s", "0", "true", GRADWIRE_STREAMS="none")
    assert done.returncode == 2
    assert done.stderr.startswith("gradwire: settings: GRADWIRE_STREAMS: 'none' is not valid")


@pytest.mark.parametrize(
    "command",
    [
        ["bench", "ps", "--ranks", "1"],
        ["bench", "allreduce", "-n", "2"],
        ["ab", "-n", "1", "--arm", "none", "--report", "page", "--", "true"],
        ["tune", "-n", "1", "--", "true"],
    ],
    ids=lambda command: command[0] + command[1],
)
@pytest.mark.parametrize("setting", ["GRADWIRE_STREAMS=none", "GRADWIRE_INTERFACE=none0"])
def test_a_bad_setting_is_found_before_the_first_of_many_jobs(
    command: list[str], setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, value = setting.partition("=")
    monkeypatch.chdir(tmp_path)
    done = gradwire(*command, **{name: value})
    assert done.returncode == 2
    assert done.stderr.startswith("gradwire: ")
    assert f"{name}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_missing_program_is_one_line_and_1() -> None:
    done = gradwire("run", "-n", "1", "-s", "0", "no-such-program")
    assert done.returncode == 1
    assert done.stderr.startswith("gradwire: run: no-such-program is not a program")


def test_hierarchy_reaches_the_workers_over_the_users_own() -> None:
    show = ("-n", "1", "-s", "0", "sh", "-c", 'echo "$GRADWIRE_HIERARCHY"')
    done = gradwire("run", "--hierarchy", "host", *show, GRADWIRE_HIERARCHY="off")
    assert done.stdout == "[worker 0] host\n"
    assert gradwire("run", *show, GRADWIRE_HIERARCHY="host").stdout == "[worker 0] host\n"
    assert gradwire("run", *show).stdout == "[worker 0] \n"
    assert "'off', 'host'" in gradwire("run", "--hierarchy", "rack", *show).stderr


def test_replicas_reach_the_workers_and_need_another_server() -> None:
    done = gradwire(
        "run", "--replicas", "1", "-n", "2", "-s", "2", "sh", "-c", 'echo "$GRADWIRE_REPLICAS"; exit 3'
    )
    assert "[worker 0] 1\n" in done.stdout
    for words in (["-s", "1"], ["-s", "0"]):
        done = gradwire("run", "-n", "2", *words, "true", GRADWIRE_REPLICAS="1")
        assert done.returncode == 2
        assert "start at least 2 (-s 2)" in done.stderr
    for launcher in ("mpi", "slurm"):
        done = gradwire("run", "-n", "2", "-s", "2", "--launcher", launcher, "--replicas", "1", "true")
        assert done.returncode == 2
        assert f"with --launcher {launcher}, where all processes end" in done.stderr


def test_compression_reaches_the_workers() -> None:
    show = ("-n", "1", "-s", "0", "sh", "-c", 'echo "$GRADWIRE_COMPRESSION"')
    assert gradwire("run", "--compression", "int8", *show).stdout == "[worker 0] int8\n"
    wrong = gradwire("run", "--compression", "int9", *show)
    assert wrong.returncode == 2
    assert "did you mean int8?" in wrong.stderr


def test_env_option_reaches_the_workers() -> None:
    done = gradwire("run", "-n", "1", "-s", "0", "--env", "A=b=c", "sh", "-c", 'echo "$A"')
    assert done.stdout == "[worker 0] b=c\n"


@pytest.mark.parametrize("launcher", ["local", "mpi"])
def test_workers_and_servers_have_variables_of_their_own(launcher: str, tmp_path: Path) -> None:
    if launcher == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    server = tmp_path / "server"
    server.write_text(
        f'#!/bin/sh\necho "$A $B"\nexec {shutil.which("gradwire-server", path=PROGRAMS)} "$@"\n'
    )
    server.chmod(0o755)
    program = "import gradwire, os; gradwire.kv.create('dist_sync').close(); print(os.environ['A'], os.environ['B'])"
    done = gradwire(
        *("run", "-n", "1", "-s", "1", "--launcher", launcher, "--env", "A=all", "--env", "B=all"),
        *("--env-worker", "A:w", "--env-server", "A=s", sys.executable, "-c", program),
        GRADWIRE_SERVER_PROGRAM=str(server),
    )
    assert done.returncode == 0, done.stderr
    assert {"[worker 0] w all", "[server 0] s all", "[scheduler] all all"} <= set(done.stdout.splitlines())


def test_a_dry_run_prints_the_manifest_alone() -> None:
    done = gradwire(
        *("run", "-n", "2", "-s", "1", "--launcher", "kubernetes", "--image", "registry/train:1"),
        *("--memory", "2GiB", "--env", "SAID=a b", "--dry-run", "python", "train.py", "--dry-run"),
    )
    assert done.returncode == 0, done.stderr
    worker = json.loads(done.stdout)["items"][-1]["spec"]["template"]["spec"]["containers"][0]
    assert worker["command"] == ["python", "train.py", "--dry-run"]
    assert worker["resources"]["limits"] == {"memory": str(2 << 30)}
    assert {"name": "SAID", "value": "a b"} in worker["env"]


def test_output_that_the_terminal_cannot_show_does_not_end_the_job() -> None:
    done = gradwire("run", "-n", "1", "-s", "0", "printf", "\\303\\274\\n", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "[worker 0] ?\n")


def test_localhost_hosts_are_accepted() -> None:
    assert gradwire("run", "-n", "2", "-s", "0", "-H", "localhost:2", "true").returncode == 0


@pytest.mark.parametrize(("options", "servers"), [([], 1), (["-s", "0"], 0), (["--launcher", "mpi"], 0)])
def test_the_record_counts_the_servers_that_were_started(options: list[str], servers: int) -> None:
    done = gradwire("run", "-n", "1", *options, "--json", "-", "true")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["servers"] == servers


def test_version_as_json() -> None:
    done = gradwire("version", "--json", "-")
    assert set(json.loads(done.stdout)) == {"version"}


def test_read_hosts(tmp_path: Path) -> None:
    assert read_hosts("a:2, b ,[::1]:3") == [HostSlots("a", 2), HostSlots("b", 1), HostSlots("::1", 3)]
    assert read_hosts("fe80::1") == [HostSlots("fe80::1", 1)]
    file = tmp_path / "hosts"
    file.write_text("# the lab\nnode1 slots=4\nnode2:2  # old\n\nnode3\n")
    assert read_hosts(str(file)) == [HostSlots("node1", 4), HostSlots("node2", 2), HostSlots("node3", 1)]
    with pytest.raises(ValueError, match="names no host"):
        read_hosts(",")
    with pytest.raises(ValueError, match="'0' is not a number of slots"):
        read_hosts("a:0")


@pytest.mark.parametrize(
    ("row", "slots"),
    [
        ("node1\tslots=2", 2),
        ("node1  slots = 2", 2),
        ("node1 slots=1 max-slots=2", 1),
        ("node1 max_slots=4 slots=3", 3),
        ("node1 max-slots=4", 1),
    ],
)
def test_a_row_of_an_open_mpi_hosts_file_is_read(row: str, slots: int, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"{row}\n")
    assert read_hosts(str(file)) == [HostSlots("node1", slots)]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("localhost 2", "run: -H localhost 2: 'localhost 2' is not a host's name: expected host:slots"),
        ("a b:2", "run: -H a b:2: 'a b' is not a host's name"),
        (":2", "run: -H :2: '' is not a host's name"),
        ("a slots=2 port=22", "run: -H a slots=2 port=22: '2 port=22' is not a number of slots"),
        ("a slots=", "run: -H a slots=: '' is not a number of slots"),
    ],
)
def test_a_row_that_is_no_host_is_refused(row: str, text: str, tmp_path: Path) -> None:
    """It was taken as the name of a host, of which nothing was known then."""
    file = tmp_path / "hosts"
    file.write_text(f"node1\n{row}\n")
    for given in (row, str(file)):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
            read_hosts(given)


def test_a_hosts_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes("kön1 slots=2\n".encode("latin-1"))
    with pytest.raises(
        ValueError, match=rf"^run: -H {file} cannot be read \(.*\): expected a text file in UTF-8"
    ):
        read_hosts(str(file))


def test_is_this_machine() -> None:
    assert is_this_machine("localhost")
    assert is_this_machine("127.0.0.3")
    assert is_this_machine("::1")
    assert not is_this_machine("10.1.2.3")
    assert not is_this_machine("node7")
