"""BytePS's words for compression as gradwire's codecs, without MXNet."""

from __future__ import annotations

from typing import Any

import pytest
from gradwire.byteps.compression_params import Compressed, of_attributes, read
from gradwire.stores.codec_choice import parse_codec


@pytest.mark.parametrize(
    ("params", "codec"),
    [
        ({"compressor": "onebit", "scaling": True, "ef": "vanilla"}, "1bit"),
        ({"compressor": "topk", "k": 0.01}, "topk:ratio=0.01"),
        ({"compressor": "randomk", "k": "0.5", "seed": 2020}, "randomk:ratio=0.5,seed=2020"),
        (
            {"compressor": "dithering", "k": 7, "partition": "linear", "normalize": "max"},
            "qsgd:bits=4,seed=0",
        ),
        ({"compressor": "dithering", "k": 127, "seed": 3}, "qsgd:bits=8,seed=3"),
        ({"type": "2bit", "threshold": 0.5}, {"type": "2bit", "threshold": 0.5}),
        ("int8", "int8"),
    ],
)
def test_words_are_codecs_that_there_are(params: Any, codec: Any) -> None:
    found = read(params)
    assert found.codec == codec
    parse_codec("test", codec)
    assert not found.has_momentum


@pytest.mark.parametrize("params", [None, {}])
def test_nothing_is_no_compression(params: Any) -> None:
    assert read(params) == Compressed()


def test_half_precision_and_momentum() -> None:
    assert read({"fp16": True}) == Compressed(is_half=True)
    assert read({"compressor": "topk", "k": 0.1, "momentum": "nesterov"}).has_momentum


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"compressor": "onebit"}, "give 'scaling': True"),
        (
            {"compressor": "signsgd"},
            "compressor='signsgd'.*expected 'onebit', 'topk', 'randomk', 'dithering'",
        ),
        ({"compressor": "topk"}, "k=None: expected the share"),
        ({"compressor": "topk", "k": 64}, "a count is of BytePS's partitions"),
        ({"compressor": "dithering", "k": 16}, "expected 7, which travel in 4 bits, or 127"),
        ({"compressor": "dithering", "k": 7, "partition": "natural"}, "{'type': 'natural'}"),
        ({"compressor": "dithering", "k": 7, "normalize": "l2"}, "normalize='l2'.*expected 'max'"),
        ({"compressor": "topk", "k": 0.1, "ef": "sparse"}, "ef='sparse'.*expected 'vanilla'"),
        ({"compressor": "topk", "k": 0.1, "momentum": "heavy"}, "momentum='heavy'.*expected 'nesterov'"),
        ({"momentum": "nesterov"}, "momentum in compression_params is of a compressor"),
        ({"compressor": "topk", "ratio": 0.1}, "has 'ratio'; BytePS's are compressor, ef"),
    ],
)
def test_what_there_is_not_says_what_to_give(params: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(params)


def test_attributes_of_a_declared_tensor() -> None:
    given = {
        "byteps_compressor_type": "dithering",
        "byteps_compressor_k": 7,
        "byteps_seed": 5,
        "byteps_dithering_partition": "0",
        "byteps_dithering_normalize": "0",
    }
    assert read(of_attributes(given)).codec == "qsgd:bits=4,seed=5"
    assert read(
        of_attributes({"byteps_compressor_type": "onebit", "byteps_compressor_onebit_scaling": "True"})
    )
    with pytest.raises(ValueError, match="'byteps_momentum_type' is not known"):
        of_attributes({"byteps_momentum_type": "nesterov"})
