"""Builds ps_lite.cc against a checkout of ps-lite, and runs its rounds in a lab: a worker and a server on each host."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwire.netlab import NetLab

HERE = Path(__file__).resolve().parent
KEY_BYTES = {"keys of 4 MB": 4_096_000, "keys of 1 MiB": 2**20}  # BytePS's default, and gradwire's
_DEADLINE_SECONDS = 120.0
_PORT = 9091
_SOURCES = ("src/customer.cc", "src/postoffice.cc", "src/van.cc")


def build(checkout: Path, folder: Path) -> Path:
    """Returns the program, which it leaves in the folder.

    Raises:
        SystemExit: there is no ps-lite in `checkout`.
    """
    if not (checkout / "src" / "meta.proto").exists():
        raise SystemExit(
            f"no ps-lite in {checkout}: --ps-lite takes a checkout of https://github.com/dmlc/ps-lite"
        )
    subprocess.run(
        ["protoc", f"--proto_path={checkout / 'src'}", f"--cpp_out={folder}", "meta.proto"], check=True
    )
    program = folder / "ps_lite"
    command = ["g++", "-std=c++17", "-O3", "-march=native", "-w", f"-I{checkout / 'include'}", f"-I{folder}"]
    command += [str(checkout / source) for source in _SOURCES]
    command += [str(folder / "meta.pb.cc"), str(HERE / "ps_lite.cc"), "-o", str(program)]
    subprocess.run([*command, "-lzmq", "-lprotobuf", "-lpthread"], check=True)
    return program


def run(
    program: Path, ranks: int, bandwidth: str, gradient_bytes: int, key_bytes: int, rounds: int
) -> list[str]:
    """Returns what each worker and server has printed: a line of JSON for each round."""
    with NetLab(hosts=ranks, bandwidth=bandwidth) as lab, tempfile.TemporaryDirectory() as folder:
        shared = {
            "DMLC_PS_ROOT_URI": lab.host(0).address,
            "DMLC_PS_ROOT_PORT": str(_PORT),
            "DMLC_NUM_WORKER": str(ranks),
            "DMLC_NUM_SERVER": str(ranks),
        }
        places = [("scheduler", 0)]
        places += [(role, host) for host in range(ranks) for role in ("server", "worker")]
        jobs = []
        for index, (role, host) in enumerate(places):
            own = {"DMLC_ROLE": role, "DMLC_NODE_HOST": lab.host(host).address}
            with Path(folder, str(index)).open("w") as output:
                command = [str(program), str(gradient_bytes), str(key_bytes), str(rounds)]
                jobs.append(lab.host(host).popen(command, env=os.environ | shared | own, stdout=output))
        await_all(jobs)
        return [Path(folder, str(index)).read_text() for index in range(1, len(places))]


def await_all(jobs: Sequence[subprocess.Popen[Any]]) -> None:
    """Waits for their ends.

    Raises:
        SystemExit: one failed, or the deadline has passed.
    """
    last = time.monotonic() + _DEADLINE_SECONDS
    while None in (codes := [job.poll() for job in jobs]) and not any(codes) and time.monotonic() < last:
        time.sleep(0.05)
    if any(code != 0 for code in codes):
        raise SystemExit(f"ps_lite: exit codes of the scheduler, servers and workers: {codes}")
