"""Horovod's DistributedOptimizer: gradients are summed while backward() runs, and step() waits for the sums.

As with Horovod, between backward() and step() (or synchronize()) a gradient is neither this rank's nor the mean. A
change to it there is lost, and a warning says so. gradwire.torch.DistributedOptimizer waits in backward() instead, and
has more options (warm-up, GradScaler, overlap_step).
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from gradwire import kv
from gradwire.compress import Compression as StoreCompression
from gradwire.horovod import reduce_ops, session
from gradwire.horovod.compression import NoneCompressor, codec_text, compressor_of
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.submission import synchronize
from gradwire.horovod.torch.compression import Compression
from gradwire.horovod.torch.sent_gradients import SentGradients
from gradwire.horovod.torch.sparse_sums import no_rows, sum_rows
from gradwire.horovod.torch.sums import allreduce, submit_sum
from gradwire.stores.codec_choice import chosen
from gradwire.torch import closures, optimizer_wrapper
from gradwire.torch.codecs import adam_warning
from gradwire.torch.codecs.parameter_codecs import ParameterCodecs
from gradwire.torch.compiled_autograd import require_eager
from gradwire.torch.gradient_hooks import GradientHooks
from gradwire.torch.parameter_names import GroupMembers

Groups = int | list[list[torch.Tensor]] | None
Group = tuple[torch.Tensor, ...]
"""Parameters whose gradients travel together."""

# What a codec has not sent yet is kept by name, and another model's parameters may have the same names: so optimizers
# are counted, which gives the same numbers on all ranks.
_optimizers_of: weakref.WeakKeyDictionary[kv.KVStore, Iterator[int]] = weakref.WeakKeyDictionary()


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = reduce_ops.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wraps an optimizer so that step() uses the ranks' mean gradients.

    Gradients are sent while backward() runs, front layers first: from the second step on, if they are float32 or
    compressed by a codec. The result is an instance of the given optimizer's class and shares its parameter groups and
    state. Use the result, and no longer the optimizer that was given.

    Args:
        optimizer: any torch.optim.Optimizer. One that is distributed already, by gradwire or Horovod, is taken over.
        named_parameters: model.named_parameters(). Default: allreduce.noname.GROUP.NUMBER, in the order of the groups.
        compression: hvd.Compression.none, fp16, or a codec of gradwire: "2bit" or hvd.Compression.codec("int8:…").
            GRADWIRE_COMPRESSION overrides it. With a codec, parameters with one dimension are not compressed. With Adam
            and AdamW use "int8": 2bit and 1bit lose accuracy with them. Default: none.
        backward_passes_per_step: calls of backward() whose gradients are added up before they are sent. Default: 1.
        op: hvd.Average or hvd.Sum. Default: hvd.Average.
        gradient_predivide_factor: a mean is divided by it before the sum and multiplied by it afterwards. Default: 1.0.
        num_groups: older form of groups as a number. Default: 0.
        groups: parameters whose gradients are sent together: lists of them, or the number of groups to make. Cannot be
            combined with a codec. Default: None.
        sparse_as_dense: True: sparse gradients are summed as dense ones. False: they are gathered. Default: False.
        process_set: the ranks that take part. The others step on their own gradients. Default: all ranks.

    Returns: the optimizer. It also has synchronize(), which waits for the sums; skip_synchronize(), a context in which
        step() does not wait, for gradients that were clipped or unscaled (GradScaler) after synchronize(); and
        set_backward_passes_per_step(). If p.grad was changed between backward() and synchronize(), a RuntimeWarning
        names the first such parameter.

    Raises:
        ValueError: names that are not unique or not complete, or an argument that is not valid.
    """
    named = _named(optimizer, named_parameters)
    compressor = compressor_of(chosen(compression))
    groups = groups if groups is not None else (num_groups or None)
    _require_valid(op, gradient_predivide_factor, backward_passes_per_step, compressor, groups, process_set)
    result = optimizer_wrapper.take_over(optimizer, Distributed)
    result._begin(named, compressor, op, gradient_predivide_factor, groups, sparse_as_dense, process_set)
    result.set_backward_passes_per_step(backward_passes_per_step)
    return result


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    own = [(i, j, p) for i, group in enumerate(optimizer.param_groups) for j, p in enumerate(group["params"])]
    if named_parameters is None:
        return [(f"allreduce.noname.{i}.{j}", p) for i, j, p in own]
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError(
            "hvd.DistributedOptimizer: named_parameters should be (name, parameter) tuples; pass "
            "model.named_parameters()"
        )
    names = [name for name, _ in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"hvd.DistributedOptimizer: named_parameters has more than one parameter of the name {', '.join(twice)}; "
            "give each a name of its own"
        )
    known = {parameter for _, parameter in named}
    if missing := [p for _, _, p in own if p not in known]:
        raise ValueError(
            f"hvd.DistributedOptimizer: {len(missing)} of the optimizer's {len(own)} parameters are not named, one has "
            f"shape {tuple(missing[0].shape)}; pass model.named_parameters() of the whole model"
        )
    return named


