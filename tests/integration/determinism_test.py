"""The same numbers, bit for bit, however the job is cut: partitions, servers, verbs, a second run."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.processes import agreed, python, run_to_the_end

CODECS = [
    *("none", "fp16", "2bit:threshold=0.5", "2bit:threshold=0.5,reply=2bit"),
    *("2bit:threshold=auto", "2bit:threshold=auto,reply=2bit"),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> object:
    command = python("sums_worker.py", "steps=4", "sizes=large", f"codecs={';'.join(CODECS)}")
    return agreed(run_to_the_end(tmp_path_factory.mktemp("reference"), command), 2)


@pytest.mark.parametrize(
    ("servers", "variables"),
    [
        pytest.param(2, {}, id="a second run"),
        pytest.param(2, {"GRADWIRE_PARTITION_BYTES": "256KiB"}, id="small partitions"),
        pytest.param(1, {}, id="one server"),
        pytest.param(3, {"GRADWIRE_PARTITION_BYTES": "512KiB"}, id="three servers"),
        pytest.param(
            2,
            {
                "GRADWIRE_BIGARRAY_BOUND": "100000",
                "GRADWIRE_STREAMS": "2",
                "GRADWIRE_SERVER_THREADS": "2",
                "GRADWIRE_CODEC_THREADS": "3",
                "GRADWIRE_CREDIT_BYTES": "8KiB",
                "GRADWIRE_FUSION_BYTES": "0",
            },
            id="every other knob",
        ),
    ],
)
def test_how_a_job_is_cut_changes_no_bit(
    reference: object, servers: int, variables: dict[str, str], tmp_path: Path
) -> None:
    command = python("sums_worker.py", "steps=4", "sizes=large", f"codecs={';'.join(CODECS)}")
    assert agreed(run_to_the_end(tmp_path, command, servers=servers, **variables), 2) == reference


@pytest.mark.parametrize("servers", [None, 0])
def test_an_all_reduce_gives_what_servers_give(
    reference: object, servers: int | None, tmp_path: Path
) -> None:
    command = python(
        "sums_worker.py", "store=allreduce", "steps=4", "sizes=large", f"codecs={';'.join(CODECS)}"
    )
    assert agreed(run_to_the_end(tmp_path, command, servers=servers), 2) == reference


def test_residuals_in_bfloat16_change_bits_and_are_the_same_in_every_store(
    reference: object, tmp_path: Path
) -> None:
    variables = {"GRADWIRE_RESIDUAL_DTYPE": "bfloat16", "GRADWIRE_PARTITION_BYTES": "256KiB"}
    found = []
    for store, servers in (("dist_sync", 2), ("allreduce", 0)):
        command = python(
            "sums_worker.py", f"store={store}", "steps=4", "sizes=large", f"codecs={';'.join(CODECS)}"
        )
        found.append(agreed(run_to_the_end(tmp_path, command, servers=servers, **variables), 2))
    assert found[0] == found[1] != reference


def test_push_and_pull_give_what_pushpull_gives(reference: object, tmp_path: Path) -> None:
    command = python("sums_worker.py", "mode=push", "steps=4", "sizes=large", f"codecs={';'.join(CODECS)}")
    assert agreed(run_to_the_end(tmp_path, command), 2) == reference
