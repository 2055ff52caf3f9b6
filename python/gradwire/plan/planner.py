"""What to expect of a job, and which setting to take: tries settings in the simulator. `gradwire plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gradwire.compress import FEW_LEVELS
from gradwire.plan import simulation
from gradwire.plan.calibration import Calibration
from gradwire.plan.layer_profile import Profile
from gradwire.plan.simulation import SUMMED, Network, Placement, Schedule, Variant
from gradwire.settings.units import format_bytes, format_duration, format_rate, format_share

CODECS_FOR_ADAM = ("none", "fp16", "int8", "nf4", "nf2")
CODECS = (*CODECS_FOR_ADAM, "2bit")
"""2 bits both ways are nf2: it loses half of what 2bit:reply=2bit does, with SGD too (experiments/codec_accuracy)."""
_KEEP_ADAMS_LOSS = ("none", "fp16", "bf16", "int8")
"""With these a training with AdamW ends within chance of one without a codec: experiments/adamw."""
BANDWIDTHS = tuple(
    float(rate) * 1e6 for rate in (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 25_000, 50_000, 100_000)
)
WORKERS = tuple(2**power for power in range(1, 13))
_PARTITIONS = (2**18, 2**20, 2**22)  # bytes
_CREDITS = (2**16, 2**18, 2**20)  # bytes
_SLOW_LINK, _BUSY_CORES = 0.9, 2.0  # in the slow end of an interval
_MODEL_ERROR = 0.05  # of the simulator: experiments/plan_predictions
_WORTH = 0.01  # of a step: what a codec, a setting or more hosts must gain

Watch = Callable[[int, int, str], None]
"""Is told before each prediction how many are done, of how many, and of what the next one is."""


def unwatched(done: int, count: int, what: str) -> None:
    """Is a Watch that says nothing."""


@dataclass(frozen=True)
class Question:
    """What is planned for. Empty placements: servers (of the counts given, or several) and peers."""

    profile: Profile
    workers: int
    bandwidth: float  # bits per second
    latency: float  # seconds, one way
    servers: int | None = None
    codecs: tuple[str, ...] = ()  # empty: those that go with the profile's optimizer
    placements: tuple[Placement, ...] = ("peers", "servers")
    schedule: Schedule = field(default_factory=Schedule)
    netlab: bool = False  # as Network has it

    @property
    def tried_codecs(self) -> tuple[str, ...]:
        return self.codecs or (CODECS_FOR_ADAM if self.profile.is_like_adam else CODECS)

    def networks(self) -> list[Network]:
        rows = []
        for placement in self.placements:
            counts = [self.servers] if self.servers is not None else self._server_counts()
            if placement in ("peers", "ring"):
                counts = [0]
            rows += [
                Network(placement, self.workers, count, self.bandwidth, self.latency, self.netlab)
                for count in counts
            ]
        return rows

    def _server_counts(self) -> list[int]:
        return sorted({1, max(1, self.workers // 4), max(1, self.workers // 2), self.workers})


@dataclass(frozen=True)
class Prediction:
    """One setting and what the simulator says of it. Seconds and bytes of a step.

    Efficiency is compute over step. Compute is a typical step of one worker, and the step waits for the slowest worker.
    """

    variant: Variant
    network: Network
    schedule: Schedule
    step_seconds: float
    compute_seconds: float
    efficiency: float
    bound: float  # efficiency that no schedule of the same bytes can beat
    exposed_seconds: float
    sent_bytes: float
    received_bytes: float
    busiest_link: float
    step_interval: tuple[float, float] | None = None  # with_interval()

    def record(self) -> dict[str, Any]:
        figures = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("variant", "network", "schedule", "step_interval")
        }
        return {
            "codec": str(self.variant),
            "placement": self.network.placement,
            "workers": self.network.workers,
            "servers": self.network.servers,
            "bandwidth": self.network.bandwidth,
            "latency": self.network.latency,
            "partition_bytes": self.schedule.partition_bytes,
            "credit_bytes": self.schedule.credit_bytes,
            "overlap_step": self.schedule.per_layer,
            "step_seconds_interval": None if self.step_interval is None else list(self.step_interval),
            **figures,
        }


@dataclass(frozen=True)
class Answer:
    predictions: tuple[Prediction, ...]  # the one to take, then the others, fastest first
    best: Prediction
    reason: str
    left_out: str | None  # what was asked for and not predicted, and why
    next_steps: tuple[str, ...]  # commands, with what each is for

    def record(self) -> dict[str, Any]:
        return {
            "predictions": [row.record() for row in self.predictions],
            "recommendation": self.best.record(),
            "reason": self.reason,
            "left_out": self.left_out,
            "next": list(self.next_steps),
        }


def predict(
    question: Question, network: Network, variant: Variant, schedule: Schedule, calibration: Calibration
) -> Prediction:
    """Predicts a setting; in a ring, as a library has it send, whatever is scheduled.

    Raises: ValueError: numbers that no job has, a codec without calibration, or one that does not go with the network.
    """
    if network.placement == "ring":
        schedule = schedule.where_a_library_sums()
    done = simulation.predict(question.profile, network, variant, schedule, calibration)
    least = simulation.bound(question.profile, network, variant, calibration, schedule)
    compute = question.profile.compute_seconds
    return Prediction(
        variant=variant,
        network=network,
        schedule=schedule,
        step_seconds=done.step_seconds,
        compute_seconds=compute,
        efficiency=compute / done.step_seconds,
        bound=compute / least,
        exposed_seconds=done.step_seconds - compute,
        sent_bytes=done.sent_bytes,
        received_bytes=done.received_bytes,
        busiest_link=done.busiest_link,
    )


def with_interval(question: Question, row: Prediction, calibration: Calibration) -> Prediction:
    """Adds between which seconds a measured step is to be expected.

    From: compute as in the fast steps of the profile, and all else as predicted. To: compute as in its slow steps, or
    as predicted if that is slower, and longer by what codecs and sums take of the same cores where the profile does not
    say how many there are; these and messages at twice their cost; and a link that carries nine tenths. Both ends
    leave room for the simulator's own error.
    """
    spread, typical = question.profile.spread, question.profile.compute_seconds
    fast, slow = (
        (1.0, 1.0) if spread is None else (min(1.0, spread[0] / typical), max(1.0, spread[1] / typical))
    )
    slow = max(slow, question.profile.of_slowest(row.network.workers).compute_seconds / typical)
    if question.profile.machine is None:  # else the simulator has cores share
        slow += _codec_seconds(question.profile, row, calibration) / typical
    ends = []
    for factor, network, costs in (
        (fast, row.network, calibration),
        (
            slow,
            replace(row.network, bandwidth=_SLOW_LINK * row.network.bandwidth),
            calibration.times(_BUSY_CORES),
        ),
    ):
        profile = question.profile.steady(factor)
        done = simulation.predict(profile, network, row.variant, row.schedule, costs)
        ends.append(done.step_seconds)
    low, high = min(ends[0], row.step_seconds), max(ends[1], row.step_seconds)
    return replace(row, step_interval=(low * (1 - _MODEL_ERROR), high * (1 + _MODEL_ERROR)))


def _codec_seconds(profile: Profile, row: Prediction, calibration: Calibration) -> float:
    """Seconds of one core in a step, for the codec of a worker and the sums of a server beside it."""
    network = row.network
    cost = row.variant.element_cost(network.workers, calibration, network.placement)
    sums = {"peers": 1 / network.workers, "servers": 0.0, "ring": 1.0}
    share = sums.get(network.placement, 1 / max(1, network.servers))
    return profile.elements * (cost.encode + cost.decode + share * cost.total)


def _predictions(
    question: Question,
    candidates: Sequence[tuple[Network, Variant]],
    calibration: Calibration,
    of: Callable[[Question, Network, Variant, Calibration], Prediction],
    watch: Watch = unwatched,
) -> tuple[list[Prediction], list[str]]:
    """Predicts each candidate that can be. Returns these, and of each other one why not, once."""
    rows, reasons = [], []
    for done, (network, variant) in enumerate(candidates):
        watch(done, len(candidates), f"{variant} with {_place(network)}")
        try:
            rows.append(of(question, network, variant, calibration))
        except ValueError as error:  # it costs itself alone
            reasons.append(f"not predicted: {variant} with {_place(network)} ({error})")
    return rows, list(dict.fromkeys(reasons))


def answer(question: Question, calibration: Calibration, watch: Watch = unwatched) -> Answer:
    """Tries every codec on every network with the partitions and credits that it knows, and says which to take.

    Raises: ValueError: a codec that is not planned, or nothing that can be predicted; says why.
    """
    variants = [Variant.parse(spec) for spec in question.tried_codecs]
    candidates = [
        (network, variant)
        for variant in variants
        for network in question.networks()
        if variant.goes_with(network.placement)
    ]
    predictions, reasons = _predictions(question, candidates, calibration, _best_schedule, watch)
    left_out = "; ".join([*filter(None, [_left_out(question, variants)]), *reasons]) or None
    if not predictions:
        raise ValueError(
            f"plan: nothing to try: {left_out or 'expected at least one codec and one placement'}"
        )
    predictions = [with_interval(question, row, calibration) for row in predictions]
    best = choose(_without_loss(question.profile, predictions) or predictions)
    predictions.sort(key=lambda row: (row is not best, -row.efficiency))
    steps = _next_steps(question, predictions, best)
    return Answer(tuple(predictions), best, _reason(question, predictions, best), left_out, steps)


def _left_out(question: Question, variants: Sequence[Variant]) -> str | None:
    codecs = [str(variant) for variant in variants if not variant.goes_with("ring")]
    if not codecs or "ring" not in question.placements:
        return None
    return (
        f"not in a ring: {', '.join(codecs)}; a library adds what {', '.join(SUMMED)} send, and what it does "
        "with others is not simulated"
    )


def _best_schedule(
    question: Question, network: Network, variant: Variant, calibration: Calibration
) -> Prediction:
    """The defaults, or what is better than they by more than nothing that could be measured."""
    default = predict(question, network, variant, question.schedule, calibration)
    if default.efficiency > default.bound * (1 - _WORTH):
        return default
    tried = [
        predict(
            question,
            network,
            variant,
            replace(question.schedule, partition_bytes=partition, credit_bytes=credit),
            calibration,
        )
        for partition in _PARTITIONS
        for credit in (_CREDITS if network.placement != "ring" else (None,))
    ]
    best = max(tried, key=lambda row: row.efficiency)
    return best if _is_shorter(best, default) else default


def _without_loss(profile: Profile, predictions: Sequence[Prediction]) -> list[Prediction]:
    """Returns those that may be recommended without a training to compare: with Adam, fewer bits cost loss."""
    return [row for row in predictions if not profile.is_like_adam or row.variant.codec in _KEEP_ADAMS_LOSS]


def _is_shorter(row: Prediction, than: Prediction) -> bool:
    """Whether the step of one prediction is shorter than another's by more than nothing."""
    return row.step_seconds < than.step_seconds * (1 - _WORTH)