def _require_valid(
    op: int,
    predivide: float,
    passes: int,
    compressor: Any,
    groups: Groups,
    process_set: ProcessSet,
) -> None:
    if op not in (reduce_ops.Average, reduce_ops.Sum):
        raise ValueError(
            f"hvd.DistributedOptimizer: op is {reduce_ops.name_of(op)}, expected Average or Sum; hvd.allreduce() has "
            "the others"
        )
    if predivide != 1.0 and op != reduce_ops.Average:
        raise ValueError("hvd.DistributedOptimizer: gradient_predivide_factor is of means; give op=Average")
    if passes < 1:
        raise ValueError(f"hvd.DistributedOptimizer: backward_passes_per_step={passes}: expected 1 or more")
    if codec_text(compressor) and (groups is not None or process_set is not global_process_set):
        raise ValueError(
            "hvd.DistributedOptimizer: a codec sums each parameter by itself, over all ranks; leave groups and "
            "process_set out, or give Compression.none or fp16"
        )
    if isinstance(groups, list):
        grouped = [p for group in groups for p in group]
        if not all(isinstance(p, torch.Tensor) for p in grouped):
            raise ValueError(
                "hvd.DistributedOptimizer: groups has what is no tensor; give lists of parameters"
            )
        if len(set(grouped)) != len(grouped):
            raise ValueError("hvd.DistributedOptimizer: groups has a parameter twice; give each in one group")
    elif groups is not None and (isinstance(groups, bool) or not isinstance(groups, int) or groups < 1):
        raise ValueError(
            f"hvd.DistributedOptimizer: groups={groups!r}: expected a number of groups, 1 or more, or lists of tensors"
        )


