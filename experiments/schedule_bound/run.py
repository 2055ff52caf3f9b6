"""Runs the tables of README.md in the simulator and writes results.json and the charts beside it.

python experiments/schedule_bound/run.py [--table NAME]...
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwire import _core
from gradwire.plan import calibration, layer_profile, planner, simulation
from gradwire.plan.simulation import FREE, Network, Schedule, Variant
from gradwire.report.chart import Series, line_chart, standalone
from gradwire.settings.units import format_rate

FOLDER = Path(__file__).parent
MODELS = ("vgg16", "resnet50", "bert_large")
RATES = (0.5e9, 1e9, 2e9, 5e9, 10e9, 25e9)
CODECS = ("none", "fp16", "int8", "2bit", "2bit:reply=2bit")
LATENCY = 50e-6
COSTS = calibration.load()

# The schedule by itself: what the kernel holds of a connection is not part of it.
OURS = Schedule(socket_bytes=0)
UNBOUNDED = replace(OURS, credit_bytes=2**60)
FIFO = replace(OURS, in_order=True)
# MXNet's: whole tensors (cut over the servers from a million elements on) in the order of backward.
WHOLE = Schedule(whole=True, in_order=True, shard_bound=1_000_000, fusion_bytes=0, credit_bytes=2**60)
# Horovod's: buckets of 64 MB, one after the other, and all of them before the next step.
BUCKETS = Schedule(whole=True, in_order=True, fusion_bytes=64 * 2**20, per_layer=False)

Row = dict[str, Any]


def run(
    model: str, network: Network, schedule: Schedule, codec: str = "none", free: bool = False
) -> _core.Simulated:
    """free: codecs, sums and messages cost nothing, as in the bound."""
    profile = layer_profile.find(model)
    if free:
        return _core.simulate(simulation.setup(profile, network, FREE, schedule))
    return simulation.predict(profile, network, Variant.parse(codec), schedule, COSTS)


def run_on_device(model: str, network: Network, schedule: Schedule) -> _core.Simulated:
    """As run(), of a library that finds gradients on the device and leaves sums there: nothing else costs anything."""
    reached = replace(network, latency=network.latency + COSTS.hop_seconds)
    profile = layer_profile.find(model)
    return _core.simulate(simulation.setup(profile, reached, FREE, schedule, COSTS))


def efficiency(done: _core.Simulated) -> float:
    return 100 * done.compute_seconds / done.step_seconds


def bound(model: str, network: Network, codec: str = "none") -> float:
    """Efficiency that no schedule can beat, in percent."""
    profile = layer_profile.find(model)
    least = simulation.bound(profile, network, Variant.parse(codec), COSTS, OURS)
    return 100 * profile.compute_seconds / least


def networks(rate: float, workers: int = 8) -> list[Network]:
    return [
        Network("servers", workers, 2, rate, LATENCY),
        Network("servers", workers, workers, rate, LATENCY),
        Network("peers", workers, 0, rate, LATENCY),
    ]


def named(network: Network) -> str:
    return "peers" if network.placement == "peers" else f"{network.servers} servers"


def tuned(model: str, network: Network) -> tuple[Schedule, float]:
    """The best of the planner's partitions and credits."""
    options = [
        replace(OURS, partition_bytes=partition, credit_bytes=credit)
        for partition in (2**18, 2**20, 2**22)
        for credit in (2**16, 2**18, 2**20, 2**22)
    ]
    return max(((option, efficiency(run(model, network, option))) for option in options), key=lambda x: x[1])


def against_bound() -> list[Row]:
    rows = []
    for model in MODELS:
        for rate in RATES:
            for network in networks(rate):
                best, most = tuned(model, network)
                least = bound(model, network)
                ours = efficiency(run(model, network, OURS))
                rows.append(
                    {
                        "model": model,
                        "link": format_rate(rate),
                        "placement": named(network),
                        "bound": least,
                        "default": ours,
                        "default_of_bound": 100 * ours / least,
                        "tuned": most,
                        "tuned_of_bound": 100 * most / least,
                        "partition_bytes": best.partition_bytes,
                        "credit_bytes": best.credit_bytes,
                        "wire_only_of_bound": 100 * efficiency(run(model, network, best, free=True)) / least,
                    }
                )
    return rows


