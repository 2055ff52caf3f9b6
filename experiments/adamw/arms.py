"""Which arms the page has, and how often each is run."""

from __future__ import annotations

BASE = "none"
# With several seeds: what the answer rests on.
PAIRED = ("none", "bf16", "int8", "int4", "nf4", "nf2", "2bit;whiten=rows+columns", "2bit")
# With several seeds: how many steps of a training without a codec are worth the whole one with it.
SHORTER = tuple(f"none;steps={share}" for share in (0.95, 0.9, 0.8, 0.65, 0.5))
TASKS = ("char_lm_micro", "vit", "char_lm_tiny", "char_lm_small")
LONG, _LONG_SEEDS = "vit_long", 3
_LONGER = ("none", "bf16", "int8", "nf4", "nf2", "nf2;decay=0.7")
# With Muon, whose steps may be so much longer than AdamW's.
MUON = {"vit": 2, "char_lm_tiny": 4}
WITH_MUON = ("none", "fp16", "int8", "nf4", "nf2", "2bit")
# With several seeds: the task's learning rate, which is none's best, and others as multiples of it.
TUNED = ("none", "int8", "nf4", "nf2", "2bit")
RATES = (0.5, 1.0, 2.0)
TUNED_TASKS = ("char_lm_micro", "vit", "char_lm_tiny")
_TUNED_SEEDS = 3
# With several seeds: residuals in bfloat16, or none, beside those in float32.
RESIDUALS = {"bfloat16": ("int8", "nf4", "nf2", "2bit"), "none": ("fp16", "int8", "nf4", "nf2")}
RESIDUALS_TASKS = ("char_lm_micro", "vit", "char_lm_tiny")
# With more seeds, as three showed nothing certain: the longer training without them.
_LONG_WITHOUT, _LONG_WITHOUT_SEEDS = "int8", 8
_SEEDS = 5
# With one seed: what every codec does.
_CODECS = (
    *("fp16", "fp8", "nf2:block=64", "nf2:block=256", "nf2:reply=fp32"),
    *("2bit:reply=2bit", "2bit:reply=2bit;whiten=rows+columns"),
    *("1bit", "topk", "topk:ratio=0.1", "powersgd:rank=4"),
)
# With one seed: where the damage comes from, and what repairs it.
_ABLATIONS = (
    *("2bit;v=exact", "2bit;m=exact", "2bit;momentum=0.9;v=exact"),
    *("2bit;warm_up=40", "2bit;warm_up=40;first=int4", "2bit;warm_up=40;first=int4;whiten=rows+columns"),
    *("2bit;whiten=elements", "int4;whiten=rows+columns", "int4;turns=2"),
    *("nf4;feedback=off", "nf4;decay=0.7"),
    *("levels:count=4", "levels:count=8", "levels:count=4,rotate=1"),
    *("levels:count=4;warm_up=40", "levels:count=4;warm_up=40;first=int4"),
    *("levels:count=4;whiten=rows+columns", "nf2;whiten=rows+columns", "nf2;warm_up=40;first=int4"),
)


def muon_arm(codec: str, task: str) -> str:
    """Names the arm of a codec with Muon."""
    return f"{codec};optimizer=muon;lr={MUON[task]}"


def tuned_arm(codec: str, rate: float) -> str:
    """Names the arm of a codec with a learning rate of its own."""
    return codec if rate == 1 else f"{codec};lr={rate:g}"


def residuals_arm(codec: str, dtype: str) -> str:
    """Names the arm of a codec whose residuals are kept in this dtype, or in none."""
    return codec if dtype == "float32" else f"{codec};residuals={dtype}"


def planned(seeds: int | None = None) -> list[tuple[str, str, int]]:
    """Returns task, arm and seed of every run of the page, seed 0 of everything before seed 1 of anything.

    Args:
        seeds: of the paired arms. Default: 5.
    """
    runs = [("char_lm_micro", arm, 0) for arm in (*PAIRED, *_CODECS, *_ABLATIONS)]
    for seed in range(_SEEDS if seeds is None else seeds):
        runs += [(task, arm, seed) for task in TASKS for arm in (*PAIRED, *SHORTER)]
        runs += [(LONG, arm, seed) for arm in _LONGER if seed < _LONG_SEEDS]
        runs += [(task, muon_arm(codec, task), seed) for task in MUON for codec in WITH_MUON]
        for dtype, codecs in RESIDUALS.items():
            arms = [residuals_arm(codec, each) for codec in codecs for each in ("float32", dtype)]
            runs += [(task, arm, seed) for task in RESIDUALS_TASKS for arm in arms]
        if seed < _TUNED_SEEDS:
            arms = [tuned_arm(codec, rate) for codec in TUNED for rate in RATES]
            runs += [(task, arm, seed) for task in TUNED_TASKS for arm in arms]
    for seed in range(_LONG_WITHOUT_SEEDS if seeds is None else seeds):
        runs += [(LONG, residuals_arm(_LONG_WITHOUT, dtype), seed) for dtype in ("float32", "none")]
    return list(dict.fromkeys(runs))
