"""What the ranks do in torch_overlap_ranks_test.py: each case trains twice, with overlap_step and without, and the bits
of weights and of the optimizer's state are the same.

python torch_overlap_cases.py STORE    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import torch
from torch import nn
from torch_programs import CASES, Net, case, images


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


Wrap = Callable[..., Any]
Train = Callable[[Wrap], nn.Module]


def require_equal(ours: Any, theirs: Any, where: str) -> None:
    """The same keys and the same bits."""
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{where}: {text}"
        )
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            require_equal(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), where
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            require_equal(a, b, f"{where}.{index}")
    else:
        assert ours == theirs, where


def require_the_plain_loop(store: gw.kv.KVStore, train: Train, **options: Any) -> None:
    """Runs train(wrap) both ways; wrap(model, make_optimizer) is DistributedOptimizer."""
    results = []
    for overlap_step in (False, True):
        made: list[Any] = []

        def wrap(
            model: nn.Module,
            make: Callable[..., Any] = momentum,
            overlap_step: bool = overlap_step,
            made: list[Any] = made,
            **more: Any,
        ) -> Any:
            inner = make(model.parameters())
            made.append(
                gw.torch.DistributedOptimizer(
                    inner,
                    model.named_parameters(),
                    store=store,
                    overlap_step=overlap_step,
                    **{"compression": "none", **options, **more},
                )
            )
            return made[-1]

        torch.manual_seed(0)
        model = train(wrap)
        # Read through torch's own functions, with whatever is under way still to come.
        results.append((copy.deepcopy(model.state_dict()), copy.deepcopy(made[-1].state_dict())))
        made[-1].close()
    require_equal(results[1][0], results[0][0], "weights")
    require_equal(results[1][1], results[0][1], "optimizer")


def loss_of(model: nn.Module, store: gw.kv.KVStore, step: int) -> torch.Tensor:
    return model(images(10 * step + store.rank)).square().mean()


def train_net(
    store: gw.kv.KVStore, wrap: Wrap, make: Callable[..., Any] = momentum, **options: Any
) -> nn.Module:
    """Learning rates change at once after step(), when sums are still under way."""
    model = Net()
    optimizer = wrap(model, make, **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    for step in range(5):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss_of(model, store, step).backward()
        optimizer.step()
        scheduler.step()
    return model


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": momentum,
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-3),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "adam with a tensor for its rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
}


@case
def every_optimizer(store: gw.kv.KVStore) -> None:
    for make in OPTIMIZERS.values():
        require_the_plain_loop(store, lambda wrap, make=make: train_net(store, wrap, make))


@case
def every_way_to_compress(store: gw.kv.KVStore) -> None:
    for compression in ("2bit", "2bit:threshold=0.001", "2bit:threshold=auto,reply=2bit", "fp16"):
        for make in (momentum, OPTIMIZERS["adam"]):
            require_the_plain_loop(
                store, lambda wrap, make=make: train_net(store, wrap, make), compression=compression
            )
    store.set_gradient_compression("none")


@case
def groups_with_rates_of_their_own(store: gw.kv.KVStore) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        members = list(parameters)
        groups = [{"params": members[::2], "lr": 0.1}, {"params": members[1::2], "lr": 0.01, "momentum": 0.5}]
        return torch.optim.SGD(groups, momentum=0.9)

    require_the_plain_loop(store, lambda wrap: train_net(store, wrap, make))


@case
def momentum_that_workers_send(store: gw.kv.KVStore) -> None:
    for compression in ("none", "2bit"):
        require_the_plain_loop(
            store, lambda wrap: train_net(store, wrap, momentum_correction=True), compression=compression
        )
    store.set_gradient_compression("none")


@case
def a_warm_up(store: gw.kv.KVStore) -> None:
    require_the_plain_loop(
        store,
        lambda wrap: train_net(store, wrap, warm_up=[("none", 1), ("fp16", 2)]),
        compression="2bit:threshold=0.001",
    )
    store.set_gradient_compression("none")


@case
def passes_that_are_added_up(store: gw.kv.KVStore) -> None:
    def by_option(wrap: Wrap) -> nn.Module:
        model = Net()
        optimizer = wrap(model, backward_passes_per_step=2)
        for step in range(4):
            optimizer.zero_grad()
            for part in range(2):
                loss_of(model, store, 2 * step + part).backward()
            optimizer.step()
        return model

    def without_sending(wrap: Wrap) -> nn.Module:
        model = Net()
        optimizer = wrap(model)
        for step in range(4):
            optimizer.zero_grad()
            with optimizer.no_sync():
                loss_of(model, store, 2 * step).backward()
            loss_of(model, store, 2 * step + 1).backward()
            optimizer.step()
        return model

    def by_hand(wrap: Wrap) -> nn.Module:
        """The second one begins while the first one's sums are under way."""
        model = Net()
        optimizer = wrap(model)
        for step in range(4):
            optimizer.zero_grad()
            for part in range(2):
                loss_of(model, store, 2 * step + part).backward()
            optimizer.step()
        return model

    def more_without_sending(wrap: Wrap) -> nn.Module:
        """The local one begins while the first one's sums are under way, of which step() has not heard."""
        model = Net()
        optimizer = wrap(model)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, store, 2 * step).backward()
            with optimizer.no_sync():
                loss_of(model, store, 2 * step + 1).backward()
            optimizer.step()
        return model

    def without_zero_grad(wrap: Wrap) -> nn.Module:
        model = Net()
        optimizer = wrap(model)
        for step in range(4):
            loss_of(model, store, step).backward()
            optimizer.step()
        return model

    def cleared_before_the_step(wrap: Wrap) -> nn.Module:
        model = Net()
        optimizer = wrap(model)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, store, step).backward()
            if step % 2:
                optimizer.zero_grad()
            optimizer.step()
        return model

    def two_steps_on_one_gradient(wrap: Wrap) -> nn.Module:
        model = Net()
        optimizer = wrap(model)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, store, step).backward()
            optimizer.step()
            optimizer.step()
        return model

    def a_graph_from_before_the_step(wrap: Wrap) -> nn.Module:
        """Its backward() begins while sums are under way that nobody has waited for."""
        model = nn.ParameterDict({"a": nn.Parameter(torch.ones(5)), "b": nn.Parameter(torch.ones(5))})
        optimizer = wrap(model)
        for step in range(4):
            early = ((step + 1.0 + store.rank) * model["a"]).sum() + model["b"].sum()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            (model["a"] * model["b"] * (1.0 + store.rank)).sum().backward()
            optimizer.step()
            if step % 2:
                optimizer.zero_grad(set_to_none=step == 1)
            early.backward()
            optimizer.step()
        return model

    for train in (
        by_option,
        without_sending,
        by_hand,
        more_without_sending,
        without_zero_grad,
        cleared_before_the_step,
        two_steps_on_one_gradient,
        a_graph_from_before_the_step,
    ):
        require_the_plain_loop(store, train)


