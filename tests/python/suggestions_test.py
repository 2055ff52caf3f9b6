"""What "did you mean" says, and when it says nothing: alike in Python and in the compiled part's own errors."""

from __future__ import annotations

import pytest
from gradwire import _core, compress
from gradwire.settings import definitions as settings
from gradwire.settings.suggestions import nearest

SETTINGS = [definition.name for definition in settings.DEFINITIONS]
CODECS = [codec["name"] for codec in _core.codecs()]
SGD = ["momentum", "nesterov", "rescale_grad", "wd"]


@pytest.mark.parametrize(
    ("given", "valid", "near"),
    [
        *(("stream", SETTINGS, "streams"), ("paritition_bytes", SETTINGS, "partition_bytes")),
        *(("rnak", SETTINGS, "rank"), ("partition", SETTINGS, "partition_bytes"), ("xyz", SETTINGS, "")),
        *(("2bits", CODECS, "2bit"), ("int5", CODECS, "int8"), ("foo", CODECS, ""), ("zstd", CODECS, "")),
        *(("lr", SGD, ""), ("momentun", SGD, "momentum"), ("learning_rate", SGD, ""), ("w", SGD, "wd")),
        *(("rnu", ["run", "ab"], "run"), ("", ["run"], ""), ("run", [], "")),
    ],
)
def test_a_word_is_suggested_where_one_is_near(given: str, valid: list[str], near: str) -> None:
    assert nearest(given, valid) == near


@pytest.mark.parametrize(
    "given", ["2bits", "int5", "foo", "zstd", "tpok", "rand", "t", "terngrda", "1bti", "naturl"]
)
def test_the_compiled_part_suggests_the_same(given: str) -> None:
    with pytest.raises(ValueError, match="unknown codec") as raised:
        compress.make(given)
    near = nearest(given, CODECS)
    assert ("did you mean" in str(raised.value)) == bool(near)
    assert f"did you mean {near}? " in str(raised.value) or not near
