"""The local process of `gradwire run --launcher kubernetes` for the pods of a role.

It makes the pods, shows what they write, ends with the exit code of the first failure, and deletes them.

    python -m gradwire.launch.clusters.kubernetes_agent '{"selector": ..., "tasks": ...}'
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from gradwire.launch.clusters import agent
from gradwire.launch.clusters.kubernetes import DOCUMENTS, of_namespace

_LOOK_SECONDS = 1.0  # between two looks at the pods
_ASK_SECONDS = 30
_PATIENCE_SECONDS = 60.0  # with an API server that does not answer
_LAST_WORDS_SECONDS = 5.0  # for the log to come to its end once pods have
_INDEX = "batch.kubernetes.io/job-completion-index"
_LINE = re.compile(rb"\[pod/\S+-(\d+)-[^-/\s]+/\S+\] ?(.*)")
# What a pod waits for that does not come by waiting.
_HOPELESS = (
    *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError"),
)


@dataclass(frozen=True)
class PodState:
    """rank: of its role. started: it runs, or has. ended_at: Kubernetes' time; "": it has not. code: its exit code,
    or 0. waits_for: a reason that Kubernetes has a word for, and what it says of it; "": none."""

    rank: int
    started: bool
    ended_at: str
    code: int
    waits_for: str


def read_pod(pod: Mapping[str, Any]) -> PodState:
    """Reads what kubectl says of a pod."""
    status = pod.get("status", {})
    rank = int(pod["metadata"].get("annotations", {}).get(_INDEX, 0))
    container = _state(status.get("containerStatuses", []))
    before = _state(status.get("initContainerStatuses", []))
    ended = container.get("terminated") or (
        before.get("terminated") if status.get("phase") == "Failed" else None
    )
    waiting = before.get("waiting") or container.get("waiting") or {}
    words = " ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    if not words:
        conditions = [row for row in status.get("conditions", []) if row.get("reason") == "Unschedulable"]
        words = next((f"Unschedulable {row.get('message', '')}" for row in conditions), "")
    if ended is None and status.get("phase") == "Failed":  # evicted, or its node is lost
        ended = {"exitCode": 1, "finishedAt": "", "reason": status.get("reason", "Failed")}
    return PodState(
        rank,
        started="running" in container or ended is not None,
        ended_at="" if ended is None else ended.get("finishedAt") or "unknown",
        code=0 if ended is None else int(ended.get("exitCode", 1)),
        waits_for=words,
    )


def _state(containers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the state of the only container: {"running": ...}, {"waiting": ...} or {"terminated": ...}."""
    return containers[0].get("state", {}) if containers else {}


def first_failure(pods: list[PodState]) -> PodState | None:
    """Returns the pod that failed first.

    Kubernetes reports times in seconds. Among failures of the same second, a pod that was asked to end does not count,
    and one with exit code 1 counts last: pods that were notified of another's failure end so.
    """
    failed = [pod for pod in pods if pod.code]
    return min(failed, key=lambda pod: (pod.ended_at, pod.code == 143, pod.code == 1, pod.rank), default=None)


