"""What ssh runs on a host for each process of a job: starts it, and ends it when the connection ends.

ssh leaves what it has started running when it is killed. So the launcher's end of stdin is held open for the life of
the job: its first line is the order, and its end, whatever brings it about, is that of the process and all it started.

Runs by itself on a host that may not have gradwire: only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

GRACE_SECONDS = 1.5  # between SIGTERM and SIGKILL; less than the launcher's own


def start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """order: "folder", "environment" (over this host's own), "command"."""
    os.chdir(order["folder"])
    environment = {**os.environ, **order["environment"]}
    return subprocess.Popen(
        order["command"], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )


def signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def end_with_the_connection(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    signal_group(child, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    signal_group(child, signal.SIGKILL)


def main() -> int:
    order = b""
    while not order.endswith(b"\n"):  # not sys.stdin: its buffer would hide the end from the thread
        order += os.read(0, 1) or b"\n"
    try:
        child = start(json.loads(order))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gradwire: {os.uname().nodename}: {error}\n")
        return 127
    threading.Thread(target=end_with_the_connection, args=(child,), daemon=True).start()
    code = child.wait()
    signal_group(child, signal.SIGKILL)  # what it started and left behind
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
