"""Several DistributedOptimizers at one store: a GAN's two, Muon beside AdamW, each with steps and codecs of its own."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.settings import definitions
from gradwire.stores import connect as joining
from python.two_ranks import batch, require_equal, run_two, seeded, warnings_of_two
from torch import nn

OVERLAP = [{}, {"overlap_step": True}]
Wrap = Callable[[torch.optim.Optimizer, nn.Module], Any]


def adam(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, betas=(0.5, 0.9))


class Gan(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 4))
        self.judge = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))

    def judge_loss(self, rank: int, step: int) -> torch.Tensor:
        made = self.make(batch(rank, step, 6, 3)).detach()
        real = batch(rank + 50, step, 6, 4)
        return (
            nn.functional.softplus(-self.judge(real)).mean() + nn.functional.softplus(self.judge(made)).mean()
        )

    def make_loss(self, rank: int, step: int) -> torch.Tensor:
        return nn.functional.softplus(-self.judge(self.make(batch(rank + 7, step, 6, 3)))).mean()


class GanInOneProcess:
    """torch alone, on both ranks' batches."""

    def __init__(self, gan: Gan) -> None:
        self.gan = copy.deepcopy(gan)
        self.make, self.judge = adam(self.gan.make.parameters()), adam(self.gan.judge.parameters())

    def step(
        self, optimizer: torch.optim.Optimizer, loss: Callable[[int, int], torch.Tensor], step: int
    ) -> None:
        self.gan.zero_grad()
        for rank in (0, 1):
            loss(rank, step).backward()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad *= 0.5
        optimizer.step()


def gan_optimizers(gan: Gan, store: gw.kv.KVStore, **options: Any) -> tuple[Any, Any]:
    make, judge = (
        gw.torch.DistributedOptimizer(
            adam(part.parameters()), part.named_parameters(), store=store, **options
        )
        for part in (gan.make, gan.judge)
    )
    return make, judge


@pytest.mark.parametrize("options", OVERLAP, ids=str)
@pytest.mark.parametrize("judges", ["every step", "every other step"])
def test_a_gan_is_trained_as_by_one_process(judges: str, options: dict[str, Any]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        gan = seeded(Gan)
        one = GanInOneProcess(gan)
        make, judge = gan_optimizers(gan, store, **options)
        for step in range(6):
            if judges == "every step" or step % 2 == 0:
                judge.zero_grad()
                gan.judge_loss(store.rank, step).backward()
                judge.step()
                one.step(one.judge, one.gan.judge_loss, step)
            make.zero_grad()
            gan.make_loss(store.rank, step).backward()  # through the judge, whose gradients are cleared
            make.step()
            one.step(one.make, one.gan.make_loss, step)
            judge.synchronize()
        make.synchronize()
        require_equal(gan, one.gan)
        for each in (make, judge):
            each.close()

    run_two(body)


def test_no_sync_keeps_the_other_models_gradients_local() -> None:
    def body(store: gw.kv.KVStore) -> None:
        gan = seeded(Gan)
        one = GanInOneProcess(gan)
        make, judge = gan_optimizers(gan, store)
        for step in range(3):
            sent = store.stats()["bytes_raw"]
            make.zero_grad()
            with judge.no_sync():
                gan.make_loss(store.rank, step).backward()
            make.step()
            one.step(one.make, one.gan.make_loss, step)
            assert store.stats()["bytes_raw"] - sent == 4 * sum(p.numel() for p in gan.make.parameters())
        require_equal(gan, one.gan)
        for each in (make, judge):
            each.close()

    run_two(body)


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal by Newton's and Schulz's iteration: a matrix at a time."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(0.9).add_(parameter.grad)
                x = momentum / (momentum.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                parameter.add_(x, alpha=-group["lr"])


def split(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    matrices = {n: p for n, p in model.named_parameters() if p.dim() == 2}
    return matrices, {n: p for n, p in model.named_parameters() if p.dim() != 2}


def mixed() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)
        )
    )


def mixed_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return model(batch(rank, step, 5, 4)).square().sum()


def two_kinds(model: nn.Module) -> list[tuple[torch.optim.Optimizer, dict[str, nn.Parameter]]]:
    matrices, others = split(model)
    return [(Muon(matrices.values()), matrices), (torch.optim.AdamW(others.values(), lr=0.01), others)]


