"""Layer profiles: what a network's layers hold and how long they compute. The replay and `gradwire plan` read them.

The known ones (KNOWN) are in profiles/; experiments/replay/profiles.py derives them.
"""

from __future__ import annotations

import importlib.resources
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gradwire.settings.units import format_duration

_MOST_SPREAD = 1.2  # slow steps over fast ones: beyond it, a figure says more of other load than of the job
_OPTIONAL = frozenset(
    {"spread", "machine", "steps", "optimizer", "is_like_adam", "is_ddp"}
)  # that older files do not have
KNOWN = ("vgg16", "resnet50", "bert_large", "gpt2_124m")


@dataclass(frozen=True)
class Layer:
    """forward and backward in seconds for a whole batch on one worker; elements: its parameters."""

    name: str
    elements: int
    forward_seconds: float
    backward_seconds: float


@dataclass(frozen=True)
class Machine:
    """Where a profile was measured: what compute shares with codecs, sums and the network.

    Attributes:
        cores: that the process may use.
        workers: that ran there at once.
        compute_threads: of each, while it computes; 0: a GPU does.
    """

    cores: int
    workers: int
    compute_threads: int


@dataclass(frozen=True)
class Profile:
    """Layers in the order of forward(). images_per_second is what one worker alone reaches (sentences for BERT).

    Attributes:
        spread: seconds of a step, 10th and 90th percentile of those that were measured; None: not known.
        machine: None: not known; every thread is then taken to have a core.
        steps: seconds of each step that was measured; None: not known.
        optimizer: names of the classes of all optimizers that step, as "Muon and AdamW"; None: not known.
        is_like_adam: whether one of them has betas, as Adam does, with which codecs of few levels lose accuracy.
        is_ddp: whether DDP wraps the model, and so awaits all sums after backward(); None: not known.
    """

    name: str
    source: str
    batch: int
    images_per_second: float
    layers: tuple[Layer, ...]
    spread: tuple[float, float] | None = None
    machine: Machine | None = None
    steps: tuple[float, ...] | None = None
    optimizer: str | None = None
    is_like_adam: bool | None = None
    is_ddp: bool | None = None

    @property
    def compute_seconds(self) -> float:
        return sum(layer.forward_seconds + layer.backward_seconds for layer in self.layers)

    @property
    def warning(self) -> str | None:
        """Says that steps varied too much to predict from, if they did."""
        if self.spread is None or self.spread[1] <= _MOST_SPREAD * self.spread[0]:
            return None
        fast, slow = map(format_duration, self.spread)
        return (
            f"steps varied from {fast} to {slow} (10th to 90th percentile): measure again on a machine that does "
            "nothing else"
        )

    def scaled(self, factor: float) -> Profile:
        """Returns the profile of a machine that takes factor times as long, whose steps vary as these do."""
        layers = tuple(
            replace(
                x, forward_seconds=factor * x.forward_seconds, backward_seconds=factor * x.backward_seconds
            )
            for x in self.layers
        )
        return replace(
            self,
            layers=layers,
            images_per_second=self.images_per_second / factor,
            spread=None if self.spread is None else (factor * self.spread[0], factor * self.spread[1]),
            steps=None if self.steps is None else tuple(factor * step for step in self.steps),
        )

    def steady(self, factor: float) -> Profile:
        """Returns a profile whose every step takes factor times as long as the typical one."""
        return replace(self.scaled(factor), spread=None, steps=None)

    def of_slowest(self, workers: int) -> Profile:
        """Returns the profile of the slowest of several workers, for which the others wait in every step.

        Its step is the median of the largest of so many steps: the quantile 0.5 ** (1 / workers) of what was measured.
        """
        if workers == 1 or self.steps is None:
            return self
        import numpy as np  # `gradwire --help` does without

        slowest, typical = np.quantile(self.steps, (0.5 ** (1 / workers), 0.5))
        return self.steady(max(1.0, float(slowest / typical)))

    @property
    def elements(self) -> int:
        return sum(layer.elements for layer in self.layers)


def find(model: str) -> Profile:
    """Returns a known profile, or the one in a file.

    Args:
        model: one of KNOWN, or the path of a profile's JSON file.

    Raises: ValueError: neither.
    """
    if model in KNOWN:
        text = (importlib.resources.files("gradwire.plan") / "profiles" / f"{model}.json").read_text(
            encoding="utf-8"
        )
        return _read(json.loads(text), model)
    path = Path(model)
    if not path.is_file():
        raise ValueError(
            f"plan: there is no model {model!r}: expected {', '.join(KNOWN)} or a profile's file"
        )
    return load(path)


