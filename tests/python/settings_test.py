"""Settings: one name each, aliases that apply to a role, origins, and errors that say what to do."""

from __future__ import annotations

import warnings

import pytest
from gradwire.settings import definitions as settings
from gradwire.settings import units


def test_defaults() -> None:
    values = settings.read({})
    assert (values.role, values.rank, values.num_workers, values.num_servers) == ("worker", None, 1, 0)
    assert (values.rendezvous_timeout, values.liveness_timeout, values.slow_abort) == (60.0, 20.0, 1800.0)
    assert (values.partition_bytes, values.fusion_bytes, values.credit_bytes) == (1 << 20, 1 << 18, 1 << 18)
    assert (values.bigarray_bound, values.reply, values.scheduler) == (131_072, "exact", None)


def test_every_default_is_what_its_own_text_reads_as() -> None:
    for definition in settings.DEFINITIONS:
        if definition.default is not None:
            assert definition.parse(str(definition.default)) == definition.default, definition.variable
        assert definition.help


def test_own_names() -> None:
    values = settings.read(
        {
            "GRADWIRE_ROLE": "server",
            "GRADWIRE_RANK": "1",
            "GRADWIRE_NUM_SERVERS": "2",
            "GRADWIRE_SCHEDULER": "tcp://[::1]:9091",
            "GRADWIRE_PARTITION_BYTES": "4MB",
            "GRADWIRE_RETRY_TIMEOUT": "500ms",
            "GRADWIRE_SLOW_ABORT": "2min",
            "GRADWIRE_LOG_LEVEL": "DEBUG",
        }
    )
    assert (values.role, values.rank, values.num_servers) == ("server", 1, 2)
    assert values.scheduler == "tcp://[::1]:9091"
    assert (values.partition_bytes, values.retry_timeout, values.slow_abort) == (4_000_000, 0.5, 120.0)
    assert values.log_level == "debug"


def test_mxnet_and_byteps_names() -> None:
    values = settings.read(
        {
            "DMLC_ROLE": "worker",
            "DMLC_NUM_WORKER": "4",
            "DMLC_NUM_SERVER": "3",
            "DMLC_PS_ROOT_URI": "fe80::1",
            "DMLC_PS_ROOT_PORT": "9000",
            "DMLC_INTERFACE": "eth1",
            "DMLC_NODE_HOST": "10.0.0.3",
            "PS_VERBOSE": "2",
            "PS_HEARTBEAT_TIMEOUT": "7",
            "BYTEPS_PARTITION_BYTES": "4096000",
            "MXNET_KVSTORE_BIGARRAY_BOUND": "5000",
        }
    )
    assert (values.num_workers, values.num_servers, values.scheduler) == (4, 3, "tcp://[fe80::1]:9000")
    assert (values.interface, values.bind_host, values.log_level) == ("eth1", "10.0.0.3", "debug")
    assert (values.liveness_timeout, values.partition_bytes, values.bigarray_bound) == (7.0, 4_096_000, 5000)


def test_ps_lite_values_that_mean_off_leave_the_default() -> None:
    values = settings.read({"PS_VERBOSE": "0", "PS_HEARTBEAT_TIMEOUT": "0"})
    assert (values.log_level, values.liveness_timeout) == ("warning", 20.0)


