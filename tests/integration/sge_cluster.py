"""A Grid Engine of one execution host on this machine: its daemons as ordinary processes, with ports and a cell of
their own, whose configuration is the package's own but for what is said here."""

from __future__ import annotations

import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradwire.launch.rendezvous import free_port
from integration import daemons
from integration.daemons import ask, daemon, wait_for

PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qdel", "qconf", "qstat")
SHARED = Path("/usr/share/gridengine")
TOOLS = Path("/usr/lib/gridengine")
SLOTS = 64
"""Said to Grid Engine, whatever the machine has: jobs of the tests wait for each other's time, not for processors."""
# What a queue has beside a name, hosts and slots: no limit, and nothing of its own.
LIMITS = ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")
LISTS = (
    *("ckpt_list", "pe_list", "user_lists", "xuser_lists", "owner_list", "subordinate_list", "projects"),
    *("xprojects", "calendar", "complex_values", "load_thresholds", "suspend_thresholds", "prolog", "epilog"),
    *("starter_method", "suspend_method", "resume_method", "terminate_method"),
)


def why_not() -> str | None:
    """Returns why no Grid Engine can be started here; None: it can."""
    return daemons.why_not(PROGRAMS, "gridengine-master, gridengine-exec and gridengine-client", "sge_execd")


@dataclass(frozen=True)
class Cluster:
    """queue: its only one. environment: what its clients need."""

    queue: str
    environment: dict[str, str]


@contextmanager
def sge_cluster() -> Iterator[Cluster]:
    """Starts it, and ends its daemons."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sge-")))
        folder.chmod(0o755)
        environment = {
            "SGE_ROOT": str(folder),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(free_port("127.0.0.1")),
            "SGE_EXECD_PORT": str(free_port("127.0.0.1")),
        }
        host = socket.gethostname()
        _make_cell(folder, host, environment)
        here = environment | {"SGE_ND": "1"}  # they stay in the foreground
        stack.enter_context(daemon(folder, here, "sge_qmaster"))
        wait_for(lambda: ask(environment, "qconf", "-sh").returncode == 0, folder, "Grid Engine")
        _make_queue(folder, host, environment)
        stack.enter_context(daemon(folder, here, "sge_execd"))
        wait_for(lambda: _is_idle(environment), folder, "Grid Engine")
        yield Cluster("all.q", environment)


def _make_cell(folder: Path, host: str, environment: dict[str, str]) -> None:
    common, spool = folder / "default" / "common", folder / "spool"
    for path in (common, spool / "qmaster" / "job_scripts", spool / "execd"):
        path.mkdir(parents=True)
    (folder / "util").symlink_to(SHARED / "util")
    (common / "act_qmaster").write_text(f"{host}\n")
    (common / "host_aliases").write_text(f"{host} localhost\n")
    parameters = f"{common};{spool}/qmaster"
    (common / "bootstrap").write_text(f"""\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {parameters}
binary_path {TOOLS}
qmaster_spool_dir {spool}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
""")
    own = {"execd_spool_dir": f"{spool}/execd", "min_uid": "0", "min_gid": "0", "administrator_mail": "none"}
    (folder / "configuration").write_text(_with((SHARED / "default-configuration").read_text(), own))
    for words in (
        ("spoolinit", "classic", "libspoolc", parameters, "init"),
        ("spooldefaults", "configuration", f"{folder}/configuration"),
        ("spooldefaults", "complexes", f"{SHARED}/util/resources/centry"),
        ("spooldefaults", "usersets", f"{SHARED}/util/resources/usersets"),
        ("spooldefaults", "managers", "root"),
    ):
        _do(environment, str(TOOLS / words[0]), *words[1:])


def _make_queue(folder: Path, host: str, environment: dict[str, str]) -> None:
    rows = {
        "qname": "all.q",
        "hostlist": host,
        "slots": str(SLOTS),
        "qtype": "BATCH",
        "shell": "/bin/sh",
        "shell_start_mode": "posix_compliant",
        "tmpdir": "/tmp",
        "rerun": "FALSE",
        "seq_no": "0",
        "priority": "0",
        "nsuspend": "1",
        "suspend_interval": "00:05:00",
        "min_cpu_interval": "00:05:00",
        "notify": "00:00:60",
        "processors": "UNDEFINED",
        "initial_state": "default",
        **dict.fromkeys(LISTS, "NONE"),
        **{f"{kind}_{name}": "INFINITY" for kind in "sh" for name in LIMITS},
    }
    (folder / "queue").write_text("".join(f"{name} {text}\n" for name, text in rows.items()))
    _do(environment, "qconf", "-as", host)
    _do(environment, "qconf", "-Aq", str(folder / "queue"))
    soon = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
    (folder / "scheduler").write_text(_with(_do(environment, "qconf", "-ssconf"), soon))
    _do(environment, "qconf", "-Msconf", str(folder / "scheduler"))


def _with(text: str, rows: dict[str, str]) -> str:
    """A configuration with some rows of "name  value" changed."""
    for name, value in rows.items():
        text, changed = re.subn(rf"(?m)^{name}\s.*$", f"{name} {value}", text)
        assert changed == 1, f"{name} in {text}"
    return text


def _do(environment: dict[str, str], *words: str) -> str:
    done = ask(environment, *words)
    assert done.returncode == 0, f"{words} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def _is_idle(environment: dict[str, str]) -> bool:
    """Whether the queue has a load, which says that its host is heard of, and no state, which would be a bad one."""
    row = re.search(r"^all\.q@.*$", ask(environment, "qstat", "-f").stdout, re.MULTILINE)
    return row is not None and len(row[0].split()) == 5 and "-NA-" not in row[0]
