"""What four ranks do in torch_local_group_test.py: DDP's hook where the two ranks of a host sum first.

python -m torch.distributed.run --nproc-per-node 4 torch_local_group_cases.py
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import pickle
import shutil
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from gradwire.torch.ddp import local_shards
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_hook_models import (
    STATES,
    Ledger,
    kinds,
    leave_states,
    leave_the_store,
    left_to_send,
    make_branches,
    shared_folder,
    total,
)
from torch_programs import case, case_from, run_cases_in_a_group

DDP = DistributedDataParallel
BEFORE_THE_GROUP = gw.torch.HookState("int8", local_group=2)
CODECS = ("2bit:threshold=0.02", "int4:reply=fp32", "topk:reply=fp32", "none")


@functools.cache
def local_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_subgroups(2)[0]
    return group


def hooked(
    model: nn.Module, codec: str, given: dict[str, Any] | None = None, **options: Any
) -> tuple[DDP, gw.torch.HookState]:
    wrapped = DDP(model, **{"bucket_cap_mb": 0.004} | options)
    state = gw.torch.HookState(codec, **{"local_group": local_group()} | (given or {}))
    wrapped.register_comm_hook(state, gw.torch.ddp_hook)
    STATES.append(state)
    return wrapped, state


def input_of(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(50 * step + dist.get_rank())
    return torch.randn(6, 9, generator=generator)


def make_net() -> nn.Module:
    """Shards of uneven length, one of which is empty; large ones travel by themselves, small ones together."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(9, 333), nn.Tanh(), nn.Linear(333, 801), nn.LayerNorm(801), nn.Linear(801, 1)
    )


def trained_by_ddp(codec: str, options: dict[str, Any]) -> list[torch.Tensor]:
    model = make_net()
    named = {"named_parameters": list(model.named_parameters())}
    wrapped, state = hooked(model, codec, named | options, bucket_cap_mb=0.5)
    train(wrapped)
    state.close()
    return [p.detach() for p in model.parameters()]


def train(model: nn.Module, steps: range = range(4)) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        model(input_of(step)).square().mean().backward()
        optimizer.step()


@case_from("2.9")
def bits_are_those_of_hsdp_on_the_same_hosts() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        *((codec, {}) for codec in ("none", "int8", "2bit", "2bit:threshold=auto,reply=2bit", "fp16")),
        ("2bit", {"warm_up": [("none", 1), ("int8", 1)]}),
        ("int8", {"codecs": {"0.*": "none", "2.weight": "nf4"}}),
        ("2bit", {"row_column_scales": True}),
    ]
    for codec, options in cases:
        ours = trained_by_ddp(codec, options)
        model = make_net()
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("hosts", "ranks")))
        gw.torch.compress_all_reduce(model, codec, **options)
        train(model)
        for one, other in zip(ours, model.parameters(), strict=True):
            assert torch.equal(one, other.full_tensor()), (codec, options)  # type: ignore[attr-defined]


