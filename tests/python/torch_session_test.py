"""The store that is taken where none is given."""

from __future__ import annotations

import gradwire as gw
import gradwire.torch
import pytest


@pytest.fixture(autouse=True)
def outside_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GRADWIRE_NUM_WORKERS", "DMLC_NUM_WORKER", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("gradwire.stores.default_store._default", None)  # another test's, which is still open


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1", "WORLD_SIZE": "4"},
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",  # two hosts, so no port of this one is where they meet
            "PMIX_NAMESPACE": "prterun-host-1234@1",
        },
    ],
    ids=["ranks", "mpirun over two hosts"],
)
def test_workers_that_do_not_know_where_to_meet_are_not_trained_alone(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"4 workers.*MASTER_ADDR and MASTER_PORT.*dist_sync_mpi"):
        gw.torch.default_store()


def test_a_closed_store_is_not_given_again() -> None:
    first = gw.torch.default_store()
    assert gw.torch.default_store() is first
    first.close()
    second = gw.torch.default_store()
    assert second is not first
    second.close()