@pytest.mark.parametrize(
    ("environ", "rank", "origin"),
    [
        ({"DMLC_WORKER_ID": "1", "DMLC_SERVER_ID": "2"}, 1, "DMLC_WORKER_ID"),
        ({"DMLC_ROLE": "server", "DMLC_WORKER_ID": "1", "DMLC_SERVER_ID": "2"}, 2, "DMLC_SERVER_ID"),
        ({"DMLC_ROLE": "server", "DMLC_WORKER_ID": "1"}, None, "default"),
        ({"DMLC_ROLE": "scheduler", "DMLC_TASK_ID": "1"}, None, "default"),
        ({"DMLC_RANK": "3", "DMLC_WORKER_ID": "1"}, 3, "DMLC_RANK"),
        ({"GRADWIRE_RANK": "0", "DMLC_RANK": "3"}, 0, "GRADWIRE_RANK"),
        ({"GRADWIRE_RANK": "", "DMLC_TASK_ID": "2"}, 2, "DMLC_TASK_ID"),
    ],
)
def test_rank_falls_back_by_role(environ: dict[str, str], rank: int | None, origin: str) -> None:
    row = next(row for row in settings.resolve(environ) if row.definition.name == "rank")
    assert (row.value, row.origin) == (rank, origin)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"GRADWIRE_STREAMS": "0"}, "GRADWIRE_STREAMS: '0' is not valid: expected a whole number, 1 to 64"),
        ({"GRADWIRE_CODEC_THREADS": "100000"}, "'100000' is not valid: expected a whole number, 0 to 1024"),
        ({"GRADWIRE_LIVENESS_TIMEOUT": "1e99"}, r"'1e99' is too long: expected 87600h \(ten years\) or less"),
        ({"GRADWIRE_ROLE": "boss"}, "'boss' is not valid: expected one of worker, server, scheduler"),
        ({"GRADWIRE_SCHEDULER": "host:1"}, "'host:1' is not valid: expected tcp://host:port"),
        ({"GRADWIRE_SCHEDULER": "tcp://host:99999"}, "GRADWIRE_SCHEDULER: 'tcp://host:99999' is not valid"),
        ({"GRADWIRE_LIVENESS_TIMEOUT": "0"}, "'0' is too small: expected 1ms or more"),
        ({"GRADWIRE_LIVENESS_TIMEOUT": "-1"}, "'-1' is not a duration"),
        ({"GRADWIRE_CHECKSUM": "on"}, "'on' is not valid: expected one of auto, always, off"),
        ({"GRADWIRE_CODE_SUMS": "int8"}, "'int8' is not valid: expected one of auto, gather, integers"),
        ({"GRADWIRE_SLOW_ABORT": "0"}, "GRADWIRE_SLOW_ABORT: '0' is too small: expected 1ms or more"),
        ({"GRADWIRE_SLOW_WARNING": "0"}, "GRADWIRE_SLOW_WARNING: '0' is too small: expected 1ms or more"),
        (
            {"GRADWIRE_PARTITION_BYTES": "1e30"},
            r"'1e30' is too large: expected 1048576TiB \(2\^60 bytes\) or less",
        ),
        ({"GRADWIRE_STALENESS_BOUND": str(2**63)}, f"expected a whole number, 0 to {2**63 - 1}"),
        ({"GRADWIRE_BIGARRAY_BOUND": str(2**63)}, f"expected a whole number of elements, 1 to {2**63 - 1}"),
        ({"GRADWIRE_NUM_WORKERS": str(2**32)}, f"expected a whole number, 1 to {2**31 - 1}"),
        ({"GRADWIRE_PARTITION_BYTES": "1parsec"}, "'1parsec' is not a size: expected a number of bytes"),
        ({"DMLC_NUM_WORKER": "many"}, r"GRADWIRE_NUM_WORKERS \(DMLC_NUM_WORKER\): 'many' is not valid"),
        ({"GRADWIRE_RANK": "2", "GRADWIRE_NUM_WORKERS": "2"}, "no rank 2 among 2 workers: expected 0 to 1"),
    ],
)
def test_bad_values_say_what_to_do(environ: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        settings.read(environ)
    assert str(caught.value).startswith("settings: ")


def test_one_bad_setting_does_not_hide_the_others() -> None:
    rows = settings.resolve({"GRADWIRE_STREAMS": "0", "GRADWIRE_CODEC_THREADS": "3"})
    by_name = {row.definition.name: row for row in rows}
    assert by_name["streams"].error
    assert (by_name["streams"].value, by_name["codec_threads"].value) == (1, 3)


def test_unknown_variables_get_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", set())
    environ = {"GRADWIRE_RNAK": "1", "GRADWIRE_RANK": "1", "OTHER": "1"}
    assert settings.unknown_variables(environ) == [
        "GRADWIRE_RNAK is set, but is not a setting: did you mean GRADWIRE_RANK?"
    ]
    with pytest.warns(UserWarning, match="did you mean GRADWIRE_RANK"):
        settings.warn_unknown_variables(environ)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.warn_unknown_variables(environ)  # once a process, wherever it is called


def test_no_two_settings_share_a_name_or_an_alias() -> None:
    names = [definition.variable for definition in settings.DEFINITIONS]
    aliases = [alias.variables for definition in settings.DEFINITIONS for alias in definition.aliases]
    assert len(set(names)) == len(names)
    assert len(set(aliases)) == len(aliases)


@pytest.mark.parametrize(
    ("text", "size"),
    [("100MB", 10**8), ("64KiB", 65536), ("4KB", 4000), ("12", 12), ("1.5 GiB", 3 << 29), ("1e6", 10**6)],
)
def test_sizes(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("5", 5.0), ("5s", 5.0), ("2min", 120.0), ("1h", 3600.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        *(("100mbit", 10**8), ("1gbit", 10**9), ("2.5Gbit", 2_500_000_000), ("100MBIT", 10**8)),
        *(("100 Mbit/s", 10**8), ("200mbps", 2 * 10**8), ("1Gbits/s", 10**9), ("1gbits", 10**9)),
    ],
)
def test_rates(text: str, rate: int) -> None:
    assert units.parse_rate(text) == rate
    assert units.parse_rate(units.format_rate(rate)) == rate


@pytest.mark.parametrize(
    "text", ["", "100", "mbit", "-1mbit", "0mbit", "100MB", "100MBps", "10GB/s", "nan", "infmbit"]
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        units.parse_rate(text)


@pytest.mark.parametrize("text", ["", "KB", "-1", "0.5", "1e400", "5 apples"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        units.parse_size(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.23 KB"), (12_300_000, "12.3 MB"), (1e12, "1 TB")],
)
def test_format_bytes(value: float, text: str) -> None:
    assert units.format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 us"), (0.0123, "12.3 ms"), (90.0, "1.5 min"), (59.96, "60 s"), (3600.0, "1 h")],
)
def test_format_duration(value: float, text: str) -> None:
    assert units.format_duration(value) == text
