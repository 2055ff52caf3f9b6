"""What codecs and messages cost on a machine: measured by `gradwire plan --calibrate`, read by the planner.

calibration.json beside this file is the one that comes with gradwire; its "made_by" says how it was made.
"""

from __future__ import annotations

import importlib.resources
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gradwire import compress

PLANNED = tuple(compress.list())  # each with its own parameters
_FEW, _MANY = 2, 8  # payloads in the sums that `gradwire bench codec` times
_PROBED = {"GRADWIRE_FUSION_BYTES": "0", "GRADWIRE_IPC": "off", "GRADWIRE_COMPRESSION": "none"}


@dataclass(frozen=True)
class CodecSpeed:
    """Seconds of one thread per element of the gradient; bits of its payload.

    A server's sum of n payloads takes sum_seconds + n * sum_seconds_per_worker.
    """

    codec: str
    bits: float
    encode_seconds: float
    encode_with_residual_seconds: float
    decode_seconds: float
    sum_seconds: float
    sum_seconds_per_worker: float


@dataclass(frozen=True)
class Calibration:
    """What codecs and messages cost on a machine.

    Attributes:
        message_seconds: of a thread, to send or receive one message of many.
        round_trip_seconds: of one message alone and its answer, on loopback.
        byte_seconds: of a core, to send or receive a byte over TCP; 0: not measured.
        wakeup_seconds: of a core, which a message that comes alone takes beside message_seconds: threads wake each
            other. 0: not measured.
    """

    made_by: str
    machine: Mapping[str, str | int]
    message_seconds: float
    round_trip_seconds: float
    codecs: tuple[CodecSpeed, ...]
    byte_seconds: float = 0.0
    wakeup_seconds: float = 0.0

    @property
    def hop_seconds(self) -> float:
        """What a message takes from one rank's store to another's beside the wire and the threads' work."""
        # A round trip alone is four messages, and wakes the worker, the server and the worker again.
        work = 4 * self.message_seconds + 3 * self.wakeup_seconds
        return max(0.0, (self.round_trip_seconds - work) / 2)

    def times(self, factor: float) -> Calibration:
        """Returns what the same would cost on cores that are so many times as slow."""
        codecs = tuple(
            CodecSpeed(
                row.codec,
                row.bits,
                *(factor * value for name, value in vars(row).items() if name not in ("codec", "bits")),
            )
            for row in self.codecs
        )
        return replace(
            self,
            codecs=codecs,
            message_seconds=factor * self.message_seconds,
            round_trip_seconds=factor * self.round_trip_seconds,
            byte_seconds=factor * self.byte_seconds,
            wakeup_seconds=factor * self.wakeup_seconds,
        )

    def speed(self, codec: str) -> CodecSpeed:
        """Raises: ValueError: the codec was not calibrated; names those that were."""
        for row in self.codecs:
            if row.codec == codec:
                return row
        known = ", ".join(row.codec for row in self.codecs)
        raise ValueError(f"plan: codec {codec} has no calibration: expected one of {known}")

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def load(file: Path | None = None) -> Calibration:
    """Reads a calibration file; None: the one that comes with gradwire.

    Raises: ValueError: not a calibration, or not to be read; says what is wrong.
    """
    where = file or importlib.resources.files("gradwire.plan") / "calibration.json"
    try:
        given = json.loads(where.read_text(encoding="utf-8"))
        codecs = tuple(CodecSpeed(**row) for row in given.pop("codecs"))
        calibration = Calibration(**given, codecs=codecs)
        numbers = [value for row in codecs for value in vars(row).values() if not isinstance(value, str)]
        links = [value for name, value in given.items() if name.endswith("_seconds")]
        for number in (*links, *numbers):
            if not math.isfinite(number) or number < 0:
                raise ValueError(f"{number!r} is not a cost: expected a number of at least 0")
    except OSError as error:
        raise ValueError(f"plan: --calibration {where} cannot be read ({error.strerror})") from None
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"plan: {where} is not a calibration ({error}): make one with --calibrate") from None
    return calibration


