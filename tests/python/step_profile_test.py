"""`gradwire plan -- CMD`: a script's layers are timed as if it were alone, whatever store and codec it asks for."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gradwire.autotune.launches import Job
from gradwire.autotune.start import profile as profile_for_tune
from gradwire.plan import layer_profile, step_profile
from python.readme_example import script_of_page


def test_a_profile_has_each_layers_seconds() -> None:
    steps = []
    for start in (0.0, 100.0, 200.0, 300.0):
        # forward 0 and 1 take 10 and 20 s; then 8 s of loss, and backward 30 and 15 s; the rest of 100 is the optimizer
        forward = {0: start, 1: start + 10}
        ready = {1: start + 30 + 8 + 30, 0: start + 30 + 8 + 30 + 15}
        steps.append(step_profile.Step(forward, ready))
    profile = step_profile.profile_of(steps, {0: 5, 1: 7}, {0: "a", 1: "b"}, batch=4)
    front, back = profile.layers
    assert (front.name, front.elements, back.name, back.elements) == ("a", 5, "b", 7)
    assert front.forward_seconds == pytest.approx(10 + 17)
    assert front.backward_seconds == pytest.approx(15)
    # 58 s from the start of the last layer's forward to its gradient: half each
    assert back.forward_seconds == pytest.approx(29)
    assert back.backward_seconds == pytest.approx(29)
    assert profile.images_per_second == pytest.approx(4 / 100)


def test_steps_that_are_not_whole_make_no_profile() -> None:
    with pytest.raises(ValueError, match="no two steps"):
        step_profile.profile_of([step_profile.Step({0: 0.0}, {})] * 3, {0: 1}, {0: "a"}, 1)


SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().sum().backward()
    optimizer.step()
"""


def test_a_training_script_is_profiled_and_ended(tmp_path: Path) -> None:
    script, profile_file = tmp_path / "train.py", tmp_path / "profile.json"
    script.write_text(SCRIPT)
    words = ["-n", "2", "--bandwidth", "100mbit", "--profile", str(profile_file), sys.executable, str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.cli", "plan", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    profile = layer_profile.load(profile_file)
    assert [layer.elements for layer in profile.layers] == [64 * 256 + 256, 256 * 8 + 8]
    assert profile.batch == 32
    assert profile.compute_seconds > 0
    assert (profile.optimizer, profile.is_like_adam) == ("SGD", False)


def test_a_command_needs_as_many_steps_as_the_error_names(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("while True:", f"for _ in range({step_profile.STEPS}):"))
    assert step_profile.of_command([sys.executable, str(script)]).layers
    script.write_text(SCRIPT.replace("while True:", f"for _ in range({step_profile.STEPS - 1}):"))
    with pytest.raises(RuntimeError, match=f"before {step_profile.STEPS} steps"):
        step_profile.of_command([sys.executable, str(script)])


TIED = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(512, 32)
        self.attention = torch.nn.MultiheadAttention(32, 4)
        self.norm = torch.nn.LayerNorm(32)
        self.norm.bias.requires_grad_(False)
        self.head = torch.nn.Linear(32, 512, bias=True)
        self.head.weight = self.embedding.weight
    def forward(self, words):
        x = self.embedding(words)
        return self.head(self.norm(self.attention(x, x, x)[0]))
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    optimizer.zero_grad()
    model(torch.randint(512, (16, 8))).square().mean().backward()
    optimizer.step()
"""


def test_tied_weights_count_once_and_those_of_modules_never_called_to_the_one_around(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TIED)
    profile = step_profile.of_command([sys.executable, str(script)])
    assert {layer.name.split()[1]: layer.elements for layer in profile.layers} == {
        "Embedding": 512 * 32,
        "MultiheadAttention": 4 * 32 * 32 + 4 * 32,
        "LayerNorm": 32,
        "Linear": 512,
    }
    assert (profile.optimizer, profile.is_like_adam) == ("AdamW", True)


def test_a_parameter_of_no_module_is_an_error_that_says_which(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT.replace("optimizer =", "scale = torch.ones(3, 5, requires_grad=True)\noptimizer =")
        .replace("model.parameters()", "[*model.parameters(), scale]")
        .replace(".sum()", ".mul(scale.sum()).sum()")
    )
    with pytest.raises(
        RuntimeError,
        match=r"ended with exit code 1 before 30 steps .*: RuntimeError: .*trains 1 parameters of 15 elements",
    ):
        step_profile.of_command([sys.executable, str(script)])
    assert "trains 1 parameters of 15 elements" in capfd.readouterr().err


def test_a_script_that_takes_too_long_ends_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_profile, "_DEADLINE", 2.0)
    noted = tmp_path / "pid"
    with pytest.raises(RuntimeError, match="took more than 2 s"):
        step_profile.of_command(["sh", "-c", f"sleep 60 & echo $! > {noted}; wait"])
    started = Path(f"/proc/{noted.read_text().strip()}/stat")
    until = time.monotonic() + 5
    while started.exists() and started.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "import gradwire as gw; kv = gw.kv.create(); raise OSError('disk full')",
            r"ended with exit code 1 before 30 steps of a PyTorch optimizer: OSError: disk full$",
        ),
        ("import sys; sys.exit('no such\\ndata set')", r"exit code 1 before .*: no such; data set$"),
        ("import os; os.abort()", r"was killed by SIGABRT before 30 steps"),
        (
            "raise SystemExit(3)",
            r"ended with exit code 3 before 30 steps of a PyTorch optimizer: it wrote no error$",
        ),
        ("pass", r"ended with exit code 0 before 30 .*: give a command that trains for longer$"),
    ],
)
def test_a_command_that_fails_is_quoted_and_only_one_that_ends_well_was_too_short(
    code: str, text: str
) -> None:
    with pytest.raises(RuntimeError) as raised:
        step_profile.of_command([sys.executable, "-c", code])
    assert re.search(text, str(raised.value)), raised.value
    assert ("longer" in str(raised.value)) == (code == "pass")


@pytest.mark.parametrize(
    ("text", "why"),
    [("#!/no/such/python\n", "No such file or directory"), ("print()\n", "Exec format error")],
)
def test_a_script_without_an_interpreter_is_named(text: str, why: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    script.chmod(0o755)
    expected = f"plan: {script} cannot be started ({why}): correct it, or the interpreter in its first line"
    with pytest.raises(OSError, match=rf"^{re.escape(expected)}$"):
        step_profile.of_command([str(script)], copies=2)


def test_a_command_that_starts_a_job_is_refused_and_its_workers_asked_for() -> None:
    workers = [sys.executable, "train.py"]
    with pytest.raises(RuntimeError) as raised:
        step_profile.of_command([sys.executable, "-m", "gradwire.cli", "run", "-n", "2", *workers])
    assert str(raised.value).endswith(f"as in: gradwire plan -n 2 -- {' '.join(workers)}"), raised.value


def test_the_script_of_the_first_tutorial_is_profiled(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of_page("python/docs/tutorials/first_training.md"))
    profile = step_profile.of_command([sys.executable, str(tmp_path / "train.py")])
    assert [layer.elements for layer in profile.layers] == [784 * 256 + 256, 256 * 2 + 2]


# What the script asserts is what a step must not do while it is timed.
STORED = """
import torch, gradwire as gw
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
kv = gw.kv.create("{store}")
optimizer = gw.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), store=kv, named_parameters=model.named_parameters(),
    {options})
