"""Bad input gets the error that is promised: replies that a codec lacks, loads that are too large, a closed store."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.horovod.torch as hvd
import numpy as np
import pytest
import torch
from gradwire.compress import Compression
from gradwire.horovod.compression import compressor_of
from gradwire.kv import KVStore
from gradwire.samplers import shard
from gradwire.torch import session
from python.inproc_ranks import run_ranks

pytestmark = pytest.mark.usefixtures("no_job")

# ------------------------------------------------------------------------------------- replies that a codec lacks

NO_REPLIES = ["int8:reply=exact", "2bit:threshold=0.5,reply=foo", "none:reply=int8", "fp16:reply=exact"]


@pytest.mark.parametrize("spec", NO_REPLIES)
def test_a_reply_that_the_codec_lacks_is_refused_wherever_codecs_are_read(
    spec: str, local_store: KVStore
) -> None:
    doors: list[Callable[[str], Any]] = [
        Compression.parse,
        local_store.set_gradient_compression,
        session.parse_compression,
        hvd.Compression.codec,
        compressor_of,
    ]
    for door in doors:
        with pytest.raises(ValueError, match=r"reply=.*(valid|replies of this codec): "):
            door(spec)


def test_replies_that_codecs_have() -> None:
    for name in gw.compress.list():
        for reply in (name, "fp32"):
            assert Compression.parse({"type": name, "reply": reply}).reply == reply
        assert Compression.parse(name).reply in ("exact", name)
    assert Compression.parse("2bit:reply=exact").reply == "exact"


def test_all_ranks_hear_of_one_ranks_reply() -> None:
    def body(store: KVStore) -> None:
        with pytest.raises(ValueError, match="reply=foo"):
            store.set_gradient_compression("2bit:reply=foo" if store.rank else "2bit")
        assert store.collectives.all_reduce(np.ones(1, np.float32)) == 2

    run_ranks(2, body)


CHECKPOINTS: dict[str, Callable[[KVStore, Path, bool], Any]] = {
    "extra is text": lambda store, folder, odd: store.save_checkpoint(folder, "text" if odd else b"bytes"),  # type: ignore[arg-type]
    "no folder": lambda store, folder, odd: store.save_checkpoint(None if odd else folder),  # type: ignore[arg-type]
    "no folder to load": lambda store, folder, odd: store.load_checkpoint(None if odd else folder),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", CHECKPOINTS)
def test_one_ranks_checkpoint_is_refused_on_all(call: str, tmp_path: Path) -> None:
    def body(store: KVStore) -> None:
        store.init("w", np.ones(2, np.float32))
        store.save_checkpoint(tmp_path)
        with pytest.raises((TypeError, ValueError), match=r"expected bytes|expected str"):
            CHECKPOINTS[call](store, tmp_path, store.rank == 1)
        assert store.collectives.all_reduce(np.ones(1, np.float32)) == 2

    run_ranks(2, body)


def test_the_variable_is_named_where_it_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "auto")
    store = gw.kv.create("local")
    with pytest.raises(ValueError, match="GRADWIRE_COMPRESSION=auto is set"):
        store.set_gradient_compression("2bit")
    store.close()
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "2bits")
    with pytest.raises(ValueError, match=r"GRADWIRE_COMPRESSION=2bits is set.*2bit"):
        session.parse_chosen("int8")


# ------------------------------------------------------------------------------------- a closed store


def verbs(store: KVStore, folder: Path) -> dict[str, Callable[[], Any]]:
    x, rows = np.ones(4, np.float32), gw.RowSparse([0], np.ones((1, 2), np.float32), (4, 2))
    collectives = store.collectives
    return {
        "push": lambda: store.push("a", x),
        "pull": lambda: store.pull("a", x),
        "pushpull": lambda: store.pushpull("a", x),
        "push_pull": lambda: store.push_pull("new", x),
        "push rows": lambda: store.push("t", rows),
        "row_sparse_pull": lambda: store.row_sparse_pull(
            "t", np.ones((1, 2), np.float32), row_ids=np.array([0])
        ),
        "init": lambda: store.init("b", x),
        "init rows": lambda: store.init("c", rows),
        "broadcast": lambda: store.broadcast("d", x),
        "barrier": store.barrier,
        "join": store.join,
        "set_optimizer": lambda: store.set_optimizer("sgd"),
        "use_compression": lambda: store.use_compression(Compression()),
        "save_checkpoint": lambda: store.save_checkpoint(folder),
        "load_checkpoint": lambda: store.load_checkpoint(folder),
        "unsent": store.unsent,
        "all_reduce": lambda: collectives.all_reduce(x),
        "reduce_scatter": lambda: collectives.reduce_scatter(x),
        "all_gather": lambda: collectives.all_gather(x),
        "all_to_all": lambda: collectives.all_to_all([x] * store.num_workers),
        "collectives.broadcast": lambda: collectives.broadcast(x),
        "collectives.barrier": collectives.barrier,
        "broadcast_parameters": lambda: gw.torch.broadcast_parameters({"w": torch.ones(2)}, 0, store),
    }


@pytest.mark.parametrize("servers", ["local", "allreduce"])
def test_every_verb_says_that_the_store_is_closed(servers: str, tmp_path: Path) -> None:
    found: dict[str, str] = {}

    def body(store: KVStore) -> None:
        store.init("a", np.ones(4, np.float32))
        store.init("t", gw.RowSparse([], [], (4, 2)))
        store.close()
        for name, call in verbs(store, tmp_path).items():
            with pytest.raises(RuntimeError, match="the store is closed") as raised:
                call()
            found[name] = str(raised.value)
        store.stats()

    run_ranks(2 if servers == "allreduce" else 1, body, servers)
    assert found


# ------------------------------------------------------------------------------------- shares and rows


def test_loads_that_are_too_large() -> None:
    assert [len(shard(10, rank, 2, [1.5e308, 1.5e308])) for rank in range(2)] == [5, 5]
    assert [len(shard(10, rank, 2, [1e308, 3e307 * 3])) for rank in range(2)] == [5, 5]
    with pytest.raises(ValueError, match="expected 2 numbers"):
        shard(10, 0, 2, [10**400, 1])
    with pytest.raises(ValueError, match="expected 2 numbers"):
        shard(10, 0, 2, [math.inf, 1])


def test_shares_are_those_of_exact_fractions() -> None:
    """Half-way ends are rounded up, as without a scale."""
    assert shard(5, 0, 2, [3, 7]) == range(math.floor(5 * (3 / 10) + 0.5))
    assert [shard(7, rank, 3, [2, 1, 1]) for rank in range(3)] == [range(4), range(4, 5), range(5, 7)]


@pytest.fixture(params=[False, True], ids=["", "flushed"])
def flushes_denormals(request: pytest.FixtureRequest) -> Iterator[None]:
    """As a script may have asked of PyTorch, to be quicker."""
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushes_denormals")
@pytest.mark.parametrize("of_torch", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_from_dense_keeps_rows_that_float32_rounds_to_zero(dtype: str, of_torch: bool) -> None:
    dense = np.zeros((4, 2), dtype)
    dense.view(f"u{dense.itemsize}")[1] = 1  # the smallest number
    dense[2] = -0.0
    dense[3] = 1
    found = gw.RowSparse.from_dense(torch.from_numpy(dense) if of_torch else dense)
    assert found.row_ids.tolist() == [1, 3]
    assert found.rows.dtype == dtype


@pytest.mark.usefixtures("flushes_denormals")
def test_from_dense_of_bfloat16() -> None:
    found = gw.RowSparse.from_dense(torch.tensor([[0], [1]], dtype=torch.int16).view(torch.bfloat16))
    assert found.row_ids.tolist() == [1]


def test_dir_lists_the_modules_that_are_imported_on_first_use() -> None:
    """For tab completion, which had found none of them."""
    words = "import gradwire; assert set(gradwire.__all__) <= set(dir(gradwire)); print(*dir(gradwire))"
    found = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert {"torch", "kv", "compress", "samplers", "elastic", "RowSparse"} <= set(found.stdout.split())


# ------------------------------------------------------------------------------------- packages that are not there


def test_gradwire_torch_without_pytorch_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['torch'] = None; import gradwire.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    last = done.stderr.rstrip().splitlines()[-1]
    assert last == "ModuleNotFoundError: gradwire.torch needs PyTorch: pip install torch"


def test_no_error_offers_an_extra_of_a_package_that_pypi_lacks() -> None:
    package = Path(gw.__file__).parent
    offers = [path for path in package.rglob("*.py") if 'install "gradwire[' in path.read_text("utf-8")]
    assert not offers
