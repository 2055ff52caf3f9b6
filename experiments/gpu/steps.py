"""The steps of the check, in their order. Each yields rows: what was looked at, what was found, and the verdict."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from machine import HERE, Ended, Machine, has

Verdict = Literal["ok", "failed", "figure", "not run"]
DEVICE_TESTS = "*Cuda*:DeviceNccl.*"
"""GoogleTest's filter for the tests that are skipped without a device."""
REHEARSED_TESTS = "Thrust/*/cpp*2bit*"
SHARDS = 8
STORE_CODECS = (
    *("none", "fp16", "bf16", "2bit:threshold=0.5", "2bit:threshold=0.5,reply=2bit", "2bit:threshold=auto"),
    *("1bit", "int8", "int4", "nf2", "nf4", "topk"),
)
LOSSY = ("2bit:threshold=0.5", "2bit:threshold=auto", "int8", "topk")
"""Codecs whose sums are ours in every store, so that their bits are equal. NCCL sums dense floats in its own order."""
ARMS = ("ddp-gloo/none", "ddp-nccl/none", "hook/int8", "optimizer/int8", "optimizer/2bit")
MORE_ARMS = ("ddp-gloo/fp16", "hook/none", "hook/2bit", "optimizer/none", "optimizer/2bit:threshold=0.001")
MODEL_CODECS = ("none", "nf4", "nf2", "2bit")
FIRST_PORT = 29_511
SECONDS_FOR_NOTICE = 20.0
"""Within which a worker must get an error that names a killed one."""


@dataclass(frozen=True)
class Row:
    what: str
    found: str
    verdict: Verdict = "figure"
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    name: str
    title: str
    seconds: float
    """Its budget: what has not ended then is killed."""
    rows: Callable[[Machine], Iterator[Row]]
    shares_gpu: bool = False
    """Whether processes use the GPU at the same time."""
    is_default: bool = True


def _judged(what: str, ended: Ended, found: str = "ok") -> Row:
    if ended.code == 0:
        return Row(what, found, "ok")
    return Row(what, f"exit status {ended.code}: {ended.last_words}", "failed")


def _records(ended: Ended, word: str) -> list[dict[str, Any]]:
    """Returns the objects behind a word in a command's output, one a line, whatever stands before it."""
    lines = re.findall(rf"\b{word} (\{{.*\}})\s*$", ended.output, re.MULTILINE)
    return [json.loads(line) for line in lines]


def _job(
    machine: Machine, ranks: int, store: str, script: str, words: str = "", codecs: Sequence[str] = ()
) -> list[str]:
    """Returns the command of a job: a script of this folder under `gradwire run`. words: more options of the script."""
    servers = ranks if store == "dist_sync" else 0
    start = [
        *machine.gradwire(),
        "run",
        "-n",
        str(ranks),
        "-s",
        str(servers),
        machine.python,
        str(HERE / script),
    ]
    options = [word for codec in codecs for word in ("--codec", codec)]
    return [*start, "--store", store, "--device", machine.device, *words.split(), *options]


# 1. The machine.


