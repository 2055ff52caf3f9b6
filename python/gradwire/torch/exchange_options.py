"""ExchangeOptions: how gradients are exchanged, whoever hands them over."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from gradwire.torch import session
from gradwire.torch.codecs.auto_codecs import controller_of
from gradwire.torch.codecs.parameter_codecs import DENSE, ParameterCodecs
from gradwire.torch.codecs.warm_up import Stages, WarmUp

if TYPE_CHECKING:
    import torch

    from gradwire.compress import Compression
    from gradwire.controller import Controller
    from gradwire.kv import KVStore

OnNonfinite = Literal["warn", "skip_step", "ignore"]
SparseGradients = Literal["rows", "dense", "warn"]


def vetoes(on_nonfinite: OnNonfinite, grad_scaler: Any) -> bool:
    """True where a step with a NaN is not taken, so that what was sent in it has to be taken back."""
    return on_nonfinite == "skip_step" or grad_scaler is not None


def require_on_nonfinite(who: str, on_nonfinite: OnNonfinite) -> None:
    """Raises ValueError, of `who`, unless it is one of the three."""
    if on_nonfinite not in get_args(OnNonfinite):
        raise ValueError(
            f"gradwire.torch: {who}: on_nonfinite={on_nonfinite!r}: expected warn, skip_step or ignore"
        )


@dataclass(frozen=True)
class ExchangeOptions:
    """What all front ends take, as GivenOptions has checked it.

    Attributes:
        codecs: which codec each parameter has.
        default: which codec the others have; None: what was set on the store.
        warm_up: which codec the others have in the first steps, or None.
        grad_scaler: torch's GradScaler, where the loss is scaled: what is sent is divided by its scale, so that
            residuals, and thresholds, do not change their meaning when it changes.
        on_nonfinite: what to do in a step in which any rank met a NaN or an infinity, or a value that fp16 cannot hold.
        controller: what chooses the others' codecs, or None.
        row_column_scales: codecs see matrices without the scale of their rows and columns (row_column_scales.py).
        sparse_gradients: "rows": their rows travel; "dense": they are summed as dense ones; "warn": so too, said once.
        sparse_parameters: names of those whose gradients are known to be sparse; of others the first step tells.
    """

    codecs: ParameterCodecs
    default: Compression | None = None
    warm_up: WarmUp | None = None
    grad_scaler: Any = None
    on_nonfinite: OnNonfinite = "warn"
    controller: Controller | None = None
    row_column_scales: bool = False
    sparse_gradients: SparseGradients = "warn"
    sparse_parameters: frozenset[str] = frozenset()

    @property
    def vetoes(self) -> bool:
        return vetoes(self.on_nonfinite, self.grad_scaler)

    @property
    def keeps_halves(self) -> bool:
        """True where gradients of 16 bits can lie as they are until a codec widens them: nothing computes with them
        before. What a loss scale is taken out of may be too small for float16.
        """
        return self.grad_scaler is None and not self.row_column_scales

    @property
    def alike(self) -> dict[str, Any]:
        """What all ranks must have alike, and the exchange itself does not compare."""
        return {
            "skips steps with a NaN": self.vetoes,
            "sends sparse gradients as rows": self.sparse_gradients == "rows",
            "sparse_parameters": sorted(self.sparse_parameters),
            "row_column_scales": self.row_column_scales,
            "warm_up": [] if self.warm_up is None else self.warm_up.described(),
        }


class GivenOptions:
    """What a script gives of codecs, loss scales and vetoes; checked, as far as that needs no store.

    Attributes:
        auto: the budget where codecs are chosen, else None.
        default: the codec of parameters that have none of their own; None: what was set on the store.
        grad_scaler: one that is in use, or None.
        on_nonfinite, row_column_scales: as given.
    """

    def __init__(
        self,
        who: str,
        compression: session.Wanted | None,
        *,
        codecs: Mapping[str, session.Wanted] | None = None,
        warm_up: Stages | None = None,
        grad_scaler: Any = None,
        on_nonfinite: OnNonfinite = "warn",
        budget: str | None = None,
        row_column_scales: bool = False,
    ) -> None:
        """
        Args:
            who: takes them, for error texts, as "HookState".
            compression, codecs, warm_up, grad_scaler, on_nonfinite, budget, row_column_scales: as of
                DistributedOptimizer. GRADWIRE_COMPRESSION sets the first three aside.

        Raises:
            ValueError: a bad value, or two that do not go together.
            TypeError: one is of another kind.
        """
        require_on_nonfinite(who, on_nonfinite)
        self.grad_scaler = enabled_scaler(grad_scaler)
        self.on_nonfinite = on_nonfinite
        self.auto = session.auto_budget(compression, budget)
        if session.is_overridden():
            codecs = warm_up = None
        if self.auto is not None and warm_up is not None:
            raise ValueError(
                f"gradwire.torch: {who}: warm_up was given with the codec 'auto', which begins with a mild codec by "
                "itself; leave warm_up out"
            )
        if self.auto is not None and row_column_scales:
            raise ValueError(
                f"gradwire.torch: {who}: row_column_scales=True was given with the codec 'auto', which measures codecs "
                "on gradients as they are; leave one of the two out"
            )
        self.row_column_scales = row_column_scales
        self.default = session.parse_chosen(compression) if self.auto is None else DENSE
        self._codecs, self._warm_up = codecs, warm_up

    def compression_at(self, store: KVStore) -> Compression:
        """What parameters that have no codec of their own travel by, after a warm-up."""
        return store.own_compression if self.default is None else self.default

    def at(
        self,
        store: KVStore,
        names: Iterable[str],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        overlaps: bool = False,
    ) -> ExchangeOptions:
        """Returns what an exchange of these parameters takes. Changes nothing.

        Args:
            names: of all parameters, which the patterns of `codecs` are to match.
            optimizer: which steps on the means, if it is known.
            overlaps: with overlap_step.

        Raises:
            ValueError: a store that gives weights in the place of sums, or whose sums cannot be predicted where codecs
                are chosen; a bad codec or stage; a pattern that matches nothing.
            TypeError: codecs are no mapping, or stages no list.
        """
        session.require_sums(store)
        chosen = self.compression_at(store)
        controller = controller_of(store, self.auto, optimizer, overlaps=overlaps)
        codecs = ParameterCodecs(chosen, self._codecs, may_compress=controller is not None)
        codecs.require_matches(names)
        return ExchangeOptions(
            codecs=codecs,
            default=self.default,
            warm_up=WarmUp(self._warm_up, chosen) if self._warm_up else None,
            grad_scaler=self.grad_scaler,
            on_nonfinite=self.on_nonfinite,
            controller=controller,
            row_column_scales=self.row_column_scales,
        )


def agree_on_options(store: KVStore, who: str, alike: Mapping[str, Any]) -> None:
    """Compares what all ranks must do alike: else they would wait for each other in vain, or their weights would part.
    A collective.

    Args:
        who: has these options, as "HookState".
        alike: the options, by name; their repr() is compared.

    Raises:
        ValueError: ranks differ; names the first option in which they do, the same on all.
    """
    lines = "".join(f"{name}={value!r}\n" for name, value in alike.items())
    store.engine.agree(f"options of {who}", lines)


def enabled_scaler(given: Any) -> Any:
    """Returns a GradScaler that is in use, else None.

    Raises:
        TypeError: something else.
    """
    if given is None:
        return None
    if not (hasattr(given, "is_enabled") and hasattr(given, "get_scale")):
        raise TypeError(f"gradwire.torch: grad_scaler is {given!r}, expected a torch.amp.GradScaler, or None")
    return given if given.is_enabled() else None


def warn_of_nonfinite(what_then: OnNonfinite) -> None:
    warnings.warn(
        "gradwire.torch: a worker's gradient held a NaN or an infinity, or a value beyond its codec's format (fp16: "
        "65504); "
        + (
            "no rank takes this step"
            if what_then == "skip_step"
            else 'on_nonfinite="skip_step" would skip such steps on all ranks'
        ),
        RuntimeWarning,
        stacklevel=3,
    )
