"""Codecs by themselves: floats to payloads, payloads to sums. No network.

Example:
    codec = gradwire.compress.make("2bit", threshold=0.5)
    residual = numpy.zeros_like(grad)
    payload = codec.encode(grad, residual=residual)   # uint8; residual is updated in place
    same = codec.decode(payload, grad.size)           # float32

ErrorFeedback keeps the residual, with momentum if asked for, and can save, measure and undo it:
    feedback = gradwire.compress.ErrorFeedback(codec, grad.size, momentum=0.9)
    payload = feedback.encode(grad)
    feedback.measure(payload).share_sent

EF21 sends how the gradient changes instead; the sum over workers of what was sent makes up their gradients' sum:
    feedback = gradwire.compress.EF21(codec, grad.size)
    feedback.add(codec.decode_sum(payloads_of_all_ranks, grad.size))   # one of them feedback.encode(grad)
    mean = feedback.sum / world_size
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

_list = list


def spec_text(name: str, parameters: Mapping[str, Any]) -> str:
    """Writes a codec and its parameters as one word: '2bit:threshold=0.5,nonfinite=mxnet'."""
    words = {True: "on", False: "off"}
    given = ",".join(
        f"{key}={words[value] if isinstance(value, bool) else value}" for key, value in parameters.items()
    )
    return f"{name}:{given}" if given else name


def make(name: str, **parameters: float | str | bool) -> Codec:
    """Makes a codec.

    Args:
        name: one of `list()`, or a whole spec such as "2bit:threshold=0.5".
        **parameters: the codec's own, e.g. threshold=0.5 (a float in the gradient's unit, > 0, or "auto"). True is
            "on" and False is "off".

    Returns: an immutable Codec; its methods may be called from any thread.

    Raises:
        ValueError: an unknown codec or parameter (the nearest valid one is named), or a value out of range.
    """
    return _core.make_codec(spec_text(name, parameters))


def list() -> _list[str]:
    """Names every codec."""
    return [row["name"] for row in _core.codecs()]


def lossless_encode(codes: Any, elements: int) -> Any:
    """Writes the codes of quiet gradients in fewer bits: within a fifth of their entropy where signs are even.

    Args:
        codes: uint8, what `2bit` with a fixed threshold encodes to: 4 * ceil(elements / 16) bytes.
        elements: of the gradient; each 65 536 of them take the form that is smallest.

    Returns: uint8, at most 4 bytes per 65 536 elements more than codes.

    Raises:
        ValueError: codes has not as many bytes as elements need.

    Source: Elias 1974, "Efficient storage and retrieval by content and address of static files"; Fano 1971.
    """
    return _core.lossless_encode(codes, elements)


def lossless_decode(coded: Any, elements: int) -> Any:
    """Gives back the bytes that `lossless_encode()` was given.

    Args:
        coded: uint8, what it returned.
        elements: as there.

    Returns: uint8, 4 * ceil(elements / 16) bytes.

    Raises:
        gradwire.DecodeError: bytes that it does not return.
    """
    return _core.lossless_decode(coded, elements)


@dataclasses.dataclass(frozen=True)
class Compression:
    """What `set_gradient_compression` takes, in one value: the codec's spec and how servers reply.

    Attributes:
        spec: the codec with its parameters, "2bit:threshold=0.5".
        reply: "exact", "fp32" or the codec's own name.
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
            given: what the user wrote.
            defaults: parameters by codec that hold where the user gave none, e.g. {"2bit": {"threshold": "auto"}}.
            reply: holds where the user gave none and the codec has it; else the codec replies in itself.

        Raises:
            ValueError: no or unknown type, an unknown parameter, a reply that the codec does not have, weights that
                servers cannot send.
        """
        parameters = cls._parameters(given)
        name = str(parameters.pop("type"))
        if name == "auto":
            raise ValueError(
                "gradient compression: 'auto' chooses while a model trains: give it to gradwire.torch's "
                "DistributedOptimizer or HookState, and a codec's name here"
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
        """Refuses weights other than float32, where `why` says that nobody sends them.

        Raises:
            ValueError: as it says.
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
        if isinstance(given, Mapping):
            if "type" not in given:
                raise ValueError(
                    f"gradient compression: {dict(given)!r} has no 'type'; expected e.g. "
                    "{'type': '2bit', 'threshold': 0.5}"
                )
            return dict(given)
        name, _, rest = given.partition(":")
        parameters: dict[str, Any] = {"type": name}
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
            parameters[key] = value
        return parameters

    def __str__(self) -> str:
        separator = "," if ":" in self.spec else ":"
        weights = "" if self.weights == "fp32" else f",weights={self.weights}"
        return f"{self.spec}{separator}reply={self.reply}{weights}"
