"""Runs char_lm/train.py as the arm that GRADWIRE_COMPRESSION names.

    GRADWIRE_COMPRESSION="int4 sync_every=50 fragments=2" gradwire run -n 4 -s 0 python arm.py FLAGS...

An arm is DDP with its fp16 hook, or a codec of gradwire's with words that say when it is used, every step without any,
and how long the training is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

DDP = "DDP fp16"
_FLAGS = {
    "sync_every": "--sync-every",
    "fragments": "--sync-fragments",
    "merge_after": "--sync-merge-after",
    "outer_lr": "--outer-lr",
    "outer_momentum": "--outer-momentum",
    "num_epochs": "--num-epochs",
}
_TRAIN = Path(__file__).resolve().parent.parent / "char_lm" / "train.py"


def codec_and_flags(arm: str) -> tuple[str | None, list[str]]:
    """Returns an arm's codec, None for DDP, and its flags of train.py.

    Raises:
        ValueError: a word that is none of _FLAGS.
    """
    if arm == DDP:
        return None, ["--ddp-hook", "fp16"]
    codec, *words = arm.split()
    flags: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        if name not in _FLAGS or not value:
            raise ValueError(
                f"arm {arm!r}: {word!r} is none of {', '.join(f'{known}=N' for known in _FLAGS)}"
            )
        flags += [_FLAGS[name], value]
    return codec, flags


def command(words: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Returns the training's command; leaves the arm's codec alone in GRADWIRE_COMPRESSION.

    Args:
        words: flags of train.py, the same for all arms.
    """
    codec, flags = codec_and_flags(environment.pop("GRADWIRE_COMPRESSION"))
    if codec is not None:
        environment["GRADWIRE_COMPRESSION"] = codec
    return [sys.executable, str(_TRAIN), *words, "--kv-store", "allreduce", *flags]


if __name__ == "__main__":
    if "GRADWIRE_COMPRESSION" not in os.environ:
        raise SystemExit("arm: GRADWIRE_COMPRESSION is not set, expected the arm's name")
    program = command(sys.argv[1:], os.environ)
    os.execv(program[0], program)