def _fastest(predictions: Sequence[Prediction]) -> Prediction:
    return min(predictions, key=lambda row: row.step_seconds)


def choose(predictions: Sequence[Prediction]) -> Prediction:
    """Takes, of those that none is 1 % shorter than, what asks least: no codec, then fewer hosts, then more bits."""
    fastest = _fastest(predictions)
    near = [row for row in predictions if not _is_shorter(fastest, row)]
    return min(
        near,
        key=lambda row: (
            row.variant.lossy,
            row.network.hosts,
            -row.sent_bytes - row.received_bytes,
            -row.efficiency,
        ),
    )


def _reason(question: Question, predictions: Sequence[Prediction], best: Prediction) -> str:
    link = format_rate(question.bandwidth)
    where = _place(best.network)
    text = f"{best.variant} with {where}: {_percent(best.efficiency)} at {link}"
    dense = [row for row in predictions if not row.variant.lossy]
    if not best.variant.lossy:
        lossy = [row for row in predictions if row.variant.lossy]
        if not lossy:
            return f"{text}; no codec was tried"
        faster = _faster_at_a_loss(predictions, best)
        near = [row for row in lossy if not _is_shorter(row, best)]
        if not near:
            return f"{text}{faster}"
        most = _fastest(near)
        longer = f"{100 * (most.step_seconds / best.step_seconds - 1):+.1f}"
        if longer in ("+0.0", "-0.0"):
            return f"{text}; do not compress: {most.variant} would change nothing{faster}"
        return f"{text}; do not compress: {most.variant} would change the step by {longer} %{faster}"
    codec = best.variant.codec
    warning = _warning_of_adam(question.profile, codec)
    if not dense:
        return f"{text}; without a codec was not tried{warning}"
    plain = max(dense, key=lambda row: row.efficiency)
    seconds = f"{format_duration(plain.step_seconds)} instead of {format_duration(best.step_seconds)}"
    sent = f"{format_bytes(plain.sent_bytes)} a worker instead of {format_bytes(best.sent_bytes)}"
    return (
        f"{text}; compress: without, {_place(plain.network)} reach {_percent(plain.efficiency)}, and a step takes "
        f"{seconds} and sends {sent}{warning}{_faster_at_a_loss(predictions, best)}"
    )


