"""Where to begin the search: what the simulator of `gradwire plan` thinks of the job's own layers on its link."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from gradwire.autotune.launches import Job
from gradwire.autotune.search import Interrupted
from gradwire.autotune.search_space import Box, Setting
from gradwire.autotune.step_times import StepTimes
from gradwire.compress import Compression
from gradwire.launch.supervisor import run_job
from gradwire.plan import calibration, layer_profile, planner, simulation
from gradwire.plan.layer_profile import Profile
from gradwire.plan.step_profile import clock_variables
from gradwire.settings.units import parse_rate

_SIMULATED = ("partition_bytes", "credit_bytes", "fusion_bytes")
_LATENCY = 50e-6  # seconds, of an Ethernet switch
_WORTH = 0.01  # of the step: what a start must gain in the simulator
_SECONDS = 600.0


class NoStart(Exception):
    """The simulator cannot say where to begin; says why."""


def starts(job: Job, box: Box, times: StepTimes) -> list[Setting]:
    """Profiles the job's layers in one worker, and returns the setting that is best in the simulator, or none.

    Raises:
        NoStart: the link, the store or the codec is not known to the simulator, or nothing could be profiled.
        Interrupted: a signal came.
    """
    network = network_of(job, times.store)
    variant = variant_of(times.compression)
    return best_of(profile(job), box, network, variant)


def network_of(job: Job, store: str | None) -> simulation.Network:
    """Raises: NoStart: no bandwidth was given, or the store is one whose library sums."""
    if job.bandwidth is None:
        raise NoStart("without --bandwidth the link is not known")
    servers = job.workers if job.servers is None else job.servers
    rate = float(parse_rate(job.bandwidth))
    if store in ("allreduce", "horovod", "dist_sync_mpi"):
        return simulation.Network("peers", job.workers, 0, rate, _LATENCY)
    if store is not None and store.startswith("dist_") and servers:
        return simulation.Network("servers", job.workers, servers, rate, _LATENCY)
    raise NoStart(f"the store {store} is not simulated")


def variant_of(compression: str | None) -> simulation.Variant:
    """Raises: NoStart: a codec whose parameters, or whose replies, are not those that are simulated."""
    given = Compression.parse(compression)
    codec = given.spec.partition(":")[0]
    if codec != "2bit" and given != Compression.parse(codec):
        raise NoStart(f"the codec {compression} is simulated as {Compression.parse(codec)} only")
    try:
        return simulation.Variant.parse(f"{codec}:reply={given.reply}")  # 2bit: whatever its threshold
    except ValueError as error:
        raise NoStart(str(error)) from None


def best_of(
    layers: Profile, box: Box, network: simulation.Network, variant: simulation.Variant
) -> list[Setting]:
    """Simulates all partitions, credits and fusions of a box; returns the best, unless defaults are as good."""
    question = planner.Question(layers, network.workers, network.bandwidth, network.latency)
    costs = calibration.load()

    def seconds(values: dict[str, int]) -> float:
        changes: dict[str, Any] = dict(values)  # of fields that are sizes, all of them
        schedule = replace(question.schedule, **changes)
        return simulation.predict(layers, network, variant, schedule, costs).step_seconds

    knobs = [knob for knob in box.knobs if knob.name in _SIMULATED]
    names = [knob.name for knob in knobs]
    tried = [dict(zip(names, values, strict=True)) for values in product(*(knob.values for knob in knobs))]
    best = min(tried, key=seconds)
    return [box.of(best)] if seconds(best) < (1 - _WORTH) * seconds({}) else []


def profile(job: Job) -> Profile:
    """Times the layers of the job's script, run as a job of one worker. It meets nobody and sends nothing.

    Raises:
        NoStart: it did not train long enough alone.
        Interrupted: a signal came.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire-tune-") as folder:
        file = Path(folder) / "profile.json"
        result = run_job(job.command, 1, worker_env=lambda rank: clock_variables(file), timeout=_SECONDS)
        if result.interrupted is not None:
            raise Interrupted(result.cause)
        if not file.exists():
            raise NoStart(
                f"its layers could not be timed with one worker ({result.cause or 'it ended early'})"
            )
        return layer_profile.load(file)
