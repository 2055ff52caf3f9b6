"""What all Python tests share: a process state that does not depend on who started them.

A shell gives its background jobs an ignored SIGINT (POSIX.1-2017, 2.11), and CI runners start theirs that way. Every
process under test would inherit it, and Ctrl-C would rightly do nothing.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