def _faster_at_a_loss(predictions: Sequence[Prediction], best: Prediction) -> str:
    """Says which codecs are faster than the one to take, which are left to the user as they may cost loss."""
    reached = ", ".join(f"{codec} {_percent(share)}" for codec, share in _faster(predictions, best).items())
    return f"; faster, and may cost loss: {reached}" if reached else ""


def _faster(predictions: Sequence[Prediction], best: Prediction) -> dict[str, float]:
    """Returns the codecs that are faster than the one to take, each with its highest efficiency."""
    found: dict[str, float] = {}
    for row in predictions:
        if _is_shorter(row, best):
            found[str(row.variant)] = max(found.get(str(row.variant), 0.0), row.efficiency)
    return found


def _next_steps(question: Question, predictions: Sequence[Prediction], best: Prediction) -> tuple[str, ...]:
    """Returns how to start what is recommended, and how to find what a codec costs in accuracy."""
    steps = [_start(question, best)]
    if best.network.placement == "peers":
        variables = _variables(question, best)
        if best.variant.lossy:
            variables["GRADWIRE_COMPRESSION"] = str(best.variant)
        given = ", ".join(f"{name}={value}" for name, value in variables.items())
        steps.append(f"Or by torchrun with {given}." if given else "Or by torchrun.")
    if best.variant.lossy:
        compared = dict.fromkeys(("none", str(best.variant), *_faster(predictions, best)))
        arms = " ".join(f"--arm {arm}" for arm in compared)
        rate = format_rate(question.bandwidth)
        steps.append(
            f"This predicts times, not accuracy. Compare both: gradwire ab -n 2 {arms} --bandwidth {rate} --report "
            "report -- python train.py"
        )
    return tuple(steps)


