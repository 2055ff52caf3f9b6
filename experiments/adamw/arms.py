"""Which arms the page has, and how often each is run."""

from __future__ import annotations

BASE = "none"
# With several seeds: what the answer rests on.
_PAIRED = ("none", "2bit", "2bit;whiten=rows+columns", "int4")
_SEEDS = 3
# With one seed: what every codec does.
_CODECS = (
    *("bf16", "fp16", "int8", "fp8", "2bit:reply=2bit", "2bit:reply=2bit;whiten=rows+columns"),
    *("1bit", "topk", "topk:ratio=0.1", "powersgd:rank=4"),
)
# With one seed: where the damage comes from, and what repairs it.
_ABLATIONS = (
    *("2bit;v=exact", "2bit;m=exact", "2bit;momentum=0.9;v=exact"),
    *("2bit;warm_up=40", "2bit;warm_up=40;first=int4", "2bit;warm_up=40;first=int4;whiten=rows+columns"),
    *("2bit;whiten=elements", "int4;whiten=rows+columns", "int4;turns=2"),
    *("levels:count=4", "levels:count=8", "levels:count=4,rotate=1"),
    *("levels:count=4;warm_up=40", "levels:count=4;warm_up=40;first=int4"),
    "levels:count=4;whiten=rows+columns",
)


def planned(seeds: int | None = None) -> list[tuple[str, str, int]]:
    """Returns task, arm and seed of every run of the page, seed 0 of everything before seed 1 of anything.

    Args:
        seeds: of the paired arms. Default: 3.
    """
    runs = [("char_lm_micro", arm, 0) for arm in (*_PAIRED, *_CODECS, *_ABLATIONS)]
    runs += [(task, arm, 0) for task in ("vit", "char_lm_tiny") for arm in _PAIRED]
    for seed in range(1, _SEEDS if seeds is None else seeds):
        runs += [(task, arm, seed) for task in ("char_lm_micro", "vit") for arm in _PAIRED]
    return runs
