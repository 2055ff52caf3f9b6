"""Jobs of processes that go on from the states of another one's optimizer, on other servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.processes import agreed, python, run_to_the_end

WORKERS = 2


@pytest.mark.parametrize(
    ("store", "servers", "then"), [("dist_sync", 2, 3), ("dist_sync", 2, None), ("allreduce", None, 2)]
)
def test_states_go_on_in_another_job(
    store: str, servers: int | None, then: int | None, tmp_path: Path
) -> None:
    words = f"folder={tmp_path}"
    saving = python("optimizer_states_worker.py", words, f"store={store}")
    undisturbed = run_to_the_end(tmp_path / "saving", saving, workers=WORKERS, servers=servers)
    other = "allreduce" if then is None else "dist_sync"
    resuming = python("optimizer_states_worker.py", words, f"store={other}", "resume=1")
    resumed = run_to_the_end(tmp_path / "resuming", resuming, workers=WORKERS, servers=then)
    assert agreed(resumed, WORKERS) == agreed(undisturbed, WORKERS)
