"""The backend "gradwire" of torch.distributed on two and four ranks that torchrun starts, beside Gloo. One job runs all
cases. What happens when a rank dies is tried without torchrun, which ends the others before they can say anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.torch_jobs import needs_sharding, run_cases_by_torchrun, run_ranks_apart

PROGRAM = Path(__file__).with_name("torch_backend_cases.py")
DEATH = Path(__file__).with_name("torch_backend_death_worker.py")


@needs_sharding
@pytest.mark.parametrize(
    ("workers", "codec"), [(2, None), (4, None), (2, "2bit"), (2, "int8")], ids=lambda given: str(given)
)
def test_all_cases(workers: int, codec: str | None, tmp_path: Path) -> None:
    variables = {} if codec is None else {"GRADWIRE_COMPRESSION": codec}
    outcome = run_cases_by_torchrun(PROGRAM, tmp_path, variables, workers)
    text = outcome.stdout + outcome.stderr
    assert outcome.returncode == 0, text
    passed = [line for line in outcome.stdout.splitlines() if line.endswith(" passed")]
    assert len(passed) == workers * len(set(passed)), text
    assert len(set(passed)) == (16 if codec is None else 8), text
    assert outcome.stdout.count("ended") == workers, text


def ranks_of(tmp_path: Path, case: str, workers: int = 3, **variables: str) -> list[tuple[int, str]]:
    """Runs the program of deaths. Returns exit codes and what was written to stderr, by rank."""
    return run_ranks_apart(DEATH, tmp_path, case, workers, variables)


def test_an_error_that_ends_a_rank_is_named_by_the_others(tmp_path: Path) -> None:
    ended = ranks_of(tmp_path, "raise")
    assert "FileNotFoundError: no such file of images" in ended[1][1]
    for code, text in (ended[0], ended[2]):
        assert code != 0
        assert (
            "cause of the error above: rank 1 has ended with FileNotFoundError: no such file of images"
            in text
        ), text


def test_a_killed_rank_is_named_by_the_others(tmp_path: Path) -> None:
    ended = ranks_of(tmp_path, "kill")
    for code, text in (ended[0], ended[2]):
        assert code not in (0, None)
        assert "rank 1 has ended without an error" in text, text


def test_a_rank_that_dies_in_a_compressed_sum_is_named_by_the_others(tmp_path: Path) -> None:
    ended = ranks_of(tmp_path, "compressed", GRADWIRE_COMPRESSION="int8")
    for code, text in (ended[0], ended[2]):
        assert code not in (0, None)
        assert "TransportError: worker 1 (" in text, text


def test_every_wait_ends_by_the_groups_timeout(tmp_path: Path) -> None:
    """Rank 1 lives, and calls nothing: the collectives of the others fail, and so does the start of a policy."""
    for code, text in ranks_of(tmp_path, "late", workers=2):
        assert code == 0, text


def test_ranks_with_different_codecs_all_hear_of_it(tmp_path: Path) -> None:
    for code, text in ranks_of(tmp_path, "codecs", workers=2):
        assert code == 1
        assert "GRADWIRE_COMPRESSION is 'int8' on rank 0 and not set on rank 1 of a process group" in text, (
            text
        )
