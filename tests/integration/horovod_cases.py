"""What ranks do in horovod_ranks_test.py besides training; torch and NumPy are the oracles.

python horovod_cases.py FOLDER    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gradwire.horovod.torch as hvd
import numpy as np
import pytest
import torch
from oracle import two_bit
from torch_programs import CASES, case

FOLDER = Path(sys.argv[1])


def of_rank(rank: int, *shape: int) -> torch.Tensor:
    """What a rank gives: small whole numbers, of which every sum is exact in every type."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(rank)).float()


def everyone(*shape: int) -> list[torch.Tensor]:
    return [of_rank(rank, *shape) for rank in range(hvd.size())]


# ---- sums ------------------------------------------------------------------------------------------------------

DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


@case
def sums_of_every_type() -> None:
    for dtype in DTYPES:
        given = [tensor.abs().to(dtype) for tensor in everyone(5, 3)]
        total = hvd.allreduce(given[hvd.rank()], op=hvd.Sum)
        assert total.dtype == dtype
        assert torch.equal(total, sum(given).to(dtype)), dtype


@case
def inference_mode_is_the_callers_alone() -> None:
    """Results are written on another thread, which is not in it."""
    ranks = range(hvd.size())
    with torch.inference_mode():
        counts = torch.full((3,), 2 * hvd.rank())
        assert torch.equal(
            hvd.allreduce(counts), torch.full((3,), sum(2 * rank for rank in ranks) // len(ranks))
        )
        own = torch.full((4,), float(hvd.rank()))
        assert torch.equal(hvd.broadcast(own, 0), torch.zeros(4))
        assert hvd.broadcast_object({"rank": hvd.rank()}, 0) == {"rank": 0}
        assert hvd.allgather_object(hvd.rank()) == list(ranks)
        sums = hvd.grouped_allreduce([own, own + 1, counts], op=hvd.Sum)
        assert torch.equal(sums[1], torch.full((4,), float(sum(ranks) + len(ranks))))
        assert torch.equal(
            hvd.allreduce(own, op=hvd.Sum, postscale_factor=0.5), torch.full((4,), sum(ranks) / 2)
        )
        hvd.allreduce_(own, op=hvd.Sum)
        assert torch.equal(own, torch.full((4,), float(sum(ranks))))
        gathered = hvd.allgather(own[: hvd.rank() + 1])
        assert len(gathered) == sum(min(rank + 1, 4) for rank in ranks)
    assert torch.equal(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(len(ranks))))


@case
def every_operation() -> None:
    given = torch.stack(everyone(7))
    oracles = {
        hvd.Average: given.mean(0),
        hvd.Min: given.amin(0),
        hvd.Max: given.amax(0),
        hvd.Product: given.prod(0),
    }
    for op, expected in oracles.items():
        torch.testing.assert_close(hvd.allreduce(given[hvd.rank()], op=op), expected, rtol=1e-6, atol=0)


@case
def what_is_not_contiguous_or_has_no_dimension() -> None:
    given = [tensor.t() for tensor in everyone(4, 6)]
    assert torch.equal(hvd.allreduce(given[hvd.rank()], op=hvd.Sum), sum(given))
    own = given[hvd.rank()].clone(memory_format=torch.preserve_format)
    assert not own.is_contiguous()
    assert hvd.allreduce_(own, op=hvd.Sum) is own
    assert torch.equal(own, sum(given))
    assert hvd.allreduce(torch.tensor(2.0), op=hvd.Sum).item() == 2 * hvd.size()


@case
def submissions_in_another_order_on_each_rank() -> None:
    order = np.random.default_rng(hvd.rank()).permutation(30)
    handles = {
        int(i): hvd.allreduce_async(torch.full((3,), float(i)), name=f"t{i}", op=hvd.Sum) for i in order
    }
    for i, handle in handles.items():
        assert torch.equal(hvd.synchronize(handle), torch.full((3,), float(i * hvd.size())))
    with pytest.raises(ValueError, match="no handle"):
        hvd.synchronize(handles[0])


@case
def fused_sums_are_the_sums_apart() -> None:
    given = [torch.randn(17, 3, generator=torch.Generator().manual_seed(i + hvd.rank())) for i in range(9)]
    apart = [hvd.allreduce(tensor) for tensor in given]
    handles = [hvd.allreduce_async(tensor) for tensor in given]
    assert all(torch.equal(hvd.synchronize(h), a) for h, a in zip(handles, apart, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(hvd.grouped_allreduce(given), apart, strict=True))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.int32)


