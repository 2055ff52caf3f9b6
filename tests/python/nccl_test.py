"""Which GPU a process takes for NCCL, and how several processes may share one. No GPU is needed here."""

from __future__ import annotations

from typing import Any

import pytest
from gradwire import _core
from gradwire.settings import definitions as settings
from gradwire.settings.definitions import Settings
from gradwire.stores import connect as joining
from gradwire.stores import nccl


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    build = _core.build_info() | {"cuda_devices": count}
    monkeypatch.setattr(_core, "build_info", lambda: build)


@pytest.mark.parametrize(
    ("values", "gpus", "device"),
    [
        (Settings(), 2, None),  # the rank decides, once there is one
        (Settings(local_rank=3), 2, 1),
        (Settings(local_rank=3), 1, 0),
        (Settings(local_rank=3), 0, 0),  # NCCL then says that there is no GPU
        (Settings(local_rank=3, device=5), 2, 5),
    ],
)
def test_a_process_takes_its_gpu_by_its_local_rank(
    values: Settings, gpus: int, device: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(monkeypatch, gpus)
    assert nccl.device(values) == device


def joined(monkeypatch: pytest.MonkeyPatch, **given: str) -> tuple[Any, ...]:
    """Returns what a worker of a job over NCCL asks of the core."""
    asked: list[tuple[Any, ...]] = []

    def connect(*arguments: Any, **options: Any) -> None:
        asked.append(arguments)

    with_gpus(monkeypatch, 1)
    monkeypatch.setattr(nccl, "why_not", lambda: None)
    monkeypatch.setattr(_core, "connect_nccl", connect)
    environment = {"GRADWIRE_RANK": "1", "GRADWIRE_NUM_WORKERS": "2", "GRADWIRE_MASTER": "tcp://127.0.0.1:9"}
    joining._STORES["nccl"](settings.read(environment | given), "nccl")
    return asked[0]


def test_gpus_are_shared_only_where_the_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    nccl._common_host_id.cache_clear()
    assert joined(monkeypatch, LOCAL_RANK="1")[2:] == (0, False)
    assert "NCCL_HOSTID" not in nccl.os.environ
    monkeypatch.setenv("NCCL_HOSTID", "machine7")  # and is put back afterwards
    assert joined(monkeypatch, LOCAL_RANK="1", GRADWIRE_NCCL_SHARE_GPU="on")[2:] == (0, True)
    first = nccl.os.environ["NCCL_HOSTID"]
    assert first.startswith("machine7-")
    joined(monkeypatch, GRADWIRE_NCCL_SHARE_GPU="on")
    second = nccl.os.environ["NCCL_HOSTID"]
    assert second.startswith("machine7-")
    assert len(second) == len(first)
    assert second != first
    nccl._common_host_id.cache_clear()


def test_another_word_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"GRADWIRE_NCCL_SHARE_GPU.*'yes' is not valid: expected one of off, on"
    ):
        settings.read({"GRADWIRE_NCCL_SHARE_GPU": "yes"})
