"""What tests put on PATH as kubectl where there is no cluster: the few commands that gradwire gives, over a folder.

It is no Kubernetes. Objects are checked against Kubernetes' own schemas and kept as files; a pod is a process of this
machine that runs its containers as the documentation says ($(NAME), $$, fieldRef, secretKeyRef, initContainers,
backoffLimit 0), and a Service is an address in the place of its name.

    KUBECTL_HERE=FOLDER python kubectl_here.py create|get|logs|delete|auth ...
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["KUBECTL_HERE"])
INDEX = "batch.kubernetes.io/job-completion-index"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("create", "get", "logs", "delete", "auth", "run-pod"))
    parser.add_argument("words", nargs="*")
    for flag in (
        "--namespace",
        "--filename",
        "--selector",
        "--output",
        "--max-log-requests",
        "--tail",
        "--container",
        "--since-time",
        "--timeout",
    ):
        parser.add_argument(flag)
    parser.add_argument("--wait", choices=("true", "false"))
    parser.add_argument("--cascade", choices=("foreground",))
    for flag in ("--prefix", "--ignore-errors", "--ignore-not-found", "--follow"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    with (FOLDER / "commands").open("a") as file:
        file.write(f"{' '.join(sys.argv[1:])}\n")
    commands = {
        "create": create,
        "get": get,
        "logs": logs,
        "delete": delete,
        "auth": lambda _: 0,
        "run-pod": run_pod,
    }
    return commands[given.verb](given)


# Objects


def create(given: argparse.Namespace) -> int:
    import kubernetes_validate

    for item in json.load(sys.stdin)["items"]:
        try:
            kubernetes_validate.validate(item, "1.30", strict=True)
        except kubernetes_validate.ValidationError as error:
            sys.stderr.write(f"The {item['kind']} is invalid: {error}\n")
            return 1
        keep(item)
        if item["kind"] == "Job":
            for index in range(item["spec"]["completions"]):
                start(item, index)
    return 0


def keep(item: dict[str, Any]) -> None:
    path = FOLDER / f"{item['kind']}-{item['metadata']['name']}.json"
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(item))
    whole.rename(path)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One at a time: what is deleted, nobody may write again."""
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kept(kind: str, selector: str) -> list[dict[str, Any]]:
    wanted = dict(row.split("=") for row in selector.split(","))
    items = [json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"{kind}-*.json"))]
    return [item for item in items if wanted.items() <= item["metadata"]["labels"].items()]


def get(given: argparse.Namespace) -> int:
    assert (given.words, given.output) == (["jobs,pods"], "json")
    with locked():
        pods, jobs = kept("Pod", given.selector), kept("Job", given.selector)
    for job in jobs:
        failed = any(pod["status"]["phase"] == "Failed" for pod in pods)
        row = {
            "type": "Failed",
            "status": "True",
            "reason": "BackoffLimitExceeded",
            "message": "as asked for",
        }
        job["status"] = {"conditions": [row] if failed else []}
    json.dump({"items": jobs + pods}, sys.stdout)
    return 0


def logs(given: argparse.Namespace) -> int:
    assert given.prefix
    assert given.tail == "-1"
    assert given.container, "with init containers kubectl would choose one, and say so"
    with locked():
        pods = kept("Pod", given.selector)
    assert len(pods) <= int(given.max_log_requests)
    files = {pod["metadata"]["name"]: (FOLDER / f"{pod['metadata']['name']}.log").open("rb") for pod in pods}
    while True:
        with locked():
            now = kept("Pod", given.selector)
        over = not given.follow or all(pod["status"]["phase"] != "Running" for pod in now)
        for name, file in files.items():
            for line in file.readlines():
                sys.stdout.buffer.write(b"[pod/%s/container] %s\n" % (name.encode(), line.rstrip(b"\n")))
        sys.stdout.flush()
        if over:
            return 0
        time.sleep(0.05)


def delete(given: argparse.Namespace) -> int:
    """With --cascade=foreground objects are there until their pods have ended."""
    assert given.words in (["jobs,services,secrets"], ["jobs"])
    waits = given.wait == "true"
    assert waits == (given.cascade == "foreground"), "else kubectl waits for no pod"
    with locked():
        pods = kept("Pod", given.selector)
        others = [item for kind in ("Job", "Service", "Secret") for item in kept(kind, given.selector)]
        items = [
            item for item in others + pods if f"{item['kind'].lower()}s" in given.words[0] or item in pods
        ]
        if not waits:
            unlink(items)
    kubelets = [pod["kubelet"] for pod in pods if "kubelet" in pod]
    for kubelet in kubelets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(kubelet, signal.SIGTERM)
    if waits:
        until = time.monotonic() + float(given.timeout.removesuffix("s"))
        while any(Path(f"/proc/{kubelet}").exists() for kubelet in kubelets) and time.monotonic() < until:
            time.sleep(0.02)
        with locked():
            unlink(items)
    return 0