@case
def frozen_then_unfrozen(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = Net()
        model.conv.requires_grad_(False)
        optimizer = wrap(model)
        for step in range(6):
            if step == 2:
                model.conv.requires_grad_(True)
            if step == 4:
                model.last.requires_grad_(False)
            optimizer.zero_grad()
            loss_of(model, store, step).backward()
            optimizer.step()
        return model

    require_the_plain_loop(store, train)


@case
def groups_added_later(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        body, head = nn.Linear(6, 6), nn.Linear(6, 2)
        model = nn.Sequential(body, head)
        optimizer = wrap(body)
        for step in range(4):
            if step == 2:
                optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.1})
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + store.rank))
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        return model

    require_the_plain_loop(store, train)


class Unusual(nn.Module):
    """Weights that are tied, that other modules use, that a parametrization owns, and some in turn unused."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)  # uses out_proj.weight by itself
        self.turned = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.cells = nn.GRU(8, 8, batch_first=True)
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(8))
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.into.weight
        self.which = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared = nn.functional.linear(
            torch.ones(8), self.parts[self.which].weight
        )  # before the layer is called
        h = self.into(x)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h, _ = self.cells(self.turned(h) * self.scale)
        return self.out(self.parts[self.which](h) + shared)


@case
def weights_used_in_unusual_ways(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = Unusual()
        optimizer = wrap(model)
        for step in range(5):
            model.which = step % 2
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + store.rank)
            x, y = torch.randint(11, (2, 3, 5), generator=generator)
            nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
            optimizer.step()
        return model

    require_the_plain_loop(store, train)
    require_the_plain_loop(store, train, compression="2bit:threshold=0.001")
    store.set_gradient_compression("none")


@case
def compiled_models(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
        optimizer = wrap(model)
        compiled = torch.compile(model, backend="aot_eager")
        for step in range(4):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + store.rank))
            optimizer.zero_grad()
            compiled(x).square().sum().backward()
            optimizer.step()
        return model

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"Using `torch\.compile")
        require_the_plain_loop(store, train)


@case
def checkpointed_layers(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(4)))
        optimizer = wrap(model)
        for step in range(4):
            h = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + store.rank))
            h.requires_grad_()
            optimizer.zero_grad()
            for index, layer in enumerate(model):
                h = torch.utils.checkpoint.checkpoint(layer, h, use_reentrant=index % 2 == 0)
            h.square().sum().backward()
            optimizer.step()
        return model

    require_the_plain_loop(store, train)


@case
def half_precision_channels_last_and_autocast(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap, dtype: torch.dtype) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(100, 2)).to(dtype)
        model = model.to(memory_format=torch.channels_last)
        optimizer = wrap(model)
        for step in range(4):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
                loss = model(images(10 * step + store.rank).to(dtype)).square().mean()
            loss.backward()
            optimizer.step()
        return model

    for dtype in (torch.bfloat16, torch.float64, torch.float32):
        require_the_plain_loop(store, lambda wrap, dtype=dtype: train(wrap, dtype))
        require_the_plain_loop(store, lambda wrap, dtype=dtype: train(wrap, dtype), compression="2bit")
    store.set_gradient_compression("none")


@case
def leaves_that_are_no_parameters(store: gw.kv.KVStore) -> None:
    """They are not guarded, so their sums are awaited by backward()."""

    def train(wrap: Wrap) -> nn.Module:
        model = nn.Linear(4, 4)
        loose = torch.full((4,), 2.0, requires_grad=True)
        optimizer = wrap(model)
        optimizer.add_param_group({"params": [loose], "lr": 0.1})
        for step in range(4):
            optimizer.zero_grad()
            x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + store.rank))
            (model(x) * loose).square().mean().backward()
            optimizer.step()
        model.register_buffer("loose", loose.detach().clone())
        return model

    require_the_plain_loop(store, train)


@case
def backward_that_raises(store: gw.kv.KVStore) -> None:
    """On one rank or on all of them: what that leaves behind is what it leaves without overlap_step."""

    class Fuse(torch.autograd.Function):
        blown = False

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            if Fuse.blown:
                raise RuntimeError("the fuse has blown")
            return gradient

    def train(wrap: Wrap, failing: tuple[int, ...]) -> nn.Module:
        model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
        optimizer = wrap(model)
        for step in range(4):
            Fuse.blown = step == 2 and store.rank in failing
            x = torch.randn(4, 30, generator=torch.Generator().manual_seed(10 * step + store.rank))
            optimizer.zero_grad()
            loss = model[1](Fuse.apply(model[0](x))).square().mean()
            try:
                loss.backward()
            except RuntimeError as error:
                assert "the fuse" in str(error)  # noqa: PT017
                assert Fuse.blown
            optimizer.step()
        Fuse.blown = False
        return model

    everyone = tuple(range(store.num_workers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaNs are what the others hear of it
        for failing, compression in ((everyone, "none"), (everyone, "2bit"), ((0,), "2bit:threshold=0.001")):
            require_the_plain_loop(
                store,
                lambda wrap, failing=failing: train(wrap, failing),
                compression=compression,
                codecs={"*": compression},
            )
    store.set_gradient_compression("none")


@case
def checkpoints_go_on_either_way(store: gw.kv.KVStore) -> None:
    """A state that was saved with a step under way, loaded with and without overlap_step."""

    def train(wrap: Wrap, first: bool, then: bool) -> nn.Module:
        model = Net()
        optimizer = wrap(model, overlap_step=first)
        for step in range(6):
            if step == 3:
                weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
                optimizer.close()
                model = Net()
                model.load_state_dict(weights)
                optimizer = wrap(model, overlap_step=then)
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            loss_of(model, store, step).backward()
            optimizer.step()
        return model

    results = []
    for first, then in ((False, False), (True, False), (False, True), (True, True)):

        def record(wrap: Wrap, first: bool = first, then: bool = then) -> nn.Module:
            model = train(wrap, first, then)
            results.append(copy.deepcopy(model.state_dict()))
            return model

        require_the_plain_loop(store, record, compression="2bit:threshold=0.001")
    for each in results:
        require_equal(each, results[0], "weights")
    store.set_gradient_compression("none")


@case
def broadcasts_see_updated_weights(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = Net()
        optimizer = wrap(model)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, store, step).backward()
            optimizer.step()
            gw.torch.broadcast_parameters(model.named_parameters(), store=store)
            gw.torch.broadcast_optimizer_state(optimizer, store=store)
        return model

    require_the_plain_loop(store, train)


@case
def a_nan_is_told(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = nn.Linear(4, 4)
        optimizer = wrap(model)
        for step in range(3):
            x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + store.rank))
            if step == 1 and store.rank == 1:
                x[0, 0] = float("nan")
            optimizer.zero_grad()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.synchronize()
            told = [w for w in caught if "a worker's gradient held a NaN" in str(w.message)]
            assert len(told) == (step == 1), step
        return model

    require_the_plain_loop(
        store, train, compression="2bit:threshold=0.001", codecs={"*": "2bit:threshold=0.001"}
    )
    store.set_gradient_compression("none")


def leave_with_a_step_under_way(store: gw.kv.KVStore) -> None:
    """The script's last step; nobody reads what it changes, and nobody closes anything."""
    model = nn.Linear(300, 300)
    gw.torch.broadcast_parameters(model.state_dict(), store=store)
    optimizer = gw.torch.DistributedOptimizer(
        momentum(model.parameters()), model.named_parameters(), store=store, overlap_step=True
    )
    for step in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 300) * step).sum().backward()
        optimizer.step()


def main(kind: str) -> None:
    torch.set_num_threads(1)
    store = gw.kv.create(kind)
    for name, run in CASES.items():
        run(store)
        print(name, "passed", flush=True)
    leave_with_a_step_under_way(store)


if __name__ == "__main__":
    main(sys.argv[1])
