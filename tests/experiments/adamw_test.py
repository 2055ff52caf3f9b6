"""experiments/adamw: its AdamW is torch's, its scales are gradwire.torch's; its arms, runs and page."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from gradwire import compress
from gradwire.torch.codecs.row_column_scales import RowColumnScales
from numpy.testing import assert_allclose, assert_array_equal
from oracle import block as oracle
from python.experiment_files import imported
from torch import nn

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "adamw"
NAMES = (
    "quantizers",
    "averagers",
    "dynamiq",
    "recipes",
    "tasks",
    "adamw_simulation",
    "arms",
    "page",
    "mean_error",
    "run",
    "spread",
    "sixteen_levels",
    "time_to_accuracy",
)


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    others = FOLDER.parent
    with (
        imported(others / "char_lm", ("text", "networks")),
        imported(others / "fashion_mnist", ("dataset",)),
        imported(FOLDER, NAMES) as found,
    ):
        yield found


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


@pytest.fixture
def task(modules: dict[str, ModuleType]) -> Any:
    """A regression of a few steps."""
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(64, 12, generator=generator), torch.randn(64, 4, generator=generator)

    def loss(model: nn.Module, pick: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(x[pick]), y[pick])

    def score(model: nn.Module) -> tuple[float, float]:
        vector = nn.utils.parameters_to_vector(model.parameters()).double()
        return float(loss(model, torch.arange(64)).detach()), float(vector.abs().sum())

    return modules["tasks"].Task(net, 64, loss, score, steps=30, batch_size=4, lr=0.01)


def trained(modules: dict[str, ModuleType], task: Any, arm: str, **options: Any) -> Any:
    return modules["adamw_simulation"].train(modules["recipes"].Recipe.parse(arm), 0, task, **options)


def test_without_a_codec_it_is_torchs_adamw(modules: dict[str, ModuleType], task: Any) -> None:
    simulation = modules["adamw_simulation"]
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, picks in zip(range(30), simulation._picks(task, 0, 2), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = simulation._learning_rate(task, step, 30)
        optimizer.zero_grad()
        (sum(task.loss(model, pick) for pick in picks) / 2).backward()
        optimizer.step()
    loss, weights = task.score(model)
    found = trained(modules, task, "none")
    assert found.loss == pytest.approx(loss, rel=1e-4)
    assert found.accuracy == pytest.approx(weights, rel=1e-5)
    assert found.bits == 64
    for arm in ("2bit;m=exact;v=exact", "2bit;warm_up=30"):  # the codec does not count
        assert trained(modules, task, arm).loss == pytest.approx(loss, rel=1e-4)
    assert trained(modules, task, "2bit").loss != pytest.approx(loss, rel=1e-3)


def test_muon_is_torchs_for_the_matrices_of_hidden_layers(modules: dict[str, ModuleType]) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(6, 4)]), "logits": nn.Linear(4, 6)})
    matrix = model["layers"][0].weight
    simulation, recipe = modules["adamw_simulation"], modules["recipes"].Recipe.parse("none;optimizer=muon")
    layout = simulation.Layout(model, recipe)
    muon, expected = simulation.Muon(layout), matrix.detach().clone().requires_grad_()
    optimizer = torch.optim.Muon([expected], lr=0.01, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()
    part = layout.parts[layout.names.index("layers.0.weight")]
    for step in range(3):
        mean = np.random.default_rng(step).normal(size=layout.elements).astype(np.float32)
        expected.grad = torch.from_numpy(mean[part].copy()).view(4, 6)
        optimizer.step()
        before, weights = weights, weights + 1  # what AdamW has made of them
        muon.step(before, weights, mean, 0.01)
        assert_array_equal(weights[part], expected.detach().numpy().ravel())
        assert_array_equal(np.delete(weights, part), np.delete(before + 1, part))


def test_scales_are_those_of_gradwire_torch(modules: dict[str, ModuleType]) -> None:
    simulation = modules["adamw_simulation"]
    recipe = modules["recipes"].Recipe.parse("2bit;whiten=rows+columns")
    layout = simulation.Layout(net(), recipe)
    scales, product = simulation._Scales(recipe, layout), RowColumnScales()
    assert scales.now() is None
    generator = np.random.default_rng(4)
    for _ in range(3):
        mean = generator.normal(size=layout.elements).astype(np.float32)
        mean[layout.parts[0]] *= np.geomspace(0.01, 1, 16 * 12, dtype=np.float32)
        scales.learn(mean)
        product.learn("0.weight", torch.from_numpy(mean[layout.parts[0]].copy()), 16)
    run = torch.ones(16 * 12)
    product.divide("0.weight", run, 16)
    assert_allclose(1 / scales.now()[layout.parts[0]], run.numpy(), rtol=1e-4)
    assert_array_equal(scales.now()[layout.parts[1]], 1)  # a bias


@pytest.mark.parametrize("count", [3, 4, 8])
def test_levels_are_the_centres_of_what_they_stand_for(modules: dict[str, ModuleType], count: int) -> None:
    """Lloyd's and Max's condition, and thresholds in the middle."""
    levels, thresholds = modules["quantizers"]._GAUSSIAN[count]
    values = np.abs(np.random.default_rng(5).normal(size=2_000_000))
    chosen = np.searchsorted(thresholds, values)
    for index, level in enumerate(levels):
        if level > 0:
            assert values[chosen == index].mean() == pytest.approx(level, abs=0.01)
    assert_allclose([(a + b) / 2 for a, b in itertools.pairwise(levels)], thresholds, atol=0.002)


def test_levels_bring_everything_in_time(modules: dict[str, ModuleType]) -> None:
    quantizers, averagers = modules["quantizers"], modules["averagers"]
    blocks = np.random.default_rng(6).normal(size=(3, 128)).astype(np.float32)
    assert_allclose(quantizers.hadamard(quantizers.hadamard(blocks)), blocks, atol=1e-5)
    given = np.random.default_rng(7).normal(size=200).astype(np.float32)  # not whole blocks
    for spec in ("levels:count=4,block=128", "levels:count=4,block=128,rotate=1"):
        average = averagers.OfLevels(quantizers.Levels.parse(spec), 200, 0, 2)
        total = sum(average.mean([given, given], step) for step in range(60))
        assert_allclose(total / 60, given, atol=0.3)  # error feedback at workers and server
        assert average.bits == 60 * 200 * 2 * (2 + 16 / 128)
    with pytest.raises(ValueError, match="expected count of 3, 4 or 8"):
        quantizers.Levels.parse("levels:count=5")


def test_dynamiq_keeps_its_budget_and_spends_it_where_most_is(modules: dict[str, ModuleType]) -> None:
    dynamiq = modules["dynamiq"]
    given = np.random.default_rng(8).normal(size=(2, 8 * 256)).astype(np.float32)
    given[:, 256:512] *= 100
    given[:, 512:] *= np.float32(0.001)
    average = dynamiq.DynamiQ(given.shape[1], 0, budget=5.0)
    average.mean(list(given), 0)
    assert average.bits <= 2 * 5.0 * given.shape[1]
    widths = average._widths((given.astype(float) ** 2).sum(0).reshape(-1, 256).sum(1))
    assert widths[1] == widths[0] == 8
    assert widths[2:].min() >= 2
    # No other choice within the budget leaves less, by the error of a uniform quantizer.
    squares = (given.astype(float) ** 2).sum(0).reshape(-1, 256).sum(1)
    allowed = [pick for pick in itertools.product((2, 4, 8), repeat=8) if sum(pick) <= sum(widths)]
    least = min((squares * 4.0 ** -np.array(pick)).sum() for pick in allowed)
    assert (squares * 4.0**-widths).sum() == pytest.approx(least, rel=0.05)


def test_dynamiq_draws_by_chance_between_the_nearest_levels(modules: dict[str, ModuleType]) -> None:
    dynamiq = modules["dynamiq"]
    random = np.random.default_rng(9)
    values = random.normal(size=(4, 256))
    values[3] = 0
    for width in (2, 4, 8):
        widths = np.full(4, width)
        of_draws = [dynamiq.rounded(values, widths, random.random(values.shape)) for _ in range(400)]
        spread = np.std(of_draws, axis=0)
        assert_allclose(np.mean(of_draws, axis=0), values, atol=5 * spread.max() / 20 + 1e-12)  # no bias
        assert len(np.unique(np.stack(of_draws)[:, 0, 0])) <= 2
    error = {
        bits: np.square(
            dynamiq.DynamiQ(values.size, 0, budget=bits).mean([values.ravel()] * 2, 0) - values.ravel()
        )
        for bits in (4.0, 5.0, 9.0)
    }
    assert error[4.0].sum() > error[5.0].sum() > 20 * error[9.0].sum()


def test_turns_bring_everything(modules: dict[str, ModuleType]) -> None:
    averagers = modules["averagers"]
    turns = averagers.Turns(2, 300, 2, lambda size, part: averagers.OfCodec("none", size, part, 2))
    given = np.arange(300, dtype=np.float32)
    first, second = turns.mean([given, given], 0), turns.mean([given, given], 1)
    assert_array_equal(first, np.where(np.arange(300) // 128 % 2 == 0, given, 0))
    assert_array_equal(second, np.where(np.arange(300) // 128 % 2 == 1, 2 * given, 0))
    assert turns.bits == 64 * 300


def test_a_codec_in_the_warm_up_hands_on_what_it_has_not_sent(modules: dict[str, ModuleType]) -> None:
    averagers = modules["averagers"]
    before, after = averagers.OfCodec("int4", 128, 0, 1), averagers.OfCodec("2bit", 128, 0, 1)
    before.mean([np.linspace(-1, 1, 128, dtype=np.float32)], 0)
    after.take_over(before)
    assert_array_equal(after._residuals[0], before._residuals[0])
    assert np.any(after._residuals[0])


def test_residuals_in_bfloat16_are_those_of_error_feedback(modules: dict[str, ModuleType]) -> None:
    codec = compress.make("int8")
    feedback = compress.ErrorFeedback(codec, 500, residual="bf16")
    rounded = modules["averagers"].OfCodec("int8", 500, 0, 1, residuals="bfloat16")
    for step in range(4):
        given = np.random.default_rng(step).standard_normal(500, np.float32)
        feedback.encode(given)
        rounded.mean([given], step)
        assert_array_equal(rounded._residuals[0], feedback.residual)


@pytest.mark.parametrize(
    ("arm", "text"),
    [
        ("levels:count=4;residuals=bfloat16", "residuals=bfloat16 needs a codec of gradwire"),
        ("2bit;rate=1", "expected name=value with one of m, v"),
        ("2bit;warm_up=x", "expected a number"),
        ("2bit;v=squared", "expected one of mean, exact"),
        ("int4;turns=0", "expected 1 or more"),
        ("int4;turns=2;warm_up=3;first=int8", "cannot be combined"),
    ],
)
def test_a_misspelt_arm_is_named(modules: dict[str, ModuleType], arm: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        modules["recipes"].Recipe.parse(arm)


def test_every_arm_of_the_page_trains(modules: dict[str, ModuleType], task: Any) -> None:
    planned = modules["arms"].planned()
    assert len(planned) == len(set(planned))
    assert {name for name, _, _ in planned} == set(modules["tasks"].NAMES)
    for arm in dict.fromkeys(arm for _, arm, _ in planned):
        assert np.isfinite(trained(modules, task, arm, steps=6).loss), arm


def test_runs_are_kept_and_not_repeated(
    modules: dict[str, ModuleType], task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = modules["run"], tmp_path / "results.csv"
    monkeypatch.setattr(modules["tasks"], "load", lambda name: dataclasses.replace(task, steps=5))
    runs = [run.Run("vit", arm, seed) for seed in range(2) for arm in ("none", "int4")]
    assert run.measure(runs, 0.0, (0, 1), file) == 4
    assert run.measure(runs, None, (0, 2), file) == 0
    assert [(row.arm, row.seed) for row in run.read(file)] == [("none", 0), ("none", 1)]
    run.measure(runs, None, (0, 1), file)
    rows = run.read(file)
    assert len(rows) == 4
    run.measure(runs, None, (0, 1), file)
    assert run.read(file) == rows
    assert rows[1].flags == "steps=5 batch=4 lr=0.01"


def test_a_shorter_training_is_one_of_fewer_steps(modules: dict[str, ModuleType], task: Any) -> None:
    shorter = trained(modules, task, "none;steps=0.5")
    assert shorter.loss == trained(modules, task, "none", steps=15).loss
    assert shorter.loss > trained(modules, task, "none").loss


def test_a_codec_is_worth_the_steps_of_the_training_without_it_that_ends_alike(
    modules: dict[str, ModuleType],
) -> None:
    """By hand: 10 % fewer steps cost 0.1, 50 % 0.5; the codec costs 0.15, and 0.05 more or less by the seed."""
    made, row = modules["time_to_accuracy"], modules["run"].Row
    losses = {"none": 2.0, "none;steps=0.95": 2.05, "none;steps=0.9": 2.1, "none;steps=0.8": 2.2}
    losses |= {"none;steps=0.65": 2.35, "none;steps=0.5": 2.5}
    rows = [
        row("vit", arm, seed, loss + seed, 0.5, 8.5, "", "", 1.0)
        for arm, loss in losses.items()
        for seed in range(3)
    ]
    rows += [
        row("vit", "nf4", seed, 2.15 + (seed - 1) / 20 + seed, 0.5, 8.5, "", "", 1.0) for seed in range(3)
    ]
    found = made.shares(rows, "vit", "nf4")
    half = 4.302653 * 0.05 / 3**0.5  # Student's t of two degrees
    assert (found.mean, found.low, found.high) == pytest.approx((0.85, 0.85 - half, 0.85 + half), abs=1e-6)
    better = [
        dataclasses.replace(each, arm="int8", loss=each.loss - 1) for each in rows if each.arm == "none"
    ]
    assert made.shares([*rows, *better], "vit", "int8").mean == 1.0
    worse = [dataclasses.replace(each, arm="2bit", loss=each.loss + 1) for each in rows if each.arm == "none"]
    assert made.shares([*rows, *worse], "vit", "2bit").mean == 0.5


def test_a_model_of_the_table_has_the_size_of_its_name(modules: dict[str, ModuleType]) -> None:
    sizes = [model.profile().elements / 1e6 for model in modules["time_to_accuracy"].MODELS]
    assert sizes == pytest.approx([10.6, 124.5, 1315.8], abs=0.1)


def test_the_page_has_every_run(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    row, page = modules["run"].Row, modules["page"]
    rows = [
        row("vit", arm, seed, loss + seed / 10, 0.5, 8.5, "3.0 2.0", "steps=80", 1.0)
        for arm, loss in (("none", 2.0), ("int4", 2.2))
        for seed in range(2)
    ]
    lines = page.table(rows, "vit").splitlines()
    assert lines[2].startswith("| `none` | 8.50 | 2.0500 |  |  | 2 |")
    assert lines[3].startswith("| `int4` | 8.50 | 2.2500 | +0.2000 [+0.2000, +0.2000] | +9.76 | 2 |")
    copied = tmp_path / "README.md"
    copied.write_text((FOLDER / "README.md").read_text())
    page.fill(rows, copied)
    assert "+0.2000 [+0.2000" in copied.read_text()
    copied.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the lines"):
        page.fill(rows, copied)


def test_each_codec_has_its_best_learning_rate(modules: dict[str, ModuleType]) -> None:
    row, page = modules["run"].Row, modules["page"]
    losses = {
        "none;lr=0.5": 2.0,
        "none": 1.0,
        "none;lr=2": 3.0,
        "nf2;lr=0.5": 1.1,
        "nf2": 1.5,
        "nf2;lr=2": 1.2,
    }
    rows = [
        row("vit", arm, seed, loss + seed / 10, 0.5, 8.5, "3.0 2.0", "steps=80", 1.0)
        for arm, loss in losses.items()
        for seed in range(2)
    ]
    lines = {line.split("`")[1]: line for line in page.tuned(rows).splitlines()[2:]}
    assert "| 1.0500 nats, 1 |" in lines["none"]
    assert "| +9.52 [+9.52, +9.52], 0.5 |" in lines["nf2"]
    assert "," not in lines["nf4"]  # no runs
    assert "lr=" not in page.table(rows, "vit")


def test_the_vision_transformer_sees_all_patches(modules: dict[str, ModuleType]) -> None:
    torch.manual_seed(0)
    model = modules["tasks"].VisionTransformer(32, 2, 2)
    images = torch.randn(2, 1, 28, 28)
    changed = images.clone()
    changed[:, :, 20:, 20:] += 1
    assert model(images).shape == (2, 10)
    assert not torch.allclose(model(images), model(changed))


def test_spread_prints_a_line_per_tensor(
    modules: dict[str, ModuleType],
    task: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modules["tasks"], "load", lambda name: task)
    modules["spread"].main(["--steps", "8", "--arm", "none"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["0.weight", "2.weight"]
    assert all("arrived of the small 1.00, of the large 1.00" in line for line in lines)


def test_errors_of_means_are_those_of_the_codecs(
    modules: dict[str, ModuleType],
    task: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    errors, page = modules["mean_error"], modules["page"]
    monkeypatch.setattr(modules["tasks"], "load", lambda name: task)
    none, int8, nf2 = errors.measure("vit", ("none", "int8", "nf2"), steps=12, first=4)
    assert (none.bits, none.vnmse, none.momentum, none.step) == (64, 0, 0, 0)
    assert 0 < int8.vnmse < 1e-3 < 0.05 < nf2.vnmse < 0.4, (
        "two roundings; Max 1960 has 0.1175 for one of four levels"
    )
    assert int8.momentum < nf2.momentum < nf2.vnmse, "what is left out comes later"
    assert int8.step < 0.1 < nf2.step
    copied = tmp_path / "README.md"
    copied.write_text((FOLDER / "README.md").read_text())
    monkeypatch.setattr(errors, "RESULTS", tmp_path / "mean_error.csv")
    monkeypatch.setattr(errors, "CODECS", ("int8", "nf2"))
    monkeypatch.setattr(errors, "measure", lambda name: [int8, nf2])
    monkeypatch.setattr(page, "README", copied)
    errors.main(["--task", "vit"])
    assert errors.read() == [int8, nf2]
    assert f"| `nf2` | {nf2.bits:.2f} | {nf2.vnmse:.3g} | {nf2.momentum:.3g} |" in copied.read_text()
    assert "vit nf2:" in capsys.readouterr().out


def test_the_levels_of_nf4_leave_least(
    modules: dict[str, ModuleType], task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels, page = modules["sixteen_levels"], modules["page"]
    monkeypatch.setattr(modules["tasks"], "load", lambda name: task)
    monkeypatch.setattr(levels, "_STEPS", range(4, 12, 4))
    monkeypatch.setattr(page, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("<!-- sixteen levels -->\n<!-- end sixteen levels -->\n")
    levels.main()
    assert (tmp_path / "README.md").read_text().count("\n") == 12, (
        "eight rules, a head of two lines, two marks"
    )
    gaussian = levels.gradients("Gaussian")
    found = levels.lloyd([gaussian])
    of_nf4, of_qlora, of_int4 = (
        levels.vnmse(rule, gaussian)
        for rule in (levels.of_codec("nf4"), levels.by_largest(levels.QLORA), levels.of_codec("int4"))
    )
    assert levels.vnmse(levels.by_largest(found), gaussian) < of_nf4 < of_qlora < of_int4
    assert_allclose(found, np.sort(oracle.NF4_LEVELS) / 127, atol=0.05)
