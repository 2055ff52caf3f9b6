"""Runs a training script as the arm that GRADWIRE_COMPRESSION names: a codec of gradwire's, or one of PEERS.

    GRADWIRE_COMPRESSION="DDP fp16" gradwire run -n 2 -s 0 python arm.py ../char_lm/train.py FLAGS...

Model, data, loop and record are the script's; only flags differ.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

PEERS = {
    "DDP": ("--ddp-hook", "none"),
    "DDP fp16": ("--ddp-hook", "fp16"),
    "DDP PowerSGD": ("--ddp-hook", "powersgd"),
}


def command(words: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Returns the script's command; takes GRADWIRE_COMPRESSION away where it is no codec.

    Args:
        words: script and flags.
    """
    arm = environment["GRADWIRE_COMPRESSION"]
    if arm in PEERS:
        del environment["GRADWIRE_COMPRESSION"]
    return [sys.executable, *words, "--kv-store", "allreduce", *PEERS.get(arm, ())]


if __name__ == "__main__":
    if len(sys.argv) < 2 or "GRADWIRE_COMPRESSION" not in os.environ:
        raise SystemExit(
            f"arm: given {sys.argv[1:]}, expected a training script with its flags, and GRADWIRE_COMPRESSION naming "
            f"a codec or one of {', '.join(PEERS)}"
        )
    program = command(sys.argv[1:], os.environ)
    os.execv(program[0], program)
