"""Every code block of the documentation that can run does; those that cannot say why."""

from __future__ import annotations

from pathlib import Path

import pytest
from python.docs_blocks import ROOT, RUN, Block, PageRun, blocks, pages

NAMES = [str(page.relative_to(ROOT)) for page in pages()]
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
RUNNABLE = [name for name in NAMES if any(block.is_run for block in blocks(TEXTS[name]))]
LONG = [name for name in NAMES if any(block.is_run and block.is_long for block in blocks(TEXTS[name]))]
LANGUAGES = {*RUN, "before", "text", "json", "yaml", "toml", "ini", "cpp", "c", "make", "diff"}


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path) -> None:
    PageRun(name, tmp_path).run(TEXTS[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", LONG)
def test_the_long_blocks_of_a_page_run(name: str, tmp_path: Path) -> None:
    PageRun(name, tmp_path, long=True).run(TEXTS[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_block_has_a_language_and_a_reason_where_it_is_not_run(name: str) -> None:
    for block in blocks(TEXTS[name]):
        where = f"{name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: {block.language!r}; text is one, too"
        if block.language in RUN and not block.is_run:
            assert len(block.reason) > 5, f"{where}: say why, as in ```sh notest: needs two machines"
        elif block.language in RUN:
            assert block.words in ("", "soak") or block.words.startswith("title="), f"{where}: {block.words}"


def test_most_blocks_run() -> None:
    every = [block for text in TEXTS.values() for block in blocks(text) if block.language in RUN]
    assert len(every) > 60
    assert sum(block.is_run for block in every) > 0.6 * len(every)


PAGE = """
# Title

<!-- before
first = 1
-->

```python
print(first)
```

1. Then

   ```python
   second = first + 1
   ```

```sh notest: needs two machines
exit 1
```

```sh
python train.py
```

```python
# other.py
third = 3
```
"""


def test_blocks_are_found_with_their_words() -> None:
    assert list(blocks(PAGE)) == [
        Block("before", "", "first = 1\n", 4),
        Block("python", "", "print(first)\n", 8),
        Block("python", "", "second = first + 1\n", 14),
        Block("sh", "notest: needs two machines", "exit 1\n", 18),
        Block("sh", "", "python train.py\n", 22),
        Block("python", "", "# other.py\nthird = 3\n", 26),
    ]


def test_a_page_is_one_script_until_another_is_named(tmp_path: Path) -> None:
    assert PageRun("page", tmp_path).run(PAGE) == 4
    assert (tmp_path / "train.py").read_text() == "first = 1\nprint(first)\n\nsecond = first + 1\n"
    assert (tmp_path / "other.py").read_text() == "first = 1\n# other.py\nthird = 3\n"


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page:1: exit code 3"):
        PageRun("page", tmp_path).run("```sh\nexit 3\n```\n")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        PageRun("page", tmp_path).run("```python\n1 / 0\n```\n")
