"""What the fuzzers of this folder share: the programs of a range of seeds, one after the other, with progress.

The command line of a fuzzer goes on behind a program that fails, and ends with the seeds of all that did.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

EVERY = 20.0  # seconds between two lines of progress


class Progress:
    """Says on stderr how many programs have run, and of which seeds; at most one line in EVERY seconds."""

    def __init__(self, seeds: range) -> None:
        self.seeds = seeds
        self.done = 0
        self.failed: list[int] = []
        self._began = self._shown = time.monotonic()

    def each(self) -> Iterator[int]:
        """Yields the seeds. One is done when the next is asked for, or when it is noted as failed."""
        for seed in self.seeds[self.done :]:
            yield seed
            self.done += 1
            if time.monotonic() - self._shown > EVERY:
                self.show()

    def note_failure(self, text: str) -> None:
        """Notes that the program that is not done yet has failed; each() called again goes on behind it."""
        self.failed.append(self.seeds[self.done])
        self.done += 1
        print(text, file=sys.stderr, flush=True)

    def show(self) -> None:
        self._shown = time.monotonic()
        seconds = self._shown - self._began
        print(
            f"seeds {self.seeds.start} to {self.seeds.stop}: {self.done} of {len(self.seeds)} programs in "
            f"{seconds:.0f} s, failed: {self.failed or 'none'}",
            file=sys.stderr,
            flush=True,
        )


def play_all(seeds: range, play: Callable[[Iterator[int]], object]) -> int:
    """Plays the programs of all seeds, also behind one that fails. Returns the exit status.

    Args:
        play: plays those of an iterator of seeds until one fails, which raises an error that names the program.
    """
    progress = Progress(seeds)
    while progress.done < len(seeds):
        try:
            play(progress.each())
        except Exception as error:
            progress.note_failure(str(error))
    progress.show()
    return 1 if progress.failed else 0


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """Adds the option with which a fuzzer is given its seeds."""
    parser.add_argument(
        "--seeds", nargs=2, type=int, metavar=("FIRST", "END"), help="programs of FIRST to END - 1"
    )
