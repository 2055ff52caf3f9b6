"""Programs of what people do to a model between steps, run by two ranks and by one process that has both ranks' data.

A program is made of a seed, prints as a Python literal, and is run again, or made shorter, by

    PYTHONPATH=tests python -m python.torch_actions "PROGRAM"
    PYTHONPATH=tests python -m python.torch_actions --seeds 0 10000

The one process is the oracle: torch's own optimizer, on the mean of the gradients that the two ranks have. With codec
"none" weights are equal to the bit, as a sum of two float32 has one value. With a lossy codec what was given equals
what was delivered and what residuals hold, and the weights are those of torch's optimizer on what was delivered.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import io
import multiprocessing.reduction
import pprint
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import torch
import torch.multiprocessing  # teaches pickle to share tensors' memory
from gradwire.settings import definitions
from python.random_programs import add_seeds, play_all
from torch import nn

Program = dict[str, Any]
Held = dict[str, "torch.Tensor | None"]
WORKERS = 2
BETWEEN = [
    "there and back",
    "format",
    "share model",
    "freeze",
    "thaw",
    "add group",
    "hook",
    "unhook",
    "copy",
    "lasting",
]
BETWEEN += ["move", "move"]
LAYERS = ("conv", "norm", "branch", "last")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "decay": lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


class Net(nn.Module):
    """A convolution, vectors, a scalar, a branch that may be left out, a head that is added later."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.norm = nn.LayerNorm(3)  # GroupNorm's backward() crashes on channels_last that needs no gradient
        self.branch = nn.Linear(3, 3)
        self.last = nn.Linear(3, 2, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(3, 2)
        self.has_head = False

    def forward(self, x: torch.Tensor, *, uses_branch: bool) -> torch.Tensor:
        x = x.to(self.scale.dtype)
        h = torch.tanh(self.norm(self.conv(x).mean((2, 3))))
        if uses_branch:
            h = h + self.branch(torch.tanh(self.branch(h)))
        out = self.last(h) * self.scale
        return out + self.head(h) if self.has_head else out

    def trained(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.named_parameters() if self.has_head or not n.startswith("head")}


class _Bomb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a bomb")


def loss_of(net: Net, rank: int, number: int, kind: str) -> torch.Tensor:
    """The loss of one backward() of a rank. Its kind says what it reaches."""
    if kind == "none" or (kind == "none1" and rank == 1):
        return torch.zeros(2, requires_grad=True).sum()
    generator = torch.Generator().manual_seed(1000 * number + rank)
    x = torch.randn(3, 2, 4, 4, generator=generator)
    if kind == "bomb" or (kind == "bomb1" and rank == 1):  # some parameters have their gradients by then
        h = torch.zeros(3, dtype=net.scale.dtype, requires_grad=True)
        return (net.last(_Bomb.apply(h)) * net.scale).mean()
    out = net(x, uses_branch=kind != "unused" and not (kind == "unused1" and rank == 1))
    return out.square().mean() * (1 + rank)


# ---- programs ------------------------------------------------------------------------------------------------


def make_program(seed: int) -> Program:
    """Returns a random program."""
    r = random.Random(seed)
    kind = r.choice(["sgd", "decay", "momentum", "momentum", "adam", "adamw"])
    program: Program = {"seed": seed, "optimizer": kind, "codec": "none", "overlap": False, "vetoes": False}
    program["swaps"] = r.random() < 0.15
    if r.random() < 0.25:
        program["codec"] = r.choice(
            ["2bit:threshold=0.05", "int8:reply=fp32", "topk:ratio=0.3,reply=fp32", "fp16:reply=fp32"]
        )
    if r.random() < 0.3:
        program["overlap"] = True
    elif r.random() < 0.3:
        program["vetoes"] = True
    ops: list[list[Any]] = []
    for _ in range(r.randint(3, 8)):
        for _ in range(r.choice([0, 0, 1, 1, 2])):
            ops += _between(r, program)
        ops += _one_step(r, program, is_skipped=bool(ops) and ops[-1] != ["step"])
    program["ops"] = ops
    return program


def _between(r: random.Random, program: Program) -> list[list[Any]]:
    takes_any_dtype = program["optimizer"] in ("sgd", "decay", "momentum") and program["codec"] == "none"
    choice = r.choice(BETWEEN)
    if choice == "there and back":
        return [["convert", r.choice(["half", "bfloat16", "double"])], ["convert", "float"]]
    if choice == "format":
        return [["format", r.choice(["channels_last", "contiguous"])]]
    if choice == "lasting":
        return [["convert", r.choice(["double", "float"])]] if takes_any_dtype else []
    if choice in ("freeze", "thaw"):
        return [["zero", "optimizer", True], [choice, r.choice(LAYERS)]]
    if choice == "add group":
        by = r.choice(["front", "base"] if program["codec"] == "none" else ["front"])
        return [["zero", "optimizer", True], ["add group", by], ["zero", "optimizer", True]]
    if choice == "hook" and not program["swaps"]:  # by which torch takes all hooks away
        return [["hook", r.choice([*LAYERS, "scale"]), r.choice(["replace", "in place"])]]
    if choice == "copy":
        return [["copy", r.choice(["model", "optimizer", "state", "save", "scheduler"])]]
    if choice == "move":
        return [["move", r.choice(["data", "share", "pickle", "set", "clone"])]]
    return [[choice]] if choice in ("share model", "unhook") else []


def _one_step(r: random.Random, program: Program, *, is_skipped: bool) -> list[list[Any]]:
    """is_skipped: the step before was not taken, so that only the optimizer's zero_grad() ends it."""
    ops: list[list[Any]] = []
    if is_skipped or program["swaps"]:  # by which torch takes our hooks away, too, until the next zero_grad()
        ops.append(["zero", "optimizer", r.random() < 0.7])
    elif r.random() < 0.9:
        ops.append(["zero", r.choice(["optimizer", "optimizer", "model"]), r.random() < 0.7])
    sources = [["backward", "all"]] * 10 + [["backward", "unused"], ["backward", "unused1"]] * 2
    sources += [["backward", "none1"], ["hand", "set"], ["hand", "one"]] * 2
    sources += [["backward", "none"], ["twice"], ["no_sync"], ["no_sync only"], ["nothing"]]
    if program["vetoes"]:
        sources += [["bomb", "bomb"], ["bomb", "bomb1"]] * 2
    source = r.choice(sources)
    if source[0] == "bomb":
        return [["zero", "optimizer", True], ["bomb", source[1]], ["step"], ["zero", "optimizer", True]]
    if source == ["twice"]:
        ops += [["backward", "all"], ["backward", "all"]]
    elif source == ["no_sync"]:
        ops += [["local backward", "all"], ["backward", "all"]]
    elif source == ["no_sync only"]:
        ops += [["local backward", "all"]]
    elif source != ["nothing"]:
        ops.append(source)
    exchanges = source[0] in ("backward", "twice", "no_sync") and source[1:] not in (["none"], ["none1"])
    if exchanges and r.random() < 0.3:
        if program["overlap"]:
            ops.append(["synchronize"])
        move = ["move", r.choice(["data", "share", "pickle", "set", "clone"])]
        share = ["clip"] if program["swaps"] else ["share model"]
        ops.append(r.choice([move, share, ["change", "in place"], ["change", "replace"], ["clip"]]))
    if not exchanges or r.random() < 0.93:  # what one rank exchanges in backward() others do in step()
        ops.append(["step"])
        if r.random() < 0.05:
            ops.append(["step"])
    elif program["overlap"]:
        ops.append(["synchronize"])  # or nobody may touch gradients
    return ops


# ---- what a program does to a model --------------------------------------------------------------------------


def convert(net: Net, how: str) -> None:
    getattr(net, how)()


def reformat(net: Net, how: str) -> None:
    net.to(memory_format=torch.channels_last if how == "channels_last" else torch.contiguous_format)


def move(gradient: torch.Tensor, how: str) -> torch.Tensor | None:
    """Moves a gradient's memory, and leaves its values. Returns another gradient to put in its place, or none."""
    if how == "clone":
        return gradient.clone()
    if how == "data":
        gradient.data = gradient.clone()
    elif how == "share":
        gradient.share_memory_()
    elif how == "pickle":  # as a queue of torch.multiprocessing does
        multiprocessing.reduction.ForkingPickler.dumps(gradient)
    elif how == "set":
        values = gradient.clone()
        with torch.no_grad():
            gradient.set_(values.untyped_storage(), 0, values.shape, values.stride())
    return None


def layer_parameters(net: Net, layer: str) -> list[nn.Parameter]:
    found = getattr(net, layer)
    return [found] if isinstance(found, nn.Parameter) else list(found.parameters())


def hook_of(kind: str) -> Callable[[torch.Tensor], None]:
    def replace(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = parameter.grad * 0.5

    def in_place(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    return replace if kind == "replace" else in_place


def by_hand(shape: torch.Size, number: int, rank: int, place: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7777 + 100 * number + 10 * rank + place)
    return torch.randn(shape, generator=generator)


def as_gradient(values: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor | None:
    """A gradient that lies as its parameter does: the order of memory is the order in which norms are summed."""
    return None if values is None else torch.empty_like(parameter, requires_grad=False).copy_(values)


class OneProcess:
    """The oracle: one model, torch's optimizer, and what p.grad of both ranks is."""

    def __init__(self, net: Net, program: Program) -> None:
        self.net = net
        self.optimizer = OPTIMIZERS[program["optimizer"]](list(net.trained().values()))
        self.held: list[Held] = [{} for _ in range(WORKERS)]
        self.is_exchanged = False
        self.hooks: dict[str, list[str]] = {}
        self.given: dict[str, torch.Tensor] = {}  # to the exchange, of all ranks and steps
        self.travels_as: dict[str, torch.dtype] = {}  # for good, as of when it is declared
        self.declare()

    def live(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.net.trained().items() if p.requires_grad}

    def declare(self) -> None:
        """Says that what is trained now is exchanged from now on."""
        for name, parameter in self.live().items():
            is_wide = parameter.dtype == torch.float64
            self.travels_as.setdefault(name, torch.float64 if is_wide else torch.float32)

    def backward(self, number: int, kind: str) -> None:
        for rank, held in enumerate(self.held):
            live = self.live()
            loss = loss_of(self.net, rank, number, kind)
            if not live or not any(p.requires_grad for p in self.net.parameters()) or loss.grad_fn is None:
                continue
            found = torch.autograd.grad(loss, list(live.values()), allow_unused=True)
            for name, gradient in zip(live, found, strict=True):
                if gradient is None:
                    continue
                before = held.get(name)
                held[name] = gradient if before is None else before + gradient
                for _ in self.hooks.get(name.split(".")[0], []):
                    held[name] = held[name] * 0.5

    def exchange(self, delivered: Held | None = None) -> None:
        """Has held be the means.

        Args:
            delivered: what the ranks have got, of a lossy codec.
        """
        self.declare()
        for name, parameter in self.live().items():
            gradients = [held.get(name) for held in self.held]
            dtype = self.travels_as[name]
            given = [
                torch.zeros(parameter.shape, dtype=dtype) if g is None else g.detach().to(dtype)
                for g in gradients
            ]
            total = given[0] + given[1]
            self.given[name] = self.given.get(name, torch.zeros(parameter.shape)).double() + total.double()
            mean = total * 0.5 if delivered is None else delivered[name]
            assert mean is not None
            for held in self.held:
                held[name] = mean.to(parameter.dtype)
        self.is_exchanged = True

    def needs_exchange(self) -> bool:
        held = [[each.get(name) for name in self.live()] for each in self.held]
        if not self.is_exchanged or all(g is None for g in held[0]):
            return True
        return any(
            (a is None) != (b is None) or (a is not None and not torch.equal(a, b))
            for a, b in zip(*held, strict=True)
        )

    def step(self) -> None:
        for name, parameter in self.net.trained().items():
            parameter.grad = as_gradient(self.held[0].get(name), parameter)
        self.optimizer.step()
        for parameter in self.net.parameters():
            parameter.grad = None
        self.is_exchanged = False


class Rank:
    """One rank, beside the one process."""

    def __init__(self, store: gw.kv.KVStore, net: Net, program: Program) -> None:
        self.program = program
        self.store, self.net = store, net
        self.one = OneProcess(copy.deepcopy(net), program)
        self.base = OPTIMIZERS[program["optimizer"]](list(net.trained().values()))
        self.optimizer = gw.torch.DistributedOptimizer(
            self.base,
            net.named_parameters(),
            program["codec"],
            store,
            codecs=None if program["codec"] == "none" else {"*": program["codec"]},
            overlap_step=program["overlap"],
            on_nonfinite="skip_step" if program["vetoes"] else "ignore",
        )
        self.number = 0
        self.handles: list[Any] = []
        self.copies: list[Any] = []
        self.delivered: dict[str, torch.Tensor] = {}
        self.is_bombed = False  # the backward() before this op

    def run(self) -> None:
        with contextlib.closing(self.optimizer):
            before: list[Any] = []
            for op in self.program["ops"]:
                self.is_bombed = before[:1] == ["bomb"]
                try:
                    getattr(self, "_" + op[0].replace(" ", "_"))(*op[1:])
                except BaseException as error:
                    error.add_note(f"rank {self.store.rank}, op {op}")
                    raise
                before = op
            self._require_equal_weights()
            if self.program["codec"] != "none":
                self._require_conservation()

    # -- checks

    def _require_equal_weights(self) -> None:
        self.optimizer.synchronize()
        for (name, ours), theirs in zip(self.net.named_parameters(), self.one.net.parameters(), strict=True):
            assert ours.dtype == theirs.dtype, name
            difference = (ours.detach() - theirs.detach()).abs().max()
            assert torch.equal(ours, theirs), f"{name} differs by {difference:.3g}"

    def _require_conservation(self) -> None:
        state = self.optimizer.state_dict().get("gradwire", {}).get("residuals", {})
        own_names = {f"parameter.{number}": name for number, name in enumerate(self.net.trained())}
        state = {
            own_names.get(name, name): residual for name, residual in state.items()
        }  # of a group that was added
        for name, given in self.one.given.items():
            residual = state.get(name)
            own = torch.zeros(given.numel()) if residual is None else residual
            owed = self.store.collectives.all_reduce(own.float().contiguous(), op="sum").view(given.shape)
            total = self.delivered.get(name, torch.zeros_like(given)) + owed.double()
            error = (total - given).abs().max() / (given.abs().max() + 1)
            assert error < 1e-4, f"{name}: {given} given, {total} delivered and owed"

    def _take_delivered(self) -> Held | None:
        """What p.grad holds after an exchange, of a lossy codec."""
        if self.program["codec"] == "none":
            return None
        self.optimizer.synchronize()
        means: Held = {}
        for name, parameter in self.net.trained().items():
            if parameter.requires_grad:
                mean = (
                    torch.zeros(parameter.shape)
                    if parameter.grad is None
                    else parameter.grad.detach().float()
                )
                means[name] = mean.clone()
                self.delivered[name] = self.delivered.get(name, 0) + WORKERS * mean.double()
        return means

    # -- ops

    def _zero(self, who: str, set_to_none: bool) -> None:
        if who == "model" and self.program["overlap"]:
            self.optimizer.synchronize()  # p.grad of a sum on its way cannot be read
        whose = self.optimizer if who == "optimizer" else self.net
        whose.zero_grad(set_to_none)
        for held in self.one.held:
            for name, gradient in held.items():
                held[name] = None if set_to_none or gradient is None else torch.zeros_like(gradient)
        if who == "optimizer":
            self.one.is_exchanged = False

    def _backward(self, kind: str) -> None:
        self.number += 1
        reaches = kind != "none" and not (kind == "none1" and self.store.rank == 1)
        loss = loss_of(self.net, self.store.rank, self.number, kind)
        if loss.grad_fn is not None:
            loss.backward()
        self.one.backward(self.number, kind)
        if kind not in ("none", "none1") and self.one.live():
            self.one.exchange(self._take_delivered() if reaches else None)

    def _local_backward(self, kind: str) -> None:
        self.number += 1
        loss = loss_of(self.net, self.store.rank, self.number, kind)
        with self.optimizer.no_sync():
            if loss.grad_fn is not None:
                loss.backward()
        self.one.backward(self.number, kind)

    def _bomb(self, kind: str) -> None:
        self.number += 1
        with contextlib.suppress(RuntimeError):
            loss_of(self.net, self.store.rank, self.number, kind).backward()

    def _hand(self, kind: str) -> None:
        self.number += 1
        ranks = range(WORKERS) if kind == "set" else [1]
        for place, (name, parameter) in enumerate(self.net.trained().items()):
            if not parameter.requires_grad:
                continue
            for rank in ranks:
                gradient = by_hand(parameter.shape, self.number, rank, place).to(parameter.dtype)
                self.one.held[rank][name] = gradient
                if rank == self.store.rank:
                    parameter.grad = gradient.clone()

    def _step(self) -> None:
        if self.is_bombed:
            before = copy.deepcopy(self.net.state_dict())
            self.optimizer.step()
            for name, weight in self.net.state_dict().items():
                assert torch.equal(weight, before[name]), f"{name} took a step that was to be skipped"
            self.one.declare()  # a skipped step takes in a group that base has got, too
            return
        seen: list[Held | None] = []
        look = self.optimizer.register_step_pre_hook(lambda *_: seen.append(self._take_delivered()))
        needs_exchange = self.one.needs_exchange()
        if self.program["codec"] == "none" or not needs_exchange:
            look.remove()
        self.optimizer.step()
        look.remove()
        if needs_exchange:
            self.one.exchange(seen[0] if seen else None)
        self.one.step()
        if not self.program["overlap"]:
            self._require_equal_weights()

    def _synchronize(self) -> None:
        self.optimizer.synchronize()

    def _move(self, how: str) -> None:
        if self.program["overlap"]:
            self.optimizer.synchronize()
        for parameter in self.net.parameters():
            if parameter.grad is not None:
                other = move(parameter.grad, how)
                if other is not None:
                    parameter.grad = other

    def _change(self, how: str) -> None:
        for parameter in self.net.trained().values():
            if parameter.grad is None:
                continue
            if how == "in place":
                parameter.grad.mul_(0.5)
            else:
                parameter.grad = parameter.grad * 0.5
        for held in self.one.held:
            for name, gradient in held.items():
                held[name] = None if gradient is None else gradient * 0.5
        if how == "replace" and self.program["codec"] != "none":
            self.one.is_exchanged = False  # all are exchanged once more

    def _clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.net.trained().values(), 0.5)
        theirs = self.one.net.trained()
        for held in self.one.held:
            for name, parameter in theirs.items():
                parameter.grad = as_gradient(held.get(name), parameter)
            torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
            for name, parameter in theirs.items():
                held[name], parameter.grad = parameter.grad, None

    def _convert(self, how: str) -> None:
        convert(self.net, how)
        convert(self.one.net, how)
        for held in self.one.held:
            for name, gradient in held.items():
                held[name] = None if gradient is None else getattr(gradient, how)()

    def _format(self, how: str) -> None:
        reformat(self.net, how)
        reformat(self.one.net, how)

    def _share_model(self) -> None:
        self.net.share_memory()

    def _freeze(self, layer: str) -> None:
        for net in (self.net, self.one.net):
            for parameter in layer_parameters(net, layer):
                parameter.requires_grad_(False)

    def _thaw(self, layer: str) -> None:
        for net in (self.net, self.one.net):
            for parameter in layer_parameters(net, layer):
                parameter.requires_grad_(True)

    def _add_group(self, by: str) -> None:
        if self.net.has_head:
            return
        self.net.has_head = self.one.net.has_head = True
        whose = self.optimizer if by == "front" else self.base
        whose.add_param_group({"params": list(self.net.head.parameters())})
        self.one.optimizer.add_param_group({"params": list(self.one.net.head.parameters())})
        if by == "front":  # which takes it in at once
            self.one.declare()

    def _hook(self, layer: str, kind: str) -> None:
        if not all(p.requires_grad for p in layer_parameters(self.net, layer)):
            return
        for parameter in layer_parameters(self.net, layer):
            self.handles.append(parameter.register_post_accumulate_grad_hook(hook_of(kind)))
        self.one.hooks.setdefault(layer, []).append(kind)

    def _unhook(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.one.hooks.clear()

    def _copy(self, what: str) -> None:
        if what == "model":
            self.copies.append(copy.deepcopy(self.net))
        elif what == "optimizer":
            self.copies.append(copy.deepcopy(self.optimizer))
        elif what == "scheduler":
            torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)
        elif what == "save":
            written = io.BytesIO()
            torch.save([self.net.state_dict(), self.optimizer.state_dict()], written)
            written.seek(0)
            weights, state = torch.load(written, weights_only=True)
            self.net.load_state_dict(weights)
            self.optimizer.load_state_dict(state)
            self.one.optimizer.load_state_dict(self.one.optimizer.state_dict())
        else:
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
            self.one.optimizer.load_state_dict(copy.deepcopy(self.one.optimizer.state_dict()))


# ---- running them --------------------------------------------------------------------------------------------


class Failed(Exception):
    """A program went wrong."""

    def __init__(self, program: Program, errors: list[BaseException]) -> None:
        self.program, self.errors = program, errors
        super().__init__(f"{pprint.pformat(program, width=100)}\n" + "\n".join(map(_shown, errors)))


def _shown(error: BaseException) -> str:
    notes = "; ".join(getattr(error, "__notes__", []))
    return f"{notes}: {type(error).__name__}: {error}"


def run_programs(programs: Iterator[Program] | list[Program], *, deadline: float = 120) -> int:
    """Runs programs on two ranks that are threads of one job, one after the other. Returns how many.

    Args:
        deadline: seconds that one may take.

    Raises:
        Failed: the first that goes wrong, or hangs.
    """
    network = gw._core.InprocNetwork(WORKERS)
    turn = threading.Barrier(WORKERS + 1)
    current: list[tuple[Program, Net]] = []
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        engine = network.connect(number, codec_threads=1, slow_abort=deadline, slow_warning=deadline / 2)
        store = gw.kv.KVStore("allreduce", engine, definitions.read())
        try:
            while True:
                turn.wait()
                if not current:
                    return
                program, net = current[0]
                Rank(store, copy.deepcopy(net), program).run()
                turn.wait()
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            errors.append(error)
            turn.abort()
        finally:
            store.close()

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    done = 0
    try:
        for program in programs:
            torch.manual_seed(program["seed"])
            torch.__future__.set_swap_module_params_on_conversion(program["swaps"])
            current[:] = [(program, Net())]
            turn.wait(deadline)
            turn.wait(deadline)
            done += 1
        current.clear()
        turn.wait(deadline)
    except threading.BrokenBarrierError:
        for thread in threads:
            thread.join(deadline)
        raise Failed(current[0][0], errors) from None
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    for thread in threads:
        thread.join(deadline)
    return done


def shrunk(program: Program, deadline: float = 30) -> Program:
    """Returns a program that still goes wrong, and from which no op can be taken away."""
    best, at = program, 0
    while at < len(best["ops"]):
        shorter = {**best, "ops": best["ops"][:at] + best["ops"][at + 1 :]}
        try:
            run_programs([shorter], deadline=deadline)
        except Failed:
            best = shorter
        else:
            at += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", nargs="?", help="as it is printed")
    add_seeds(parser)
    parser.add_argument("--shrink", action="store_true", help="make the program that is given shorter")
    options = parser.parse_args()
    if (options.program is None) == (options.seeds is None):
        parser.error("expected either a program or --seeds")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.seeds:
        sys.exit(play_all(range(*options.seeds), lambda seeds: run_programs(map(make_program, seeds))))
    try:
        run_programs([ast.literal_eval(options.program)])
    except Failed as failed:
        print(failed, file=sys.stderr)
        if options.shrink:
            print(pprint.pformat(shrunk(failed.program), width=100))
        sys.exit(1)
    print("no difference")


if __name__ == "__main__":
    main()
