"""Codecs without a network: floats to payloads, payloads to sums.

Example:
    codec = gradwire.compress.make("2bit", threshold=0.5)
    residual = numpy.zeros_like(grad)
    payload = codec.encode(grad, residual=residual)   # uint8; residual is updated in place
    same = codec.decode(payload, grad.size)           # float32

ErrorFeedback keeps the residual, with momentum if you ask for it. It can save, measure and undo:
    feedback = gradwire.compress.ErrorFeedback(codec, grad.size, momentum=0.9)
    payload = feedback.encode(grad)
    feedback.measure(payload).share_sent

EF21 sends the changes of the gradient. The sum of what all workers sent approximates the sum of their gradients:
    feedback = gradwire.compress.EF21(codec, grad.size)
    feedback.add(codec.decode_sum(payloads_of_all_ranks, grad.size))   # one of them is feedback.encode(grad)
    mean = feedback.sum / world_size

Codecs that draw random numbers (qsgd, terngrad, natural, randomk) draw the same ones for the same step: give every
encode() the number of its round, `step=`. With one step for all rounds, randomk never sends most elements.

`gradwire codecs` lists all codecs with their parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gradwire import _core
from gradwire._core import EF21, Codec, ErrorFeedback, ErrorFeedbackMetrics

__all__ = [
    "EF21",
    "Codec",
    "Compression",
    "ErrorFeedback",
    "ErrorFeedbackMetrics",
    "list",
    "lossless_decode",
    "lossless_encode",
    "make",
]

FEW_LEVELS = ("2bit", "1bit")
"""Codecs that send a sign and at most one magnitude: with Adam, and optimizers like it, they lose accuracy."""

_list = list


def spec_text(name: str, parameters: Mapping[str, Any]) -> str:
    """Writes a codec and its parameters as a spec: '2bit:threshold=0.5,nonfinite=mxnet'."""
    words = {True: "on", False: "off"}
    given = ",".join(
        f"{key}={words[value] if isinstance(value, bool) else value}" for key, value in parameters.items()
    )
    separator = "," if ":" in name else ":"
    return f"{name}{separator}{given}" if given else name


def make(name: str, **parameters: float | str | bool) -> Codec:
    """Makes a codec.

    Args:
        name: one of `list()`, or a whole spec such as "2bit:threshold=0.5".
        **parameters: the codec's parameters, e.g. threshold=0.5 (a float in the gradient's unit, > 0, or "auto"). True
            is "on" and False is "off". `gradwire codecs CODEC` explains them. Default: the codec's own.

    Returns: an immutable Codec. Its methods may be called from any thread.

    Raises:
        ValueError: an unknown codec or parameter (the nearest valid one is named), or a value out of range.
    """
    return _core.make_codec(spec_text(name, parameters))


def list() -> _list[str]:
    """Lists the names of all codecs."""
    return [row["name"] for row in _core.codecs()]


def lossless_encode(codes: Any, elements: int) -> Any:
    """Compresses 2bit codes of gradients of which few elements are sent, without loss.

    The result is within a fifth of the codes' entropy if both signs are equally frequent.

    Args:
        codes: uint8, (4 * ceil(elements / 16),): what `2bit` with a fixed threshold encodes.
        elements: number of elements of the gradient. Each run of 65 536 takes the form that is smallest.

    Returns: uint8, at most 4 bytes per 65 536 elements longer than codes.

    Raises:
        ValueError: codes does not have as many bytes as elements need.

    Source: Elias 1974, "Efficient storage and retrieval by content and address of static files"; Fano 1971.
    """
    return _core.lossless_encode(codes, elements)


def lossless_decode(coded: Any, elements: int) -> Any:
    """Returns the codes that `lossless_encode()` was given.

    Args:
        coded: uint8, what lossless_encode() returned.
        elements: number of elements of the gradient.

    Returns: uint8, (4 * ceil(elements / 16),).

    Raises:
        gradwire.DecodeError: the bytes are not a result of lossless_encode().
    """
    return _core.lossless_decode(coded, elements)


@dataclasses.dataclass(frozen=True)
class Compression:
    """A codec's spec together with how servers reply: what `set_gradient_compression` reads.

    Attributes:
        spec: the codec with its parameters, "2bit:threshold=0.5".
        reply: how sums are sent back: "exact", "fp32" or the codec's own name.
        weights: how servers with an optimizer send weights: "fp32", "fp16", "bf16" or "delta:CODEC".
    """

    spec: str = "none"
    reply: str = "none"
    weights: str = "fp32"

    @classmethod
    def parse(
        cls,
        given: str | Mapping[str, Any] | None,
        *,
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
        reply: str = "exact",
    ) -> Compression:
        """Reads {"type": "2bit", "threshold": 0.5, "reply": "2bit"}, "2bit:threshold=0.5,reply=2bit" or None.

        Args:
            given: what the user wrote. None is "none".
            defaults: parameters by codec where the user gave none, e.g. {"2bit": {"threshold": "auto"}}. Default: the
                codec's own.
            reply: the reply if the user gave none and the codec has it; else the codec replies in itself. Default:
                "exact".

        Raises:
            TypeError: given is neither text nor a mapping.
            ValueError: a missing or unknown type, an unknown parameter or one that is given twice, a reply that the
                codec does not have, or weights that servers cannot send.
        """
        parameters = cls._parameters(given)
        name = str(parameters.pop("type"))
        if name == "auto":
            raise ValueError(
                "gradient compression: 'auto' chooses while a model trains: give it to gradwire.torch's "
                "DistributedOptimizer, HookState or compress_all_reduce(), and a codec's name here"
            )
        wanted = parameters.pop("reply", None)
        weights = _core.canonical_weights(str(parameters.pop("weights", "fp32")))
        parameters = {**(defaults or {}).get(name, {}), **parameters}
        codec = make(name, **parameters)
        if wanted is None:
            wanted = name if reply == "exact" and not codec.has_exact_reply else reply
        codec.require_reply(str(wanted))
        return cls(_core.canonical_spec(spec_text(name, parameters)), str(wanted), weights)

    def require_whole_weights(self, why: str) -> None:
        """Raises ValueError for weights other than float32.

        Args:
            why: why no server sends weights here; the error begins with it.
        """
        if self.weights != "fp32":
            raise ValueError(
                f"{why}, and weights={self.weights} was given, which says how servers with an optimizer send weights; "
                "leave it out, or use set_optimizer() of a store such as 'dist_sync'"
            )

    @staticmethod
    def _parameters(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
        if given is None:
            return {"type": "none"}
        if not isinstance(given, str | Mapping):
            raise TypeError(
                f"gradient compression: {given!r} is a {type(given).__name__}, expected text such as "
                "'2bit:threshold=0.5' or a mapping such as {'type': '2bit', 'threshold': 0.5}"
            )
        if isinstance(given, Mapping):
            if "type" not in given:
                raise ValueError(
                    f"gradient compression: {dict(given)!r} has no 'type'; expected e.g. "
                    "{'type': '2bit', 'threshold': 0.5}"
                )
            own = {key: value for key, value in given.items() if key != "type"}
            parameters = Compression._parameters(str(given["type"]))
            for key in own:
                _require_once(given, key, parameters)
            return parameters | own
        name, _, rest = given.partition(":")
        parameters = {"type": name}
        before, says, after = f",{rest}".partition(",weights=")  # a spec of its own, and so the last one
        if says:
            rest, parameters["weights"] = before.removeprefix(","), after
        for word in filter(None, rest.split(",")):
            key, equals, value = word.partition("=")
            if not equals:
                raise ValueError(
                    f"gradient compression: {word!r} in {given!r} is not name=value; expected e.g. "
                    "'2bit:threshold=0.5,reply=2bit'"
                )
            _require_once(given, key, parameters)
            parameters[key] = value
        return parameters

    def __str__(self) -> str:
        separator = "," if ":" in self.spec else ":"
        weights = "" if self.weights == "fp32" else f",weights={self.weights}"
        return f"{self.spec}{separator}reply={self.reply}{weights}"


def _require_once(given: object, key: str, before: Mapping[str, Any]) -> None:
    if key in before:
        raise ValueError(f"gradient compression: {given!r} says {key} twice; leave one out")