class Distributed(optimizer_wrapper.Front):
    """What DistributedOptimizer adds to an optimizer's class."""

    prefix = "Distributed"
    name_prefix = ""  # of names of parameters that come later

    def _begin(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        compressor: Any,
        op: int,
        predivide: float,
        groups: Groups,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._parameter_names = {parameter: name for name, parameter in named}
        self._priorities = {parameter: -place for place, (_, parameter) in enumerate(named)}
        self._members = GroupMembers(self.param_groups)
        self._compressor, self._op, self._predivide = compressor, op, predivide
        self._codecs = ParameterCodecs(getattr(compressor, "codec", None) or StoreCompression())
        if codec_text(compressor):
            store = session.current().store
            number = next(_optimizers_of.setdefault(store, itertools.count()))
            self._compressed_name = f"optimizer.{number}.{{}}".format
        self._sparse_as_dense, self._process_set = sparse_as_dense, process_set
        self._passes: dict[torch.Tensor, int] = {}  # that are left, by parameter
        self._sums: dict[Group, Callable[[], None]] = {}  # under way: what waits for each
        self._unused: list[
            Group
        ] = []  # of these: zeros for gradients that other ranks may have, dense or sparse
        self._sparse_dims: dict[torch.Tensor, int] = {}  # of parameters whose last sum was sparse
        self._sent = SentGradients()
        self._has_warned = False
        self._synchronized, self._synchronizes = False, True
        self.backward_passes_per_step = 1
        self._hooks = GradientHooks(self)
        self._hooked: list[torch.Tensor] = []
        self._group_of: dict[torch.Tensor, Group] = {}
        self._groups = groups
        self._is_alone = True
        self.meet_others()

    def meet_others(self) -> None:
        """Sums gradients from now on, after init(), on a rank that was alone before."""
        if self._is_alone and self._process_set.included() and session.current().store.num_workers > 1:
            self._is_alone = False
            self._take_in(self._groups)

    def _take_in(self, groups: Groups = None) -> None:
        """Has gradients be summed from now on of what requires one, or was given one by hand, and is not summed yet: at
        first, and what has been thawed or added to the groups since.

        Args:
            groups: which of them travel together.
        """
        for name, parameter in self._members.added(self.param_groups):
            self._parameter_names[parameter] = f"{self.name_prefix}{name}"
            self._priorities[parameter] = -len(self._priorities)
        own = {p for group in self.param_groups for p in group["params"]}
        new = [p for p in self._parameter_names if p in own and p not in self._group_of and _takes_part(p)]
        for group in _grouped(new, groups):
            self._group_of |= dict.fromkeys(group, group)
            self._passes |= dict.fromkeys(group, self.backward_passes_per_step)
        if (codec := getattr(self._compressor, "codec", None)) is not None:
            followers = [p for p in new if self._codecs.of(self._parameter_names[p], p) is None]
            adam_warning.watch((weakref.ref(p), codec.spec) for p in followers)
        for parameter in new:
            self._hooked.append(parameter)
            self._hooks.add(parameter)
        self._hooks.restore()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward() calls are added up before gradients are sent, from the next step on."""
        self.backward_passes_per_step = passes
        self._passes = dict.fromkeys(self._group_of, passes)

    def close(self) -> None:
        """Ends the exchange: gradients stay local."""
        self._hooks.remove()
        self._hooked, self._group_of, self._is_alone = [], {}, True

    # ------------------------------------------------------------------ sums

    def on_gradient(self, index: int) -> None:
        """Sends the group of a gradient that autograd has just completed, if the whole group is complete."""
        require_eager("hvd.DistributedOptimizer")
        parameter = self._hooked[index]
        group = self._group_of[parameter]
        if group in self._sums:
            raise AssertionError(
                f"hvd.DistributedOptimizer: {self._parameter_names[parameter]!r} has another gradient while the sum of "
                f"the last {self.backward_passes_per_step} is under way; call step() or synchronize() first, or give "
                "backward_passes_per_step how many calls of backward() come before it"
            )
        self._passes[parameter] -= 1
        is_final = self._hooks.put_last(
            index
        )  # else others of the parameter's are still to run: step() sends it
        if is_final and all(self._passes[p] <= 0 for p in group):
            self._send(group)
            if not self._has_warned:  # it says so once
                self._sent.note(group)

    def _send(self, group: Group) -> None:
        gradients = {p: self._zeros(p) if p.grad is None else p.grad for p in group}
        dense = {p: g for p, g in gradients.items() if self._sparse_as_dense or not g.is_sparse}
        waits = [self._send_sparse(p, g) for p, g in gradients.items() if p not in dense]
        if dense:
            waits.append(self._send_dense(dense))

        def finish() -> None:
            while waits:  # again after a Ctrl-C
                waits[0]()
                del waits[0]

        self._sums[group] = finish

    def _zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        """What stands for a gradient that this rank does not have: another rank may have used the parameter."""
        if (sparse_dim := self._sparse_dims.get(parameter)) is not None and not self._sparse_as_dense:
            return no_rows(parameter, sparse_dim)
        return torch.zeros_like(parameter, requires_grad=False)

    def _send_sparse(self, parameter: torch.Tensor, gradient: torch.Tensor) -> Callable[[], None]:
        name, dense_name = self._parameter_names[parameter], self._sum_of(parameter)[0]
        wait = sum_rows(gradient, name, self._op, self._process_set, dense_name)

        def finish() -> None:
            total = wait()
            parameter.grad, self._sparse_dims[parameter] = total, total.sparse_dim()

        return finish

    def _sum_of(self, first: torch.Tensor) -> tuple[str, Any, str]:
        """The name of a dense sum, its compressor and codec, by its first parameter."""
        name = self._parameter_names[first]
        own = self._codecs.of(name, first)
        compressor = self._compressor if own is None and first.numel() else NoneCompressor
        codec = codec_text(compressor)
        return self._compressed_name(name) if codec else name, compressor, codec

    def _send_dense(self, gradients: Mapping[torch.Tensor, torch.Tensor]) -> Callable[[], None]:
        first = next(iter(gradients))
        name, compressor, codec = self._sum_of(first)
        if is_unused := first.grad is None and self._group_of[first] == (first,):
            self._unused.append((first,))
        # A copy: p.grad may be moved (share_memory_(), a queue of torch.multiprocessing) while the engine writes.
        given = [g.to_dense() if g.is_sparse else g.detach().clone() for g in gradients.values()]
        changed = [compressor.compress(gradient) for gradient in given]
        handle = submit_sum(
            [tensor for tensor, _ in changed],
            list,
            name,
            self._op,
            1.0 / self._predivide,
            self._predivide,
            self._process_set,
            in_place=True,
            codec=codec,
            priority=self._priorities[first],
            is_unused=is_unused,
        )

        def finish() -> None:
            if (totals := synchronize(handle)) is None:  # other ranks gather rows
                self._sums[(first,)] = self._send_sparse(first, no_rows(first, 1))
                return
            for (p, given), total, (_, ctx) in zip(gradients.items(), totals, changed, strict=True):
                self._sparse_dims.pop(p, None)
                if not _takes_part(p):  # frozen, in a group with others
                    continue
                gradient = compressor.decompress(total, ctx)
                p.grad = gradient.to_sparse() if given.is_sparse else gradient

        return finish

    def synchronize(self) -> None:
        """Waits for the sums of all parameters. Afterwards p.grad is the mean.

        It first sends those that backward() did not, for example of parameters that were thawed or added since the last
        one.

        Raises:
            HorovodInternalError: a sum has failed, on all ranks; says why.
        """
        if not self._is_alone:
            self._take_in()
            for group in dict.fromkeys(self._group_of.values()):
                if group not in self._sums and any(_takes_part(p) for p in group):
                    self._send(group)
            self._await_sums()
        self._synchronized = True

    def _await_sums(self) -> None:
        """Waits for all that was sent. A Ctrl-C leaves what is under way to the next call: this rank's step is not
        taken, and the others' is.
        """
        self._warn_of_changes()
        try:
            while self._unused:  # all before any other, since other ranks wait for rows in another order
                self._sums[self._unused[0]]()
                del self._unused[0]
            for finish in self._sums.values():
                finish()
        except KeyboardInterrupt:
            raise
        except BaseException:
            self.forget_sums()
            raise
        self.forget_sums()

    def _warn_of_changes(self) -> None:
        changed = [p for p in self._sent.changed() if _takes_part(p)]
        self._sent.forget()
        if changed:
            self._has_warned = True
            warnings.warn(
                f"hvd.DistributedOptimizer: the gradient of {self._parameter_names[changed[0]]!r} was changed after "
                "backward() had sent it, and its sum lacks the change: to clip or unscale gradients (GradScaler too), "
                "call optimizer.synchronize() first and step under skip_synchronize(); in backward(), change a "
                "gradient in a hook of its own parameter (register_post_accumulate_grad_hook)",
                RuntimeWarning,
                stacklevel=4,
            )

    def forget_sums(self) -> None:
        """Drops sums in progress without waiting: before shutdown(), when training returns to an earlier state."""
        self._sums.clear()
        self._unused.clear()
        self._sent.forget()
        self.set_backward_passes_per_step(self.backward_passes_per_step)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Makes step() inside the block take gradients as they are: after synchronize() and clipping."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    # ------------------------------------------------------------------ torch's methods

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """Waits for the sums, and takes the optimizer's step.

        Args:
            closure: computes gradients and returns the loss. It is called before the sums are awaited. LBFGS, and
                classes outside torch, call it themselves. After each such call gradients are the sums, and losses are
                combined as gradients are, so that all ranks decide alike.
            others: what else the wrapped class's step() takes, such as the `grad_scaler` that GradScaler passes to
                fused optimizers.

        Returns: what the optimizer's step() returns: the loss of a closure.

        Raises:
            HorovodInternalError: a sum has failed, on all ranks; says why.
            RuntimeError: skip_synchronize() while sums are in progress; or the optimizer has ignored its closure.
            TypeError: a closure that the optimizer calls itself does not return a loss.
        """
        self._note_step()
        loss, closure = closures.called_first(closure, self._base)
        if closure is None:
            self._settle()
            result = super().step(**others)
        else:
            result = super().step(self._handed(closure), **others)
        if self._sums:
            raise RuntimeError(
                f"hvd.DistributedOptimizer: step(closure) of {self._base.__name__} has not called its closure, and so "
                "has stepped on this rank's own gradients while their sums are under way; call step() without a closure"
            )
        return result if loss is None else loss

    def _handed(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """What the optimizer is handed in place of a closure, to call it itself."""

        def called() -> Any:
            loss = closure()
            self._settle()
            return loss if self._is_alone else closures.shared_loss(loss, self._combined)

        return called

    def _combined(self, loss: float) -> float:
        name = f"{next(iter(self._parameter_names.values()))}.loss"
        own = torch.tensor([loss], dtype=torch.float64, device="cpu")
        return float(allreduce(own, name=name, op=self._op, process_set=self._process_set))

    def _settle(self) -> None:
        """Has gradients be what the step is taken on.

        Raises: as step().
        """
        if self._synchronizes:
            if self._synchronized:
                warnings.warn(
                    # Horovod's tests look for the first words.
                    "optimizer.step() called without optimizer.skip_synchronize() after synchronize(): it sums the "
                    "gradients again, and clipped ones lose what was clipped; use `with optimizer.skip_synchronize(): "
                    "optimizer.step()`",
                    stacklevel=3,
                )
            self.synchronize()
        elif self._sums:
            raise RuntimeError(
                "hvd.DistributedOptimizer: step() under skip_synchronize() while sums are under way would take this "
                "rank's own gradients; call optimizer.synchronize() between backward() and that"
            )
        self._synchronized = False

    # Torch wraps step() of classes that do not say so, to call the hooks of the user; super().step() calls them.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """As torch's.

        Args:
            set_to_none: as the wrapped class's zero_grad() has it. Default: that one's.

        Raises: AssertionError: sums are in progress, and would be added to nothing.
        """
        if self._sums:
            raise AssertionError(
                "hvd.DistributedOptimizer: zero_grad() is prohibited while sums are under way, whose gradients it "
                "would lose; call step() or synchronize() first"
            )
        # Fused optimizers outside torch have a zero_grad() without arguments.
        super().zero_grad(**({} if set_to_none is None else {"set_to_none": set_to_none}))

    def load_state_dict(self, state_dict: Any) -> None:
        """As torch's. Waits for sums in progress, whose names the next gradients need.

        Raises: HorovodInternalError: a sum has failed, on all ranks; says why.
        """
        self._await_sums()
        super().load_state_dict(state_dict)


def _takes_part(parameter: torch.Tensor) -> bool:
    """False for what is frozen, and was given no gradient by hand."""
    return parameter.requires_grad or parameter.grad is not None


def _grouped(live: Sequence[torch.Tensor], groups: Groups) -> list[Group]:
    """Puts parameters into groups, in their order; what no list names is by itself."""
    if groups is None:
        return [(parameter,) for parameter in live]
    if isinstance(groups, list):
        known = set(live)
        made = [tuple(p for p in group if p in known) for group in groups]
        named = {p for group in made for p in group}
        return [group for group in made if group] + [(p,) for p in live if p not in named]
    size, longer = divmod(len(live), min(groups, len(live)) or 1)
    made, at = [], 0
    while at < len(live):
        end = at + size + (len(made) < longer)
        made.append(tuple(live[at:end]))
        at = end
    return made
