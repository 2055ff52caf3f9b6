"""Worker: a rank's place in a job, its statistics, its timeline, and leaving. It does not know keys."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gradwire import _core
from gradwire.collectives import Collectives
from gradwire.settings import definitions as settings
from gradwire.settings.units import format_bytes
from gradwire.stores import codec_override, connect, run_meter, uncaught_error
from gradwire.stores.backend import AbstractKVStore
from gradwire.stores.encoded_outside import EncodedOutside
from gradwire.stores.log import Log
from gradwire.timeline.recorder import Recorder

_SHOWN_RATIO = 1.05  # of gradients' bytes to payloads', from which on a store has compressed


class _Serving(NamedTuple):
    """What a worker that has closed its store still does for the others: it hosts servers, or their rendezvous."""

    engine: _core.Engine
    log: Log
    patience: float  # seconds
    silence: float  # seconds that it waits before it says so

    def outlast(self) -> None:
        """Waits until the others have left the job too, or it has failed; at most `patience` seconds."""
        began = time.monotonic()
        pause = self.silence
        while not self.engine.outlast(pause) and time.monotonic() - began < self.patience:
            waited = f"{time.monotonic() - began:.0f} s"
            self.log.say(
                "warning",
                f"all is done here; has waited {waited} for the other workers to leave the job, which needs this "
                "process to its end",
            )
            pause = 60.0


# For whom the process waits at its exit, once all its stores are closed; by the engine's id(). Ranks may be threads:
# each use of it is one call of a dict's.
_serving: dict[int, _Serving] = {}
_finalized_pid = 0  # whose exit waits for these though it runs no atexit functions


def outlast_all() -> None:
    """Waits, at exit, until no other worker needs what this process serves. Not so where an uncaught error has ended
    the script: what others need of it then fails, and names this worker.

    A close() that waited could wait for a worker that waits, in another store or library, for what its caller does
    next. Nothing comes behind the exit, and all of the process's stores are closed by then.
    """
    try:
        if not uncaught_error.ended_the_script():
            for each in list(_serving.values()):
                each.outlast()
    finally:
        while _serving:
            _serving.popitem()[1].engine.retire()


def _drop_the_ended() -> None:
    """Frees what served others that have left since: an elastic job would hold one of each generation."""
    for each in list(_serving.values()):
        if each.engine.outlast(0.0):
            _serving.pop(id(each.engine), None)


def _keep_until_exit(serving: _Serving) -> None:
    global _finalized_pid
    _drop_the_ended()
    if serving.engine.outlast(0.0):
        return
    _serving[id(serving.engine)] = serving
    if multiprocessing.parent_process() is not None and _finalized_pid != os.getpid():
        _finalized_pid = os.getpid()
        multiprocessing.util.Finalize(None, outlast_all, exitpriority=0)


class Worker(AbstractKVStore):
    """What all of gradwire's own stores have in common, whatever their keys."""

    def __init__(self, kind: str, engine: _core.Engine, values: settings.Settings) -> None:
        self._kind = kind
        self._settings = values
        self._log = Log.of(values, engine.rank)
        self.engine = engine
        if not self._is_local:
            codec_override.offer()
            run_meter.start(engine, values.result)
        self.unfinished: set[Callable[[], None]] = set()  # what close() is to end first, on this thread
        _drop_the_ended()
        self.is_open = False  # gradwire.kv sets it, and close() ends it
        # The first of the generations that this process has been in without a gap; gradwire.kv sets it.
        self.since = engine.generation
        self.collectives = Collectives(engine)  # all_reduce, all_gather, ...: exact, of any arrays
        self.decisions: list[dict[str, Any]] = []  # of compression="auto", for stats()
        self.encoded_outside = EncodedOutside()  # of front ends that do not encode by the engine
        self.waited_seconds = 0.0  # in wait_until(), and of front ends that wait for their own sums
        self.meters: list[Any] = []  # of gradwire.metrics; close() stops them
        # By which metrics name this process: torch's, where torch's ranks form several jobs.
        self.measured_rank = engine.rank
        traced = values.timeline is not None and not (self._is_local and values.is_in_a_job)
        self._recorder = Recorder(engine, kind, str(values.timeline)) if traced else None

    @property
    def type(self) -> str:
        """The name that the store was created by."""
        return self._kind

    @property
    def rank(self) -> int:
        """This worker's rank, from 0."""
        return self.engine.rank

    @property
    def num_workers(self) -> int:
        """The number of workers in the job."""
        return self.engine.num_workers

    @property
    def goes_on(self) -> bool:
        """True if the job continues without workers that die."""
        return connect.goes_on(self._kind, self._settings)

    @property
    def generation(self) -> int:
        """The job's generation: 1 at its start, and one more after each change of its members."""
        return self.engine.generation

    @property
    def _is_local(self) -> bool:
        return connect.is_local(self._kind)

    def barrier(self) -> None:
        """Waits until every worker has called it. In `dist_async*`, weights after it contain all pushes before it."""
        self.collectives.barrier()

    _barrier = barrier  # MXNet's name

    def join(self) -> int:
        """Tells the others that this worker has run out of data, if workers have different numbers of batches.

        The others' rounds continue without it, as sums of what they push, until they join too. Then all workers take
        part again, from the same round on. This worker's residuals are kept, and sent with its next push. Meanwhile no
        worker may call another collective (barrier, init, set_gradient_compression, ...).

        Returns: the rank that joined last, the same on all ranks. It has taken part in all rounds, so broadcast its
        weights.

        Raises:
            ValueError: a store in which a library sums (`allreduce_mpi`, `nccl`); hierarchy=host; or `dist_async*`,
                whose workers wait for each other in barrier() instead.
            gradwire.TimeoutError: a worker has not joined within GRADWIRE_SLOW_ABORT; names it.
        """
        return self.engine.join()

    def stats(self, servers: bool = False, *, residuals: bool = True) -> dict[str, Any]:
        """Returns what this worker's end of the store has done so far.

        | key | value |
        |---|---|
        | bytes_raw | bytes of gradients that were given to sums, as float32 |
        | bytes_encoded | bytes of the payloads, of rows with their ids |
        | ratio | bytes_raw / bytes_encoded; None without payloads |
        | residual_norm | Euclidean norm of this worker's residuals; None while a round is in progress |
        | share_sent | 1 - (norm of residual / norm of gradient + residual)^2; None without compressed keys |
        | bytes_sent, bytes_received | bytes at the sockets, with headers and control messages |
        | codec_seconds | seconds of all threads that encode and decode |
        | exposed_seconds | seconds that the caller waited for sums: communication that was not hidden |
        | stage_seconds | seconds of all partitions in each stage (`gradwire timeline --help`), while traced; else 0 |
        | decisions | what compression="auto" has chosen, step by step, with the reason |
        | staleness | `dist_async*`: {staleness: number of pushed partitions}, see below |
        | replaced_servers | {rank: rank}: servers that died, and the servers in their place (GRADWIRE_REPLICAS) |
        | faults | GRADWIRE_FAULTS: {kind of fault: number of frames sent by this worker}; else empty |

        share_sent covers all tables, and keys whose residual is on the host, that are compressed now. It is measured in
        a key's first two rounds and in every 16th. stage_seconds includes servers in this process only. The staleness
        of a partition is the number of pushes of other workers that its weight had since this worker received it. Rows
        of a table at one server count as one partition. With hierarchy=host, bytes_encoded is what the leader of a host
        encoded of the host's sum, and 0 on the other workers. So ratio is the leader's own gradients over the host's
        payloads, and None on the others.

        FSDP2's reduce-scatter (gradwire.torch.compress_reduce_scatter) counts too. Its bytes_raw and bytes_encoded
        include the padding of shards, and this rank's own shard. With codec "none" both are the bytes of the gradients
        in their own dtype. Its residual_norm is that of the last backward() that has ended. Its codec_seconds are those
        of the CPU; encoding on a GPU is not counted. Its share_sent is not measured.

        Args:
            servers: also ask the servers, and wait for them. Adds waited_for: by rank, how often that worker's push
                completed a partition's round (with hierarchy=host of the leaders; 0 where a library sums);
                slowest_rank: the rank with most of these, None without a round; bytes_mirrored: payload bytes that
                servers sent to their mirrors (GRADWIRE_REPLICAS=1), else 0. Default: False.
            residuals: also read residual_norm and share_sent, in one pass over the residuals' memory: milliseconds for
                a million of parameters. False: both are None, and the call takes microseconds. Default: True.

        Returns: a dict with the keys above.
        """
        raw, encoded = self.engine.pushed()
        counters = self.engine.counters()
        asked: dict[str, Any] = {}
        if servers:
            waited_for = self.engine.waited_for()
            asked["waited_for"] = waited_for
            asked["bytes_mirrored"] = self.engine.mirrored_bytes()
            asked["slowest_rank"] = waited_for.index(max(waited_for)) if any(waited_for) else None
        found = {
            "bytes_raw": raw,
            "bytes_encoded": encoded,
            "residual_norm": self.engine.residual_norm() if residuals else None,
            "share_sent": self.engine.share_sent() if residuals else None,
            "bytes_sent": counters["bytes_sent"],
            "bytes_received": counters["bytes_received"],
            "codec_seconds": self.engine.codec_seconds(),
            "exposed_seconds": self.waited_seconds,
            "stage_seconds": self.engine.stage_seconds(),
            "decisions": list(self.decisions),
            "staleness": self.engine.staleness(),
            "replaced_servers": self.engine.replaced_servers(),
            "faults": self.engine.faults(),
        }
        return asked | found | self.encoded_outside.stats_beside(found)

    @contextlib.contextmanager
    def timeline(self, folder: str) -> Iterator[None]:
        """Traces every partition inside the block. Use it on every rank, with the same folder, around some steps.

        `gradwire timeline FOLDER` shows the trace. Servers in processes of their own are traced only in a job that was
        started with `gradwire run --timeline` (GRADWIRE_TIMELINE), which traces the whole job.

        Args:
            folder: folder to which this rank writes its part at the end. It is made if it does not exist.

        Raises:
            RuntimeError: the whole job is traced already.
        """
        if self._recorder is not None:
            raise RuntimeError(
                "timeline: this store is traced already, by GRADWIRE_TIMELINE or another timeline()"
            )
        self._recorder = Recorder(self.engine, self._kind, folder)
        try:
            yield
        finally:
            recorder, self._recorder = self._recorder, None
            if recorder is not None:  # else the store was closed meanwhile
                recorder.stop()
                recorder.write()

    def close(self) -> None:
        """Ends calls in progress, and leaves the job. Called at exit for stores that are still open.

        A server in this process keeps serving the others: the process waits at its exit until they have left too. If it
        serves the rendezvous, close() itself waits for them; so it does over MPI, which ends for all ranks at once. If
        an uncaught error has ended the script, nothing waits (except over MPI): the job ends with this process, or
        continues without it if it is elastic.
        """
        for meter in list(self.meters):
            meter.stop()
        if self.is_open and not self._is_local:
            self._report_left()
            self._report_faults()
        self.is_open = False
        with contextlib.ExitStack() as leaving:
            leaving.callback(self._leave)
            if not uncaught_error.ended_the_script():  # others may never send what it waits for
                for finish in list(self.unfinished):
                    leaving.callback(finish)
                leaving.callback(self.collectives.await_begun)

    def give_up(self, error: BaseException | None) -> None:
        """Notifies the other workers of an elastic job that this worker ends with an error, so that they continue at
        once.

        Args:
            error: the error; None if Python no longer knows it.
        """
        if not self.goes_on:
            return
        words = "an error" if error is None else f"{type(error).__name__}: {error}"
        with contextlib.suppress(_core.TransportError, RuntimeError):  # nobody is there to tell
            self.engine.regroup(f"ended with {words}", False)

    def warn(self, text: str) -> None:
        """Logs a warning of this worker.

        Args:
            text: one line for people.
        """
        self._log.say("warning", text)

    def report_joined(self) -> None:
        """Logs which job this is."""
        workers, servers = self.num_workers, self.engine.num_servers
        text = f"has joined {self.type!r} with {workers} workers and {servers} servers"
        self._log.say("info", text, store=self.type, workers=workers, servers=servers)
        if self.engine.faults():
            self._log.say("warning", f"runs under faults: {self._settings.faults}")

    def _report_faults(self) -> None:
        counts = self.engine.faults()
        if not counts:
            return
        met = ", ".join(f"{count} {fault}" for fault, count in counts.items() if count and fault != "frames")
        text = f"faults: {counts['frames']} frames" + (f": {met}" if met else "")
        text = "; ".join([text, *self.engine.unmet_kills()])
        self._log.say("warning", text, faults=counts)

    def _report_left(self) -> None:
        if not self._log.reports("info"):
            return
        stats = self.stats()
        sent, received = stats["bytes_sent"], stats["bytes_received"]
        self._log.say("info", f"leaves after {sent} bytes sent and {received} received", **stats)

    def _report_untaken_codec(self) -> None:
        """Warns on rank 0 if GRADWIRE_COMPRESSION is set and nothing used it."""
        codec = self._settings.compression
        if self.rank == 0 and codec not in (None, "none") and codec_override.is_taken() is False:
            self._log.say(
                "warning",
                f"GRADWIRE_COMPRESSION={codec} is set, and nothing was compressed by it: register the DDP hook, wrap "
                "the optimizer, or call set_gradient_compression(), for which it stands then",
            )

    def _report_compressed(self) -> None:
        """Says on rank 0 what its codecs saved, so that a user sees that they were in use. Alone it sends nothing, and
        in a failed job other lines matter.
        """
        if self.rank != 0 or self.num_workers == 1 or uncaught_error.ended_the_script():
            return
        with contextlib.suppress(RuntimeError):  # this process is a fork of the one that opened the store
            raw, encoded = map(sum, zip(self.engine.pushed(), self.encoded_outside.bytes, strict=True))
            if raw > _SHOWN_RATIO * encoded > 0:
                sizes = f"{format_bytes(raw)} of gradients were sent as {format_bytes(encoded)}"
                text = f"compressed: {sizes}, {raw / encoded:.1f} times less"
                if self.decisions:
                    text += "; the samples by which codecs were chosen come on top"
                self._log.tell(text, bytes_raw=raw, bytes_encoded=encoded)

    def _leave(self) -> None:
        self._report_untaken_codec()
        self._report_compressed()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()
        if uncaught_error.ended_the_script():
            self.give_up(getattr(sys, "last_value", None))
        self.engine.close(self._own_error())
        self.collectives.await_begun(1.0)  # it fails now, and must not be there when Python ends
        self._print_messages()
        if recorder is not None:
            recorder.write()
        if uncaught_error.ended_the_script() and not connect.ends_as_one(self._kind):
            self.engine.retire()
            self._say_that_the_job_ends()
            return
        patience = self._settings.slow_abort
        if self.engine.serves_rendezvous or connect.ends_as_one(self._kind):
            _Serving(self.engine, self._log, patience, silence=5.0).outlast()
        else:
            _keep_until_exit(_Serving(self.engine, self._log, patience, silence=60.0))

    def _own_error(self) -> str:
        """Returns the error that ends this process, for workers that wait for it; empty if there is none, or they know
        it.
        """
        last = getattr(sys, "last_value", None)
        is_known = isinstance(last, _core.TransportError | _core.TimeoutError | _core.MembershipChanged)
        return "" if is_known else uncaught_error.in_words()

    def _say_that_the_job_ends(self) -> None:
        if not self.engine.outlast(0.0):
            self._log.say(
                "warning",
                "an error has ended this process, which the job needs to its end: the job ends with it",
            )

    def wait_until(self, done: Callable[[float], bool]) -> None:
        """Calls done(seconds) until it returns True, and prints the engine's notices in between."""
        began = time.perf_counter()
        self.engine.change_endless(1)
        try:
            while not done(1.0):
                self.print_notices()
        finally:
            self.engine.change_endless(-1)
            self.engine.let_go_of_arrays()
        self.waited_seconds += time.perf_counter() - began

    def print_notices(self) -> None:
        """Logs the engine's notices: a rank that is waited for, a codec that a device lacks. At level debug, also
        messages.
        """
        for notice in self.engine.take_notices():
            self._log.say("warning", notice)
        self._print_messages()

    def _print_messages(self) -> None:
        if self._log.reports("debug"):  # else there are none
            for line in self.engine.take_messages():
                self._log.say("debug", line)
