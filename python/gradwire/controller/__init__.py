"""compression="auto": chooses a codec for each tensor by measured link, codec costs and errors, within a budget."""

from gradwire.controller.accuracy import Optimizer
from gradwire.controller.budget import AUTO, Budget, requested
from gradwire.controller.controller import Controller, Instruments, Options, Pace
from gradwire.controller.plan import CANDIDATES, Plan, Tensor, compression_of

__all__ = [
    "AUTO",
    "CANDIDATES",
    "Budget",
    "Controller",
    "Instruments",
    "Optimizer",
    "Options",
    "Pace",
    "Plan",
    "Tensor",
    "compression_of",
    "requested",
]