@case
def sums_that_come_again_have_the_bits_of_the_first() -> None:
    """A name's sums have keys of the store from the second one on; nameless ones never have."""
    own = torch.Generator().manual_seed(hvd.rank())
    tensors = [torch.randn(shape, generator=own) for shape in ((), (70_001,), (3, 5))]
    tensors.append(
        torch.tensor([-0.0, 1e-45, 3e-45, 1e-38, 3.4e38, float("inf"), float("-inf"), float("nan")])
    )
    factors = [(hvd.Sum, 1.0, 1.0), (hvd.Average, 1.0, 1.0), (hvd.Average, 0.3, 1.7), (hvd.Sum, 3.0, 0.1)]
    for number, given in enumerate(tensors):
        for op, before, after in factors:
            more = {"op": op, "prescale_factor": before, "postscale_factor": after}
            expected = hvd.allreduce(given, **more)
            for _ in range(3):
                name = f"again {number} {op} {before}"
                found, in_place = hvd.allreduce(given, name=name, **more), given.clone()
                assert torch.equal(bits(found), bits(expected)), (number, more)
                assert hvd.allreduce_(in_place, name=f"{name} in place", **more) is in_place
                assert torch.equal(bits(in_place), bits(expected)), (number, more)


@case
def a_group_that_comes_again_is_the_sums_apart() -> None:
    given = [tensor.t() for tensor in (of_rank(hvd.rank(), 4, 6), of_rank(hvd.rank() + 7, 2, 3))]
    apart = [hvd.allreduce(tensor) for tensor in given]
    for _ in range(3):
        together = hvd.grouped_allreduce(given, name="a group")
        assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))


@case
def ranks_without_data_left_stand_in_for_names_that_have_keys() -> None:
    given = everyone(40)
    for _ in range(3):
        hvd.allreduce(given[hvd.rank()], op=hvd.Sum, name="ends early")
    for step in range(3 * hvd.rank()):  # rank 0 has none left, rank 1 three, ...
        total = hvd.allreduce(given[hvd.rank()], op=hvd.Sum, name="ends early")
        assert torch.equal(total, sum(given[rank] for rank in range(hvd.size()) if 3 * rank > step))
    hvd.join()
    assert torch.equal(hvd.allreduce(given[hvd.rank()], op=hvd.Sum, name="ends early"), sum(given))


@case
def a_group_of_several_types_is_the_sums_apart() -> None:
    large = (1 << 40) + 1 + hvd.rank()  # float32 has no such number, and no type of all holds uint8 and int8
    given = [
        torch.tensor([large]),
        torch.tensor([0.5]),
        torch.tensor([1], dtype=torch.uint8),
        torch.tensor([-1], dtype=torch.int8),
        torch.tensor([large, -large]),
    ]
    apart = [hvd.allreduce(tensor, op=hvd.Sum) for tensor in given]
    assert apart[0].item() == sum((1 << 40) + 1 + rank for rank in range(hvd.size()))
    together = hvd.grouped_allreduce(given, op=hvd.Sum)
    assert [t.dtype for t in together] == [t.dtype for t in given]
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))


@case
def a_set_of_some_ranks_takes_groups_of_several_types() -> None:
    some = hvd.add_process_set([0])
    given = [torch.tensor([1 << 40]), torch.tensor([0.5]), torch.tensor([7], dtype=torch.uint8)]
    if hvd.rank() == 0:
        for results in (
            hvd.grouped_allreduce(given, op=hvd.Sum, process_set=some),
            hvd.grouped_allgather(given, process_set=some),
            hvd.grouped_reducescatter(given, op=hvd.Sum, process_set=some),
        ):
            assert all(torch.equal(a, b) for a, b in zip(results, given, strict=True))
    hvd.remove_process_set(some)


@case
def means_of_integers_are_cut_off_towards_zero() -> None:
    given = torch.tensor([-1 if hvd.rank() == 0 else -2, 1 if hvd.rank() == 0 else 2])
    assert hvd.allreduce(given, op=hvd.Average).tolist() == [-1, 1]  # of -1.5 and 1.5, or of -1.67 and 1.67


