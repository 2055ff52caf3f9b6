"""Recipes: a codec, and what is done around it. An arm is one as text: "2bit;momentum=0.9;v=exact"."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_type_hints


@dataclass(frozen=True)
class Recipe:
    """What an arm does. The defaults are what DDP's hook does with the codec.

    Attributes:
        codec: a codec of gradwire as `HookState(codec=...)` takes it; "powersgd:rank=R"; or "levels:count=4,...", a
            quantizer that only this experiment has (quantizers.py).
        m, v: what AdamW's first and second moments are of. "mean": the mean that comes back from the codec. "exact":
            the mean of the workers' gradients, without a codec. v may also be "local" (the mean of the workers' own
            squares), "local/N" (the same, over the number of workers) or "momentum" (the square of m, times
            (1 + b) / (1 - b)).
        momentum: above 0, each worker sends its running mean of gradients with this decay, which then is m.
        whiten: the codec sees gradients over an estimate of their scale in the tensor. "elements": each over the root
            of a running mean of its squares. "rows+columns": over that of its row's mean times its column's, which
            is row_column_scales=True of gradwire.torch. Means are multiplied by it again.
        floor: the smallest scale, as a share of the tensor's.
        decay: residuals are multiplied by this in each step.
        feedback: "off": nothing is kept of what was not sent.
        residuals: the workers', as GRADWIRE_RESIDUAL_DTYPE has them. "bfloat16": rounded each step; "none": not kept.
        warm_up: first steps, in which gradients travel by `first`.
        first: "none", or a codec of gradwire; what it has not sent goes on with the codec that follows.
        dense: parts of the names of tensors that are not compressed, with + between.
        turns: above 1, a step sends only every so-many-th block of 128 elements, and the others wait for their turn.
        optimizer: "adamw"; or "muon": torch.optim.Muon for the matrices of hidden layers, and AdamW for the others. Its
            steps are as long as AdamW's (adjust_lr_fn="match_rms_adamw").
        beta1, lr: other than the task's; lr is a factor.
        steps: a factor of the task's, below 1 for a shorter training, whose learning rate falls as much sooner.
    """

    codec: str
    m: str = "mean"
    v: str = "mean"
    momentum: float = 0.0
    whiten: str = "off"
    floor: float = 0.03
    decay: float = 1.0
    feedback: str = "on"
    residuals: str = "float32"
    warm_up: int = 0
    first: str = "none"
    dense: str = ""
    turns: int = 1
    optimizer: str = "adamw"
    beta1: float = 0.9
    lr: float = 1.0
    steps: float = 1.0

    @classmethod
    def parse(cls, arm: str) -> Recipe:
        """Reads an arm.

        Raises: ValueError: it has an option that there is not, or a value that is none of the option's.
        """
        codec, *given = arm.split(";")
        kinds = get_type_hints(cls)
        options = {}
        for word in given:
            name, equals, value = word.partition("=")
            if not equals or name not in kinds or name == "codec":
                known = ", ".join(field.name for field in fields(cls) if field.name != "codec")
                raise ValueError(f"adamw: {word!r} in {arm!r}: expected name=value with one of {known}")
            try:
                options[name] = kinds[name](value)
            except ValueError as error:
                raise ValueError(f"adamw: {word!r} in {arm!r}: expected a number") from error
        recipe = cls(codec, **options)
        recipe._check(arm)
        return recipe

    def _check(self, arm: str) -> None:
        choices = {
            "m": ("mean", "exact"),
            "v": ("mean", "exact", "local", "local/N", "momentum"),
            "whiten": ("off", "elements", "rows+columns"),
            "feedback": ("on", "off"),
            "residuals": ("float32", "bfloat16", "none"),
            "optimizer": ("adamw", "muon"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"adamw: {name}={getattr(self, name)} in {arm!r}: expected one of {', '.join(known)}"
                )
        if self.turns > 1 and self.first != "none":
            raise ValueError(f"adamw: {arm!r}: turns cannot be combined with a codec in the warm-up")
        if self.residuals != "float32" and self.codec.startswith(("levels:", "powersgd:")):
            raise ValueError(f"adamw: {arm!r}: residuals={self.residuals} needs a codec of gradwire")
        if self.turns < 1:
            raise ValueError(f"adamw: turns={self.turns} in {arm!r}: expected 1 or more")
