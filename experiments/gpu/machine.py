"""Where the check runs: the programs that are there, their environment, logs and time limits.

`GpuMachine` is a machine with a GPU and the kit that `make gpu-kit` makes. `Rehearsal` is a machine without a GPU and
its build tree: it runs the same steps with smaller sizes, which tests the check itself.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_NVIDIA_PROGRAMS = "/usr/local/nvidia/bin"


@dataclass(frozen=True)
class Ended:
    """How a command ended. code 124: it ran out of time and was killed, with all that it had started."""

    code: int
    output: str
    seconds: float

    @property
    def last_words(self) -> str:
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-300:] or "no output"


@dataclass
class Machine:
    """Runs commands of the current step: within its time, into its log."""

    out: Path
    deadline: float = float("inf")  # by time.monotonic(), of the step
    log: Path | None = None
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    python: str = sys.executable
    """The Python that has gradwire."""

    device = "cuda"
    is_rehearsal = False
    patience = 1.0
    """What a step's budget is multiplied by."""

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def program(self, name: str) -> list[str]:
        """Returns the words that start a C++ program of the project, with the options that all tests take."""
        raise NotImplementedError

    def gradwire(self) -> list[str]:
        """Returns the words that start the `gradwire` command."""
        return [self.python, "-m", "gradwire.cli"]

    def run(
        self, command: Sequence[str], seconds: float = 600, environment: Mapping[str, str] | None = None
    ) -> Ended:
        """Runs a command to its end, at most so long, and not beyond the step's time."""
        return self.run_together([command], seconds, environment)[0]

    def run_together(
        self,
        commands: Sequence[Sequence[str]],
        seconds: float = 600,
        environment: Mapping[str, str] | None = None,
    ) -> list[Ended]:
        """Runs commands side by side."""
        began = time.monotonic()
        started = [self._start(command, {**self.environment, **(environment or {})}) for command in commands]
        try:
            return [self._end(process, began, seconds) for process in started]
        finally:
            for process in started:
                _kill_group(process)

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _end(self, process: subprocess.Popen[str], began: float, seconds: float) -> Ended:
        left = min(began + seconds, self.deadline) - time.monotonic()
        try:
            output, _ = process.communicate(timeout=max(left, 0.1))
            code = process.returncode
        except subprocess.TimeoutExpired:
            _kill_group(process)
            output, _ = process.communicate()
            output += f"\nkilled after {time.monotonic() - began:.0f} s"
            code = 124
        ended = Ended(code, output, time.monotonic() - began)
        self.note(process.args, ended)
        return ended

    def note(self, command: Sequence[str], ended: Ended) -> None:
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"$ {' '.join(map(str, command))}\n{ended.output}\n")
                log.write(f"= exit status {ended.code} after {ended.seconds:.1f} s\n\n")

    @contextlib.contextmanager
    def shared_gpu(self) -> Iterator[None]:
        """While it lasts, processes that use the GPU at once run at once, where they else take turns."""
        yield


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # its own session, so the group has the same number


class GpuMachine(Machine):
    """The Python that runs this has torch; everything else comes from the kit, and nothing is written outside `out`."""

    def __init__(self, kit: Path, out: Path) -> None:
        super().__init__(out)
        self._kit = kit
        self._venv = out / "venv"

    def prepare(self) -> str:
        """Makes a venv that has the kit's wheels and, from the Python that runs this, all packages that it has already.

        Returns: what was installed.
        """
        wheels = sorted((self._kit / "wheels").glob("*.whl"))
        if not any(wheel.name.startswith("gradwire-") for wheel in wheels):
            raise FileNotFoundError(
                f"{self._kit} is not a kit: it has no wheels/gradwire-*.whl; make one by `make gpu-kit`"
            )
        if sys.version_info < (3, 12):
            raise RuntimeError(f"this is Python {platform.python_version()}; the kit needs 3.12 or later")
        for package in ("numpy", "torch"):
            if importlib.util.find_spec(package) is None:
                raise RuntimeError(
                    f"{sys.executable} has no {package}; call run.py by the Python that has it"
                )
        missing = [wheel for wheel in wheels if not _is_installed(wheel)]
        self.python = str(self._venv / "bin" / "python")
        _demand([sys.executable, "-m", "venv", "--clear", "--without-pip", str(self._venv)])
        (site,) = self._venv.glob("lib/python3*/site-packages")
        here = sysconfig.get_path("purelib")
        (site / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--ignore-installed",  # a gradwire that is here already is not the kit's
        ]
        _demand([*pip, "--no-compile", *map(str, missing)])
        sys.path.insert(0, str(site))
        os.environ["PATH"] = f"{self._kit / 'bin'}:{self._venv / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        self.environment = dict(os.environ)
        return ", ".join(wheel.name.split("-")[0] for wheel in missing)

    def program(self, name: str) -> list[str]:
        words = [str(self._kit / "bin" / name)]
        if name.endswith("_tests"):
            from gradwire.stores import nccl

            words += [f"--source-dir={self._kit / 'source'}", f"--nccl-library={nccl.library()}"]
        return words

    @contextlib.contextmanager
    def shared_gpu(self) -> Iterator[None]:
        control = shutil.which("nvidia-cuda-mps-control", path=f"{os.environ['PATH']}:{_NVIDIA_PROGRAMS}")
        if control is None:
            yield
            return
        own = {"CUDA_MPS_PIPE_DIRECTORY": self.out / "mps", "CUDA_MPS_LOG_DIRECTORY": self.out / "mps-log"}
        for folder in own.values():
            folder.mkdir(parents=True, exist_ok=True)
        before = self.environment
        self.environment = before | {name: str(folder) for name, folder in own.items()}
        quietly = {"env": self.environment, "check": False, "capture_output": True, "timeout": 10}
        subprocess.run([control, "-d"], **quietly)
        try:
            yield
        finally:
            subprocess.run([control], input=b"quit\n", **quietly)
            self.environment = before


def _demand(command: Sequence[str]) -> None:
    """Raises: RuntimeError: it failed, with its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command[:4])}: it did not end within 60 s") from None
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command[:4])}: exit status {done.returncode}: {done.stderr.strip()[-500:]}"
        )


def _is_installed(wheel: Path) -> bool:
    name = wheel.name.split("-")[0].replace("_", "-")
    if name == "gradwire":
        return False
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class Rehearsal(Machine):
    """This machine without a GPU: torch's CPU tensors, and Thrust's CPP backend in the place of CUDA."""

    device = "cpu"
    is_rehearsal = True
    patience = 10.0  # this machine may be busy, and nothing here costs money

    def __init__(self, out: Path, build: Path = ROOT / "build" / "release") -> None:
        super().__init__(out)
        self._build = build

    def prepare(self) -> str:
        if not (self._build / "tests").is_dir():
            raise FileNotFoundError(
                f"--rehearse: {self._build} is no build tree; it needs a clone and `make build`"
            )
        return "nothing: the build tree is used"

    def program(self, name: str) -> list[str]:
        if name.endswith("_tests"):
            return [str(self._build / "tests" / name), f"--source-dir={ROOT}"]
        return [str(self._build / "experiments" / "cuda_codec" / name)]


def has(program: str) -> bool:
    return shutil.which(program) is not None