@case
def means_of_integers_do_not_wrap() -> None:
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        most, least = torch.iinfo(dtype).max, torch.iinfo(dtype).min
        given = torch.tensor([most, least, 3] * 4, dtype=dtype)
        for mean in (
            hvd.allreduce(given, op=hvd.Average),
            hvd.allreduce_(given.clone(), op=hvd.Average),
            *hvd.grouped_allreduce([given, given.view(3, 4)], op=hvd.Average),
            hvd.allreduce(given, op=hvd.Average, prescale_factor=2.0, postscale_factor=0.5),
        ):
            assert mean.dtype == dtype
            assert torch.equal(mean.view(-1), given), dtype
        rows = given[: 2 * hvd.size()]
        share = hvd.reducescatter(rows, op=hvd.Average)
        assert torch.equal(share, rows[2 * hvd.rank() :][:2]), dtype
        if hvd.size() > 2:
            some = hvd.add_process_set([0, 2])
            if hvd.rank() != 1:
                assert torch.equal(hvd.allreduce(given, op=hvd.Average, process_set=some), given)
            hvd.remove_process_set(some)
    assert hvd.allreduce(torch.tensor([200], dtype=torch.uint8), op=hvd.Sum) == 200 * hvd.size() % 256


@case
def factors_before_and_after() -> None:
    given = everyone(6)
    summed = hvd.allreduce(given[hvd.rank()], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert torch.equal(summed, sum(given) * 1.5)
    whole = hvd.allreduce(torch.tensor([5, -5]), op=hvd.Average, postscale_factor=0.5)
    assert whole.tolist() == [2, -2]


@case
def adasum_keeps_what_is_common_once_and_adds_what_is_not() -> None:
    if hvd.size() & (hvd.size() - 1):
        with pytest.raises(ValueError, match="power of two"):
            hvd.allreduce(torch.ones(3), op=hvd.Adasum)
        return
    assert torch.equal(hvd.allreduce(torch.tensor([3.0, 4.0]), op=hvd.Adasum), torch.tensor([3.0, 4.0]))
    orthogonal = torch.nn.functional.one_hot(torch.tensor(hvd.rank()), hvd.size()).float()
    assert torch.equal(hvd.allreduce(orthogonal, op=hvd.Adasum), torch.ones(hvd.size()))


# ---- other collectives -----------------------------------------------------------------------------------------


@case
def gathers_with_unlike_rows() -> None:
    given = [of_rank(rank, rank + 1, 2) for rank in range(hvd.size())]
    assert torch.equal(hvd.allgather(given[hvd.rank()]), torch.cat(given))
    empty = [tensor[: rank % 2] for rank, tensor in enumerate(given)]
    assert torch.equal(hvd.allgather(empty[hvd.rank()]), torch.cat(empty))
    flags = hvd.allgather(torch.tensor([hvd.rank() == 0]))
    assert flags.dtype == torch.bool
    assert flags.tolist() == [rank == 0 for rank in range(hvd.size())]


@case
def exchanges_with_splits() -> None:
    size, own = hvd.size(), hvd.rank()
    rows = [list(range(1 + rank, 1 + rank + size)) for rank in range(size)]  # rows[rank][to]
    given = [torch.arange(sum(r)).float().reshape(-1, 1) + 100 * rank for rank, r in enumerate(rows)]
    received, counts = hvd.alltoall(given[own], torch.tensor(rows[own], dtype=torch.int32))
    expected = [given[rank].split(rows[rank])[own] for rank in range(size)]
    assert torch.equal(received, torch.cat(expected))
    assert counts.tolist() == [len(part) for part in expected]


@case
def rows_of_a_sum_that_do_not_divide_evenly() -> None:
    given = everyone(2 * hvd.size() + 1, 3)
    expected = torch.tensor_split(sum(given), hvd.size())[hvd.rank()]
    assert torch.equal(hvd.reducescatter(given[hvd.rank()], op=hvd.Sum), expected)


@case
def process_sets_of_one_and_of_some() -> None:
    with pytest.raises(ValueError, match="process set of these ranks"):
        hvd.add_process_set(range(hvd.size()))
    last = hvd.add_process_set([hvd.size() - 1])
    rest = hvd.add_process_set(range(hvd.size() - 1))
    own = last if hvd.rank() == hvd.size() - 1 else rest
    given = everyone(5, 2)
    members = [given[rank] for rank in own.ranks]
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        total = hvd.allreduce(given[hvd.rank()].to(dtype), op=hvd.Sum, process_set=own)
        assert torch.equal(total, sum(members).to(dtype))
    assert torch.equal(hvd.allgather(given[hvd.rank()], process_set=own), torch.cat(members))
    root = own.ranks[-1]
    assert torch.equal(hvd.broadcast(given[hvd.rank()], root, process_set=own), given[root])
    assert own.included()
    other = rest if own is last else last
    with pytest.raises(ValueError, match="is no member of"):
        hvd.allreduce(given[0], process_set=other)
    assert hvd.remove_process_set(last)
    assert hvd.remove_process_set(rest)
    assert not hvd.remove_process_set(rest)
    with pytest.raises(ValueError, match="has not been added"):
        hvd.allreduce(given[0], process_set=rest)


@case
def objects_of_one_and_of_all() -> None:
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=hvd.size() - 1) == {"rank": hvd.size() - 1}
    assert hvd.allgather_object("x" * hvd.rank()) == ["x" * rank for rank in range(hvd.size())]


