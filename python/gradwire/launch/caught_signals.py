"""CaughtSignals: signals to this process, as something that a selector can wait for.

Threading: Python runs handlers in the main thread only. A CaughtSignals of another thread catches none.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any


class CaughtSignals:
    """Catches signals until restore(). Selectors take it, as it has a fileno()."""

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        """Begins to catch. Signals that this process ignores, as under nohup, stay ignored."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        for number in wanted:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        os.write(self._writer, bytes([number]))

    def fileno(self) -> int:
        """Readable where a signal was caught."""
        return self._reader

    def take(self) -> signal.Signals:
        """Returns the first signal that was caught and not taken yet. Waits for one if there is none."""
        return signal.Signals(os.read(self._reader, 1)[0])

    def restore(self) -> None:
        """Gives signals the handlers that they had."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)
