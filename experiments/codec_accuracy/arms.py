"""What is compared: every codec in gradwire.compress's table, some of them with other parameters too, and PowerSGD."""

from __future__ import annotations

from gradwire import compress

BASE = "none"
SIXTEEN_BIT = "bf16"  # what most people would take without thinking: the other yardstick
POWER_SGD = "powersgd"
VARIANTS = {
    "2bit": ("2bit:reply=2bit",),
    "fp8": ("fp8:format=e5m2",),
    "topk": ("topk:ratio=0.1",),
    "randomk": ("randomk:ratio=0.1",),
}
_POWER_SGD_RANK = 4


def every_arm() -> list[str]:
    """Names all arms, the two yardsticks first; a codec that is new in the table is among them unasked."""
    names = [BASE, SIXTEEN_BIT, *(name for name in compress.list() if name not in (BASE, SIXTEEN_BIT))]
    codecs = [arm for name in names for arm in (name, *VARIANTS.get(name, ()))]
    return [*codecs, f"{POWER_SGD}:rank={_POWER_SGD_RANK}"]


def power_sgd_rank(arm: str) -> int | None:
    """Reads "powersgd:rank=4"; None: the arm is a codec.

    Raises:
        ValueError: PowerSGD with something else than a rank of 1 or more.
    """
    name, _, given = arm.partition(":")
    if name != POWER_SGD:
        return None
    key, _, value = given.partition("=")
    if key != "rank" or not value.isdigit() or int(value) < 1:
        raise ValueError(f"codec_accuracy: --arm {arm}: expected {POWER_SGD}:rank=R with R of 1 or more")
    return int(value)


def check(arms: list[str]) -> None:
    """Finds a misspelt arm before hours of runs.

    Raises:
        ValueError: no such codec, parameter or reply; names the nearest valid one.
    """
    for arm in arms:
        if power_sgd_rank(arm) is None:
            try:
                compress.Compression.parse(arm)
            except ValueError as error:
                raise ValueError(f"codec_accuracy: --arm {arm}: {error}") from None
