"""Translates BytePS's compression_params, as its Gluon trainer takes them, to codecs of gradwire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CODECS = ("onebit", "topk", "randomk", "dithering")
_TAKEN = ("compressor", "ef", "fp16", "k", "momentum", "normalize", "partition", "scaling", "seed")
_LEVELS = {7: 4, 127: 8}  # of dithering, and the bits that qsgd sends them in


@dataclass(frozen=True)
class Compressed:
    """
    Attributes:
        codec: spec of gradwire's, as Compression.codec() takes it; None: gradients travel as they are.
        is_half: gradients are summed in float16.
        has_momentum: Nesterov's momentum is added before a gradient is compressed, in place of the optimizer's.
    """

    codec: str | dict[str, Any] | None = None
    is_half: bool = False
    has_momentum: bool = False


def read(params: Mapping[str, Any] | str | None) -> Compressed:
    """Reads compression_params: BytePS's, {"compressor": "onebit", "scaling": True, "ef": "vanilla"}, or a codec.

    A codec is "2bit" or {"type": "2bit"}. "ef" may be left out: residuals are always kept and sent later.

    Raises: ValueError: an unknown word, or one without a counterpart here; says what to give instead.
    """
    if not params:
        return Compressed()
    if isinstance(params, str):
        return Compressed(codec=params)
    if "type" in params:
        return Compressed(codec=dict(params))
    if unknown := sorted(set(params) - set(_TAKEN)):
        raise ValueError(
            f"bps: compression_params has {unknown[0]!r}; BytePS's are {', '.join(_TAKEN)}, and gradwire's have a "
            "'type', such as {'type': '2bit'}"
        )
    _require_known("ef", params.get("ef"), (None, "", "vanilla"))
    _require_known("momentum", params.get("momentum"), (None, "", "nesterov"))
    compressor = params.get("compressor")
    if compressor is None:
        if params.get("momentum"):
            raise ValueError(
                "bps: momentum in compression_params is of a compressor; give one, or leave it out"
            )
        return Compressed(is_half=bool(params.get("fp16")))
    _require_known("compressor", compressor, _CODECS)
    reader = {"onebit": _onebit, "topk": _topk, "randomk": _randomk, "dithering": _dithering}[compressor]
    return Compressed(codec=reader(params), has_momentum=bool(params.get("momentum")))


def of_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the compression_params that BytePS's trainer passes to byteps_declare_tensor(): byteps_compressor_type,
    ...

    Raises: ValueError: an attribute that BytePS does not have.
    """
    names = {
        "byteps_compressor_type": "compressor",
        "byteps_compressor_k": "k",
        "byteps_compressor_onebit_scaling": "scaling",
        "byteps_ef_type": "ef",
        "byteps_seed": "seed",
        "byteps_dithering_partition": "partition",
        "byteps_dithering_normalize": "normalize",
    }
    words = {"byteps_dithering_partition": ("linear", "natural"), "byteps_dithering_normalize": ("max", "l2")}
    found = {}
    for name, value in attributes.items():
        if name not in names:
            raise ValueError(
                f"bps.byteps_declare_tensor: {name!r} is not known; expected one of {', '.join(names)}. Momentum is "
                "DistributedTrainer's, by its compression_params"
            )
        if name in words and str(value) in ("0", "1"):
            value = words[name][int(value)]
        found[names[name]] = value
    return found


def _onebit(params: Mapping[str, Any]) -> str:
    if str(params.get("scaling", False)).lower() not in ("true", "1"):
        raise ValueError(
            "bps: compressor='onebit' without scaling sends each gradient's signs as +-1, whatever its size, which "
            "gradwire has no codec for; give 'scaling': True"
        )
    return "1bit"


def _topk(params: Mapping[str, Any]) -> str:
    return f"topk:ratio={_share(params)}"


def _randomk(params: Mapping[str, Any]) -> str:
    return f"randomk:ratio={_share(params)},seed={_seed(params)}"


def _dithering(params: Mapping[str, Any]) -> str:
    if params.get("partition", "linear") != "linear":
        raise ValueError(
            f"bps: compressor='dithering' with partition={params['partition']!r}: expected 'linear'; powers of two by "
            "chance are gradwire's codec {'type': 'natural'}"
        )
    _require_known("normalize", params.get("normalize", "max"), ("max",))
    levels = params.get("k")
    if levels not in _LEVELS:
        raise ValueError(
            f"bps: compressor='dithering' with k={levels!r} levels: expected 7, which travel in 4 bits, or 127, in 8"
        )
    return f"qsgd:bits={_LEVELS[levels]},seed={_seed(params)}"


def _share(params: Mapping[str, Any]) -> float:
    try:
        share = float(params["k"])
    except (KeyError, ValueError):
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(
            f"bps: compressor={params['compressor']!r} with k={params.get('k')!r}: expected the share of elements that "
            "are sent, above 0 and below 1; a count is of BytePS's partitions"
        )
    return share


def _seed(params: Mapping[str, Any]) -> int:
    return int(params.get("seed") or 0)


def _require_known(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise ValueError(
            f"bps: {name}={value!r} in compression_params: expected {', '.join(repr(one) for one in known if one)}"
        )