@case
def ranks_without_data_left() -> None:
    given = everyone(4)
    if hvd.rank() == 0:
        last = hvd.join()
    else:
        total = hvd.allreduce(given[hvd.rank()], op=hvd.Sum, name="uneven")
        assert torch.equal(total, sum(given[1:]))
        with pytest.raises(hvd.HorovodInternalError, match="has called join"):
            hvd.broadcast(given[0], 1, name="refused")
        hvd.allreduce(given[0])
        last = hvd.join()
    assert last != 0
    # Nameless operations meet again, though ranks have submitted unlike numbers of them.
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    assert hvd.allgather_object(last) == [last] * hvd.size()


# ---- what goes wrong -------------------------------------------------------------------------------------------


@case
def mistakes_on_one_rank_are_said_on_its_own_call() -> None:
    tensor = torch.ones(3)
    for wrong, text in [
        (lambda: hvd.allreduce([1.0]), "given a list"),
        (lambda: hvd.allreduce([1.0], compression=hvd.Compression.fp16), "given a list, expected a torch"),
        (lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64)), "not supported"),
        (lambda: hvd.allreduce(tensor, average=True, op=hvd.Sum), "both given"),
        (lambda: hvd.allreduce(tensor, op=17), "no operation"),
        (lambda: hvd.allgather(torch.tensor(1.0)), "without dimensions"),
        (lambda: hvd.alltoall(tensor, torch.tensor([1.0] * hvd.size())), "expected int32"),
        (lambda: hvd.allreduce(tensor, compression="2bit"), "without a name"),
        (lambda: hvd.reducescatter(tensor, compression=hvd.Compression.two_bit), "allreduce"),
        (lambda: hvd.reducescatter(tensor, compression="2bit"), "allreduce"),
        (lambda: hvd.reducescatter(tensor, compression=None), "compression=None"),
        (lambda: hvd.allreduce(torch.ones(2).long(), name="n", compression="2bit"), "floating point"),
        (lambda: hvd.allreduce(torch.empty(0), name="n", compression="2bit"), "at least one element"),
        (lambda: hvd.allgather([1.0]), "given a list"),
        (lambda: hvd.alltoall([1.0]), "given a list"),
        (lambda: hvd.reducescatter([1.0]), "given a list"),
        (lambda: hvd.reducescatter(torch.tensor(1.0)), "without dimensions"),
        (lambda: hvd.grouped_allreduce([]), "no tensor"),
        (lambda: hvd.grouped_allgather([]), "no tensor"),
        (lambda: hvd.grouped_reducescatter([]), "no tensor"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            wrong()
    assert hvd.allreduce(torch.empty(0), op=hvd.Sum).shape == (0,)


@case
def differences_are_said_on_all_ranks_and_the_job_goes_on() -> None:
    with pytest.raises(hvd.HorovodInternalError, match=r"rank 0 has float32 .* and rank 1 has int64"):
        hvd.allreduce(torch.ones(2) if hvd.rank() != 1 else torch.ones(2).long(), name="differs")
    with pytest.raises(ValueError, match="rank 0 has 'a'"):
        hvd.broadcast_parameters([("a" if hvd.rank() == 0 else "b", torch.ones(2))], root_rank=0)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


# ---- codecs --------------------------------------------------------------------------------------------------


@case
def a_codec_keeps_what_it_has_not_sent() -> None:
    residuals = [np.zeros(40, np.float32) for _ in range(hvd.size())]
    for step in range(5):
        given = [
            np.random.default_rng([step, rank]).normal(size=40).astype(np.float32)
            for rank in range(hvd.size())
        ]
        payloads = [two_bit.encode(g, r, 0.5) for g, r in zip(given, residuals, strict=True)]
        expected = two_bit.decode_sum(payloads, 40, 0.5)
        total = hvd.allreduce(
            torch.from_numpy(given[hvd.rank()]),
            name="compressed",
            compression=hvd.Compression.codec("2bit:threshold=0.5"),
            op=hvd.Sum,
        )
        np.testing.assert_array_equal(total.numpy(), expected)


@case
def a_scaler_sees_what_a_codec_cannot_send() -> None:
    """As without a codec: no rank takes the step, and the scale is halved."""
    for compression in (hvd.Compression.codec("int8"), "topk:ratio=0.5", hvd.Compression.none):
        model = torch.nn.Linear(4, 2, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=compression
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        found = []
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).mean()
            if step == 1 and hvd.rank() == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            optimizer.synchronize()
            found.append(bool(torch.isfinite(model.weight.grad).all()))
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        assert found == [True, False, True]
        assert scaler.get_scale() == 512.0
        assert bool(torch.isfinite(model.weight).all())


@case
def a_joined_rank_owes_no_more_than_its_residual() -> None:
    compression = hvd.Compression.codec("2bit:threshold=0.5")

    def summed(values: list[float]) -> torch.Tensor:
        return hvd.allreduce(torch.tensor(values), name="owed", compression=compression, op=hvd.Sum)

    summed([0.75, 0.0, 0.0])  # every rank sends 0.5 and keeps 0.25
    if hvd.rank() > 0:
        assert summed([0.25, 0.0, 0.5]).tolist() == [0.5 * (hvd.size() - 1), 0.0, 0.5 * (hvd.size() - 1)]
    hvd.join()


# ---- the session -----------------------------------------------------------------------------------------------


@case
def a_timeline_of_rank_0() -> None:
    path = FOLDER / "timeline.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    for _ in range(3):  # from the second one on under a key of the store
        hvd.allreduce(torch.ones(3), name="seen")
    hvd.barrier()
    hvd.stop_timeline()
    if hvd.rank() == 0:
        events = json.loads(path.read_text())
        lanes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        spans = [(lanes.get(e["pid"]), e["ph"], e["name"]) for e in events]
        assert ("allreduce.seen", "B", "NEGOTIATE_ALLREDUCE") in spans
        own = [phase for lane, phase, name in spans if (lane, name) == ("allreduce.seen", "ALLREDUCE")]
        assert own == ["B", "E"] * 3
        assert any(e["name"] == "CYCLE_START" for e in events)


@case
def initialised_again_after_a_shutdown() -> None:
    place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()
    for _ in range(3):
        hvd.shutdown()
        assert not hvd.is_initialized()
        with pytest.raises(ValueError, match="not been initialized"):
            hvd.rank()
        hvd.init()
        assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()) == place
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    hvd.init(comm=list(range(hvd.size())))  # no-op


