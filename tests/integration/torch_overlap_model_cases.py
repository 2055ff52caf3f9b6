"""The cases of torch_overlap_cases.py about models: what they freeze, share, compile and cast, and where they fail."""

from __future__ import annotations

import warnings
from typing import Any

import gradwire as gw
import torch
from overlap_comparison import Wrap, loss_of, numbers, require_the_plain_loop, take_steps
from torch import nn
from torch_programs import Net, case, images


@case
def frozen_then_unfrozen(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = Net()
        model.conv.requires_grad_(False)
        optimizer = wrap(model)

        def freeze(step: int) -> None:
            model.conv.requires_grad_(step >= 1)
            model.last.requires_grad_(step < 3)

        take_steps(optimizer, lambda step: loss_of(model, store, step), steps=6, after=freeze)
        return model

    require_the_plain_loop(store, train)


@case
def groups_added_later(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        body, head = nn.Linear(6, 6), nn.Linear(6, 2)
        model = nn.Sequential(body, head)
        optimizer = wrap(body)

        def add(step: int) -> None:
            if step == 1:
                optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.1})

        take_steps(optimizer, lambda step: model(numbers(store, step, 4, 6)).square().sum(), after=add)
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

        def loss(step: int) -> torch.Tensor:
            model.which = step % 2
            generator = torch.Generator().manual_seed(10 * step + store.rank)
            x, y = torch.randint(11, (2, 3, 5), generator=generator)
            return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

        take_steps(wrap(model), loss, steps=5)
        return model

    require_the_plain_loop(store, train)
    require_the_plain_loop(store, train, compression="2bit:threshold=0.001")


@case
def compiled_models(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
        optimizer = wrap(model)
        compiled = torch.compile(model, backend="aot_eager")
        take_steps(optimizer, lambda step: compiled(numbers(store, step, 4, 6)).square().sum())
        return model

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"Using `torch\.compile")
        require_the_plain_loop(store, train)


@case
def checkpointed_layers(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(4)))

        def loss(step: int) -> torch.Tensor:
            h = numbers(store, step, 4, 5).requires_grad_()
            for index, layer in enumerate(model):
                h = torch.utils.checkpoint.checkpoint(layer, h, use_reentrant=index % 2 == 0)
            return h.square().sum()

        take_steps(wrap(model), loss)
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


@case
def leaves_that_are_no_parameters(store: gw.kv.KVStore) -> None:
    """They are not guarded, so their sums are awaited by backward()."""

    def train(wrap: Wrap) -> nn.Module:
        model = nn.Linear(4, 4)
        loose = torch.full((4,), 2.0, requires_grad=True)
        optimizer = wrap(model)
        optimizer.add_param_group({"params": [loose], "lr": 0.1})
        take_steps(optimizer, lambda step: (model(numbers(store, step, 4, 4)) * loose).square().mean())
        model.register_buffer("loose", loose.detach().clone())
        return model

    require_the_plain_loop(store, train)


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


@case
def backward_that_raises(store: gw.kv.KVStore) -> None:
    """On one rank or on all of them: what that leaves behind is what it leaves without overlap_step."""

    def train(wrap: Wrap, failing: tuple[int, ...]) -> nn.Module:
        model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
        optimizer = wrap(model)
        for step in range(4):
            Fuse.blown = step == 2 and store.rank in failing
            optimizer.zero_grad()
            loss = model[1](Fuse.apply(model[0](numbers(store, step, 4, 30)))).square().mean()
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


@case
def a_nan_is_told(store: gw.kv.KVStore) -> None:
    def train(wrap: Wrap) -> nn.Module:
        model = nn.Linear(4, 4)
        optimizer = wrap(model)
        for step in range(3):
            x = numbers(store, step, 4, 4)
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
