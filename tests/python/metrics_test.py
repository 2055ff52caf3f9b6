"""gradwire.metrics: what its writers write is what stats() says, and nothing that fails there reaches training."""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradwire as gw
import numpy as np
import pytest
from gradwire import metrics
from gradwire.kv import KVStore
from gradwire.metrics import step_count
from gradwire.metrics.table import METRICS, values_of
from gradwire.settings import definitions as settings
from gradwire.settings import metrics_targets
from gradwire.settings.metrics_targets import MetricsTarget
from integration.processes import wait_until
from prometheus_client.parser import text_string_to_metric_families
from python.inproc_ranks import errors_of_ranks, run_ranks
from structure.repository import ROOT

pytestmark = pytest.mark.usefixtures("no_job")

ELEMENTS = 64
SECONDS = 60.0  # for another thread to have done something


@pytest.fixture(autouse=True)
def no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRADWIRE_METRICS", "GRADWIRE_METRICS_INTERVAL", "GRADWIRE_LOCAL_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(stores: list[KVStore]) -> KVStore:
    """A store with one push of 0.75 by 2bit: 0.5 of each element was sent."""
    stores.append(store := gw.kv.create("local"))
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store.init("w", np.zeros(ELEMENTS, np.float32))
    push(store)
    return store


def push(store: KVStore) -> None:
    store.pushpull("w", np.full(ELEMENTS, 0.75, np.float32), out=np.empty(ELEMENTS, np.float32))


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago, with one above it."""
    while True:
        with socket.socket() as probe, socket.socket() as next_one:
            probe.bind(("127.0.0.1", 0))
            found = int(probe.getsockname()[1])
            try:
                next_one.bind(("127.0.0.1", found + 1))
            except (OSError, OverflowError):
                continue
            return found


def get(port: int, path: str = "/metrics") -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[str, float]:
    """Values by name and label values: gradwire_bytes_raw_total{0,local}. Prometheus' own parser reads the text."""
    return {
        f"{sample.name}{{{','.join(sample.labels.values())}}}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Calls:
    """A function that is called as wandb.log is. It keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, float], int]] = []
        self.came = threading.Event()

    def __call__(self, values: dict[str, float], *, step: int) -> None:
        self.calls.append((values, step))
        self.came.set()


# The table.


def test_every_metric_comes_from_an_entry_of_stats(stores: list[KVStore]) -> None:
    stores.append(store := gw.kv.create("local"))
    assert {metric.stat for metric in METRICS} <= {*store.stats(servers=True), "steps"}


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [metric.prometheus_name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"gradwire_[a-z]+(_[a-z]+)*", metric.prometheus_name)
        assert metric.prometheus_name.endswith("_total") == (metric.kind == "counter")
        assert metric.unit in metric.name  # base units, written out
        assert metric.help.endswith(".")


def test_values_are_those_of_stats(store: KVStore) -> None:
    stats = store.stats(servers=True)
    found = {value.metric.name: value.number for value in values_of(stats)}
    assert found["bytes_raw"] == 4 * ELEMENTS
    assert found["bytes_encoded"] == ELEMENTS / 4
    assert found["compression_ratio"] == 16
    assert found["residual_norm"] == pytest.approx((ELEMENTS * 0.25**2) ** 0.5)
    assert found["share_sent_ratio"] == pytest.approx(1 - 0.25**2 / 0.75**2)
    assert found["codec_seconds"] == stats["codec_seconds"] > 0
    assert found["exposed_seconds"] == stats["exposed_seconds"] == store.waited_seconds > 0
    assert found["servers_replaced"] == 0
    assert "steps" not in found  # stats() has none


def test_staleness_waiting_and_servers_have_the_values_of_their_definitions() -> None:
    stats = {"staleness": {0: 5, 3: 2}, "waited_for": [7, 0, 9], "replaced_servers": {1: 2}, "ratio": None}
    found = {(value.metric.name, value.label_value): value.number for value in values_of(stats)}
    assert found == {
        ("stale_pushes", None): 7,
        ("staleness", None): 6,
        ("servers_replaced", None): 1,
        ("rounds_waited_for", "0"): 7,
        ("rounds_waited_for", "1"): 0,
        ("rounds_waited_for", "2"): 9,
    }
    assert values_of({"staleness": {}}) == ()  # another store than dist_async*


def test_stats_without_residuals_reads_none(store: KVStore) -> None:
    whole, rest = store.stats(), store.stats(residuals=False)
    assert (rest["residual_norm"], rest["share_sent"]) == (None, None)
    assert rest == whole | {"residual_norm": None, "share_sent": None}


def test_stats_of_a_job_without_residuals_reads_none() -> None:
    found: list[dict[str, Any]] = []

    def body(store: KVStore) -> None:
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.init("w", np.zeros(ELEMENTS, np.float32))
        push(store)
        found.extend([store.stats(), store.stats(residuals=False)])

    run_ranks(1, body)
    assert found[0]["residual_norm"] == pytest.approx((ELEMENTS * 0.25**2) ** 0.5)
    assert (found[1]["residual_norm"], found[1]["share_sent"]) == (None, None)
    assert found[1]["bytes_raw"] == found[0]["bytes_raw"] == 4 * ELEMENTS


# Prometheus.


def test_the_endpoint_serves_what_was_written(store: KVStore, port: int) -> None:
    meter = metrics.start(store, f"prometheus:127.0.0.1:{port}", interval=None)
    assert samples(get(port)) == {}
    meter.write()
    served = samples(get(port))
    assert served["gradwire_bytes_raw_total{0,local}"] == 4 * ELEMENTS
    assert served["gradwire_compression_ratio{0,local}"] == 16
    push(store)
    assert samples(get(port)) == served
    meter.write()
    assert samples(get(port))["gradwire_bytes_raw_total{0,local}"] == 8 * ELEMENTS
    types = {family.name: family.type for family in text_string_to_metric_families(get(port))}
    assert (types["gradwire_bytes_raw"], types["gradwire_residual_norm"]) == ("counter", "gauge")


def test_close_frees_the_port(store: KVStore, port: int) -> None:
    metrics.start(store, f"prometheus:{port}")
    get(port)
    store.close()
    with pytest.raises(ConnectionRefusedError):
        get(port)
    assert store.meters == []


def test_each_worker_of_a_host_has_a_port_of_its_own(
    store: KVStore, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    metrics.start(store, f"prometheus:127.0.0.1:{port}", interval=None).write()
    assert "gradwire_bytes_raw_total" in get(port + 1)


def test_a_port_in_use_is_refused(store: KVStore, port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(
            OSError, match=rf"metrics: prometheus:127\.0\.0\.1:{port}: cannot listen"
        ) as caught:
            metrics.start(store, f"prometheus:127.0.0.1:{port}")
    assert "Address already in use" in str(caught.value)
    assert "give another port" in str(caught.value)
    assert store.meters == []


def test_what_was_opened_before_an_error_is_closed(store: KVStore, port: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written"):
        metrics.start(store, f"prometheus:127.0.0.1:{port},textfile:{tmp_path}/file")
    metrics.start(store, f"prometheus:127.0.0.1:{port}")


def test_a_port_above_the_last_one_is_refused(store: KVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_LOCAL_RANK", "4")
    with pytest.raises(ValueError, match="65533 plus local rank 4 is no port: expected at most 65535"):
        metrics.start(store, "prometheus:65533")


def test_the_text_file_has_the_values_at_the_close(store: KVStore, tmp_path: Path) -> None:
    metrics.start(store, f"textfile:{tmp_path}/new/folder", interval=3600)
    push(store)
    store.close()
    [file] = (tmp_path / "new" / "folder").iterdir()
    assert file.name == "gradwire-rank-0.prom"
    found = samples(file.read_text())
    assert found["gradwire_bytes_raw_total{0,local}"] == 8 * ELEMENTS
    assert found["gradwire_residual_norm{0,local}"] > 0


def test_a_folder_that_goes_away_is_one_warning(
    store: KVStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meter = metrics.start(store, f"textfile:{tmp_path}/gone", interval=None)
    meter.write()
    shutil.rmtree(tmp_path / "gone")
    meter.write()
    meter.write()
    push(store)
    (tmp_path / "gone").mkdir()
    meter.write()  # and it is written again when it can be
    errors = capsys.readouterr().err
    assert errors.count("gradwire: worker 0: metrics: textfile:") == 1
    assert "FileNotFoundError" in errors
    assert "training goes on" in errors
    [file] = (tmp_path / "gone").iterdir()
    assert samples(file.read_text())["gradwire_bytes_raw_total{0,local}"] == 8 * ELEMENTS


# TensorBoard and W&B.


class Summary:
    """Has the signature of torch.utils.tensorboard.SummaryWriter.add_scalar."""

    def __init__(self) -> None:
        self.scalars: dict[tuple[str, int], float] = {}

    def add_scalar(
        self,
        tag: str,
        scalar_value: float,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        assert global_step is not None
        self.scalars[tag, global_step] = scalar_value


def test_a_summary_writer_gets_scalars_by_step(store: KVStore) -> None:
    summary = Summary()
    meter = metrics.start(store, summary, interval=None)
    meter.write(7)
    push(store)
    meter.write(8)
    store.close()
    assert summary.scalars["gradwire/bytes_raw", 7] == 4 * ELEMENTS
    assert summary.scalars["gradwire/bytes_raw", 8] == 8 * ELEMENTS
    assert {step for _, step in summary.scalars} == {7, 8}  # it may be closed when the store is


HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


@pytest.mark.skipif(not HAS_TENSORBOARD, reason="tensorboard is not installed")
def test_tensorboard_reads_the_event_files(store: KVStore, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    meter = metrics.start(store, f"tensorboard:{tmp_path}", interval=None)
    meter.write(3)
    store.close()
    events = EventAccumulator(str(tmp_path / "rank-0"))
    events.Reload()
    [found] = events.Scalars("gradwire/bytes_raw")
    assert (found.step, found.value) == (3, 4 * ELEMENTS)


def test_a_function_gets_all_values_in_one_call(store: KVStore) -> None:
    log = Calls()
    meter = metrics.start(store, log, interval=None)
    meter.write(5, servers=True)
    [(values, step)] = log.calls
    assert step == 5
    assert values["gradwire/compression_ratio"] == 16
    assert "gradwire/rounds_waited_for/0" in values
    meter.write(6)  # what only servers know keeps its last reading
    assert "gradwire/rounds_waited_for/0" in log.calls[1][0]


def test_a_function_that_fails_is_one_warning(store: KVStore, capsys: pytest.CaptureFixture[str]) -> None:
    def log(values: dict[str, float], step: int) -> None:
        raise RuntimeError("no network")

    other = Calls()
    meter = metrics.start(store, log, other, interval=None)
    meter.write()
    meter.write()
    errors = capsys.readouterr().err
    assert errors.count("RuntimeError: no network") == 1
    assert len(other.calls) == 2


def test_steps_of_the_optimizer_that_has_taken_the_most_count(store: KVStore) -> None:
    import torch

    log = Calls()
    meter = metrics.start(store, log, interval=None)
    before = step_count.steps()
    assert before is not None
    parameter = torch.nn.Parameter(torch.zeros(1))
    two = [torch.optim.SGD([parameter], lr=0.1) for _ in range(2)]
    for _ in range(before + 3):
        for optimizer in two:
            optimizer.step()
    meter.write()
    values, step = log.calls[0]
    assert step == values["gradwire/steps"] == before + 3


# The thread.


def test_the_thread_samples_without_a_call(store: KVStore) -> None:
    log = Calls()
    metrics.start(store, log, interval=0.1)
    assert log.came.wait(SECONDS)
    push(store)

    def has_come() -> bool:
        values = log.calls[-1][0]
        return values["gradwire/bytes_raw"] == 8 * ELEMENTS and values.get("gradwire/residual_norm", 0) > 0

    wait_until(has_come, SECONDS, "a sample of the second push")


def test_a_writer_that_hangs_holds_neither_a_sample_nor_the_close(
    store: KVStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gradwire.metrics.meter._END_SECONDS", 0.2)
    inside, free = threading.Event(), threading.Event()

    def log(values: dict[str, float], step: int) -> None:
        inside.set()
        free.wait(1800)

    meter = metrics.start(store, log)
    assert inside.wait(SECONDS)
    meter.write()
    store.close()
    assert "metrics: the last values were not written within 0.2 s" in capsys.readouterr().err
    free.set()


def test_stop_ends_it_and_may_be_called_again(store: KVStore) -> None:
    log = Calls()
    meter = metrics.start(store, log)
    assert log.came.wait(SECONDS)
    meter.stop()
    count = len(log.calls)
    meter.stop()
    meter.write()
    assert len(log.calls) == count
    assert store.meters == []
    assert not meter.is_running


def test_ranks_have_labels_of_their_own(tmp_path: Path) -> None:
    def body(store: KVStore) -> None:
        metrics.start(store, f"textfile:{tmp_path}")
        store.init("w", np.zeros(ELEMENTS, np.float32))
        push(store)
        store.barrier()

    run_ranks(2, body)
    for rank in range(2):
        found = samples((tmp_path / f"gradwire-rank-{rank}.prom").read_text())
        assert found[f"gradwire_bytes_raw_total{{{rank},allreduce}}"] == 4 * ELEMENTS


def test_a_job_that_fails_ends_with_its_last_values(tmp_path: Path) -> None:
    def body(store: KVStore) -> None:
        metrics.start(store, f"textfile:{tmp_path}", interval=3600)
        store.init("w", np.zeros(ELEMENTS, np.float32))
        push(store)
        store.barrier()
        if store.rank == 1:
            raise RuntimeError("rank 1 ends early")
        push(store)

    errors = errors_of_ranks(2, body)
    assert isinstance(errors[0], gw.TransportError)
    found = samples((tmp_path / "gradwire-rank-0.prom").read_text())
    assert found["gradwire_bytes_raw_total{0,allreduce}"] >= 4 * ELEMENTS


# OpenTelemetry. A process has one MeterProvider, so it has a process of its own.

OTEL = """
import json
import numpy as np, gradwire as gw
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
def read():
    data = reader.get_metrics_data()
    found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
    return {m.name: [m.unit, type(m.data).__name__] + [[p.value, dict(p.attributes)] for p in m.data.data_points]
            for m in found if m.data.data_points}
store = gw.kv.create("local")
store.init("w", np.zeros(64, np.float32))
store.push("w", np.ones(64, np.float32))
gw.metrics.start(store, "opentelemetry", interval=None).write(servers=True)
first = read()
store.close()
closed = read()
store = gw.kv.create("local")
gw.metrics.start(store, "opentelemetry", interval=None).write()
print(json.dumps([first, closed, read()]))
"""


def test_opentelemetry_observes_what_was_written() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OTEL], capture_output=True, text=True, check=True, timeout=600
    )
    first, closed, again = json.loads(done.stdout)
    attributes = {"rank": "0", "store": "local"}
    assert first["gradwire.bytes_raw"] == ["By", "Sum", [256, attributes]]
    assert first["gradwire.compression_ratio"] == ["1", "Gauge", [1, attributes]]
    assert first["gradwire.codec_seconds"][:2] == ["s", "Sum"]
    assert first["gradwire.rounds_waited_for"][2][1] == attributes | {"waited_rank": "0"}
    assert closed == {}
    assert again["gradwire.bytes_raw"] == ["By", "Sum", [0, attributes]]
    assert "duplicate" not in done.stderr.lower()


# What is refused.


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("prometheus:9400", [MetricsTarget("prometheus", port=9400)]),
        ("prometheus:10.0.0.1:9400", [MetricsTarget("prometheus", host="10.0.0.1", port=9400)]),
        ("prometheus:[::1]:9400", [MetricsTarget("prometheus", host="::1", port=9400)]),
        (
            "textfile:/a:b, opentelemetry",
            [MetricsTarget("textfile", folder="/a:b"), MetricsTarget("opentelemetry")],
        ),
        ("tensorboard:runs", [MetricsTarget("tensorboard", folder="runs")]),
    ],
)
def test_texts_of_targets(text: str, targets: list[MetricsTarget]) -> None:
    assert list(metrics_targets.parse(text)) == targets
    assert settings.read({"GRADWIRE_METRICS": text}).metrics == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("promethus:9400", "'promethus:9400' is not valid: did you mean prometheus?"),
        ("prometheus", "expected prometheus:PORT or prometheus:HOST:PORT, with a port of 1 to 65535"),
        ("prometheus:0", "'prometheus:0' is not valid"),
        ("prometheus:70000", "'prometheus:70000' is not valid"),
        ("prometheus:host", "'prometheus:host' is not valid"),
        ("textfile", "'textfile' is not valid: expected textfile:FOLDER"),
        ("opentelemetry:x", "'opentelemetry:x' is not valid: expected opentelemetry"),
        ("textfile:/a,", "'' is not valid"),
    ],
)
def test_bad_texts_of_targets(text: str, words: str, store: KVStore) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        settings.read({"GRADWIRE_METRICS": text})
    assert str(caught.value).startswith("settings: GRADWIRE_METRICS: ")
    with pytest.raises(ValueError, match=re.escape(f"metrics.start: {words}" if words[0] == "'" else words)):
        metrics.start(store, text)


def test_misuse_is_refused(store: KVStore) -> None:
    with pytest.raises(ValueError, match="no target was given: expected prometheus:PORT"):
        metrics.start(store)
    with pytest.raises(TypeError, match="target is 9400, expected a text such as 'prometheus:9400'"):
        metrics.start(store, 9400)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a store of gradwire's own"):
        metrics.start(object(), "prometheus:9400")  # type: ignore[arg-type]
    for interval in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"expected seconds, 0\.1 or more, or None"):
            metrics.start(store, Calls(), interval=interval)


@pytest.mark.parametrize(
    ("target", "module", "advice"),
    [
        ("prometheus:9400", "prometheus_client", "pip install prometheus-client"),
        ("textfile:x", "prometheus_client", "pip install prometheus-client"),
        ("tensorboard:x", "torch.utils.tensorboard", "pip install torch tensorboard"),
        ("opentelemetry", "opentelemetry", "pip install opentelemetry-sdk"),
    ],
)
def test_a_missing_package_is_named(
    target: str, module: str, advice: str, store: KVStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # as Python marks what is not to be imported
    with pytest.raises(ImportError, match=re.escape(f"metrics: {target}: the module {module}")) as caught:
        metrics.start(store, target)
    assert advice in str(caught.value)


# GRADWIRE_METRICS.


def test_the_setting_measures_a_store_from_its_beginning_to_its_end(
    stores: list[KVStore], port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_METRICS", f"prometheus:127.0.0.1:{port},textfile:{tmp_path}")
    stores.append(store := gw.kv.create("local"))
    get(port)
    stores.append(gw.kv.create("local"))  # the port is the first one's
    assert [len(each.meters) for each in stores] == [1, 0]
    store.init("w", np.zeros(ELEMENTS, np.float32))
    push(store)
    store.close()
    file = tmp_path / "gradwire-rank-0.prom"
    assert samples(file.read_text())["gradwire_bytes_raw_total{0,local}"] == 4 * ELEMENTS
    stores.append(gw.kv.create("local"))
    get(port)


def test_the_setting_is_refused_before_a_job_is_joined(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody serves the rendezvous: a store that joined first would wait for it."""
    monkeypatch.setenv("GRADWIRE_METRICS", f"prometheus:127.0.0.1:{port}")
    monkeypatch.setenv("GRADWIRE_SCHEDULER", "tcp://127.0.0.1:9")
    monkeypatch.setenv("GRADWIRE_RANK", "1")
    monkeypatch.setenv("GRADWIRE_NUM_WORKERS", "2")
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + 1))
        other.listen()
        with pytest.raises(OSError, match=f"prometheus:127.0.0.1:{port + 1}: cannot listen"):
            gw.kv.create("allreduce")


