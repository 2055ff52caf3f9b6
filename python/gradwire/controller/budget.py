"""Budget: what compression may cost, and how people write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

AUTO = "auto"
DEFAULT = "0.3 points"
_TEXT = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*(points?|error)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """points: of accuracy at the end of training, at most. error: of a step's mean, relative, per tensor (0.05).

    In points, by today's table (accuracy_cost.csv): DEFAULT admits none, fp16 and int8; 0.5 points also nf4 with SGD
    and Adam, 1 point with others; 1 point also nf2 with SGD, 2.5 points with Adam, 3 points with others.
    """

    kind: Literal["points", "error"]
    limit: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Reads "0.3 points", "5% error" or "0.05 error".

        Raises:
            TypeError: no text.
            ValueError: something else.
        """
        if not isinstance(text, str):
            raise TypeError(f"budget is {text!r}, expected text such as '0.3 points' or '5% error'")
        found = _TEXT.fullmatch(text)
        if found is None or (found[2] and found[3].lower() != "error"):
            raise ValueError(
                f"budget {text!r} is none: expected points of accuracy that may be lost ('0.3 points'), or the "
                "relative error that a step's mean may have ('5% error')"
            )
        limit = float(found[1]) / (100 if found[2] else 1)
        return cls("error" if found[3].lower() == "error" else "points", limit)

    def __str__(self) -> str:
        return f"{self.limit:g} points" if self.kind == "points" else f"{100 * self.limit:g}% error"


def requested(wanted: str | Mapping[str, Any] | None, budget: str | None = None) -> Budget | None:
    """Returns the budget of compression "auto", "auto:budget=0.3 points" or {"type": "auto", ...}; None: it is another.

    Args:
        wanted: what was given as compression; a budget in it counts before the other.
        budget: what was given beside it. Of neither: DEFAULT.

    Raises:
        TypeError, ValueError: a bad budget; or something else than a budget after "auto:".
    """
    if isinstance(wanted, Mapping):
        given = dict(wanted)
        name = given.pop("type", None)
    elif isinstance(wanted, str):
        name, _, rest = wanted.partition(":")
        words = [word.partition("=") for word in rest.split(",") if word]
        given = {key: value for key, _, value in words}
    else:
        return None
    if name != AUTO:
        return None
    own = given.pop("budget", None)
    if given:
        raise ValueError(
            f"compression {wanted!r} has {next(iter(given))!r}: auto takes a budget and nothing else, as in "
            "'auto:budget=0.3 points'"
        )
    return Budget.parse(own if own is not None else DEFAULT if budget is None else budget)