def orders() -> list[Row]:
    """What priorities, parts and credit gain by default: images/s over those of MXNet's schedule, in percent.

    tuned: the best of the planner's settings, against the one schedule that MXNet has.
    """
    rows = []
    for model in MODELS:
        for rate in RATES:
            for servers in (2, 8):
                network = Network("servers", 8, servers, rate, LATENCY)
                base = efficiency(run(model, network, WHOLE))
                ours = efficiency(run(model, network, OURS))
                _, most = tuned(model, network)
                head = {"model": model, "link": format_rate(rate), "servers": servers}
                schedules = {
                    "in_order": replace(OURS, in_order=True),
                    "unbounded_credit": replace(OURS, credit_bytes=2**60),
                    "drained": replace(OURS, per_layer=False),
                }
                others = {
                    name: efficiency(run(model, network, schedule)) for name, schedule in schedules.items()
                }
                gains = {
                    "gain_over_whole": 100 * (ours / base - 1),
                    "gain_over_in_order": 100 * (ours / others["in_order"] - 1),
                    "tuned": most,
                    "tuned_gain_over_whole": 100 * (most / base - 1),
                }
                rows.append({**head, "whole_in_order": base, **others, "default": ours, **gains})
    return rows


def other_simulation() -> list[Row]:
    """VGG16 and ResNet-50 at 10 Gbit, 8 workers: a fluid simulation written apart from this one, without codecs, and
    real MXNet 1.9.1 on a scale model of the wire (1/100)."""
    theirs = {
        ("vgg16", 1): (58.76, 49.14, 30.37, None),
        ("vgg16", 2): (99.90, 84.44, 55.16, 54.30),
        ("vgg16", 4): (100, 100, 93.17, 89.02),
        ("vgg16", 8): (100, 100, 100, 99.61),
        ("resnet50", 2): (99.34, 77.81, 73.46, None),
    }
    small = replace(OURS, partition_bytes=2**18, credit_bytes=2**16)
    rows = []
    for (model, servers), (priority, in_order, whole, mxnet) in theirs.items():
        network = Network("servers", 8, servers, 10e9, 0)
        ours = [small, replace(small, in_order=True), WHOLE]
        ran = [efficiency(run(model, network, schedule, free=True)) for schedule in ours]
        rows.append(
            {
                "model": model,
                "servers": servers,
                "bound": bound(model, network),
                "priority": ran[0],
                "priority_theirs": priority,
                "in_order": ran[1],
                "in_order_theirs": in_order,
                "whole": ran[2],
                "whole_theirs": whole,
                "mxnet_measured": mxnet,
            }
        )
    return rows


def sixty_four_gpus() -> list[Row]:
    """ResNet-50 on 8 machines of 8 V100: a machine is a worker, whose GPUs sum first. images/s of all 64.

    The published rows do not name the link's rate: both of the usual ones, 10 and 25 Gbit.
    """
    schedules = {"MXNet's": WHOLE, "Horovod's": BUCKETS, "gradwire's": OURS}
    published = {"1 server": 38.0, "all-reduce": 100.0}
    rows = []
    for rate in (10e9, 25e9):
        for what, whose, network in (
            ("1 server", "MXNet's", Network("servers", 8, 1, rate, LATENCY)),
            ("8 servers", "MXNet's", Network("servers", 8, 8, rate, LATENCY)),
            ("16 servers", "MXNet's", Network("servers", 8, 16, rate, LATENCY)),
            ("all-reduce", "Horovod's", Network("ring", 8, 1, rate, LATENCY)),
            ("1 server", "gradwire's", Network("servers", 8, 1, rate, LATENCY)),
            ("8 servers", "gradwire's", Network("servers", 8, 8, rate, LATENCY)),
            ("peers", "gradwire's", Network("peers", 8, 0, rate, LATENCY)),
        ):
            runs = run_on_device if network.placement == "ring" else run
            share = efficiency(runs("resnet50", network, schedules[whose]))
            rows.append(
                {
                    "row": what,
                    "schedule": whose,
                    "link": format_rate(rate),
                    "efficiency": share,
                    "images_per_second": 64 * 703 * share / 100,
                    "published_efficiency": None if whose == "gradwire's" else published.get(what),
                    "bound": bound("resnet50", network),
                }
            )
    return rows