@pytest.mark.parametrize("options", OVERLAP, ids=str)
@pytest.mark.parametrize("unused", [False, True])
def test_muon_beside_adamw_in_one_backward(unused: bool, options: dict[str, Any]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = mixed()
        if unused:  # parameters that no backward() reaches, in both
            model.register_module("unused", seeded(lambda: nn.Linear(3, 3)))
            model.forward = lambda x: nn.Sequential(*list(model.children())[:6])(x)  # type: ignore[method-assign]
        theirs = copy.deepcopy(mixed())
        if unused:
            theirs.register_module("unused", copy.deepcopy(model.get_submodule("unused")))
            theirs.forward = lambda x: nn.Sequential(*list(theirs.children())[:6])(x)  # type: ignore[method-assign]
        ours = [
            gw.torch.DistributedOptimizer(inner, named.items(), store=store, **options)
            for inner, named in two_kinds(model)
        ]
        oracle = [inner for inner, _ in two_kinds(theirs)]
        for step in range(5):
            for each in ours:
                each.zero_grad()
            mixed_loss(model, store.rank, step).backward()
            for each in ours:
                each.step()
            theirs.zero_grad()
            for rank in (0, 1):
                mixed_loss(theirs, rank, step).backward()
            for parameter in theirs.parameters():
                parameter.grad = (
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad * 0.5
                )
            for each in oracle:
                each.step()
        for each in ours:
            each.synchronize()
        require_equal(model, theirs)
        for each in ours:
            each.close()

    run_two(body)


def test_ranks_may_reach_the_ends_of_their_backwards_in_another_order() -> None:
    """Each optimizer has parameters that one rank does not use, and the first gradients are another's on each rank."""

    def body(store: gw.kv.KVStore) -> None:
        weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(4)]
        optimizers = [
            gw.torch.DistributedOptimizer(
                torch.optim.SGD(pair, lr=1.0), [(str(i), w) for i, w in enumerate(pair)], store=store
            )
            for pair in (weights[:2], weights[2:])
        ]
        for _ in range(5):
            for each in optimizers:
                each.zero_grad()
            used = [weights[0], weights[2]] if store.rank == 0 else [weights[3], weights[1]]
            total = torch.zeros(3)
            for weight in used:
                total = torch.tanh(total + weight)  # in turn
            total.sum().backward()
            for each in optimizers:
                each.step()
        blobs = store.engine.all_gather("weights", torch.stack(list(weights)).detach().numpy().tobytes())
        assert len(set(blobs)) == 1
        for each in optimizers:
            each.close()

    run_two(body)


@pytest.mark.parametrize("codecs", [("none", "2bit:threshold=0.01"), ("2bit:threshold=0.01", "none")])
def test_each_has_its_codec_and_residuals(codecs: tuple[str, str]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        models = [seeded(lambda: nn.Linear(20, 3, bias=False)) for _ in range(2)]
        optimizers = [
            gw.torch.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), codec, store
            )
            for model, codec in zip(models, codecs, strict=True)
        ]
        for step in range(3):
            for model, optimizer, codec in zip(models, optimizers, codecs, strict=True):
                optimizer.zero_grad()
                model(batch(store.rank, step, 4, 20)).mean().backward()
                levels = model.weight.grad / 0.005  # a mean of two
                is_two_bits = bool(torch.allclose(levels, levels.round(), atol=1e-4))
                assert is_two_bits == (codec != "none")
                optimizer.step()
        for optimizer, codec in zip(optimizers, codecs, strict=True):
            assert ("gradwire" in optimizer.state_dict()) == (codec != "none")
            optimizer.close()

    run_two(body)


def test_a_warm_up_of_the_second_changes_its_buckets_as_a_whole() -> None:
    def body(store: gw.kv.KVStore) -> None:
        models = [seeded(lambda: nn.Sequential(nn.Linear(9, 5), nn.Linear(5, 2))) for _ in range(2)]
        first = gw.torch.DistributedOptimizer(
            torch.optim.SGD(models[0].parameters(), lr=0.1), models[0].named_parameters(), "none", store
        )
        second = gw.torch.DistributedOptimizer(
            torch.optim.SGD(models[1].parameters(), lr=0.1),
            models[1].named_parameters(),
            "2bit:threshold=10",
            store,
            warm_up=[("none", 2)],
        )
        for step in range(4):
            for model, optimizer in zip(models, (first, second), strict=True):
                optimizer.zero_grad()
                model(batch(store.rank, step, 4, 9)).square().mean().backward()
                sent = bool(model[0].weight.grad.any())
                assert sent == (optimizer is first or step < 2)  # beyond so high a threshold there is nothing
                assert model[0].bias.grad.any()
                optimizer.step()
        for each in (second, first):
            each.close()

    run_two(body)


