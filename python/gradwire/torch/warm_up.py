"""WarmUp: milder codecs for the first steps, while gradients are large and weights move far.

Source: Lin et al., Deep Gradient Compression, 2018, section 3.3 (warm-up training).
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.compress import Compression
from gradwire.torch import session

Stages = Sequence[tuple[session.Wanted, int]]


class WarmUp:
    """Counts steps, and says which compression each begins with.

    Attributes:
        step: exchanges so far.
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

    @property
    def final(self) -> Compression:
        """What follows the last stage."""
        return self._final

    def compression(self) -> Compression:
        """What the step that comes next is to have."""
        return next((stage for end, stage in self._ends if self.step < end), self._final)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
