"""`gradwire run --launcher kubernetes`: its manifest against Kubernetes' own schemas, and what is made of what kubectl
says. Without Kubernetes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from gradwire.launch import launchers
from gradwire.launch.clusters import kubernetes_agent
from gradwire.launch.clusters.kubernetes import DOCUMENTS
from gradwire.launch.clusters.kubernetes_agent import Pods, PodState, first_failure, read_pod
from python.prepared_jobs import request

VERSIONS = ("1.28", "1.30", "1.33", "1.37")  # of Kubernetes; the index of a pod is an annotation since 1.21


def of_kubernetes(**options: Any) -> launchers.Request:
    given = {"command": ["python", "train.py"], "workers": 3, "servers": 2, "image": "registry/image:1"}
    return request("kubernetes", **(given | options))


def items(**options: Any) -> dict[str, dict[str, Any]]:
    """The documents of a manifest by the ends of their names, a Secret's and a Service's kinds in front."""
    found = json.loads(launchers.manifest(of_kubernetes(**options)))
    assert (found["apiVersion"], found["kind"]) == ("v1", "List")
    return {f"{item['kind']} {item['metadata']['name'].rpartition('-')[2]}": item for item in found["items"]}


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_documents_are_what_kubernetes_takes(version: str) -> None:
    made = items(env={"A": "$b"}, namespace="ml", cores=2, memory=4_000_000_000)
    assert list(made) == [
        *("Secret scheduler", "Service scheduler", "Job scheduler", "Job server", "Job worker"),
    ]
    for item in made.values():
        kubernetes_validate.validate(item, version, strict=True)


def test_workers_and_servers_get_what_is_asked_for() -> None:
    made = items(cores=2, memory=4_000_000_000)
    asked = {"requests": {"cpu": "2", "memory": "4000000000"}, "limits": {"memory": "4000000000"}}
    assert container(made["Job worker"])["resources"] == container(made["Job server"])["resources"] == asked
    assert "resources" not in container(made["Job scheduler"])
    assert container(items(cores=2)["Job worker"])["resources"] == {"requests": {"cpu": "2"}}
    assert "resources" not in container(items()["Job worker"])


def test_the_schemas_find_a_wrong_document() -> None:
    wrong = items()["Job worker"]
    wrong["spec"]["completion"] = 3
    with pytest.raises(kubernetes_validate.ValidationError, match="completion"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_first_pod_that_fails_ends_a_role_and_ranks_are_indices() -> None:
    made = items()
    for role, count in (("scheduler", 1), ("server", 2), ("worker", 3)):
        spec = made[f"Job {role}"]["spec"]
        assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", count, count)
        assert spec["backoffLimit"] == 0
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        assert "activeDeadlineSeconds" not in spec
    rank = container(made["Job worker"])["env"][0]
    assert rank["name"] == "GRADWIRE_RANK"
    assert rank["valueFrom"]["fieldRef"]["fieldPath"].endswith("['batch.kubernetes.io/job-completion-index']")
    assert container(made["Job server"])["command"][-2:] == ["--rank", "$(GRADWIRE_RANK)"]


def test_pods_find_the_scheduler_by_the_name_of_its_service() -> None:
    made = items()
    service = made["Service scheduler"]
    assert service["spec"]["clusterIP"] == "None"
    labels = made["Job scheduler"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    scheduler = container(made["Job scheduler"])["command"]
    assert scheduler[scheduler.index("--scheduler") + 1] == "tcp://$(GRADWIRE_POD_ADDRESS):9091"
    endpoint = f"tcp://{service['metadata']['name']}:9091"
    server = container(made["Job server"])["command"]
    assert server[server.index("--scheduler") + 1] == endpoint
    assert {"name": "GRADWIRE_SCHEDULER", "value": endpoint} in container(made["Job worker"])["env"]


def test_the_key_is_in_the_secret_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = items(env={"MINE": "m"})
    key = made.pop("Secret scheduler")["stringData"]["job-key"]
    assert len(key) == 128
    assert key not in json.dumps(made)
    for role in ("scheduler", "server", "worker"):
        (row,) = [row for row in container(made[f"Job {role}"])["env"] if row["name"] == "GRADWIRE_JOB_KEY"]
        assert row["valueFrom"]["secretKeyRef"]["key"] == "job-key"
    job = launchers._kubernetes_job(of_kubernetes(env={"MINE": "m"}))
    processes = [job.scheduler(5), *job.processes("")]
    for process in processes:
        assert job.environment["GRADWIRE_JOB_KEY"] not in " ".join(process.command)
        assert json.loads(process.environment[DOCUMENTS])["items"]


@pytest.mark.parametrize("where", ["environment", "--env"])
def test_empty_settings_count_as_unset(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers and workers, which a queue may part, waited for each other for a minute alone."""
    empty = dict.fromkeys(
        ("GRADWIRE_PLACEMENT", "GRADWIRE_REPLICAS", "GRADWIRE_TIMELINE", "GRADWIRE_RENDEZVOUS_TIMEOUT"), ""
    )
    if where == "environment":
        for name in empty:
            monkeypatch.setenv(name, "")
    made = items(env=empty if where == "--env" else {})
    day = {"name": "GRADWIRE_RENDEZVOUS_TIMEOUT", "value": "86400s"}
    assert day in container(made["Job worker"])["env"]
    server = container(made["Job server"])["command"]
    assert server[server.index("--rendezvous-timeout") + 1] == "86400"


