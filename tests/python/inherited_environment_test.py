"""What a job's processes inherit: of the launcher's environment, and of variables that were given."""

from __future__ import annotations

import pytest
from gradwire.launch import inherited_environment
from gradwire.settings import encryption

OUTER = {
    "GRADWIRE_ROLE": "worker",
    "GRADWIRE_ON_FAILURE": "continue",
    "GRADWIRE_MIN_WORKERS": "3",
    "MASTER_ADDR": "outer",
    "MASTER_PORT": "7",
    "GRADWIRE_RANK": "2",
    "GRADWIRE_STREAMS": "4",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OUTER, "TORCHELASTIC_RUN_ID", encryption.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OF_THE_LAUNCHER", "here")


def set_all(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)


def test_a_job_has_the_launchers_variables_and_those_given_over_them() -> None:
    found = inherited_environment.of_job({"A": "b"})
    assert (found["OF_THE_LAUNCHER"], found["A"]) == ("here", "b")
    assert inherited_environment.of_job({"OF_THE_LAUNCHER": "there"})["OF_THE_LAUNCHER"] == "there"


def test_how_another_job_goes_on_and_where_its_ranks_meet_is_not_for_a_job_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_all(monkeypatch, **OUTER)
    found = inherited_environment.surroundings()
    gone = {"GRADWIRE_ON_FAILURE", "GRADWIRE_MIN_WORKERS", "MASTER_ADDR", "MASTER_PORT"}
    assert gone.isdisjoint(found)
    assert found["GRADWIRE_STREAMS"] == "4"
    assert inherited_environment.of_job({"MASTER_ADDR": "mine"})["MASTER_ADDR"] == "mine"


def test_of_torchruns_job_only_the_place_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, TORCHELASTIC_RUN_ID="1", MASTER_ADDR="outer", GRADWIRE_ON_FAILURE="continue")
    found = inherited_environment.surroundings()
    assert "MASTER_ADDR" not in found
    assert found["GRADWIRE_ON_FAILURE"] == "continue"


def test_outside_of_a_job_a_place_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, MASTER_ADDR="node0", MASTER_PORT="7", GRADWIRE_MIN_WORKERS="2")
    found = inherited_environment.surroundings()
    assert (found["MASTER_ADDR"], found["GRADWIRE_MIN_WORKERS"]) == ("node0", "2")


@pytest.mark.parametrize("name", ["GRADWIRE_RANK", "DMLC_ROLE", "LOCAL_RANK", encryption.VARIABLE])
def test_who_a_process_is_comes_neither_from_outside_nor_from_variables(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "outer")
    assert name not in inherited_environment.of_job({"A": "b"})
    assert name not in inherited_environment.of_job({name: "given"})
    assert inherited_environment.of_roles({"worker": {name: "given", "A": "b"}}, 1) == {"worker": {"A": "b"}}


def test_variables_of_a_role_are_refused_where_all_need_them_or_nobody_has_the_role() -> None:
    assert inherited_environment.of_roles({"server": {"A": "b"}}, 1) == {"server": {"A": "b"}}
    with pytest.raises(ValueError, match="--env-server A: no server is started here"):
        inherited_environment.of_roles({"server": {"A": "secret"}}, 0)
    with pytest.raises(ValueError, match="--env-worker GRADWIRE_STREAMS: all processes") as error:
        inherited_environment.of_roles({"worker": {"GRADWIRE_STREAMS": "secret"}}, 1)
    assert "secret" not in str(error.value)


def test_a_key_among_the_variables_is_refused_without_showing_it() -> None:
    inherited_environment.refuse_key({}, {"A": "b"})
    with pytest.raises(ValueError, match="was given for the job's processes") as error:
        inherited_environment.refuse_key({}, {encryption.VARIABLE: "secret"})
    assert "secret" not in str(error.value)