def _start(question: Question, best: Prediction) -> str:
    """Returns the command that starts what is recommended, with the hosts that it needs."""
    workers, network = question.workers, best.network
    if network.placement == "ring":
        return f"Start on {workers} hosts: mpirun -np {workers} python train.py, with the store allreduce_mpi"
    hosts = f"{network.hosts} hosts"
    if network.hosts > workers:
        hosts += f", the first {workers} for workers"
    variables = "".join(f"{name}={value} " for name, value in _variables(question, best).items())
    codec = f" --compression {best.variant}" if best.variant.lossy else ""
    return (
        f"Start on {hosts}: {variables}gradwire run -n {workers} -s {network.servers} --launcher ssh "
        f"-H HOST1,HOST2,...{codec} python train.py"
    )


def _variables(question: Question, best: Prediction) -> dict[str, str]:
    """Returns the settings of a prediction that are not the defaults, as variables."""
    settings = {
        "GRADWIRE_PARTITION_BYTES": (best.schedule.partition_bytes, question.schedule.partition_bytes),
        "GRADWIRE_CREDIT_BYTES": (best.schedule.credit_bytes, question.schedule.credit_bytes),
    }
    return {name: str(own) for name, (own, default) in settings.items() if own != default}


def _warning_of_adam(profile: Profile, codec: str) -> str:
    """Returns what to say beside a codec, since it was chosen by its speed: nothing if the optimizer bears it."""
    if profile.is_like_adam is None:
        return (
            "; it loses accuracy with Adam and AdamW: use int8, nf4 or nf2 there"
            if codec in FEW_LEVELS
            else ""
        )
    if not profile.is_like_adam or codec in _KEEP_ADAMS_LOSS:
        return ""
    if codec in FEW_LEVELS:
        return f"; it loses accuracy with {profile.optimizer}: use int8, nf4 or nf2"
    return f"; it may cost loss with {profile.optimizer}"


