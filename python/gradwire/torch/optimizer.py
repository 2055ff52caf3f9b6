"""DistributedOptimizer: any torch optimizer, stepping on the workers' mean gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from gradwire import kv
from gradwire._core import MembershipChanged
from gradwire.settings import definitions as settings
from gradwire.stores import connect
from gradwire.torch import closures, optimizer_wrapper, session, step_hooks
from gradwire.torch.codecs.adam_warning import warn_of_adam
from gradwire.torch.codecs.warm_up import Stages
from gradwire.torch.distributed_checkpoint import (
    by_rank,
    is_for_distributed_checkpoint,
    of_rank,
    optimizer_by_rank,
    with_own_state,
)
from gradwire.torch.exchange import STATE_KEY
from gradwire.torch.exchange_options import (
    ExchangeOptions,
    GivenOptions,
    OnNonfinite,
    agree_on_options,
    warn_of_nonfinite,
)
from gradwire.torch.momentum import WorkerMomentum
from gradwire.torch.optimizer_options import (
    has_momentum,
    known_sparse,
    refuse_unknown,
    require_unscaled,
    require_valid,
    sparse_gradients,
)
from gradwire.torch.overlapping.checks import (
    require_no_arguments,
    require_no_gradient_is_needed,
    require_possible,
)
from gradwire.torch.overlapping.overlap import OverlappedSums
from gradwire.torch.parameter_names import GroupMembers, name_parameters, require_whole, warn_of_ddp
from gradwire.torch.reducer import GradientReducer
from gradwire.torch.served_optimizers import Place, require_free, served_by
from gradwire.torch.sparse_gradients import all_finite
from gradwire.torch.subset_step import SubsetStep, is_divisible


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: session.Wanted | None = None,
    store: Any = None,
    *,
    codecs: Mapping[str, session.Wanted] | None = None,
    warm_up: Stages | None = None,
    momentum_correction: bool | Literal["auto"] = False,
    backward_passes_per_step: int = 1,
    max_grad_norm: float | None = None,
    grad_scaler: Any = None,
    on_nonfinite: OnNonfinite = "warn",
    overlap_step: bool | None = None,
    budget: str | None = None,
    row_column_scales: bool = False,
    sparse_as_dense: bool = False,
    sparse_parameters: Iterable[str] = (),
    **others: Any,
) -> Any:
    """Wraps an optimizer so that `p.grad` is the workers' mean gradient when `backward()` returns.

    This is a collective: all workers call it at the same place. The result is an instance of the given optimizer's
    class and shares its parameter groups and state. Use the result, and no longer the optimizer that was given.

    A store serves several DistributedOptimizers, such as a GAN's two, or Muon beside AdamW. Each has its own
    parameters. All ranks make them in the same order. `close()` releases an optimizer's parameters.

    Args:
        optimizer: any torch.optim.Optimizer, with all its parameter groups. Parameters may have any floating or
            complex dtype and lie on any device. Codec "none" sums float64 in 64 bits. All other codecs work in float32,
            and so does "none" with bfloat16 and float16, whose means are rounded once. An optimizer that is a
            DistributedOptimizer already, gradwire's or Horovod's, is taken over: the old one no longer exchanges
            gradients.
        named_parameters: `model.named_parameters()`. The names appear in errors and in checkpoints. The order is the
            order of priority, front layers first. Default: the optimizer's parameters by number.
        compression: "none", "fp16", "bf16", "2bit", a spec such as "2bit:threshold=auto,reply=2bit", a mapping with
            "type", or "auto" (see `budget`). The default threshold of 2bit is "auto". With Adam and AdamW use "int8":
            2bit and 1bit lose accuracy with them, and a warning says so. GRADWIRE_COMPRESSION overrides it, and then
            `codecs` and `warm_up` are ignored. It applies to this optimizer only, until close(). Default: the
            compression that was set on the store by set_gradient_compression(), else "none".
        store: a store from `gradwire.kv.create()`. Default: the store by which this process joined its job. If there is
            none, inside a job `dist_sync` if it has servers, else `allreduce`; outside a job `local`.
        codecs: codecs for some parameters, by shell patterns of their names: {"embedding.*": "int8", "*.bias": "fp16"}.
            The first matching pattern counts. Parameters with one dimension (biases, norms) that match no pattern are
            not compressed; {"*": "2bit"} compresses them too. Default: `compression` for all others.
        warm_up: codecs for the first steps. [("none", 100), ("fp16", 400)] covers 500 steps; then `compression`
            follows. It applies to parameters without a codec of their own. A step is a call of step() that is not
            skipped, however many calls of backward() or of a closure it takes. Default: no warm-up.
        momentum_correction: True: each worker sends its momentum in place of its gradient, and SGD applies the mean.
            Recommended for SGD with momentum and 2bit: in experiments/auto_threshold it removes most of the loss of
            accuracy. "auto": on for SGD with momentum if the compression is 2bit with threshold=auto, and neither
            max_grad_norm nor grad_scaler is given. See "Momentum correction" below. Default: False.
        backward_passes_per_step: number of backward() calls whose gradients are added up before they are sent. A step()
            after fewer calls, as at the end of an epoch, sends what there is, and is then a collective. Until that
            step(), p.grad is this rank's own gradient, also for code that clips or inspects it. With grad_scaler such a
            step() is an error, because each rank would find other infinities. Default: 1.
        max_grad_norm: step() scales all mean gradients so that their total norm is at most this, the same on all ranks.
            If the optimizer calls a closure itself, this happens after every call. Default: no clipping.
        grad_scaler: the torch.amp.GradScaler that scales the loss. Gradients are sent without the scale, so that
            residuals keep their meaning when the scale changes. If any rank has an infinity, or a value beyond fp16's
            65504, all ranks' scalers find it, no rank takes the step, and residuals are restored. Default: None.
        on_nonfinite: what to do if a rank has a NaN or an infinity, or a value beyond fp16's 65504 (then the largest
            value is sent, and the rest with the next gradient). "warn": warn. "ignore": nothing. "skip_step": step()
            does nothing on any rank, residuals are restored, and the first gradient holds a NaN. Alone and without
            compression, gradients are inspected for "skip_step" only. LBFGS, and classes outside torch whose
            step(closure) calls the closure itself, cannot skip steps, and cannot be combined with grad_scaler. Default:
            "warn".
        overlap_step: True: backward() and step() do not wait for sums. See "Overlapped steps" below. Default: the
            setting GRADWIRE_OVERLAP_STEP, which is off.
        budget: what compression="auto" may cost: "0.3 points" of accuracy, or "5% error" of a step's mean. Each
            parameter without a codec of its own then gets one, or none, from the measured link and the codecs' cost and
            error here. A codec that is slower in measured steps than none or fp16 is taken back. The store's stats()
            list each decision with its reason under "decisions"; rank 0 prints it. Cannot be combined with `warm_up`.
            Default: "0.3 points".
        row_column_scales: True: codecs see each matrix of gradients with the scale of its rows and columns taken out.
            With Adam and AdamW, 2bit loses less accuracy so (experiments/adamw, on small models). See "Row and column
            scales" below. Default: False.
        sparse_as_dense: True: sparse gradients (nn.Embedding(sparse=True)) are summed as dense ones, and p.grad is
            dense. False: only their rows are sent, and p.grad is sparse: the workers' mean over the union of their
            rows. They are summed as dense ones in any case, with a warning, with overlap_step, momentum_correction,
            max_grad_norm or compression="auto", and by the stores `nccl` and `allreduce_mpi`. Default: False.
        sparse_parameters: names of parameters whose gradients are sparse. A large table named here is never sent whole
            and needs no memory for it. Others are summed as dense ones until the end of the first step in which a rank
            has a gradient of them. If that is not the first step of all and no table is known by then, they stay dense,
            with a warning. Default: ().
        others: not accepted. An option of HookState is rejected with what to use here.

    Returns: the optimizer, of a subclass of the given one's class.

    Raises:
        ValueError: an argument is not valid; named_parameters lacks a parameter; a parameter is sharded; another
            optimizer at the store has one of the parameters; a second optimizer at a store in which a library sums
            (`nccl`, `allreduce_mpi`); ranks differ, in which case all get the same text, naming the first difference.
        TypeError: an argument has the wrong type or an unknown name.

    **Gradients.** A parameter without a gradient counts as zeros and is still summed, because other ranks may have used
    it. So `p.grad` is never None after backward(), with two exceptions. Alone and without compression (store `local`),
    p.grad is torch's. In a model with sparse gradients, p.grad is None until any rank has had a gradient of that
    parameter. `with optimizer.no_sync():` keeps gradients local; a step() inside it is this rank's own.

    Gradients may also be set by hand or by torch.func, or be missing on one rank, as for a batch without labels. step()
    exchanges what p.grad holds if no backward() has exchanged it since the last step() or zero_grad(). A p.grad of None
    counts as zeros. After backward(), a new tensor in p.grad is taken as this rank's own gradient and exchanged, with a
    warning. A p.grad that is changed in place is taken as a change to the mean. `max_grad_norm` clips the means of
    gradients that were set by hand.

    p.grad uses the same memory in every step. A gradient that is kept across zero_grad() keeps its values; the
    parameter then gets new tensors, at the cost of a copy each. For a view of a gradient (detach(), view(), numpy(), a
    slice) this holds from the second time on, and a warning says so: clone() views that you keep. p.grad may be moved
    between steps (by a conversion of the model, share_memory_(), a queue of torch.multiprocessing); the next step is
    exchanged all the same.

    **Steps.** Every rank calls step() equally often, with equally many calls of backward() between two. If the ranks'
    steps differ, all ranks get a gradwire.TransportError that names two of them and their steps. Freeze and thaw
    parameters alike on all ranks, between steps. A frozen parameter is not sent, its `p.grad` is left alone, and its
    residual is kept.

    If a backward() raises an error, it counts as one call. If it was the last of a step, the other ranks receive NaNs
    in place of what it had not sent. step() then behaves on this rank as on the others, but applies no mean that holds
    a NaN. If a script catches a KeyboardInterrupt in backward() or step(), the next step() continues where it was.
    Other workers may have taken that step; zero_grad() drops it on this rank, with a warning.

    **Momentum correction.** p.grad is the mean momentum. Gradients are clipped before they enter the momentum only if a
    hook of yours clips them. It cannot be combined with a GradScaler, because the momentum would hold gradients of
    several scales. A second backward() before step() or zero_grad() is an error: put all but the last of a step into
    no_sync(), or use backward_passes_per_step. Each worker's momentum is in state_dict() under SGD's own name. A
    skipped step leaves it as it was. In a step that is not skipped, elements that are not finite start again at zero.

    **Row and column scales.** An element is divided by the scale of its row and column in the mean gradients so far,
    and the mean that comes back is multiplied by it. Nothing more is sent. Parameters of one dimension, of float64 and
    with codec "none" are not scaled, and no rows of sparse gradients. It cannot be combined with overlap_step,
    compression="auto", nor with gradwire.elastic. State: a float32 for each row and column, in state_dict().

    **Overlapped steps.** Each parameter is updated when its sum arrives, with the options that its group had when
    step() was called. Code that reads a parameter waits for it: the next forward pass layer by layer, state_dict() and
    evaluation for all. Until then p.grad is not the mean; `synchronize()` waits for all. It works with optimizers that
    update each parameter by itself, as all of torch's do except LBFGS. Weights have the bits of a loop without overlap,
    except for sparse gradients under a lossy codec, which are summed as dense ones (see sparse_as_dense). It cannot be
    combined with max_grad_norm, grad_scaler, on_nonfinite="skip_step" or closures, nor with the stores `nccl` and
    `allreduce_mpi`.

    **Checkpoints.** `state_dict()` holds this rank's unsent residuals under "gradwire": save it on every rank, or give
    torch.distributed.checkpoint the optimizer itself. Copies and pickles are of the wrapped optimizer, which exchanges
    nothing.

    **Hooks and wrappers.** It cannot be combined with DistributedDataParallel, which writes the same p.grad: use
    HookState there. A warning says so if parameter names show it. Hooks on parameters
    (register_post_accumulate_grad_hook) run before their gradients are sent, whenever they are registered. A warning
    names a parameter whose gradient changes later in backward(). It cannot be combined with compiled autograd, and
    raises an error.

    Source: error feedback: Karimireddy et al. 2019, "Error feedback fixes signSGD", algorithm 1; momentum correction:
    Lin et al. 2018, "Deep gradient compression", section 3.2; row and column scales: Shazeer and Stern 2018,
    "Adafactor", section 3.
    """
    refuse_unknown(DistributedOptimizer, others)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"gradwire.torch: optimizer is a {type(optimizer).__name__}, expected a torch.optim.Optimizer"
        )
    given = GivenOptions(
        "DistributedOptimizer",
        compression,
        codecs=codecs,
        warm_up=warm_up,
        grad_scaler=grad_scaler,
        on_nonfinite=on_nonfinite,
        budget=budget,
        row_column_scales=row_column_scales,
    )
    require_valid(optimizer, given, momentum_correction, backward_passes_per_step, max_grad_norm)
    named = name_parameters(optimizer, named_parameters)
    require_whole("DistributedOptimizer", named)
    warn_of_ddp(named)
    names = [name for name, _ in named]
    store = session.own_store(store)
    overlap_step = _overlaps(optimizer, store, given, overlap_step, clips=max_grad_norm is not None)
    require_free(store, named, own=getattr(optimizer, "_place", None))
    if momentum_correction == "auto":
        plain = max_grad_norm is None and grad_scaler is None
        is_2bit = given.auto is None and "threshold=auto" in given.compression_at(store).spec
        momentum_correction = plain and is_2bit and has_momentum(optimizer)
    options = given.at(store, names, optimizer=optimizer, overlaps=overlap_step)
    reads_dense = overlap_step or max_grad_norm is not None or momentum_correction
    options = replace(
        options,
        sparse_gradients=sparse_gradients(store, options, as_dense=sparse_as_dense, reads_dense=reads_dense),
        sparse_parameters=known_sparse(sparse_parameters, names),
    )
    warn_of_adam(optimizer, named, options, store)
    momentum = WorkerMomentum(optimizer, vetoes=options.vetoes) if momentum_correction else None
    alike = {
        "overlap_step": overlap_step,
        "max_grad_norm": max_grad_norm,
        "momentum_correction": momentum_correction,
        **options.alike,
    }
    ended: MembershipChanged | None = None
    try:
        agree_on_options(store, "DistributedOptimizer", alike)
    except MembershipChanged as change:
        ended = change
    # What is wrong has been said: from here on another that is taken over has ended.
    result = optimizer_wrapper.take_over(optimizer, _Distributed)
    result._max_norm, result.overlap_step = max_grad_norm, overlap_step
    result._warm_up_steps = 0 if options.warm_up is None else options.warm_up.steps
    result._named, result._passes, result._given_momentum = named, backward_passes_per_step, momentum
    result._members = GroupMembers(result.param_groups)
    result._options, result._alike, result._has_handed_closures = options, alike, False
    try:
        result._begin(store, ended)
    except MembershipChanged as change:
        result._ended = change
    return result


def _overlaps(
    optimizer: torch.optim.Optimizer,
    store: kv.KVStore,
    given: GivenOptions,
    wanted: bool | None,
    *,
    clips: bool,
) -> bool:
    """Returns whether steps overlap, which the setting says by default. Raises ValueError where they cannot."""
    overlaps = settings.read().overlap_step == "on" if wanted is None else wanted
    if overlaps:
        excluding = {
            "max_grad_norm": clips,
            "grad_scaler": given.grad_scaler is not None,
            "on_nonfinite='skip_step'": given.on_nonfinite == "skip_step",
            "row_column_scales": given.row_column_scales,
        }
        require_possible(optimizer, store, excluding)
    return overlaps


def _report_skipped_step(optimizer: torch.optim.Optimizer, arguments: Mapping[str, Any]) -> None:
    """Has a GradScaler that leaves the search for infinities to the wrapped class find the NaN of a skipped step: its
    update() needs that search.
    """
    if (scaler := arguments.get("grad_scaler")) is not None:
        scaler._check_inf_per_device(optimizer)


class _Distributed(optimizer_wrapper.Front):
    """What DistributedOptimizer adds to an optimizer's class."""

    prefix = "Distributed"
    _store: kv.KVStore
    _reducer: GradientReducer | None
    _momentum: WorkerMomentum | None
    _options: ExchangeOptions
    _alike: dict[str, Any]  # what the other ranks' must have too
    _place: Place | None  # at the store, until close()
    _max_norm: float | None
    _warm_up_steps: int  # of all its stages
    _named: list[tuple[str, torch.Tensor]]
    _members: GroupMembers
    _passes: int  # of backward(), before gradients are sent
    _given_momentum: WorkerMomentum | None  # also after close()
    _ended: MembershipChanged | None  # what every step is from here on, until it is moved
    _skips_nonfinite: bool  # where no reducer looks
    _has_handed_closures: bool
    overlap_step: bool

    def _begin(self, store: kv.KVStore, ended: MembershipChanged | None = None) -> None:
        """Exchanges gradients by a store from here on, whose ranks have agreed on options. A collective.

        Args:
            ended: what they heard instead, for gradwire.elastic.run(), which moves it to the next generation.
        """
        self._store, options = store, self._options
        self._reducer = self._momentum = self._place = None
        self._ended, self._skips_nonfinite = ended, False
        if ended is not None:
            return
        default = options.default or store.own_compression
        is_dense = default.spec == "none" and not options.codecs.compress_any(self._named)
        if connect.is_local(store.type) and is_dense and options.warm_up is None:  # nothing to exchange
            self._skips_nonfinite = options.on_nonfinite == "skip_step"
            return
        self._momentum = self._given_momentum
        if self._momentum is not None:
            self._momentum.catch_up()  # of a step that ended with the store before
        self._reducer = GradientReducer(
            store,
            self._named,
            passes=self._passes,
            options=options,
            momentum=self._momentum,
            overlaps=self.overlap_step,
        )
        self._place = Place(store, self, self._named)

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """Takes the wrapped optimizer's step on the mean gradients.

        With overlap_step it only begins the step. With on_nonfinite="skip_step" it takes no step if a gradient is not
        finite. It first exchanges what p.grad holds, if backward() was called fewer than backward_passes_per_step
        times, or has produced no gradient since the last step() or zero_grad().

        Args:
            closure: computes gradients and returns the loss. LBFGS, and classes outside torch, call it themselves,
                equally often on each rank, and get the workers' mean loss. For other optimizers it is called once.
            others: what else the wrapped class's step() takes, such as the `grad_scaler` that GradScaler passes to
                fused optimizers. Cannot be combined with overlap_step.

        Returns: the closure's loss; None without a closure.

        Raises:
            RuntimeError: there are gradients to exchange and a grad_scaler; or p.grad still is the mean momentum of the
                last step (momentum_correction).
            ValueError: a closure or a GradScaler with overlap_step; a closure that the optimizer calls itself with
                momentum_correction or with an option that skips steps; torch's process group was made after the
                optimizer, which trains alone; step(grad_scaler=...) with max_grad_norm.
            TypeError: such a closure does not return a loss.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        if self._ended is not None:
            raise self._ended
        session.require_company(self._store)
        self._note_step()
        if self.overlap_step:
            require_no_gradient_is_needed(self, closure)
            require_no_arguments(others)
        elif self._max_norm is not None:
            require_unscaled(others)
        try:
            return self._step(closure, others)
        finally:
            if self._reducer is not None:
                self._reducer.end_step()

    def _step(self, closure: Callable[[], Any] | None, others: Mapping[str, Any]) -> Any:
        loss, closure = closures.called_first(closure, self._base)
        if closure is not None:
            closure = self._handed(closure)
        if self._reducer is not None:
            self._add_later()
            self._reducer.settle()
            if closure is None:  # else each call of it is an exchange
                self._reducer.flush()
            if self._momentum is not None:
                self._momentum.catch_up()
            if self._reducer.take_veto():
                _report_skipped_step(self, others)
                return loss
        if self._skips_nonfinite and self._has_nonfinite():
            warn_of_nonfinite("skip_step")
            _report_skipped_step(self, others)
            return loss
        if closure is None:
            self._clip()
        result: Any = None
        with contextlib.nullcontext() if self._momentum is None else self._momentum.applied():
            if (overlap := self._overlap) is not None and not self._is_due(overlap):
                self._begin_step(overlap)
            elif closure is not None:
                result = super().step(closure, **others)
            else:
                with step_hooks.followed_by(self, self._exchange_anew):
                    result = super().step(**others)
        if self._reducer is not None:
            self._reducer.count_step()
        return result if loss is None else loss

    # Torch wraps step() of classes that do not say so, to call the hooks of the user; super().step() calls them.
    step.hooked = True  # type: ignore[attr-defined]

    @property
    def _overlap(self) -> OverlappedSums | None:
        return None if self._reducer is None else self._reducer.overlap

    def _is_due(self, overlap: OverlappedSums) -> bool:
        """True where the step is to be taken in one piece: also for an optimizer that hands it on to another one, whose
        parts are not ours to choose.
        """
        if not is_divisible(self):
            overlap.synchronize()
        return overlap.is_due()

    def _begin_step(self, overlap: OverlappedSums) -> None:
        with step_hooks.called_around(self):
            assert self._reducer is not None
            self._reducer.flush()  # they may have set gradients
            overlap.step(SubsetStep(self, self._base))

    def _exchange_anew(self) -> None:
        """Exchanges gradients that hooks of the user's on the step have set, before the optimizer takes them."""
        if (reducer := self._reducer) is None:
            return
        if reducer.flush():
            self._clip()
        if reducer.take_veto():
            reducer.drop_gradients()

    def _take_in_added(self) -> list[tuple[str, torch.Tensor]]:
        """Notes parameters that have come into the groups, which are then to be exchanged, and returns them."""
        added = self._members.added(self.param_groups)
        if added:
            require_whole("DistributedOptimizer", added)
            require_free(self._store, added, own=self._place)
            self._named += added  # in place: it is what the store serves
            if self._momentum is not None:
                self._momentum.find_groups()
        return added

    def _add_later(self) -> None:
        """Has parameters that have come into the groups without a word to us be exchanged from the next time on."""
        if self._reducer is not None and (added := self._take_in_added()):
            self._reducer.add_later(added)

    def _handed(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """What the optimizer is handed in place of a closure, to call it itself."""
        given = self._options.on_nonfinite, self._options.grad_scaler
        closures.require_possible(self._base, *given, sends_momentum=self._momentum is not None)
        self._has_handed_closures = True
        return closures.on_means(closure, self._reducer, self._store.engine.all_gather, self._clip)

    def _clip(self) -> None:
        if (most := self._max_norm) is None:
            return
        # Optimizers that unscale for themselves are handed GradScaler's scale, and gradients that still have it.
        scale = getattr(self, "grad_scale", None)
        gradients = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(gradients, most if scale is None else most * float(scale))

    def _has_nonfinite(self) -> bool:
        return not all_finite(p.grad for group in self.param_groups for p in group["params"])

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """As torch's. Discards what a failed backward() had begun to send.

        Args:
            set_to_none: as the wrapped class's zero_grad() has it. Default: that one's.
        """
        if self._reducer is not None:
            self._reducer.settle()
            self._reducer.forget_gradients()
            self._add_later()
        if self._momentum is not None:
            self._momentum.catch_up()
        overlap = self._overlap
        # Fused optimizers outside torch have a zero_grad() without arguments.
        given = {} if set_to_none is None else {"set_to_none": set_to_none}
        if overlap is None or not is_divisible(self):
            self.synchronize()
            super().zero_grad(**given)
            return
        later = overlap.zero_grad(set_to_none=set_to_none is not False)
        steps = SubsetStep(self, self._base)
        steps.view([p for p in steps.parameters if p not in later]).zero_grad(**given)

    def synchronize(self) -> None:
        """Waits for all sums and, after step(), for all updates, with overlap_step. Does nothing without overlap_step.

        Afterwards every gradient is the workers' mean.

        Raises:
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        if self._overlap is not None:
            self._overlap.synchronize()

    def join(self) -> int:
        """Tells the others that this worker has no batches left, if workers have different numbers of batches.

        The steps of the other workers continue. Their means are still divided by the number of all workers, so this
        worker counts as zeros. If a store has several optimizers, call join() on one of them; it applies to all.

        It returns when all workers have joined. The rank that joined last has taken all steps, so broadcast its
        weights:

            last = optimizer.join()
            gradwire.torch.broadcast_parameters(model.state_dict(), root_rank=last)
            gradwire.torch.broadcast_optimizer_state(optimizer, root_rank=last)

        With momentum_correction, the second broadcast replaces each worker's momentum by that of `last`. This rank's
        residuals are kept, for its next step or for state_dict().

        Returns: the rank that joined last, the same on all ranks.

        Raises:
            ValueError: every step is a collective: with compression="auto", during a warm_up on this rank, and with
                LBFGS or another optimizer that calls its closure itself. Avoid these, or give all ranks equally many
                batches.
            Others: as KVStore.join().
        """
        if self._reducer is None:
            return self._store.join()
        served = [other for other in served_by(self._store) if other._reducer is not None]
        for optimizer in served:
            optimizer._stand_in()
        last = self._store.join()
        for optimizer in served:
            last = optimizer._end_join(last)
        return last

    def _stand_in(self) -> None:
        if self._store.num_workers > 1:
            self._require_free_steps()
        assert self._reducer is not None
        self._reducer.settle()
        self.synchronize()
        self._reducer.stand_in()

    def _end_join(self, last: int) -> int:
        assert self._reducer is not None
        self._reducer.count_steps_anew()
        return self._reducer.last_to_step(last)

    def _require_free_steps(self) -> None:
        """Raises ValueError where the other ranks' steps need this one, beyond its gradients."""
        options = self._options
        given = instead = ""
        if self._has_handed_closures or isinstance(self, torch.optim.LBFGS):
            given, instead = (
                f"{self._base.__name__}, whose closures agree on the loss",
                "take another optimizer",
            )
        elif options.controller is not None:
            given, instead = "compression='auto', which agrees on codecs", "name a codec"
        elif options.warm_up is not None and options.warm_up.step < self._warm_up_steps:
            done = f"warm_up at step {options.warm_up.step} of {self._warm_up_steps}"
            given, instead = f"{done}, which changes codecs", "make it end before the first join()"
        if given:
            raise ValueError(
                f"gradwire.torch: join() on rank {self._store.rank}, with {given} step by step, so that no rank may be "
                f"away: give all ranks as many batches and do without join(), or {instead}"
            )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keeps the gradients of backward() calls inside the block local. The next call outside sends the total."""
        if self._reducer is None:
            yield
            return
        before, self._reducer.sync = self._reducer.sync, False
        try:
            yield
        finally:
            self._reducer.sync = before

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. A collective: every rank adds the same parameters, between steps.

        Their names are numbers, or those of (name, parameter) pairs, which torch accepts if the optimizer was made of
        pairs.
        """
        self.synchronize()
        super().add_param_group(param_group)
        added = self._take_in_added()
        if self._reducer is not None:
            self._reducer.add(added)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with this rank's residuals under "gradwire".

        torch.distributed.checkpoint keeps one copy of what all ranks name alike, so it gets them as bytes by rank, with
        this worker's momentum if momentum_correction is on.
        """
        self.synchronize()
        state = super().state_dict()
        if self._reducer is None:
            return state
        own = self._reducer.exchange.state()
        if is_for_distributed_checkpoint():
            own = by_rank(own) if self._momentum is None else optimizer_by_rank(own, state)
        return {**state, STATE_KEY: own} if own else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As torch's. Parameters that state_dict lacks start without a residual.

        Residuals of another rank are ignored, with a warning. A collective if there is a warm-up.

        Raises:
            ValueError: torch.distributed.checkpoint saved the state with another number of ranks.
        """
        if self._reducer is None:
            self.load_shared_state(state_dict)
            return
        own = of_rank(state_dict.get(STATE_KEY, {}))
        self.load_shared_state(with_own_state(state_dict, own))
        self._reducer.exchange.load(own)

    def load_shared_state(self, state_dict: Mapping[str, Any]) -> None:
        """As load_state_dict(), without the part that is each rank's own."""
        self.synchronize()
        super().load_state_dict({name: value for name, value in state_dict.items() if name != STATE_KEY})

    def own_momentum(self) -> dict[torch.Tensor, torch.Tensor]:
        """Returns this worker's momentum by parameter, with momentum_correction; else an empty dict."""
        return {} if self._momentum is None else self._momentum.buffers()

    def set_own_momentum(self, momentum: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Sets the momentum that own_momentum() returned. Nothing else changes."""
        if self._momentum is not None:
            self._momentum.set_buffers(momentum)

    def __reduce__(self) -> Any:
        self.synchronize()
        return super().__reduce__()

    @property
    def momentum_correction(self) -> bool:
        """True if workers send momentum, and p.grad is its mean."""
        return self._momentum is not None

    def require_movable(self) -> None:
        """Raises ValueError if move_to() is not possible, because workers that join later would use other codecs."""
        given = "warm_up" if self._options.warm_up is not None else "compression='auto'"
        if self._options.warm_up is not None or self._options.controller is not None:
            raise ValueError(
                f"gradwire.torch: {given} changes codecs step by step, and workers that come later would begin with "
                "others; name a codec"
            )
        if self._options.row_column_scales:
            raise ValueError(
                "gradwire.torch: row_column_scales=True learns scales step by step, and workers that come later would "
                "begin with others; leave it out"
            )

    def move_to(self, store: kv.KVStore) -> None:
        """Exchanges gradients through another store from here on, with the same codecs.

        For a process that has joined a new job after the job of the old store ended. A collective; another rank may
        take part by making its DistributedOptimizer. Residuals and gradients are discarded. load_state_dict() restores
        residuals.
        """
        with contextlib.suppress(ConnectionError, TimeoutError):  # of a step that was under way
            self.close()
        for _, parameter in self._named:
            parameter.grad = None
        agree_on_options(store, "DistributedOptimizer", self._alike)
        self._begin(store)

    def close(self) -> None:
        """Ends a step in progress and removes the hooks: gradients stay local, and the store is free for another
        optimizer.
        """
        if self._reducer is not None:
            self._reducer.close()
            self._reducer = self._momentum = None
        if self._place is not None:
            self._place.leave()
            self._place = None