def load(path: Path) -> Profile:
    """Reads and validates a profile.

    Raises: ValueError: not a profile; says what is wrong and where.
    """
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")), str(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"profile {path}: not JSON ({error}); expected what `gradwire plan --profile FILE` writes"
        ) from None


def _read(given: Any, where: str) -> Profile:
    expected = {"name", "source", "batch", "images_per_second", "layers"}
    if not isinstance(given, dict) or set(given) - _OPTIONAL != expected:
        raise ValueError(
            f"profile {where}: expected an object with exactly {sorted(expected)}, and {sorted(_OPTIONAL)} or not"
        )
    try:
        layers = tuple(Layer(**layer) for layer in given["layers"])
        spread = given.get("spread")
        machine = given.get("machine")
        steps = given.get("steps")
        profile = Profile(
            **{
                **given,
                "layers": layers,
                "spread": None if spread is None else tuple(spread),
                "machine": None if machine is None else Machine(**machine),
                "steps": None if steps is None else tuple(steps),
            }
        )
        validate(profile)
    except (TypeError, ValueError) as error:
        raise ValueError(f"profile {where}: {error}") from None
    return profile


def validate(profile: Profile) -> None:
    """Raises ValueError where a profile cannot be a step of training, naming the layer."""
    if not profile.layers:
        raise ValueError("no layers; expected at least one")
    names = [layer.name for layer in profile.layers]
    if len(set(names)) != len(names):
        raise ValueError("two layers share a name; expected a name for each")
    for layer in profile.layers:
        if isinstance(layer.elements, bool) or not isinstance(layer.elements, int) or layer.elements < 1:
            raise ValueError(
                f"layer {layer.name}: elements={layer.elements!r}; expected a whole number above 0"
            )
        for seconds in (layer.forward_seconds, layer.backward_seconds):
            if not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds < 0:
                raise ValueError(f"layer {layer.name}: {seconds!r} seconds; expected a number of at least 0")
    if profile.batch < 1 or not profile.images_per_second > 0:
        raise ValueError(
            f"batch={profile.batch}, images_per_second={profile.images_per_second}; expected both above 0"
        )
    if profile.spread is not None:
        is_pair = len(profile.spread) == 2 and all(isinstance(end, int | float) for end in profile.spread)
        if not is_pair or not 0 < profile.spread[0] <= profile.spread[1] < math.inf:
            raise ValueError(
                f"spread={profile.spread!r}; expected two numbers of seconds above 0, in their order"
            )
    if profile.steps is not None and not (
        profile.steps and all(isinstance(step, int | float) and 0 < step < math.inf for step in profile.steps)
    ):
        raise ValueError(f"steps={profile.steps!r}; expected numbers of seconds above 0, at least one")
    if profile.machine is not None:
        least = {"cores": 1, "workers": 1, "compute_threads": 0}
        for name, value in vars(profile.machine).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < least[name]:
                raise ValueError(f"machine: {name}={value!r}; expected a whole number, {least[name]} or more")
    if not isinstance(profile.optimizer, str | None):
        raise ValueError(f"optimizer={profile.optimizer!r}; expected a name")
    for name in ("is_like_adam", "is_ddp"):
        if not isinstance(getattr(profile, name), bool | None):
            raise ValueError(f"{name}={getattr(profile, name)!r}; expected true or false")
    if profile.is_like_adam is not None and profile.optimizer is None:
        raise ValueError("is_like_adam without optimizer; expected the optimizer's name")
    step = profile.batch / profile.images_per_second
    if not math.isclose(profile.compute_seconds, step, rel_tol=1e-3):
        raise ValueError(
            f"layers take {profile.compute_seconds:.6f} s a step, batch / images_per_second is {step:.6f} s; expected "
            "the same to 0.1 %"
        )


def text_of(profile: Profile) -> str:
    """Writes a profile as its file has it: one layer a line."""
    head = {key: value for key, value in asdict(profile).items() if key != "layers" and value is not None}
    lines = ",\n".join("  " + json.dumps(vars(layer)) for layer in profile.layers)
    fields = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    return "{\n" + fields + ' "layers": [\n' + lines + "\n ]\n}\n"