while True:
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().sum().backward()
    optimizer.step()
    assert kv.stats()["bytes_raw"] == 0, "gradients were encoded"
"""


@pytest.mark.parametrize(
    ("store", "options"),
    [
        ("local", "compression='2bit'"),
        ("dist_sync", "compression='2bit', codecs={'0.*': 'int8'}, momentum_correction=True"),
        ("allreduce", "compression='auto', overlap_step=True"),
    ],
)
def test_while_a_script_is_profiled_it_sends_and_encodes_nothing(
    tmp_path: Path, store: str, options: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(STORED.format(store=store, options=options))
    profile = step_profile.of_command([sys.executable, str(script)])
    assert [layer.elements for layer in profile.layers] == [64 * 256 + 256, 256 * 8 + 8]


def test_tune_profiles_a_job_of_servers_without_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STORED.format(store="dist_sync", options="compression='2bit'"))
    profile = profile_for_tune(Job((sys.executable, str(script)), 2, 2, None))
    assert len(profile.layers) == 2


DDP = """
import torch, gradwire as gw
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
model = torch.nn.parallel.DistributedDataParallel(model)
state = gw.torch.HookState(codec="2bit")
model.register_comm_hook(state, gw.torch.ddp_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().sum().backward()
    optimizer.step()
    assert state._store.stats()["bytes_raw"] == 0, "gradients were encoded"
"""


FROM_THE_ENVIRONMENT = DDP.replace(", store=dist.HashStore(), rank=0, world_size=1", "")


def test_a_script_whose_process_group_reads_the_environment_is_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies, too: each is the only rank of a group of its own."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "train.py"
    script.write_text(FROM_THE_ENVIRONMENT)
    profile = step_profile.of_command([sys.executable, str(script)], copies=2)
    assert [layer.elements for layer in profile.layers] == [64 * 256 + 256, 256 * 8 + 8]


def test_ranks_that_the_environment_names_are_left_to_the_profiled_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    code = "import os; raise OSError(os.environ['RANK'] + ' of ' + os.environ['MASTER_PORT'])"
    with pytest.raises(RuntimeError, match=r"OSError: 0 of 1$"):
        step_profile.of_command([sys.executable, "-c", code])


def test_the_ddp_hook_too_leaves_gradients_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DDP)
    profile = step_profile.of_command([sys.executable, str(script)])
    assert [layer.elements for layer in profile.layers] == [64 * 256 + 256, 256 * 8 + 8]
