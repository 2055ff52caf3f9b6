"""What the programs whose ranks train with PyTorch have in common: a model, its images, a table of cases."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

Case = TypeVar("Case", bound=Callable[..., None])
CASES: dict[str, Callable[..., None]] = {}


def case(function: Case) -> Case:
    """Adds a function to the table of what this program runs; torch_jobs.case_names() reads it without importing."""
    CASES[function.__name__] = function
    return function


def case_from(release: str) -> Callable[[Case], Case]:
    """case, of what PyTorch has since this release. With an older one the program says that the case is left out, and
    torch_jobs.case_names() does not name it.
    """
    if torch.__version__ >= release:
        return case

    def left_out(function: Case) -> Case:
        say(f"{function.__name__} is left out: it needs PyTorch {release} or later")
        return function

    return left_out


def say(line: str) -> None:
    """Writes a line whole: print() would write its end apart, and all ranks have one pipe."""
    os.write(1, f"{line}\n".encode())


def run_cases_in_a_group(after_each: Callable[[], None] = lambda: None, backend: str = "gloo") -> None:
    """Runs them all as a rank that torchrun has started: torch_jobs.run_cases_by_torchrun() does.

    Args:
        after_each: called after each of them.
        backend: of the default process group.
    """
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    for name, run in CASES.items():
        run()
        after_each()
        say(f"{name} passed")
    dist.destroy_process_group()
    say(f"ended {os.environ['RANK']}")


def warnings_of_adam(train: Callable[[], object]) -> list[str]:
    """Returns what train() brings of gradwire's warnings on Adam's account, as in a process that has had none. Checks
    that later steps cost nothing.
    """
    from gradwire.torch.codecs import adam_warning

    adam_warning._has_warned = False
    adam_warning._watched.clear()  # of earlier cases, which took no step
    adam_warning._seen.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    assert not adam_warning._watched
    return [str(each.message) for each in caught if "loses accuracy with the codec" in str(each.message)]


class Net(nn.Module):
    """Has what needs care: channels_last, buffers, a layer used twice, one never used.

    wide: features of one more layer before the last, so that DDP has buckets to cut; 0: no such layer.
    """

    def __init__(self, wide: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(8)
        self.twice = nn.Linear(8, 8)
        self.unused = nn.Linear(5, 5)
        self.wide = nn.Linear(8, wide) if wide else nn.Identity()
        self.last = nn.Linear(wide or 8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.last(self.wide(self.twice(torch.relu(self.twice(h)))))


def images(seed: int) -> torch.Tensor:
    return torch.randn(6, 3, 7, 7, generator=torch.Generator().manual_seed(seed))