def test_a_nan_of_one_vetoes_its_step_alone() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = mixed()
        ours = [
            gw.torch.DistributedOptimizer(inner, named.items(), store=store, on_nonfinite="skip_step")
            for inner, named in two_kinds(model)
        ]
        before = copy.deepcopy(model)
        loss = mixed_loss(model, store.rank, 0)
        if store.rank == 1:
            model[0].bias.register_hook(lambda gradient: gradient * float("nan"))
        loss.backward()
        for each in ours:
            each.step()
        (matrices, others), (matrices_before, others_before) = split(model), split(before)
        assert all(not torch.equal(p, matrices_before[n]) for n, p in matrices.items())
        assert all(torch.equal(p, others_before[n]) for n, p in others.items())
        for each in ours:
            each.close()

    assert sum("no rank takes this step" in text for text in warnings_of_two(body)) == 2


def test_one_joins_for_all() -> None:
    def body(store: gw.kv.KVStore) -> None:
        gan = seeded(Gan)
        make, judge = gan_optimizers(gan, store)
        for step in range(2 if store.rank == 1 else 5):
            judge.zero_grad()
            gan.judge_loss(store.rank, step).backward()
            judge.step()
            make.zero_grad()
            gan.make_loss(store.rank, step).backward()
            make.step()
        last = judge.join()
        assert last == 0
        gw.torch.broadcast_parameters(gan.state_dict(), root_rank=last, store=store)
        for each in (make, judge):
            gw.torch.broadcast_optimizer_state(each, root_rank=last, store=store)
        judge.zero_grad()
        gan.judge_loss(store.rank, 9).backward()
        judge.step()
        blob = b"".join(p.detach().numpy().tobytes() for p in gan.parameters())
        assert len(set(store.engine.all_gather("weights", blob))) == 1
        for each in (make, judge):
            each.close()

    run_two(body)


def test_parameters_belong_to_one_until_it_is_closed() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = nn.Linear(3, 2)

        def wrap() -> Any:
            return gw.torch.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), store=store
            )

        first = wrap()
        with pytest.raises(ValueError, match=r"'weight' is in a DistributedOptimizer at this store already"):
            wrap()
        other = nn.Linear(3, 2)
        second = gw.torch.DistributedOptimizer(
            torch.optim.SGD(other.parameters(), lr=0.1), other.named_parameters(), store=store
        )
        with pytest.raises(ValueError, match=r"is in a DistributedOptimizer at this store already"):
            second.add_param_group({"params": list(model.parameters())})
        first.close()
        again = wrap()
        for each in (again, second):
            each.close()

    run_two(body)


def test_one_that_is_dropped_still_has_its_parameters() -> None:
    """Ranks collect garbage at other times."""

    def body(store: gw.kv.KVStore) -> None:
        model = nn.Linear(3, 2)

        def wrap() -> Any:
            return gw.torch.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), store=store
            )

        wrap()
        gc.collect()
        with pytest.raises(ValueError, match="it is not enough to drop it"):
            wrap()

    run_two(body)


@pytest.mark.parametrize("codec", ["none", "2bit:threshold=0.01"])
def test_a_checkpoint_has_all_of_them(tmp_path: Path, codec: str) -> None:
    """What goes on from it has the weights of a job that never stopped."""

    def steps(gan: Gan, make: Any, judge: Any, rank: int, numbers: Iterable[int]) -> None:
        for step in numbers:
            judge.zero_grad()
            gan.judge_loss(rank, step).backward()
            judge.step()
            make.zero_grad()
            gan.make_loss(rank, step).backward()
            make.step()

    ends: list[dict[int, Gan]] = [{}, {}]

    def straight(store: gw.kv.KVStore) -> None:
        gan = seeded(Gan)
        both = gan_optimizers(gan, store, compression=codec)
        steps(gan, *both, store.rank, range(3))
        gw.torch.save_checkpoint(tmp_path / "all", gan, both, {"step": 3})
        steps(gan, *both, store.rank, range(3, 6))
        ends[0][store.rank] = gan

    def resumed(store: gw.kv.KVStore) -> None:
        gan = seeded(Gan)
        both = gan_optimizers(gan, store, compression=codec)
        assert gw.torch.load_checkpoint(tmp_path / "all", gan, both) == {"step": 3}
        steps(gan, *both, store.rank, range(3, 6))
        ends[1][store.rank] = gan

    run_two(straight)
    run_two(resumed)
    for rank in (0, 1):
        require_equal(ends[1][rank], ends[0][rank])


