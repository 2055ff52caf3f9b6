"""experiments/replay/profiles.py: what it derives is what the architectures publish, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "replay"


profiles: Any = load(FOLDER / "profiles.py")


@pytest.mark.parametrize(
    ("name", "layers", "elements"),
    [
        ("vgg16", 16, 138_357_544),
        ("resnet50", 54, 25_557_032),
        ("bert_large", 148, 336_226_108),
        ("gpt2_124m", 50, 124_082_688),
    ],
)
def test_parameters_are_the_published_ones(name: str, layers: int, elements: int) -> None:
    profile = profiles.MODELS[name]()
    assert (len(profile.layers), profile.elements) == (layers, elements)


@pytest.mark.parametrize("name", list(profiles.MODELS))
def test_a_committed_file_is_what_the_derivation_gives(name: str) -> None:
    path = profiles.FOLDER / f"{name}.json"
    assert path.read_text(encoding="utf-8") == profiles.text_of(profiles.MODELS[name]())
    assert profiles.load(path) == profiles.MODELS[name]()


def test_bert_large_has_the_parameters_of_torchs_encoder() -> None:
    block = torch.nn.TransformerEncoderLayer(1024, 16, dim_feedforward=4096, device="meta")
    of_block = [layer.elements for layer in profiles.bert_large().layers if layer.name.startswith("block7_")]
    assert sum(of_block) == sum(parameter.numel() for parameter in block.parameters())


def test_compute_is_shared_out_by_multiply_accumulates() -> None:
    profile = profiles.vgg16()
    layers = {layer.name: layer for layer in profile.layers}
    # 64 x 64 channels on 224 x 224 and 128 x 128 on 112 x 112 are the same number of products.
    assert layers["conv1_2"].forward_seconds == pytest.approx(layers["conv2_2"].forward_seconds)
    assert layers["conv1_2"].backward_seconds == pytest.approx(2 * layers["conv1_2"].forward_seconds)
    assert profile.compute_seconds == pytest.approx(64 / 29.3, rel=1e-6)


def document() -> dict[str, Any]:
    layer = {"name": "a", "elements": 4, "forward_seconds": 1.0, "backward_seconds": 1.0}
    return {"name": "x", "source": "s", "batch": 2, "images_per_second": 1.0, "layers": [layer]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": []}, "no layers"),
        ({"layers": [document()["layers"][0] | {"elements": 0}]}, "layer a: elements=0"),
        ({"layers": [document()["layers"][0] | {"backward_seconds": -1.0}]}, "layer a: -1.0 seconds"),
        ({"layers": [document()["layers"][0] | {"colour": 1}]}, "colour"),
        ({"layers": document()["layers"] * 2}, "two layers share a name"),
        ({"images_per_second": 2.0}, "layers take 2.000000 s"),
        ({"batch": 0}, "batch=0"),
        ({"more": 1}, "expected an object with exactly"),
    ],
)
def test_what_cannot_be_a_step_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document()), encoding="utf-8")
    assert profiles.load(path).compute_seconds == 2.0
    path.write_text(json.dumps(document() | change), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        profiles.load(path)


def test_gpt2_has_the_parameters_of_the_one_that_is_measured_on_a_gpu() -> None:
    transformer: Any = load(FOLDER.parent / "gpu" / "transformer.py")
    with torch.device("meta"):
        model = transformer.Transformer(transformer.SIZES["124m"])
    assert profiles.gpt2_124m().elements == sum(parameter.numel() for parameter in model.parameters())


def test_the_page_has_the_simulators_table_for_the_compute_of_today() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    today: Any = load(FOLDER / "today.py")
    assert "\n".join(today.table()) in page