def machine_rows(machine: Machine) -> Iterator[Row]:
    if has("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total"
        gpus = machine.run(["nvidia-smi", query, "--format=csv,noheader"])
        yield _judged("GPU", gpus, gpus.output.strip())
    else:
        yield Row("GPU", "there is no nvidia-smi", "figure" if machine.is_rehearsal else "failed")
    ended = machine.run([*machine.gradwire(), "doctor", "--json", "-"])
    try:
        found = json.loads(ended.output[ended.output.index("{") :])
    except ValueError:
        yield Row("gradwire doctor", f"exit status {ended.code}, no record: {ended.last_words}", "failed")
        return
    host = f"{os.cpu_count()} cores, {found['machine']['memory']}, Python {platform.python_version()}"
    libraries = found["libraries"]
    software = [f"{name} {libraries[name]}" for name in ("torch", "nccl") if name in libraries]
    yield Row("machine", ", ".join([host, *software]), record=found)
    for part in ("cuda", "nccl", "netlab"):
        if part in found["missing"]:
            expected = machine.is_rehearsal and part != "netlab"
            yield Row(f"doctor: {part}", found["missing"][part], "not run" if expected else "failed")
    if ended.code == 0:
        yield Row("gradwire doctor", "ok", "ok")
    else:
        yield Row("gradwire doctor", "; ".join(found["missing"]), "failed")


# 2. The C++ tests.


def cpp_rows(machine: Machine) -> Iterator[Row]:
    tests, shards = (REHEARSED_TESTS, 2) if machine.is_rehearsal else (DEVICE_TESTS, SHARDS)
    for folder in ("compress",) if machine.is_rehearsal else ("compress", "transport"):
        program = [*machine.program(f"gradwire_{folder}_tests"), f"--gtest_filter={tests}", "--gtest_brief=1"]
        reports = [machine.out / f"{folder}-tests-{index}.json" for index in range(shards)]
        commands = []
        for index, report in enumerate(reports):
            report.unlink(missing_ok=True)
            shard = ["env", f"GTEST_TOTAL_SHARDS={shards}", f"GTEST_SHARD_INDEX={index}"]
            commands.append([*shard, *program, f"--gtest_output=json:{report}"])
        yield from _test_rows(folder, machine.run_together(commands), reports)


def _test_rows(folder: str, ended: Sequence[Ended], reports: Sequence[Path]) -> Iterator[Row]:
    cases = [
        (f"{suite['name']}.{case['name']}", case)
        for report in reports
        if report.exists()
        for suite in json.loads(report.read_text())["testsuites"]
        for case in suite["testsuite"]
    ]
    failed = [(name, case["failures"][0]["failure"]) for name, case in cases if "failures" in case]
    skipped = [name for name, case in cases if case["result"] == "SKIPPED"]
    passed = len(cases) - len(failed) - len(skipped)
    crashed = [end for end in ended if end.code not in (0, 1)]
    verdict: Verdict = "failed" if failed or crashed or len(skipped) >= passed else "ok"
    yield Row(f"{folder} tests", f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped", verdict)
    for name, text in failed[:5]:
        yield Row(f"  {name}", " ".join(text.split())[:200], "failed")
    for end in crashed[:2]:
        yield Row(f"  {folder}: a shard ended with {end.code}", end.last_words, "failed")
    for name in skipped[:2]:
        yield Row(f"  {name}", "skipped; the log says why", "not run")


# 3. compute-sanitizer.


def sanitizer_rows(machine: Machine) -> Iterator[Row]:
    sizes = ["--elements", "1000", "--elements", "65537", "--passes", "1"]
    if machine.is_rehearsal:
        ended = machine.run([*machine.program("gradwire-thrust-codec"), *sizes])
        yield _judged("every twin, without compute-sanitizer", ended)
        return
    sanitizer = shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if sanitizer is None:
        yield Row("compute-sanitizer", "not on PATH, nor in /usr/local/cuda/bin", "not run")
        return
    program = machine.program("gradwire-cuda-codec")
    measured = _csv(machine.run([*program, "--elements", "64", "--passes", "1"]).output)
    twins = dict.fromkeys(row["codec"] for row in measured)
    # topk alone takes about as long under racecheck as all the others.
    others = [word for codec in twins if codec != "topk" for word in ("--codec", codec)]
    groups = {"topk": ["--codec", "topk"], "all other twins": others}
    runs = {
        (tool, group): words
        for tool in ("memcheck", "initcheck", "racecheck")
        for group, words in groups.items()
    }
    commands = [
        [*f"{sanitizer} --tool {tool} --error-exitcode 9".split(), *program, *sizes, *words]
        for (tool, _), words in runs.items()
    ]
    for (tool, group), ended in zip(runs, machine.run_together(commands), strict=True):
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", ended.output)
        yield _judged(f"{tool}, {group}", ended, summary[-1] if summary else "no summary")


# 4. The codecs' speed.


def codec_rows(machine: Machine) -> Iterator[Row]:
    if machine.is_rehearsal:
        short = ["--elements", "65536", "--elements", "100000", "--passes", "1"]
        ended = machine.run([*machine.program("gradwire-thrust-codec"), *short])
    else:
        ended = machine.run(machine.program("gradwire-cuda-codec"))
    measured = _csv(ended.output)
    if ended.code != 0 or not measured:
        yield Row("codecs", f"exit status {ended.code}: {ended.last_words}", "failed")
    largest = max((int(row["elements"]) for row in measured), default=0)
    for codec in dict.fromkeys(row["codec"] for row in measured):
        rows = [row for row in measured if row["codec"] == codec]
        ratios = ", ".join(
            f"{row['operation']} {float(row['ratio_to_copy_by_bytes']):.2f} ({float(row['ratio_to_copy']):.2f})"
            for row in rows
            if int(row["elements"]) == largest and row["operation"] != "copy"
        )
        yield Row(f"{codec}, {largest:,} floats", ratios, record={"measured": rows})
    yield Row("these ratios", "to the device's own copy, by bytes moved (by elements)")


def _csv(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if "," in line and not line.startswith("#")]
    return list(csv.DictReader(io.StringIO("\n".join(lines))))


# 5. Stores with tensors of the device.


def store_rows(machine: Machine) -> Iterator[Row]:
    codecs = ("none", "2bit:threshold=auto") if machine.is_rehearsal else STORE_CODECS
    sizes = ("1",) if machine.is_rehearsal else ("1", "16", "64")
    megabytes = " ".join(f"--megabytes {size}" for size in sizes)
    runs = [("allreduce", "bfloat16", 2), ("device", "float32", 1)]
    if not machine.is_rehearsal:
        runs = [("dist_sync", "float32", 2), ("allreduce", "float32", 2), *runs]
    for store, residuals, ranks in runs:
        ended = machine.run(
            _job(machine, ranks, store, "store_rounds.py", megabytes, codecs),
            environment={"GRADWIRE_RESIDUAL_DTYPE": residuals},
        )
        records = _records(ended, "STORE")
        name = f"{store}, residuals in {residuals}"
        if ended.code != 0 or len(records) < len(codecs):
            done = f"{len(records)} of {len(codecs)} codecs, exit status {ended.code}: {ended.last_words}"
            yield Row(name, done, "failed")
        if not records:
            continue
        other = [record["codec"] for record in records if not record["same_bits"]]
        found = (
            f"other bits with {', '.join(other)}"
            if other
            else f"{len(records)} codecs: the bits of CPU tensors"
        )
        yield Row(
            f"{name}, {machine.device} tensors", found, "failed" if other else "ok", {"records": records}
        )
        if not machine.is_rehearsal and store != "device":  # there torch copies what a codec encodes
            more = [r["codec"] for r in records if r["bytes_from_device"] > 1.01 * r["bytes_encoded"] + 4096]
            found = f"more than payloads with {', '.join(more)}" if more else "payloads alone"
            yield Row(f"{name}, what left the device", found, "failed" if more else "ok")
        times = ", ".join(f"{r['codec'].removeprefix('2bit:')} {r['ms_a_round'][sizes[-1]]}" for r in records)
        yield Row(f"{name}, ms a round of {sizes[-1]} MB", times)


# 6. Front ends.


def front_end_rows(machine: Machine) -> Iterator[Row]:
    yield _shard_row(machine)
    # The first job of each front end is what its others are compared with.
    jobs = [
        *(("optimizer", codec, "gloo") for codec in ("none", "int8", "2bit")),
        *(("overlap", "2bit", "gloo"), ("amp", "none", "gloo"), ("amp", "2bit", "gloo")),
        *(("ddp", codec, "gloo") for codec in ("plain", "int8", "2bit")),
        ("ddp", "int8", "nccl"),
        *(("ddp_hosts", codec, "nccl") for codec in ("plain", "int8")),
        *(("fsdp2", codec, "gloo") for codec in ("plain", "int8", "2bit")),
        ("fsdp2_weights", "int8", "nccl"),
    ]
    at_once, steps = 4, 150
    if machine.is_rehearsal:
        jobs = [
            (front_end, "int8", "gloo") for front_end in ("optimizer", "ddp", "ddp_hosts", "fsdp2_weights")
        ]
        at_once, steps = 1, 60
    commands = []
    for way, codec, backend in jobs:
        words = f"--front-end {way} --backend {backend} --steps {steps}"
        ranks = 4 if way == "ddp_hosts" else 2  # two hosts of two
        commands.append(_job(machine, ranks, "allreduce", "front_ends.py", words, [codec]))
    best: dict[str, float] = {}
    for first in range(0, len(jobs), at_once):
        ended = machine.run_together(commands[first : first + at_once])
        for (way, codec, backend), end in zip(jobs[first:], ended, strict=False):
            name = f"{way}, {codec}{', nccl group' if backend == 'nccl' else ''}"
            records = _records(end, "TRAINED")
            if end.code != 0 or not records:
                yield Row(name, f"exit status {end.code}: {end.last_words}", "failed")
                continue
            record = records[0]
            reference = best.setdefault(way, record["loss"])
            trains = record["loss"] < min(0.7 * record["first_loss"], 1.3 * reference + 0.1)
            found = f"loss {record['first_loss']} to {record['loss']}, {record['ms_a_step']} ms a step"
            yield Row(name, found, "ok" if trains else "failed", record)


def _shard_row(machine: Machine) -> Row:
    what, codecs = (
        "FSDP2's shards, device and host",
        [codec for codec in STORE_CODECS if "reply" not in codec][1:],
    )
    words = [word for codec in codecs for word in ("--codec", codec)]
    ended = machine.run([machine.python, str(HERE / "shards.py"), "--device", machine.device, *words])
    records = _records(ended, "SHARDS")
    if ended.code != 0 or len(records) < len(codecs):
        done = f"{len(records)} of {len(codecs)} codecs, exit status {ended.code}: {ended.last_words}"
        return Row(what, done, "failed")
    wanted = "HostShards" if machine.is_rehearsal else "DeviceShards"
    other = [record["codec"] for record in records if not record["alike"] or record["made_by"] != wanted]
    found = (
        f"other bits, or elsewhere: {', '.join(other)}" if other else f"{len(records)} codecs: the same bits"
    )
    return Row(what, found, "failed" if other else "ok", {"records": records})


# 7. NCCL.


def nccl_rows(machine: Machine) -> Iterator[Row]:
    store, codecs, counts = "nccl", LOSSY, (1, 2, 4)
    if machine.is_rehearsal:
        yield Row(
            "nccl", "there is no GPU: dist_sync's bits are compared with allreduce's in its place", "not run"
        )
        store, codecs, counts = "dist_sync", LOSSY[:1], (2,)
    share = {"GRADWIRE_NCCL_SHARE_GPU": "on"}
    for ranks in counts:
        digests, ended = {}, {}
        for name in ("allreduce", store):
            ended[name] = machine.run(
                _job(machine, ranks, name, "store_rounds.py", "", codecs), environment=share
            )
            digests[name] = {r["codec"]: r["digest"] for r in _records(ended[name], "STORE")}
        what = f"{store}, {ranks} rank{'s' * (ranks > 1)}"
        if lost := [codec for codec in codecs if codec not in digests[store]]:
            yield Row(what, f"no result of {', '.join(lost)}: {ended[store].last_words}", "failed")
            continue
        other = [codec for codec in codecs if digests[store][codec] != digests["allreduce"].get(codec)]
        found = f"other bits than allreduce with {', '.join(other)}" if other else "the bits of allreduce"
        yield Row(what, f"{len(codecs)} codecs: {found}", "failed" if other else "ok")
    killed = machine.run(_job(machine, 2, store, "killed_rank.py"), environment=share)
    record = next(iter(_records(killed, "KILLED")), None)
    if record is None:
        yield Row(f"{store}, a killed rank", f"nothing was said of it: {killed.last_words}", "failed")
        return
    is_named = "worker 1" in str(record["error"]) and record["seconds"] < SECONDS_FOR_NOTICE
    found = f"after {record['seconds']} s: {str(record['error'])[:160]}"
    yield Row(f"{store}, a killed rank", found, "ok" if is_named else "failed", record)


# 8. A transformer behind a shaped link.


def transformer_rows(bandwidth: str, arms: Sequence[str]) -> Callable[[Machine], Iterator[Row]]:
    def rows(machine: Machine) -> Iterator[Row]:
        from gradwire import netlab

        if (reason := netlab.available()) is not None:
            yield Row(
                "hosts", f"cannot be made here: {reason}", "not run" if machine.is_rehearsal else "failed"
            )
            return
        rate, size, run = bandwidth, "124m", list(arms)
        if machine.is_rehearsal:
            rate, size, run = "1gbit", "tiny", ["optimizer/int8"]
        with netlab.NetLab(hosts=2, bandwidth=rate) as lab:
            words = f"--master {lab.host(0).address} --interface eth0 --device {machine.device} --size {size}".split()
            for port, arm in enumerate(run, start=FIRST_PORT):
                script = [
                    machine.python,
                    str(HERE / "transformer.py"),
                    *words,
                    "--port",
                    str(port),
                    "--arm",
                    arm,
                ]
                ranks = [
                    host.command(["env", f"GRADWIRE_HOST_ID={host.namespace}", *script, "--rank", str(rank)])
                    for rank, host in enumerate(lab.hosts)
                ]
                yield _arm_row(f"{rate}, {arm}", machine.run_together(ranks, seconds=60)[0])

    return rows


def _arm_row(what: str, ended: Ended) -> Row:
    records = _records(ended, "STEP")
    if not records:
        return Row(what, f"exit status {ended.code}: {ended.last_words}", "failed")
    record = records[0]
    parts = [f"{record['ms_a_step']} ms a step", f"{record['mb_sent_a_step']} MB sent a step"]
    parts.append(f"loss {record['loss']}")
    if record["peak_memory_bytes"] is not None:
        parts.append(f"{record['peak_memory_bytes'] / 2**30:.2f} GiB")
    return Row(what, ", ".join(parts), record=record)


# 9. The cores.


def core_rows(bandwidth: str) -> Callable[[Machine], Iterator[Row]]:
    def rows(machine: Machine) -> Iterator[Row]:
        both_ways = "--codec 2bit:threshold=0.5,reply=2bit"
        rounds = f"--repeat 5 --bytes 100MB --bandwidth {bandwidth} --json -"
        peers = f"--codec none --codec fp16 {both_ways} --peer gloo,gloo-fp16 --launches 1 {rounds}"
        benches = [f"allreduce -n {ranks} {peers}" for ranks in (4, 8)]
        benches.append(f"ps -n 4 -s 4 --codec 2bit:threshold=0.5 --reply 2bit {rounds}")
        if machine.is_rehearsal:
            benches = [f"allreduce -n 2 {both_ways} --repeat 5 --bytes 2MB --bandwidth 1gbit --json -"]
        for bench in benches:
            ended = machine.run([*machine.gradwire(), "bench", *bench.split()])
            yield from _bench_rows(" ".join(bench.split()[:3]), ended)

    return rows


def _bench_rows(name: str, ended: Ended) -> Iterator[Row]:
    found = re.search(r"^\[.*^\]", ended.output, re.MULTILINE | re.DOTALL)
    if ended.code != 0 or found is None:
        yield Row(name, f"exit status {ended.code}: {ended.last_words}", "failed")
        return
    for r in json.loads(found.group()):
        codec = f" {r['codec']}, reply {r['reply']}" if r["system"] == "gradwire" else ""
        limit = r["seconds_median"] / r["wire_limit_seconds"]
        cost = f"{limit:.2f} times the wire's limit, {r['cpu_seconds_per_gb']:.2f} CPU s/GB"
        yield Row(f"{name}, {r['system']}{codec}", cost, record=r)


# 10. What codecs cost a language model.


def language_model_rows(machine: Machine) -> Iterator[Row]:
    codecs, words = MODEL_CODECS, "--size 124m --steps 300"
    if machine.is_rehearsal:
        codecs, words = MODEL_CODECS[:2], "--size tiny --steps 8"
    base = None
    for codec in codecs:
        script = [
            machine.python,
            str(HERE / "language_model.py"),
            "--device",
            machine.device,
            "--codec",
            codec,
        ]
        ended = machine.run([*script, *words.split()])
        record = next(iter(_records(ended, "MODEL")), None)
        if record is None:
            yield Row(codec, f"exit status {ended.code}: {ended.last_words}", "failed")
            continue
        found = f"loss {record['loss']} after {record['steps']} steps"
        if codec == "none":
            base = record["loss"]
        elif base is not None:
            found += f", {100 * (record['loss'] / base - 1):+.2f} % of none's"
        yield Row(f"{codec}, {record['workers']} workers", found, record=record)


STEPS = (
    Step("machine", "GPU, versions, gradwire doctor", 10, machine_rows),
    Step("cpp", "C++ tests that need a device", 30, cpp_rows),
    Step("sanitizer", "compute-sanitizer over every twin", 20, sanitizer_rows),
    Step("codecs", "the twins beside the device's own copy", 25, codec_rows),
    Step("stores", "stores with tensors of the device", 65, store_rows, shares_gpu=True),
    Step("front-ends", "training through every front end", 75, front_end_rows, shares_gpu=True),
    Step("nccl", "ranks of NCCL that share a GPU", 80, nccl_rows, shares_gpu=True),
    Step("transformer", "124 M parameters, 10 Gbit", 130, transformer_rows("10gbit", ARMS), shares_gpu=True),
    Step("cores", "sums on the CPU, 10 Gbit", 105, core_rows("10gbit")),
    Step(
        "transformer-more",
        "its other arms",
        150,
        transformer_rows("10gbit", MORE_ARMS),
        True,
        is_default=False,
    ),
    Step(
        "transformer-25", "the same, 25 Gbit", 130, transformer_rows("25gbit", ARMS), True, is_default=False
    ),
    Step(
        "transformer-25-more",
        "its other arms",
        150,
        transformer_rows("25gbit", MORE_ARMS),
        True,
        is_default=False,
    ),
    Step("cores-25", "sums on the CPU, 25 Gbit", 105, core_rows("25gbit"), is_default=False),
    Step("gpt124", "AdamW, 124 M parameters: loss by codec", 480, language_model_rows, is_default=False),
)
