"""What ssh runs on a host for each process of a job: starts the process, and ends it when the connection ends.

A killed ssh leaves its remote process running. So the launcher keeps stdin open for the life of the job. The first line
is the order. Each further line is the number of a signal for the process. The end of stdin ends the process and its
descendants.

It runs alone on a host that may not have gradwire (bundle.py): it needs the standard library and supervised_process.py.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from gradwire.launch.remote.supervised_process import SupervisedProcess


def start(order: dict[str, Any]) -> SupervisedProcess:
    """order: "folder", "environment" (over this host's own), "command"; "greeting" (a line to write first) may be left
    out."""
    if "greeting" in order:
        os.write(1, f"{order['greeting']}\n".encode())
    os.chdir(order["folder"])
    return SupervisedProcess(order["command"], env={**os.environ, **order["environment"]})


def end_with_the_connection(kept: SupervisedProcess) -> None:
    rest = b""
    while data := os.read(0, 4096):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            kept.hand_on(int(line))
    kept.end()


def main() -> int:
    order = b""
    while not order.endswith(b"\n"):  # not sys.stdin: its buffer would hide the end from the thread
        order += os.read(0, 1) or b"\n"
    try:
        kept = start(json.loads(order))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gradwire: {os.uname().nodename}: {error}\n")
        return 127
    threading.Thread(target=end_with_the_connection, args=(kept,), daemon=True).start()
    return kept.wait()


if __name__ == "__main__":
    sys.exit(main())