def rate_of_one_server() -> list[Row]:
    """The goodput of one server's link at which MXNet's schedule gives the published 38 %."""
    low, high = 1e8, 100e9
    for _ in range(40):
        middle = (low + high) / 2
        share = efficiency(run("resnet50", Network("servers", 8, 1, middle, LATENCY), WHOLE))
        low, high = (middle, high) if share < 38 else (low, middle)
    return [{"published_efficiency": 38, "link": format_rate(high), "bits_per_second": high}]


def many_workers() -> list[Row]:
    rows = []
    for workers in planner.WORKERS:
        options = {
            "peers": Network("peers", workers, 0, 10e9, LATENCY),
            "W servers": Network("servers", workers, workers, 10e9, LATENCY),
            "W/4 servers": Network("servers", workers, workers // 4, 10e9, LATENCY),
        }
        for place, network in options.items():
            if place == "W/4 servers" and workers < 4:
                continue
            for codec in ("none", "2bit"):
                began = time.perf_counter()
                done = run("vgg16", network, OURS, codec)
                taken = time.perf_counter() - began
                rows.append(
                    {
                        "model": "vgg16",
                        "workers": workers,
                        "placement": place,
                        "codec": codec,
                        "efficiency": efficiency(done),
                        "bound": bound("vgg16", network, codec),
                        "simulator_seconds": taken,
                        "events": done.events,
                    }
                )
    return rows


def by_bandwidth() -> list[Row]:
    rows = []
    for model in MODELS:
        for rate in planner.BANDWIDTHS:
            network = Network("peers", 8, 0, rate, LATENCY)
            for codec in CODECS:
                done = run(model, network, OURS, codec)
                rows.append(
                    {
                        "model": model,
                        "bits_per_second": rate,
                        "codec": codec,
                        "efficiency": efficiency(done),
                        "bound": bound(model, network, codec),
                    }
                )
    return rows


def trace() -> list[Row]:
    """VGG16, 8 workers and 2 servers at 10 Gbit: seconds from the start of backward."""
    profile = layer_profile.find("vgg16")
    network = Network("servers", 8, 2, 10e9, LATENCY)
    done = run("vgg16", network, OURS)
    return [
        {
            "layer": layer.name,
            "ready": times.ready_seconds,
            "arrived": times.arrived_seconds,
            "next_forward": times.forward_seconds,
        }
        for layer, times in zip(profile.layers, done.layers, strict=True)
    ]


TABLES: dict[str, Callable[[], list[Row]]] = {
    "other_simulation": other_simulation,
    "against_bound": against_bound,
    "orders": orders,
    "sixty_four_gpus": sixty_four_gpus,
    "rate_of_one_server": rate_of_one_server,
    "by_bandwidth": by_bandwidth,
    "many_workers": many_workers,
    "trace": trace,
}


def draw(results: dict[str, list[Row]]) -> None:
    for model in MODELS:
        rows = [row for row in results.get("by_bandwidth", []) if row["model"] == model]
        if rows:
            _write(f"bandwidth_{model}.svg", rows, "bits_per_second", "link", format_rate)
    rows = [row | {"codec": f"{row['codec']}, {row['placement']}"} for row in results.get("many_workers", [])]
    if rows:
        _write("workers_vgg16.svg", rows, "workers", "workers", "{:.0f}".format)


def _write(name: str, rows: list[Row], x: str, label: str, form: Callable[[float], str]) -> None:
    series = []
    for codec in dict.fromkeys(row["codec"] for row in rows):
        curve = [row for row in rows if row["codec"] == codec]
        y = tuple(row["efficiency"] for row in curve)
        series.append(Series(codec, tuple(row[x] for row in curve), y, y, y))
    drawn = line_chart(series, label, "efficiency, %", form, "{:.0f}".format, logarithmic=True, legend=True)
    (FOLDER / name).write_text(standalone(drawn), encoding="utf-8")


def print_table(name: str, rows: list[Row]) -> None:
    print(f"\n{name}")
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        cells = [f"{x:.4g}" if isinstance(x, float) else "-" if x is None else str(x) for x in row.values()]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--table", action="append", choices=list(TABLES), help="repeatable; unset: all")
    chosen = parser.parse_args().table or list(TABLES)
    file = FOLDER / "results.json"
    results: dict[str, list[Row]] = json.loads(file.read_text()) if file.exists() else {}
    for name in chosen:
        results[name] = TABLES[name]()
        print_table(name, results[name])
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results)


if __name__ == "__main__":
    main()
