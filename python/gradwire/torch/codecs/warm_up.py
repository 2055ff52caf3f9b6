"""WarmUp: milder codecs for the first steps, while gradients are large and weights change quickly.

Source: Lin et al., Deep Gradient Compression, 2018, section 3.3 (warm-up training).
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.compress import Compression
from gradwire.torch import session

Stages = Sequence[tuple[session.Wanted, int]]


class WarmUp:
    """Counts steps, and returns the compression of each.

    Attributes:
        step: number of steps so far.
    """

    def __init__(self, stages: Stages, final: Compression) -> None:
        """
        Args:
            stages: codecs and for how many steps each holds, in order; `final` follows.

        Raises:
            ValueError: a stage is no pair of a codec and a number of steps above 0.
            TypeError: stages are no list of them.
        """
        if not isinstance(stages, Sequence):
            raise TypeError(
                f"gradwire.torch: warm_up is {stages!r}, expected a list such as [('none', 100), ('fp16', 400)]"
            )
        self.step = 0
        self._final = final
        self._ends: list[tuple[int, Compression]] = []
        end = 0
        for stage in stages:
            if not (isinstance(stage, tuple | list) and len(stage) == 2 and _is_count(stage[1])):
                raise ValueError(
                    f"gradwire.torch: warm_up holds {stage!r}, expected a codec and for how many steps, such as "
                    "('fp16', 500)"
                )
            end += stage[1]
            self._ends.append((end, session.parse_compression(stage[0])))

    def described(self) -> list[tuple[int, str]]:
        """Returns the step at which each stage ends, and its codec."""
        return [(end, str(stage)) for end, stage in self._ends]

    @property
    def steps(self) -> int:
        """The number of steps of all stages."""
        return self._ends[-1][0] if self._ends else 0

    def compression(self) -> Compression:
        """Returns the compression of the next step."""
        return next((stage for end, stage in self._ends if self.step < end), self._final)


def sparsity_ramp(steps: int, compression: session.Wanted) -> list[tuple[str, int]]:
    """Returns stages for a `warm_up` to a sparse codec, as in Deep Gradient Compression: 25 %, 6.25 %, 1.5625 % ...
    sent.

        compression = "topk:ratio=0.001"
        DistributedOptimizer(..., compression=compression, warm_up=sparsity_ramp(steps_per_epoch, compression))

    Args:
        steps: number of steps of each stage. In the paper a stage is an epoch.
        compression: the codec after the ramp, topk or randomk. Stages differ from it in their ratio only.

    Returns: stages whose ratio starts at 0.25 and is divided by 4 each, above that of `compression`: 4 stages for
    0.001.

    Raises:
        ValueError: a codec without a ratio, or `steps` below 1.

    Source: Lin et al., Deep Gradient Compression, 2018, section 3.3: sparsity rises exponentially, 75 %, 93.75 %,
    98.4375 %, 99.6 %, 99.9 %.
    """
    if not _is_count(steps):
        raise ValueError(
            f"gradwire.torch: sparsity_ramp: steps={steps!r}, expected a number of steps above 0"
        )
    final = session.parse_compression(compression)
    name, _, rest = final.spec.partition(":")
    parameters = dict(word.split("=") for word in rest.split(",") if word)
    if "ratio" not in parameters:
        raise ValueError(
            f"gradwire.torch: sparsity_ramp: {compression!r} sends no share of the elements that could rise; expected "
            "topk or randomk, such as 'topk:ratio=0.001'"
        )
    stages, ratio = [], 0.25
    while ratio > float(parameters["ratio"]):
        spec = f"{name}:" + ",".join(
            f"{key}={value}" for key, value in (parameters | {"ratio": ratio}).items()
        )
        stages.append((str(Compression(spec, final.reply)), steps))
        ratio /= 4
    return stages


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
