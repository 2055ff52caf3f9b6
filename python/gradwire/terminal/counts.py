"""The largest counts that commands take. What is above is a typing error, and would fill the memory or the table of
processes before it fails."""

from __future__ import annotations

MOST_PROCESSES = 65_536
"""Workers or servers of a job."""
MOST_THREADS = 1_024
"""Of one process."""
MOST_REPETITIONS = 1_000_000
"""Runs, launches, rounds or steps of a measurement."""
MOST_ELEMENTS = 2**32
"""Floats of a gradient, or tensors that it consists of."""