def of_bench(rows: Iterable[Mapping[str, Any]]) -> tuple[CodecSpeed, ...]:
    """Takes what the planner needs from the records of `gradwire bench codec --json`, of PLANNED codecs.

    Raises: ValueError: an operation is missing, or they are records of something else, or of several threads.
    """
    seconds: dict[tuple[str, str, str, int], float] = {}
    bits: dict[str, float] = {}
    try:
        for row in rows:
            if row["threads"] != 1:
                raise ValueError(
                    f"plan: {row['codec']} was measured with {row['threads']} threads, and costs are those of one: run "
                    "`gradwire bench codec` without --threads"
                )
            seconds[row["codec"], row["op"], row["residual"], row["ways"]] = 1 / row["elements_per_second"]
            bits[row["codec"]] = row["bits_per_element"]
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(
            f"plan: these are not records of codec speeds ({type(error).__name__}: {error}): expected what `gradwire "
            "bench codec --json` writes"
        ) from None
    speeds = []
    for codec in PLANNED:
        try:
            few, many = (seconds[codec, "decode_sum", "none", ways] for ways in (_FEW, _MANY))
            each = max(0.0, (many - few) / (_MANY - _FEW))
            encode = seconds[codec, "encode", "none", 1]
            speeds.append(
                CodecSpeed(
                    codec=codec,
                    bits=bits[codec],
                    encode_seconds=encode,
                    encode_with_residual_seconds=seconds.get((codec, "encode", "fp32", 1), encode),
                    decode_seconds=seconds[codec, "decode", "none", 1],
                    sum_seconds=max(0.0, few - _FEW * each),
                    sum_seconds_per_worker=each,
                )
            )
        except KeyError as error:
            raise ValueError(
                f"plan: the bench of {codec} lacks {error}: run `gradwire bench codec`"
            ) from None
    return tuple(speeds)


def measure(say: Callable[[str], None], codec_speeds: Path | None = None) -> Calibration:
    """Measures this machine: every planned codec as `gradwire bench codec` does, and messages over loopback.

    Args:
        say: takes what is under way.
        codec_speeds: a record of `gradwire bench codec --json` made here, in place of measuring codecs.

    Raises:
        RuntimeError: the probe's job failed.
        ValueError: codec_speeds is something else, or lacks an operation.
    """
    from gradwire.terminal.machine import machine_description

    if codec_speeds is None:
        speeds, made_by = of_bench(_bench(say)), "gradwire plan --calibrate"
    else:
        speeds = _of_file(codec_speeds)
        made_by = f"gradwire plan --calibrate --codec-speeds {codec_speeds.as_posix()}"
    say("calibrate: messages over loopback")
    probe = probe_messages()
    return Calibration(
        made_by,
        machine_description(),
        codecs=speeds,
        **probe,
    )


def _of_file(path: Path) -> tuple[CodecSpeed, ...]:
    try:
        return of_bench(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"plan: --codec-speeds {path} cannot be read ({error.strerror})") from None
    except ValueError as error:  # also: neither JSON nor text
        raise ValueError(
            f"plan: --codec-speeds {path} cannot be used ({str(error).removeprefix('plan: ')}); expected the file of "
            "`gradwire bench codec --json FILE`"
        ) from None


def _bench(say: Callable[[str], None]) -> list[dict[str, Any]]:
    from gradwire.bench.codec import Plan, measure

    rows: list[dict[str, Any]] = []
    for codec in PLANNED:
        say(f"calibrate: {codec}")
        rows += measure(codec, Plan())
    return rows


def probe_messages() -> dict[str, float]:
    """Runs link_probe in a job of one worker and one server on loopback, over TCP as between hosts.

    Raises: RuntimeError: the job failed; ends with its last words.
    """
    from gradwire.launch.child import Line
    from gradwire.launch.supervisor import run_job

    last: list[str] = []

    def keep(line: Line) -> None:
        last.append(line.text)
        del last[:-5]

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.json"
        command = [sys.executable, "-m", "gradwire.plan.link_probe", str(file)]
        result = run_job(command, 1, 1, env=_PROBED, output=keep, timeout=60)
        if result.exit_code or not file.exists():
            words = "; ".join(last) or result.cause
            raise RuntimeError(f"plan: the probe of messages failed: {words}")
        probe: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return probe