@case
def what_all_have_begun_at_a_shutdown_is_there_after_it() -> None:
    given, expected = torch.ones(4_000_000), torch.full((4_000_000,), float(hvd.size()))
    for _ in range(2):
        hvd.allreduce(given, name="begun")
    hvd.allreduce_async_(given, name="begun", op=hvd.Sum)
    hvd.barrier()
    hvd.shutdown()
    assert torch.equal(given, expected)
    hvd.init()


@case
def what_was_before_a_shutdown_is_nothing_after_it() -> None:
    some = hvd.add_process_set([0])
    before = hvd.allreduce_async(torch.ones(1), name="before", op=hvd.Sum)
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    other = hvd.add_process_set([hvd.size() - 1])
    after = hvd.allreduce_async(torch.ones(1), name="after", op=hvd.Sum)
    with pytest.raises(ValueError, match="no handle"):
        hvd.synchronize(before)
    assert hvd.synchronize(after).item() == hvd.size()
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="has not been added"):
            hvd.allreduce(torch.ones(1), process_set=some)
    assert not hvd.remove_process_set(some)
    hvd.remove_process_set(other)


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    for name, run in CASES.items():
        run()
        print(name, "passed", flush=True)
    hvd.allreduce_async(torch.ones(2), name=f"of rank {hvd.rank()}")  # a script may end with this


if __name__ == "__main__":
    main()
