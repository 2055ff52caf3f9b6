"""Compares two arms run on the same seeds: mean paired difference, or ratio, with its 95 % t interval.

Pairing takes the seed's own luck (initial weights, order of the data) out of the comparison.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
MOST_SEEDS = 100
"""What seeds_to_decide() tries at most."""


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval. low and high are None where there is only one value."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def width(self) -> float:
        return math.inf if self.low is None or self.high is None else self.high - self.low


def t_probability(t: float, degrees: int) -> float:
    """Returns P(|T| <= t) of Student's distribution.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 1964, 26.7.3 and 26.7.4.
    """
    theta = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2 == 1
    term = math.cos(theta) if odd else 1.0
    total = 0.0
    for k in range(1 if odd else 0, degrees - 1, 2):
        total += term
        term *= (k + 1) / (k + 2) * math.cos(theta) ** 2
    return (theta + math.sin(theta) * total) * 2 / math.pi if odd else math.sin(theta) * total


@functools.cache
def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Returns t with P(|T| <= t) = confidence, by bisection.

    Raises: ValueError: degrees below 1.
    """
    if degrees < 1:
        raise ValueError(f"t_quantile: {degrees} degrees of freedom: expected 1 or more")
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def mean_interval(values: Sequence[float]) -> Interval:
    """Returns the mean of values (at least one) with its interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None, None, len(values))
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def seeds_to_decide(difference: Interval, wide: float) -> int | None:
    """Returns how many seeds would settle a paired difference whose interval is too wide to say anything.

    An interval says something when it leaves out 0, or when it is no wider than `wide`. With s, the standard deviation
    of the paired differences, the half width of n seeds is t(n - 1) * s / sqrt(n), where t is the two-sided 95 % point
    of Student's distribution. The answer is the smallest n above the present count with

        t(n - 1) * s / sqrt(n) <= max(|mean|, wide / 2)

    It assumes that further seeds leave the mean and s as they are, so it is an estimate: after two seeds a rough one.

    Args:
        difference: of at least two seeds.
        wide: width at which an interval that contains 0 counts as "no difference".

    Returns: the number of all seeds, those that were run included. None: more than MOST_SEEDS.

    Raises: ValueError: the difference is of one seed, which has no spread.
    """
    if difference.low is None or difference.high is None:
        raise ValueError(
            f"seeds_to_decide: a difference of {difference.count} seed: expected 2 seeds or more"
        )
    half = difference.width / 2
    spread = half * math.sqrt(difference.count) / t_quantile(difference.count - 1)
    goal = max(abs(difference.mean), wide / 2)
    for count in range(difference.count + 1, MOST_SEEDS + 1):
        if t_quantile(count - 1) * spread / math.sqrt(count) <= goal:
            return count
    return None


def paired_difference(values: Sequence[float], base: Sequence[float]) -> Interval:
    """Returns the interval of values - base, seed by seed."""
    return mean_interval([a - b for a, b in zip(values, base, strict=True)])


def paired_ratio(values: Sequence[float], base: Sequence[float]) -> Interval:
    """Returns the interval of values / base (all above 0), seed by seed: geometric mean and ends."""
    logs = mean_interval([math.log(a / b) for a, b in zip(values, base, strict=True)])
    ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
    return Interval(math.exp(logs.mean), ends[0], ends[1], logs.count)