def test_a_job_that_is_not_encrypted_has_no_secret() -> None:
    made = items(env={"GRADWIRE_ENCRYPT": "off"})
    assert "Secret scheduler" not in made
    assert "secretKeyRef" not in json.dumps(made)


def test_words_stay_what_they_are_and_this_machines_own_business_stays_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("PYTHONPATH", "/here")
    monkeypatch.setenv("GRADWIRE_HOST_ID", "here")
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "2bit")
    worker = container(items(command=["sh", "-c", "echo $A $(A)"], env={"A": "$(PATH)"})["Job worker"])
    assert worker["command"] == ["sh", "-c", "echo $$A $$(A)"]
    values = {row["name"]: row.get("value") for row in worker["env"]}
    assert values["A"] == "$$(PATH)"
    assert values["GRADWIRE_COMPRESSION"] == "2bit"
    assert not {"PATH", "PYTHONPATH", "SECRET", "GRADWIRE_HOST_ID", "OMP_NUM_THREADS"} & set(values)
    assert values["GRADWIRE_RENDEZVOUS_TIMEOUT"] == "86400s", "pods may wait for machines"


def pod(index: int, phase: str, state: dict[str, Any], **status: Any) -> dict[str, Any]:
    """As the API describes it: core/v1 PodStatus, ContainerState."""
    annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
    rows = {
        "phase": phase,
        "containerStatuses": [{"name": "worker", "state": state}] if state else [],
        **status,
    }
    return {"kind": "Pod", "metadata": {"annotations": annotations}, "status": rows}


def ended(code: int, at: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": at}}


def test_what_kubernetes_says_of_pods() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    states = [
        read_pod(pod(0, "Pending", {}, conditions=[{"reason": "Unschedulable", "message": "0/3 nodes"}])),
        read_pod(pod(1, "Pending", waiting)),
        read_pod(pod(2, "Running", {"running": {}})),
        read_pod(pod(3, "Succeeded", ended(0, "t"))),
        read_pod(pod(4, "Failed", {}, reason="Evicted")),
        read_pod(
            pod(
                5,
                "Failed",
                {"waiting": {"reason": "PodInitializing"}},
                initContainerStatuses=[{"state": ended(3, "t")}],
            )
        ),
    ]
    assert [state.rank for state in states] == [*range(6)]
    assert [state.started for state in states] == [False, False, True, True, True, True]
    assert [bool(state.ended_at) for state in states] == [False, False, False, True, True, True]
    assert [state.code for state in states] == [0, 0, 0, 0, 1, 3]
    assert [state.waits_for for state in states[:3]] == [
        *("Unschedulable 0/3 nodes", "ImagePullBackOff no such image", "")
    ]


def test_a_pod_that_waits_in_vain_ends_the_wait_and_each_reason_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    order = {"namespace": None, "selector": "a=b", "tasks": 2, "role": "worker", "notice_seconds": 1}
    pods = Pods(order)
    creating = pod(0, "Pending", {"waiting": {"reason": "ContainerCreating"}})
    unplaced = pod(1, "Pending", {}, conditions=[{"reason": "Unschedulable", "message": "0/3 nodes"}])
    no_image = pod(1, "Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    looks = [[creating, unplaced], [creating, unplaced], [creating, no_image]]
    monkeypatch.setattr(pods, "look", lambda: ([*map(read_pod, looks.pop(0))], ""))
    monkeypatch.setattr(kubernetes_agent, "_LOOK_SECONDS", 0.0)
    assert pods.watch() == 1
    assert looks == []
    told = capfd.readouterr().err
    assert told.count("rank 1 waits: Unschedulable 0/3 nodes\n") == 1
    assert "rank 1 waits: ImagePullBackOff no such image\n" in told
    assert "rank 0" not in told


def test_a_log_that_is_cut_off_is_followed_again_from_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    order = {"namespace": None, "selector": "a=b", "tasks": 1, "role": "worker", "notice_seconds": 1}
    pods = Pods(order)
    running, over = (
        [read_pod(pod(0, "Running", {"running": {}}))],
        [read_pod(pod(0, "Succeeded", ended(0, "t")))],
    )
    looks = [running, running, over]

    def look() -> tuple[list[PodState], str]:
        if pods._reader is not None:
            pods._reader.join(300)
        return looks.pop(0), ""

    monkeypatch.setattr(pods, "look", look)
    monkeypatch.setattr(kubernetes_agent, "_LOOK_SECONDS", 0.0)
    assert pods.watch() == 0
    pods.finish()
    first, second = (tmp_path / "told").read_text().splitlines()
    assert first.endswith("--follow")
    assert "--since-time=20" in second


def test_the_first_that_failed_counts_and_not_who_was_ended_for_it() -> None:
    at, later = "2026-01-01T00:00:05Z", "2026-01-01T00:00:06Z"
    rows = [(0, 143, at), (1, 1, at), (2, 137, at), (3, 7, later)]
    states = [read_pod(pod(index, "Failed", ended(code, when))) for index, code, when in rows]
    first = first_failure(states)
    assert first is not None
    assert (first.rank, first.code) == (2, 137)
    assert first_failure([read_pod(pod(0, "Running", {"running": {}}))]) is None


def test_a_dry_run_of_another_launcher_is_refused() -> None:
    with pytest.raises(
        ValueError, match="--dry-run shows the manifest of --launcher kubernetes; ssh has none"
    ):
        launchers.manifest(request("ssh"))