def _place(network: Network) -> str:
    if network.placement in ("peers", "ring"):
        return f"{network.workers} {network.placement}" if network.placement == "peers" else "a ring"
    return f"{network.servers} server{'s' if network.servers > 1 else ''}"


def _percent(share: float) -> str:
    return f"{format_share(share)} %"


def sweep(
    question: Question, over: str, calibration: Calibration, watch: Watch = unwatched
) -> Iterator[Prediction]:
    """Predicts every codec with its best placement over bandwidths, or over numbers of workers, from the lowest on.

    Args:
        over: bandwidth (BANDWIDTHS) or workers (WORKERS). Left out: networks of more servers than workers beside them.
    """
    questions = (
        [replace(question, bandwidth=rate) for rate in BANDWIDTHS]
        if over == "bandwidth"
        else [replace(question, workers=count) for count in WORKERS]
    )
    specs = question.tried_codecs
    for number, each in enumerate(questions):
        networks = [row for row in each.networks() if row.placement != "beside" or row.servers <= row.workers]
        for place, spec in enumerate(specs if networks else ()):
            where = f"{each.workers} workers, links of {format_rate(each.bandwidth)}"
            watch(number * len(specs) + place, len(questions) * len(specs), f"{spec} with {where}")
            variant = Variant.parse(spec)
            candidates = [(network, variant) for network in networks if variant.goes_with(network.placement)]
            options, _ = _predictions(each, candidates, calibration, _as_scheduled)
            if options:
                best = max(options, key=lambda row: row.efficiency)
                yield with_interval(each, best, calibration)


def _as_scheduled(
    question: Question, network: Network, variant: Variant, calibration: Calibration
) -> Prediction:
    return predict(question, network, variant, question.schedule, calibration)


def pays_below(rows: Sequence[Prediction]) -> float | None:
    """Of a sweep over bandwidths: the highest at which a codec has steps 1 % shorter; None: none does."""
    bandwidths = {row.network.bandwidth for row in rows}
    paying = []
    for bandwidth in bandwidths:
        here = [row for row in rows if row.network.bandwidth == bandwidth]
        dense = [row for row in here if not row.variant.lossy]
        lossy = [row for row in here if row.variant.lossy]
        if dense and lossy and _is_shorter(_fastest(lossy), _fastest(dense)):
            paying.append(bandwidth)
    return max(paying, default=None)
