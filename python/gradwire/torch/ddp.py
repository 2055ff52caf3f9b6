"""The DDP hook: DistributedDataParallel's buckets, compressed.

    model = DistributedDataParallel(model)
    model.register_comm_hook(gradwire.torch.HookState(codec="2bit"), gradwire.torch.ddp_hook)

DDP cuts its buckets anew after the first step, and so does every static graph; what has not been sent yet belongs to
tensors here, so nothing is lost. Large gradients travel from and to DDP's own memory, small ones together.

Threading: DDP calls the hook from autograd's thread, bucket after bucket in one order on all ranks. Buckets but the
last only begin to be sent; the last one waits for all, when there is nothing left to compute.
"""

# No `from __future__ import annotations`: DDP looks at the types that the hook declares, and takes no text for them.
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from gradwire.torch import session
from gradwire.torch.exchange import Exchange
from gradwire.torch.exchange_options import GivenOptions, OnNonfinite, agree_on_options, warn_of_nonfinite
from gradwire.torch.parameter_names import require_pairs
from gradwire.torch.process_group import store_of
from gradwire.torch.warm_up import Stages

_TOGETHER_BYTES = 256 * 2**10  # as fp32; what is smaller is copied, so that it can travel with others


class HookState:
    """What `ddp_hook` keeps from step to step, for one DDP model."""

    def __init__(
        self,
        codec: session.Wanted | None = None,
        process_group: dist.ProcessGroup | None = None,
        *,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        codecs: Mapping[str, session.Wanted] | None = None,
        warm_up: Stages | None = None,
        grad_scaler: Any = None,
        on_nonfinite: OnNonfinite = "warn",
        budget: str | None = None,
    ) -> None:
        """A collective of the group: every rank makes it at the same place.

        Args:
            codec: as `compression` of DistributedOptimizer. Default: what the store has.
            process_group: the one that DDP was given. Default: torch's default group. Its ranks join each other by
                themselves; where this process is in a gradwire job already, that one is used.
            named_parameters: `model.named_parameters()`: names for `codecs`, error texts and state_dict(), and the
                order of the forward pass, in which sums are urgent. Needed where `codecs` are given. Without them
                the order is that of DDP's first buckets.
            codecs, warm_up, grad_scaler, on_nonfinite: as for DistributedOptimizer. DDP does not tell of steps, so a
                warm-up counts the calls of backward() that it sums, which are those outside no_sync(). With "skip_step"
                a NaN is left in the first gradient of each bucket, so a GradScaler skips the step; who uses none looks
                for himself.
            budget: as for DistributedOptimizer, with codec="auto". Gradients are DDP's own here, not momentum: what is
                known of 2bit's accuracy is of momentum, so a budget in points leaves 2bit out.

        Raises:
            ValueError: torch.distributed is not initialised; an argument is not valid; codecs without names; ranks that
                differ, all of which get the same text; a store that gives weights in the place of sums.
            TypeError: an argument is of another kind.
        """
        if codecs is not None and named_parameters is None:
            raise ValueError(
                f"gradwire.torch: HookState: codecs={codecs!r} goes by parameters' names, and none were given; pass "
                "named_parameters=model.named_parameters()"
            )
        named = [] if named_parameters is None else require_pairs(named_parameters)
        given = GivenOptions(
            "HookState",
            codec,
            codecs=codecs,
            warm_up=warm_up,
            grad_scaler=grad_scaler,
            on_nonfinite=on_nonfinite,
            budget=budget,
        )
        self._store = store_of(process_group)
        self._names = {p: name for name, p in named}
        self._options = given.at(self._store, self._names.values())
        agree_on_options(self._store, "HookState", self._options.alike)
        self._exchange = Exchange(self._store, self._options)
        self._index: dict[torch.Tensor, int] = {}
        self._small: list[torch.Tensor | None] = []  # by index: memory of its own, or none
        self._waiting: list[_Bucket] = []
        self._restored: Mapping[str, Any] | None = None

    def close(self) -> None:
        """Ends the use of this. Models in one process may each have a HookState of their own, with other codecs; small
        gradients of the first one travel together, and those of the next after close(). A warm-up ends with it. On all
        ranks at the same place.
        """
        self._exchange.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns what this rank has not sent yet: tensors by name. Save it on every rank, beside the model. Before
        the first step it is what load_state_dict() was given.
        """
        return self._exchange.state() | dict(self._restored or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from it, with the first step; what it lacks begins anew. Residuals of another rank are left, with
        a warning.
        """
        if self._index:
            self._exchange.load(state)
        else:
            self._restored = state  # parameters are known with the first buckets

    # -- a step ----------------------------------------------------------------------------------------

    def take(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begins to send a bucket; with the last one waits for all."""
        if self._store.passthrough:  # alone, where `gradwire plan` times the layers
            future = _future_of(bucket.buffer())
            future.set_result(bucket.buffer())
            return future
        taken = _Bucket(bucket)
        self._waiting.append(taken)
        if all(parameter in self._index for parameter in taken.parameters):
            self._send(taken)
        if bucket.is_last():
            self._finish()
        return taken.future

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        unknown = [bucket for bucket in waiting if not bucket.sent]
        if unknown:
            self._require_one_model(waiting)
            # DDP's first buckets go from the last layers to the first; within one, layers go forward.
            self._add([p for bucket in waiting[::-1] for p in bucket.parameters if p not in self._index])
            for bucket in unknown:
                self._send(bucket)
        nonfinite = self._exchange.finish()
        for bucket in waiting:
            for parameter, run in zip(bucket.parameters, bucket.runs, strict=True):
                if (own := self._small[self._index[parameter]]) is not None:
                    run.copy_(own)
            bucket.deliver(vetoed=nonfinite and self._options.vetoes)
        self._exchange.advance()
        self._exchange.count_step()
        if nonfinite and self._options.grad_scaler is None and self._options.on_nonfinite != "ignore":
            warn_of_nonfinite(self._options.on_nonfinite)

    def _require_one_model(self, waiting: "list[_Bucket]") -> None:
        """Raises ValueError for a step of a model that shares no parameter with what was in the steps before."""
        if self._index and not any(p in self._index for bucket in waiting for p in bucket.parameters):
            raise ValueError(
                "gradwire.torch: HookState: it has taken the buckets of one DDP model, and here are those of another; "
                "make a HookState for each model, on all ranks in one order"
            )

    def _add(self, parameters: list[torch.Tensor]) -> None:
        """Declares parameters, front layers first."""
        order = {parameter: place for place, parameter in enumerate(self._names)}
        parameters = sorted(parameters, key=lambda parameter: order.get(parameter, len(order)))
        named = []
        for parameter in parameters:
            number = self._index[parameter] = len(self._index)
            named.append((self._names.get(parameter, f"parameter.{number}"), parameter))
        small = [torch.zeros(p.numel()) if p.numel() * 4 < _TOGETHER_BYTES else None for p in parameters]
        self._small += small
        self._exchange.add(named, small, [self._index[p] for p in parameters])
        self._exchange.bind(range(len(self._index)))
        if self._restored is not None:
            self._exchange.load(self._restored)
            self._restored = None

    def _send(self, bucket: "_Bucket") -> None:
        bucket.sent = True
        for parameter, run in zip(bucket.parameters, bucket.runs, strict=True):
            index = self._index[parameter]
            if (own := self._small[index]) is None:
                self._exchange.send_from(index, run)
            else:
                own.copy_(run)
                self._exchange.send(index)


def ddp_hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP calls for each bucket: `model.register_comm_hook(HookState(codec="2bit"), ddp_hook)`.

    Returns:
        A future of the bucket's mean, done by the time that the hook of the step's last bucket returns.

    Raises:
        ValueError: the state is that of another model.
        gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
    """
    with torch.no_grad():
        return state.take(bucket)


class _Bucket:
    """One of DDP's buckets in one step: its memory as float32 runs on the CPU, and the future that DDP waits on.

    Attributes:
        runs: one for each parameter: parts of DDP's own memory where that is float32 on the CPU.
    """

    def __init__(self, bucket: GradBucket) -> None:
        self.parameters: list[torch.Tensor] = bucket.parameters()
        self.sent = False
        self._buffer = bucket.buffer()
        self._dense = self._buffer.to_dense() if self._buffer.is_sparse else self._buffer
        self.future = _future_of(self._buffer)
        self._staged = self._dense.reshape(-1).to(device="cpu", dtype=torch.float32)
        sizes = [p.numel() for p in self.parameters]
        self.runs: tuple[torch.Tensor, ...] = self._staged.split(sizes)  # type: ignore[no-untyped-call]

    def deliver(self, *, vetoed: bool) -> None:
        if vetoed:
            self._staged[0] = float("nan")  # for GradScaler to find
        if self._buffer.is_sparse:
            result = self._staged.view(self._dense.shape).to(self._buffer).to_sparse(1)
        elif self._staged.data_ptr() == self._buffer.data_ptr():
            result = self._buffer
        else:
            result = self._buffer.copy_(self._staged)
        self.future.set_result(result)


def _future_of(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    devices: list[int | str | torch.device] | None
    devices = [buffer.device] if buffer.device.type == "cuda" else None
    return torch.futures.Future(devices=devices)