def test_a_store_that_cannot_be_opened_frees_the_port(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_METRICS", f"prometheus:127.0.0.1:{port}")
    with pytest.raises(ValueError, match=r"kv\.create"):
        gw.kv.create("allreduce")  # there is no job
    with pytest.raises(ConnectionRefusedError):
        get(port)


# A process whose disk is full: no file may grow any more. It ends well, and by itself.
FULL_DISK = """
import resource, sys
import numpy as np, gradwire as gw
store = gw.kv.create("local")
store.init("w", np.zeros(64, np.float32))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
for step in range(3):
    store.push("w", np.ones(64, np.float32))
    [meter] = store.meters
    meter.write(step)
print("trained")
"""


@pytest.mark.parametrize("kind", ["textfile", *(["tensorboard"] if HAS_TENSORBOARD else [])])
def test_a_full_disk_is_one_warning(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_METRICS", f"{kind}:{tmp_path}")
    monkeypatch.setenv("GRADWIRE_METRICS_INTERVAL", "1h")
    done = subprocess.run([sys.executable, "-c", FULL_DISK], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert done.stderr.count(f"metrics: {kind}:") == 1, done.stderr


# Grafana.


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(metrics.dashboard())
    return found


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]
            yield variable["query"]["query"]


def test_every_query_names_metrics_and_labels_that_are_written(dashboard: dict[str, Any]) -> None:
    written = {metric.prometheus_name for metric in METRICS}
    labels = {"rank", "store", "job", *(metric.label for metric in METRICS if metric.label)}
    found = list(queries(dashboard))
    assert len(found) > 10
    for query in found:
        names = set(re.findall(r"\bgradwire_\w+", query))
        assert names, query
        assert names <= written, query
        used = re.findall(r"(\w+)=~?\"", query) + re.findall(r"by \((\w+)\)", query)
        assert set(used) <= labels, query


def test_legends_and_variables_are_those_of_the_queries(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for query in queries(dashboard):
        assert set(re.findall(r"\$(\w+)", query)) <= variables | {"__rate_interval"}, query
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert label in ("rank", *(metric.label for metric in METRICS)), panel["title"]


def test_the_dashboard_has_the_fields_that_grafana_requires(dashboard: dict[str, Any]) -> None:
    """Source: Grafana's documentation, "Dashboard JSON model", classic."""
    for name in (
        "title",
        "uid",
        "panels",
        "schemaVersion",
        "time",
        "templating",
        "annotations",
        "tags",
        "version",
    ):
        assert name in dashboard
    assert dashboard["id"] is None  # Grafana gives it
    assert 8 <= len(dashboard["uid"]) <= 40
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert {"id", "type", "title", "gridPos", "datasource", "targets", "fieldConfig", "options"} <= set(
            panel
        )
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert [target["refId"] for target in panel["targets"]] == list("ABC")[: len(panel["targets"])]
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not own & cells, f"{panel['title']} covers another panel"
        cells |= own


def test_the_dashboard_is_a_file_of_the_package() -> None:
    assert (ROOT / "python" / "gradwire" / "metrics" / "grafana_dashboard.json").is_file()