def unlink(items: list[dict[str, Any]]) -> None:
    for item in items:
        (FOLDER / f"{item['kind']}-{item['metadata']['name']}.json").unlink(missing_ok=True)


# Pods


def start(job: dict[str, Any], index: int) -> None:
    name = f"{job['metadata']['name']}-{index}-x{os.getpid()}"
    template = job["spec"]["template"]
    metadata = {"name": name, "labels": template["metadata"]["labels"], "annotations": {INDEX: str(index)}}
    (FOLDER / f"{name}.log").touch()
    pod = {"kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
    keep(pod)
    kubelet = subprocess.Popen(
        [sys.executable, __file__, "run-pod", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    keep(pod | {"kubelet": kubelet.pid})


def run_pod(given: argparse.Namespace) -> int:
    name = given.words[0]
    path = FOLDER / f"Pod-{name}.json"
    while "kubelet" not in (pod := json.loads(path.read_text())):
        time.sleep(0.02)
    running: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: end(running, pod["spec"]["terminationGracePeriodSeconds"]))
    codes: list[int] = []
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        report(pod, path, "Running", {"running": {}})
        with (FOLDER / f"{name}.log").open("ab") as log:
            running.append(run(container, pod, log))
            code = running[-1].wait()
        codes.append(code if code >= 0 else 128 - code)
        if codes[-1]:
            break
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    ended = {"terminated": {"exitCode": codes[-1], "finishedAt": now}}
    report(pod, path, "Failed" if codes[-1] else "Succeeded", ended)
    return 0


def report(pod: dict[str, Any], path: Path, phase: str, state: dict[str, Any]) -> None:
    with locked():
        if path.exists():  # else it is deleted
            keep(pod | {"status": {"phase": phase, "containerStatuses": [{"state": state}]}})


def has_ended(pid: int) -> bool:
    """For a signal's handler, where Popen.poll() says no for ever: what it interrupted may be a wait for it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def end(running: list[subprocess.Popen[bytes]], grace: float) -> None:
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    until = time.monotonic() + grace
    while time.monotonic() < until and not all(has_ended(process.pid) for process in running):
        time.sleep(0.02)
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    os._exit(0)


def run(container: dict[str, Any], pod: dict[str, Any], log: Any) -> subprocess.Popen[bytes]:
    environment: dict[str, str] = {}
    for row in container.get("env", []):
        environment[row["name"]] = value_of(row, pod, environment)
    words = [expanded(word, environment) for word in container["command"]]
    image = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    return subprocess.Popen(
        words,
        env=image | environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def value_of(row: dict[str, Any], pod: dict[str, Any], environment: dict[str, str]) -> str:
    if "value" in row:
        return expanded(row["value"], environment)
    if secret := row["valueFrom"].get("secretKeyRef"):
        return str(
            json.loads((FOLDER / f"Secret-{secret['name']}.json").read_text())["stringData"][secret["key"]]
        )
    path = row["valueFrom"]["fieldRef"]["fieldPath"]
    if path == "status.podIP":
        labels = pod["metadata"]["labels"].items()
        rows = [json.loads(file.read_text()) for file in FOLDER.glob("Service-*.json")]
        (name,) = [row["metadata"]["name"] for row in rows if row["spec"]["selector"].items() <= labels]
        return address_of(name)
    assert path == f"metadata.annotations['{INDEX}']", path
    return str(pod["metadata"]["annotations"][INDEX])


def expanded(text: str, environment: dict[str, str]) -> str:
    """As k8s.io/kubernetes/third_party/forked/golang/expansion; then a Service's name is its pod's address."""

    def of(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    text = re.sub(r"\$\$|\$\(([^)]*)\)", of, text)
    for path in FOLDER.glob("Service-*.json"):
        name = path.stem.removeprefix("Service-")
        text = text.replace(name, address_of(name))
    return text


def address_of(service: str) -> str:
    """Of the pod behind a Service: a loopback address of its own, since all jobs of this machine, whatever test they
    are of, have the same port."""
    digest = hashlib.sha256(f"{FOLDER} {service}".encode()).digest()
    return f"127.{64 + digest[0] % 128}.{digest[1]}.{1 + digest[2] % 254}"


if __name__ == "__main__":
    sys.exit(main())