class Pods:
    """The pods of one role of a job."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._where = of_namespace(order["namespace"])
        self._selected = ["--selector", order["selector"]]
        self._heard_at = time.monotonic()
        self._reader: threading.Thread | None = None
        self._said: set[tuple[int, str]] = set()

    def create(self, documents: str) -> int:
        """Makes them. Returns kubectl's exit code."""
        return subprocess.run(
            ["kubectl", "create", *self._where, "--filename", "-"],
            input=documents.encode(),
            stdout=subprocess.DEVNULL,
            check=False,
        ).returncode

    def delete(self) -> None:
        """Deletes the pods and what belongs to them, without waiting."""
        words = ["kubectl", "delete", "jobs,services,secrets", *self._where, *self._selected]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [*words, "--wait=false", "--ignore-not-found"], capture_output=True, timeout=_ASK_SECONDS
            )

    def let_end(self) -> None:
        """Deletes the pods, and waits until they have ended, with their output: they may save."""
        if self._reader is None:  # of deleted pods kubectl has no output
            self.follow(to_the_end=True)
        seconds = self._order["grace_seconds"]
        words = ["kubectl", "delete", "jobs", *self._where, *self._selected, "--ignore-not-found"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [*words, "--cascade=foreground", "--wait=true", f"--timeout={seconds:g}s"],
                capture_output=True,
                timeout=seconds + _ASK_SECONDS,
            )
        self.finish()

    def look(self) -> tuple[list[PodState], str]:
        """Returns the existing pods, and why the Job has failed, if it has.

        Raises: TimeoutError: Kubernetes has not replied for a minute.
        """
        words = ["kubectl", "get", "jobs,pods", *self._where, *self._selected, "--output", "json"]
        try:
            asked = subprocess.run(words, capture_output=True, timeout=_ASK_SECONDS, check=False)
            error, answer = asked.stderr.decode(errors="replace").strip(), asked.stdout
            items = json.loads(answer)["items"] if asked.returncode == 0 else None
        except (subprocess.TimeoutExpired, ValueError, KeyError) as failure:
            error, items = str(failure), None
        if items is None:
            if time.monotonic() - self._heard_at > _PATIENCE_SECONDS:
                raise TimeoutError(f"kubectl get has failed for {_PATIENCE_SECONDS:g} s: {error}")
            return [], ""
        self._heard_at = time.monotonic()
        conditions = [row for item in items for row in item.get("status", {}).get("conditions", [])]
        failed = [row for row in conditions if row.get("type") == "Failed" and row.get("status") == "True"]
        why = f"{failed[0].get('reason', '')}: {failed[0].get('message', '')}" if failed else ""
        return [read_pod(item) for item in items if item["kind"] == "Pod"], why

    def follow(self, to_the_end: bool) -> None:
        """Starts to pass on the pods' output. to_the_end: also what is still to come. A second call continues from now
        on.
        """
        words = ["kubectl", "logs", *self._where, *self._selected, "--container", self._order["role"]]
        words += ["--prefix", "--tail=-1", "--ignore-errors", f"--max-log-requests={self._order['tasks']}"]
        words += ["--follow"] if to_the_end else []
        if self._reader is not None:
            words.append(f"--since-time={datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}")
        log = subprocess.Popen(words, stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def _read(self, log: subprocess.Popen[bytes]) -> None:
        assert log.stdout is not None
        for line in log.stdout:
            told = _LINE.fullmatch(line.rstrip(b"\n"))
            rank = int(told[1]) if told is not None and self._order["role"] != "scheduler" else None
            agent.write_line(1, rank, line if told is None else told[2])

    def finish(self) -> None:
        """Passes on the pods' last output."""
        if self._reader is None:
            self.follow(to_the_end=False)
        assert self._reader is not None
        self._reader.join(_LAST_WORDS_SECONDS)

    def watch(self) -> int:
        """Waits until all pods have ended, or the others have had their time after the first failure. Returns its exit
        code.
        """
        first, until = 0, float("inf")
        while True:
            pods, why = self.look()
            self._go_on_following(pods)
            if not first and (failed := first_failure(pods)):
                first, until = failed.code, time.monotonic() + self._order["notice_seconds"]
                agent.say(f"rank {failed.rank} ended with exit code {first}")
            if not first and (why or self._is_hopeless(pods)):
                agent.say(why or "it would wait forever")
                return 1
            if sum(bool(pod.ended_at) for pod in pods) == self._order["tasks"] or time.monotonic() > until:
                return first
            time.sleep(_LOOK_SECONDS)

    def _go_on_following(self, pods: list[PodState]) -> None:
        """Follows the pods once all have started, and again when kubectl was cut off, as happens after some hours."""
        running = [pod for pod in pods if pod.started and not pod.ended_at]
        if self._reader is None:
            if sum(pod.started for pod in pods) == self._order["tasks"]:
                self.follow(to_the_end=True)
        elif running and not self._reader.is_alive():
            self.follow(to_the_end=True)

    def _is_hopeless(self, pods: list[PodState]) -> bool:
        """Reports what pods wait for, each reason once. Returns True if one of them waits in vain."""
        waiting = [pod for pod in pods if not pod.started and pod.waits_for]
        for pod in waiting:
            reason = pod.waits_for.split()[0]
            if (pod.rank, reason) not in self._said and reason not in (
                "ContainerCreating",
                "PodInitializing",
            ):
                self._said.add((pod.rank, reason))
                agent.say(f"rank {pod.rank} waits: {pod.waits_for}")
        return any(pod.waits_for.split()[0] in _HOPELESS for pod in waiting)


def main(order: Mapping[str, Any]) -> int:
    pods = Pods(order)
    with agent.cancelled_at_the_end(pods.delete):
        if code := pods.create(os.environ.pop(DOCUMENTS)):
            return code
        if "announce" in order:
            os.write(order["announce"], f"{order['endpoint']}\n".encode())
            os.close(order["announce"])
        try:
            code = pods.watch()
        except TimeoutError as error:
            agent.say(str(error))
            code = 1
        except SystemExit:  # we were asked to end
            if order["role"] == "worker":
                pods.let_end()
            raise
        pods.finish()
        return code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
