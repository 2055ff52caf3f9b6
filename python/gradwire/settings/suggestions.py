"""What was meant by a misspelt word, for error texts of Python code.

The command line and settings need it without the compiled part, which has the same rule (compress/suggestions.h) for
errors of its own: of codecs, and of optimizers in gradwire-server, where there is no Python.
"""

from __future__ import annotations

from collections.abc import Iterable


def nearest(given: str, valid: Iterable[str]) -> str:
    """Returns the valid word nearest to given by edit distance; "" where none is near enough to be what was meant."""
    words = list(valid)
    found = min(words, key=lambda word: _edit_distance(given, word), default="")
    return found if found and _is_near(given, found) else ""


def did_you_mean(given: str, valid: Iterable[str]) -> str:
    """Returns ": did you mean WORD?"; "" where no word is near."""
    near = nearest(given, valid)
    return f": did you mean {near}?" if near else ""


def _is_near(given: str, word: str) -> bool:
    """One typing error in a short word, one more for every four letters; or a word that is not typed to its end."""
    if not given:
        return False
    if len(given) > 1 and word.startswith(given):
        return True
    return _edit_distance(given, word) <= 1 + (len(given) - 1) // 4


def _edit_distance(a: str, b: str) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours that make b of a (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a):
        following = [i + 1]
        for j, other in enumerate(b):
            costs = [row[j] + (letter != other), following[j] + 1, row[j + 1] + 1]
            if i > 0 and j > 0 and letter == b[j - 1] and a[i - 1] == other:
                costs.append(before[j - 1] + 1)
            following.append(min(costs))
        before, row = row, following
    return row[-1]