class Bag(nn.Module):
    """Its table has sparse gradients, its weight has fewer rows than a host has ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.table = nn.EmbeddingBag(30, 5, mode="sum", sparse=True)
        self.last = nn.Linear(5, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(rows))


@case
def a_bucket_is_sent_once_its_host_has_summed_it() -> None:
    """At once on a CPU; on a GPU sums go on while backward() does, which changes no bit."""
    summing = local_shards._reduce_scatter
    sent: list[list[bool]] = []

    def late(*arguments: Any, **options: Any) -> Any:
        work = summing(*arguments, **options | {"async_op": True})
        return SimpleNamespace(wait=work.wait, is_completed=lambda: False)

    gradients = []
    for reduce_scatter in (late, summing):
        leave_the_store()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_shards, "_reduce_scatter", reduce_scatter)
            wrapped, state = hooked(make_net(), "int8", bucket_cap_mb=0.5)
            train(wrapped)
            exchange = state._join()
            finish = exchange._finish

            def look_and_finish(exchange: Any = exchange, finish: Any = finish) -> None:
                sent.append([bucket.sent for bucket in exchange._waiting])
                finish()

            patch.setattr(exchange, "_finish", look_and_finish)
            wrapped(input_of(9)).square().mean().backward()
        gradients.append([p.grad.clone() for p in wrapped.parameters()])
    late_ones, early_ones = sent
    assert len(early_ones) > 1
    assert not any(late_ones)
    assert all(early_ones)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@case
def sparse_gradients_are_ddps() -> None:
    model = Bag()
    theirs = DDP(copy.deepcopy(model))
    wrapped, state = hooked(model, "none")
    for step in range(3):
        rows = torch.randint(
            0, 30, (4, 3), generator=torch.Generator().manual_seed(10 * step + dist.get_rank())
        )
        for each in (wrapped, theirs):
            each.zero_grad()
            each(rows).square().mean().backward()
        for ours, true in zip(model.parameters(), theirs.parameters(), strict=True):
            assert ours.grad.is_sparse == true.grad.is_sparse
            torch.testing.assert_close(ours.grad.to_dense(), true.grad.to_dense(), rtol=1e-6, atol=1e-7)
    state.close()


@case
def a_rank_that_has_no_shard_goes_along() -> None:
    """Of a model whose only parameter is one row, with codecs that are chosen, and a state that is loaded."""
    for codec in ("auto", "int8"):
        leave_the_store()
        model = nn.Linear(64, 1, bias=False)
        wrapped, state = hooked(model, codec)
        state.load_state_dict({})
        for _ in range(4):
            wrapped(torch.ones(2, 64)).square().mean().backward()
        folder = shared_folder()
        gw.torch.save_checkpoint(folder, wrapped, state)
        leave_the_store()
        later = nn.Linear(64, 1, bias=False)
        wrapped, state = hooked(later, codec)
        gw.torch.load_checkpoint(folder, wrapped, state)
        assert torch.equal(later.weight, model.weight)
        wrapped(torch.ones(2, 64)).square().mean().backward()
        leave_the_store()


@case_from("2.9")
def gradients_of_any_kind_are_nearly_ddps() -> None:
    for name, model in kinds().items():
        for codec in ("none", "int8"):
            theirs = DDP(copy.deepcopy(model))
            wrapped, state = hooked(model, codec)
            for step in range(3):
                for each in (wrapped, theirs):
                    each.zero_grad()
                    each(0.7 * (1 + dist.get_rank() + step / 3)).backward()
                for ours, true in zip(model.parameters(), theirs.parameters(), strict=True):
                    assert ours.grad.stride() == true.grad.stride()
                    exact = 1e-15 if codec == "none" and true.grad.dtype == torch.float64 else 1e-6
                    close = 0.02 if codec == "int8" or true.grad.dtype.itemsize == 2 else exact
                    largest = float(true.grad.abs().max()) if true.grad.numel() else 0.0
                    torch.testing.assert_close(
                        ours.grad, true.grad, rtol=close, atol=close * largest, msg=f"{name} {codec} {step}"
                    )
            state.close()


@case
def nothing_of_a_layer_is_lost() -> None:
    """Of one that no rank uses, of one that one host uses, of gradients that are not cleared, of zeros."""
    for codec in CODECS:
        for as_view in (False, True):
            for way in ("in turns", "on one rank", "not cleared", "zeros"):
                what = f"{codec} {as_view} {way}"
                model = make_branches()
                options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
                wrapped, state = hooked(model, codec, **options)
                ledger = Ledger(model)
                for step in range(8):
                    if way != "not cleared":
                        wrapped.zero_grad(set_to_none=way != "zeros")
                    alone = "a" if step % 3 == 0 and dist.get_rank() == 2 else "b"
                    ledger.step(wrapped, step, alone if way == "on one rank" else "ab"[step % 2])
                if way == "not cleared":
                    for name, parameter in model.named_parameters():
                        ledger.delivered[name] = parameter.grad * dist.get_world_size()
                ledger.require_nothing_lost(state, what)
                assert codec == "none" or total(left_to_send(state, "a.weight", model.a.weight)).any(), what
                state.close()


@case
def ranks_that_have_joined_lose_nothing() -> None:
    for codec in CODECS:
        model = make_branches()
        wrapped, state = hooked(model, codec, find_unused_parameters=True)
        ledger = Ledger(model)
        with wrapped.join():
            for step in range((4, 11, 2, 3)[dist.get_rank()]):
                wrapped.zero_grad()
                ledger.step(wrapped, step, "ab"[step % 2])
        for delivered in ledger.delivered.values():
            dist.broadcast(delivered, 1)  # whose model the others then get
        ledger.require_nothing_lost(state, codec)
        state.close()


@case_from("2.9")
def options_of_ddp_change_nothing() -> None:
    skips = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}, skips):
        model = make_branches()
        theirs = DDP(copy.deepcopy(model), **options)
        wrapped, state = hooked(model, "none", **options)
        use = "a" if options == skips else "ab"
        for step in range(4):
            for each in (wrapped, theirs):
                each.zero_grad()
                if "static_graph" not in options:
                    with each.no_sync():
                        Ledger.loss(each, 10 + step, use).backward()
                Ledger.loss(each, step, use).backward()
            for ours, true in zip(model.parameters(), theirs.parameters(), strict=True):
                assert (ours.grad is None) == (true.grad is None)
                if true.grad is not None:
                    torch.testing.assert_close(ours.grad, true.grad, rtol=1e-5, atol=1e-6)
        state.close()


@case
def a_step_that_one_rank_cannot_take_is_taken_by_none() -> None:
    """The infinity is in one shard, on one rank, and those with the other shard have to hear of it."""
    for spoilt, place in itertools.product(range(4), (0, -1)):
        model = make_branches()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
        wrapped, state = hooked(model, "int8", {"grad_scaler": scaler})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            loss = Ledger.loss(wrapped, step, "ab")
            if step == 1 and dist.get_rank() == spoilt:
                spoil = functools.partial(
                    torch.Tensor.index_fill, dim=0, index=torch.tensor([place]), value=math.inf
                )
                handle = model.first.weight.register_hook(spoil)
            before = [p.detach().clone() for p in model.parameters()]
            owed = copy.deepcopy(state.state_dict())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step == 1 and dist.get_rank() == spoilt:
                handle.remove()
            kept = [torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
            assert all(kept) if step == 1 else not any(kept), (spoilt, step, kept)
            if step == 1:
                assert scaler.get_scale() == 2.0**9
                for name, residual in state.state_dict()["residuals"].items():
                    assert torch.equal(residual, owed["residuals"][name])
        state.close()


@case
def each_rank_encodes_half() -> None:
    model = make_net()
    wrapped, state = hooked(model, "int8")
    before = state.stats()["bytes_encoded"]
    train(wrapped, range(4))
    elements = sum(p.numel() for p in model.parameters())
    encoded = state.stats()["bytes_encoded"] - before
    assert 0.5 <= encoded / (4 * elements) < 0.56, (encoded, elements)


@case
def a_state_goes_on_where_it_was_saved() -> None:
    model = make_net()
    wrapped, state = hooked(model, "int4:reply=fp32")
    train(wrapped)
    saved, weights = pickle.loads(pickle.dumps(state.state_dict())), copy.deepcopy(model.state_dict())
    train(wrapped)
    state.close()
    later = make_net()
    later.load_state_dict(weights)
    wrapped, state = hooked(later, "int4:reply=fp32")
    state.load_state_dict(saved)
    train(wrapped)
    for one, other in zip(model.parameters(), later.parameters(), strict=True):
        assert torch.equal(one, other)
    everyone: list[Any] = [None] * 4
    dist.all_gather_object(everyone, saved)
    _, foreign = hooked(make_net(), "int4")
    with pytest.warns(UserWarning, match=r"holds what was not sent of shard [01] of 2, so this rank, which"):
        foreign.load_state_dict(everyone[dist.get_rank() ^ 1])
    assert "residuals" not in foreign.state_dict()
    foreign.close()
    scales = {"row_column_scales": True}
    wrapped, state = hooked(make_net(), "2bit", scales)
    train(wrapped)
    dist.all_gather_object(everyone, state.state_dict())
    state.close()
    wrapped, state = hooked(make_net(), "2bit", scales)
    with pytest.warns(UserWarning, match="so this rank, which has shard"):
        state.load_state_dict(everyone[dist.get_rank() ^ 1])
    train(wrapped)


@case
def what_ranks_give_differently_is_told_to_all() -> None:
    rank = dist.get_rank()
    pairs = [dist.new_group(ranks) for ranks in ([0], [1, 2, 3], [0, 1], [1, 2], [2, 3])]
    uneven, overlapping = pairs[min(rank, 1)], pairs[(2, 2, 3, 4)[rank]]
    with pytest.raises(
        ValueError, match=r"local groups are of ranks \(0,\), \(1, 2, 3\), expected groups of equal"
    ):
        gw.torch.HookState("int8", local_group=uneven)
    with pytest.raises(
        ValueError, match=r"ranks \(0, 1\), \(1, 2\), \(2, 3\), expected .* \[0, 1, 2, 3\] once"
    ):
        gw.torch.HookState("int8", local_group=overlapping)
    odd = rank == 3  # alone: nobody is to wait for the ranks that have found it
    for options in (
        {"codec": "int4" if odd else "int8"},
        {"codec": "int8", "on_nonfinite": "skip_step" if odd else "warn"},
        {"codec": "2bit", "row_column_scales": odd},
        {"codec": "2bit", "warm_up": [("none", 2 + odd)]},
        {
            "codec": "2bit",
            "codecs": {"*": "int8" if odd else "none"},
            "named_parameters": [("w", torch.zeros(2))],
        },
    ):
        with pytest.raises(
            ValueError, match=r"HookState: .+ is .* on rank 0 and .* on rank 3; give the same"
        ):
            gw.torch.HookState(**options, local_group=local_group())
    for number in (3, 8):
        with pytest.raises(
            ValueError, match=f"local_group is {number}, and the process group has 4 of 4 ranks"
        ):
            gw.torch.HookState("int8", local_group=number)
    with pytest.raises(ValueError, match=r"local_group is 4 on rank 0 and 2 on rank 2; give the same"):
        gw.torch.HookState("int8", local_group=(4, 4, 2, 2)[rank])
    with pytest.raises(ValueError, match=r"local_group is 2 on rank 0 and 'a process group' on rank 1; give"):
        gw.torch.HookState("int8", local_group=local_group() if rank == 1 else 2)
    with pytest.raises(ValueError, match=r"local_group is 1, and the process group has [13] of 4 ranks"):
        gw.torch.HookState("int8", uneven, local_group=1)
    wrong = {0: ValueError, dist.GroupMember.NON_GROUP_MEMBER: ValueError, True: TypeError, "host": TypeError}
    for given, error in wrong.items():
        with pytest.raises(
            error, match=f"local_group is {given!r}, expected how many ranks each host has, or a"
        ):
            gw.torch.HookState("int8", local_group=given)


@case
def states_are_copied_and_pickled_with_a_number() -> None:
    _, state = hooked(make_branches(), "int8")
    assert copy.deepcopy(state)._local_group is local_group()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(state)
    model = make_net()
    wrapped, state = hooked(model, "int4:reply=fp32", {"local_group": 2})
    train(wrapped)
    later = copy.deepcopy(model)
    restored = pickle.loads(pickle.dumps(state))
    train(wrapped)
    state.close()
    wrapped = DDP(later, bucket_cap_mb=0.004)
    wrapped.register_comm_hook(restored, gw.torch.ddp_hook)
    STATES.append(restored)
    train(wrapped)
    for one, other in zip(model.parameters(), later.parameters(), strict=True):
        assert torch.equal(one, other)


@case
def one_host_and_hosts_of_one_rank() -> None:
    """The first compresses what nobody else sums; the second is as without local groups."""
    leave_the_store()
    alone = [dist.new_group([rank]) for rank in range(4)][dist.get_rank()]
    for group, same in ((dist.group.WORLD, False), (alone, True)):
        found = []
        for given in ({"local_group": group}, {"local_group": None}):
            model = make_net()
            wrapped, state = hooked(model, "int8", given)
            train(wrapped)
            state.close()
            found.append([p.detach() for p in model.parameters()])
            leave_the_store()
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0 if same else 0.02)


@case
def a_state_made_before_the_group_joins_with_the_first_bucket() -> None:
    model = make_branches()
    wrapped = DDP(model)
    wrapped.register_comm_hook(BEFORE_THE_GROUP, gw.torch.ddp_hook)
    Ledger.loss(wrapped, 0, "ab").backward()
    assert BEFORE_THE_GROUP.stats()["bytes_encoded"] > 0
    STATES.append(BEFORE_THE_GROUP)


@case
def shards_of_several_saves_or_of_other_numbers_are_refused() -> None:
    def start(**given: Any) -> tuple[DDP, gw.torch.HookState]:
        leave_the_store()
        wrapped, state = hooked(make_net(), "int8", given)
        return wrapped, state

    torn = shared_folder()
    saves = []
    for _ in range(2):
        wrapped, state = start()
        train(wrapped)
        saves.append(shared_folder())
        gw.torch.save_checkpoint(saves[-1], wrapped, state)
    if dist.get_rank() == 0:
        for place, folder in enumerate(saves):
            shutil.copytree(Path(folder, f"shard-{place}-of-2"), Path(torn, f"shard-{place}-of-2"))
    dist.barrier()
    with pytest.raises(ValueError, match="are of several saves, of which the last was interrupted"):
        gw.torch.load_checkpoint(torn, *start())
    for group, text in (
        (None, "has 2 shards, and this job 1"),
        (dist.group.WORLD, "has 2 shards, and this job 4"),
    ):
        with pytest.raises(ValueError, match=text):
            gw.torch.load_checkpoint(saves[0], *start(local_group=group))
    with pytest.raises(ValueError, match="has 2 shards, and this job 1"):  # nor are two layouts mixed
        gw.torch.save_checkpoint(saves[1], *start(local_group=None))
    wrapped, state = start()
    odd = {"it": object()} if dist.get_rank() == 3 else None
    with pytest.raises(TypeError, match=r"rank 3: .*extra\['it'\]"):
        gw.torch.save_checkpoint(saves[0], wrapped, state, odd)
    blocked = shared_folder()
    if dist.get_rank() == 0:
        Path(blocked, "shard-1-of-2").write_bytes(b"no folder")
    dist.barrier()
    with pytest.raises(RuntimeError, match="shard-1-of-2"):  # on ranks of the other shard, too
        gw.torch.save_checkpoint(blocked, wrapped, state)
    train(wrapped)  # and all are at the same place
    if dist.get_rank() == 3:  # what its store reads, and nobody else
        file = next(Path(saves[0], "shard-1-of-2").glob("*.worker-1.state"))
        damaged = bytearray(file.read_bytes())
        damaged[-40] ^= 1
        file.write_bytes(damaged)
    dist.barrier()
    with pytest.raises((RuntimeError, gw.DecodeError), match="shard-1-of-2"):
        gw.torch.load_checkpoint(saves[0], *start())
    leave_the_store()


@case
def what_each_rank_leaves_has_a_name_of_its_own() -> None:
    leave_the_store()
    folder = Path(shared_folder())
    os.environ |= {"GRADWIRE_METRICS": f"textfile:{folder}", "GRADWIRE_TIMELINE": str(folder / "trace")}
    try:
        wrapped, _ = hooked(make_net(), "int8")
        train(wrapped)
        own = folder / f"gradwire-rank-{dist.get_rank()}.prom"
        until = time.monotonic() + 60
        while not own.exists():  # a thread writes it, and removes it at the end
            assert time.monotonic() < until
            time.sleep(0.01)
        assert f'rank="{dist.get_rank()}"' in own.read_text()
        leave_the_store()
    finally:
        del os.environ["GRADWIRE_METRICS"], os.environ["GRADWIRE_TIMELINE"]
    dist.barrier()
    for job in (folder / "trace", folder / "trace" / "job-of-rank-1"):
        assert {"worker-0.jsonl", "worker-1.jsonl"} <= {path.name for path in job.iterdir()}


@case
def a_given_master_is_refused() -> None:
    leave_the_store()
    os.environ["GRADWIRE_MASTER"] = "tcp://127.0.0.1:1"
    try:
        with pytest.raises(
            ValueError, match="several gradwire jobs, which cannot meet at one address; leave it"
        ):
            hooked(make_net(), "int8")
    finally:
        del os.environ["GRADWIRE_MASTER"]


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    run_cases_in_a_group(leave_states)
