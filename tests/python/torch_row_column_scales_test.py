"""row_column_scales: what a codec sees, what comes back, and what is kept. On one rank, and on two."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire import compress
from gradwire.torch.codecs.row_column_scales import RowColumnScales, memory_rows
from numpy.testing import assert_allclose
from oracle import row_column_scales as oracle
from python.compressed_net import loss_of, make, wrap
from python.inproc_ranks import run_ranks
from torch import nn

ROWS, COLUMNS = 24, 40


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    store = gw.kv.create("local")
    yield store
    store.close()


def gradients(steps: int, seed: int = 0) -> list[np.ndarray]:
    """Matrices whose rows and columns differ in scale by up to 100."""
    generator = np.random.default_rng(seed)
    by = np.outer(np.geomspace(0.01, 1, ROWS), np.geomspace(0.1, 1, COLUMNS))
    return [(generator.normal(size=(ROWS, COLUMNS)) * by).astype(np.float32) for _ in range(steps)]


def optimizer_of(parameter: nn.Parameter, store: gw.kv.KVStore, codec: str, **options: Any) -> Any:
    return gw.torch.DistributedOptimizer(
        torch.optim.AdamW([parameter], lr=1e-3), [("matrix", parameter)], codec, store, **options
    )


def mean_of(parameter: nn.Parameter, gradient: np.ndarray) -> np.ndarray:
    """What p.grad is after a backward() with this gradient."""
    parameter.grad = None
    (parameter * torch.from_numpy(gradient)).sum().backward()
    assert parameter.grad is not None
    return parameter.grad.numpy().copy()


def divided(scales: RowColumnScales, values: np.ndarray) -> np.ndarray:
    run = torch.from_numpy(values.copy()).view(-1)
    scales.divide("matrix", run, values.shape[0])
    return run.view(values.shape).numpy()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 7), (5, 1), (3, 8), (17, 33)])
def test_scales_are_adafactors(rows: int, columns: int) -> None:
    generator, scales, means = np.random.default_rng(1), RowColumnScales(), []
    ones = np.ones((rows, columns), np.float32)
    assert np.array_equal(divided(scales, ones), ones), "nothing is known yet"
    for step in range(4):
        means.append(generator.normal(size=(rows, columns)).astype(np.float32) * 10.0**-step)
        scales.learn("matrix", torch.from_numpy(means[-1].copy()).view(-1), rows)
        assert_allclose(divided(scales, ones), 1 / oracle.scales(means), rtol=1e-5)
    back = torch.from_numpy(divided(scales, ones)).view(-1)
    scales.multiply("matrix", back, rows)
    assert_allclose(back.numpy(), 1, rtol=1e-6)


def test_scales_have_the_same_bits_for_any_number_of_threads() -> None:
    """Ranks with other scales would end with other weights."""
    mean = torch.randn(300, 4001, generator=torch.Generator().manual_seed(2)).view(-1)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            scales, run = RowColumnScales(), torch.ones_like(mean)
            scales.learn("matrix", mean, 300)
            scales.divide("matrix", run, 300)
            found.append(run)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_means_without_a_number_teach_nothing() -> None:
    scales, ones = RowColumnScales(), np.ones((2, 3), np.float32)
    scales.learn("matrix", torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 2)
    before = divided(scales, ones)
    for wrong in (float("nan"), float("inf")):
        scales.learn("matrix", torch.tensor([1.0, wrong, 3.0, 4.0, 5.0, 6.0]), 2)
        assert np.array_equal(divided(scales, ones), before)
    never = RowColumnScales()
    never.learn("matrix", torch.zeros(6), 2)
    assert np.array_equal(divided(never, ones), ones), (
        "no gradient so far, as of a layer that no batch reached"
    )


@pytest.mark.filterwarnings("ignore:.*loses accuracy with the codec 1bit")
@pytest.mark.parametrize("codec", ["int4", "1bit"])
def test_what_comes_back_is_the_papers(codec: str, store: gw.kv.KVStore) -> None:
    parameter = nn.Parameter(torch.zeros(ROWS, COLUMNS))
    optimizer = optimizer_of(parameter, store, f"{codec}:reply=fp32", row_column_scales=True)
    given = gradients(6)
    expected = oracle.delivered(compress.make(codec), [[gradient] for gradient in given])
    for gradient, mean in zip(given, expected, strict=True):
        assert_allclose(mean_of(parameter, gradient), mean, rtol=1e-3, atol=1e-7)
        optimizer.step()
    optimizer.close()


def test_small_rows_arrive_as_soon_as_large_ones(store: gw.kv.KVStore) -> None:
    """Without scales 2bit sends nothing of the smallest in these steps."""
    lost = {}
    for scaled in (False, True):
        parameter = nn.Parameter(torch.zeros(ROWS, COLUMNS))
        optimizer = optimizer_of(parameter, store, "2bit", row_column_scales=scaled)
        given = [np.abs(gradient) for gradient in gradients(30)]
        sums = [np.zeros((ROWS, COLUMNS)), np.zeros((ROWS, COLUMNS))]
        for gradient in given:
            sums[0] += gradient
            sums[1] += mean_of(parameter, gradient)
            optimizer.step()
        optimizer.close()
        lost[scaled] = 1 - sums[1][0].sum() / sums[0][0].sum()
    assert lost[False] > 0.5
    assert abs(lost[True]) < 0.2


def test_only_compressed_matrices_of_float32_are_scaled() -> None:
    assert memory_rows(torch.zeros(3, 4)) == 3
    assert memory_rows(torch.zeros(3, 4).t()) == 3, "rows are those of memory"
    assert memory_rows(torch.zeros(8, 3, 5, 5).to(memory_format=torch.channels_last)) == 8
    assert memory_rows(torch.zeros(4)) is None
    assert memory_rows(torch.zeros(0, 4)) is None
    assert memory_rows(torch.zeros(3, 4, dtype=torch.float64)) is None


def test_a_layer_without_a_codec_keeps_its_bits(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store, "2bit", row_column_scales=True, codecs={"first.weight": "none"})
    for seed in range(3):
        alone = copy.deepcopy(model)
        alone.zero_grad()
        loss_of(alone, seed).backward()
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        for name, p in model.named_parameters():
            same = torch.equal(p.grad, alone.get_parameter(name).grad)
            if name == "first.weight" or p.dim() == 1:
                assert same, name
        optimizer.step()
    assert sorted(optimizer.state_dict()["gradwire"]["scales"]) == ["last.weight", "words.weight"]
    optimizer.close()


def test_a_warm_up_teaches_the_scales(store: gw.kv.KVStore) -> None:
    parameter = nn.Parameter(torch.zeros(ROWS, COLUMNS))
    optimizer = optimizer_of(parameter, store, "int4", row_column_scales=True, warm_up=[("none", 2)])
    given = gradients(3)
    for gradient in given[:2]:
        assert np.array_equal(mean_of(parameter, gradient), gradient)
        optimizer.step()
    by = oracle.scales(given[:2])
    codec = compress.make("int4")
    sent = codec.decode(codec.encode((given[2] / by).astype(np.float32).reshape(-1)), given[2].size)
    assert_allclose(mean_of(parameter, given[2]), sent.reshape(given[2].shape) * by, rtol=1e-3, atol=1e-7)
    optimizer.close()


def test_a_state_dict_goes_on_with_the_same_bits(store: gw.kv.KVStore) -> None:
    given = gradients(6)
    parameter = nn.Parameter(torch.zeros(ROWS, COLUMNS))
    optimizer = optimizer_of(parameter, store, "int4", row_column_scales=True)
    for gradient in given[:3]:
        mean_of(parameter, gradient)
        optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    expected = []
    for gradient in given[3:]:
        expected.append(mean_of(parameter, gradient))
        optimizer.step()
    optimizer.close()
    parameter = nn.Parameter(torch.zeros(ROWS, COLUMNS))
    optimizer = optimizer_of(parameter, store, "int4", row_column_scales=True)
    optimizer.load_state_dict(state)
    for gradient, mean in zip(given[3:], expected, strict=True):
        assert np.array_equal(mean_of(parameter, gradient), mean)
        optimizer.step()
    optimizer.close()


@pytest.mark.parametrize("codec", ["2bit", "2bit:reply=2bit", "int4"])
def test_ranks_end_with_the_same_weights(codec: str) -> None:
    weights: dict[int, torch.Tensor] = {}
    models = [make(), make()]  # here, as threads share the random numbers

    def body(store: gw.kv.KVStore) -> None:
        model = models[store.rank]
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=1e-2),
            model.named_parameters(),
            codec,
            store,
            row_column_scales=True,
        )
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, 2 * step + store.rank).backward()
            optimizer.step()
        weights[store.rank] = nn.utils.parameters_to_vector(model.parameters()).detach()

    run_ranks(2, body)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], nn.utils.parameters_to_vector(make().parameters()))


def test_a_loss_scale_changes_nothing(store: gw.kv.KVStore) -> None:
    found = []
    for scale in (1.0, 1024.0):
        parameter = nn.Parameter(torch.zeros(ROWS, COLUMNS))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.ones(()))  # makes the scale
        optimizer = optimizer_of(parameter, store, "int4", row_column_scales=True, grad_scaler=scaler)
        for gradient in gradients(4):
            last = mean_of(parameter, gradient * np.float32(scale)) / np.float32(scale)
            optimizer.zero_grad()
        found.append(last)
        optimizer.close()
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"overlap_step": True}, "with row_column_scales: scales are learned"),
        ({"compression": "auto"}, "row_column_scales=True was given with the codec 'auto'"),
    ],
)
def test_what_it_cannot_be_combined_with_is_refused(
    options: dict[str, Any], text: str, store: gw.kv.KVStore
) -> None:
    model = make()
    with pytest.raises(ValueError, match=text):
        gw.torch.DistributedOptimizer(
            torch.optim.AdamW(model.parameters()),
            model.named_parameters(),
            **{"compression": "2bit", "store": store, "row_column_scales": True, **options},
        )


def test_a_job_that_workers_may_join_later_refuses_it(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store, "2bit", row_column_scales=True)
    with pytest.raises(ValueError, match="row_column_scales=True learns scales step by step"):
        optimizer.require_movable()
    optimizer.close()