def test_a_checkpoint_of_two_is_refused_to_one(tmp_path: Path) -> None:
    def body(store: gw.kv.KVStore) -> None:
        gan = seeded(Gan)
        make, judge = gan_optimizers(gan, store)
        gw.torch.save_checkpoint(tmp_path / "two", gan, [make, judge])
        gw.torch.save_checkpoint(tmp_path / "one", gan, make)
        with pytest.raises(ValueError, match=r"has 2 optimizers, and 1 is given"):
            gw.torch.load_checkpoint(tmp_path / "two", gan, make)
        with pytest.raises(ValueError, match=r"has 1 optimizer, and 2 are given"):
            gw.torch.load_checkpoint(tmp_path / "one", gan, (make, judge))

    run_two(body)


def test_where_a_library_sums_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(store: gw.kv.KVStore) -> None:
        gan = seeded(Gan)
        first = gw.torch.DistributedOptimizer(
            adam(gan.make.parameters()), gan.make.named_parameters(), store=store
        )
        with pytest.raises(ValueError, match="serves one DistributedOptimizer at a time"):
            gw.torch.DistributedOptimizer(
                adam(gan.judge.parameters()), gan.judge.named_parameters(), store=store
            )
        first.close()
        gw.torch.DistributedOptimizer(
            adam(gan.judge.parameters()), gan.judge.named_parameters(), store=store
        ).close()

    monkeypatch.setattr(joining, "sums_in_one_order", lambda _: True)
    run_two(body)


def test_all_move_to_another_store() -> None:
    """As an elastic job does that goes on without a worker."""
    later = gw._core.InprocNetwork(2)

    def body(store: gw.kv.KVStore) -> None:
        gan = seeded(Gan)
        one = GanInOneProcess(gan)
        both = gan_optimizers(gan, store)
        other = gw.kv.KVStore("allreduce", later.connect(store.rank, codec_threads=1), definitions.read())
        for step in range(4):
            if step == 2:
                for each in both:
                    each.move_to(other)
            make, judge = both
            judge.zero_grad()
            gan.judge_loss(store.rank, step).backward()
            judge.step()
            one.step(one.judge, one.gan.judge_loss, step)
            make.zero_grad()
            gan.make_loss(store.rank, step).backward()
            make.step()
            one.step(one.make, one.gan.make_loss, step)
        require_equal(gan, one.gan)
        for each in both:
            each.close()
        other.close()

    run_two(body)


def test_two_with_codecs_that_are_chosen() -> None:
    def body(store: gw.kv.KVStore) -> None:
        gan = seeded(Gan)
        make, judge = gan_optimizers(gan, store, compression="auto", budget="30% error")
        for step in range(30):
            judge.zero_grad()
            gan.judge_loss(store.rank, step).backward()
            judge.step()
            make.zero_grad()
            with judge.no_sync():
                gan.make_loss(store.rank, step).backward()
            make.step()
        blob = b"".join(p.detach().numpy().tobytes() for p in gan.parameters())
        assert len(set(store.engine.all_gather("weights", blob))) == 1
        for each in (make, judge):
            each.close()

    run_two(body)


def test_rows_and_local_steps_beside_others() -> None:
    """A table whose gradients are rows, a dense model, and a third that takes local steps."""

    def body(store: gw.kv.KVStore) -> None:
        table = seeded(lambda: nn.Embedding(20, 4, sparse=True))
        dense, apart = seeded(lambda: nn.Linear(4, 2)), seeded(lambda: nn.Linear(4, 2))
        first, second = (
            gw.torch.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), "none", store
            )
            for model in (table, dense)
        )
        third = gw.torch.LocalStepOptimizer(
            torch.optim.SGD(apart.parameters(), lr=0.1), apart.named_parameters(), "none", store, sync_every=2
        )
        for step in range(4):
            for each in (first, second, third):
                each.zero_grad()
            rows = table(torch.tensor([step, step + store.rank]))
            (dense(rows).square().sum() + apart(rows.detach()).square().sum()).backward()
            assert step == 0 or table.weight.grad.is_sparse
            for each in (first, second, third):
                each.step()
        blob = b"".join(
            p.detach().numpy().tobytes() for model in (table, dense, apart) for p in model.parameters()
        )
        assert len(set(store.engine.all_gather("weights", blob))) == 1
        for each in (third, second, first):
            each.close()

    run_two(body)
