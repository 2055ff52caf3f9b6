"""A worker's place in a job: who it is, what it has sent, its timeline, and leaving. It knows nothing of keys."""

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
from gradwire.stores import codec_override, connect, run_meter, uncaught_error
from gradwire.stores.backend import AbstractKVStore
from gradwire.stores.log import Log
from gradwire.timeline.recorder import Recorder


class _Serving(NamedTuple):
    """What a worker that has closed its store does for those that have not: it hosts servers, or their rendezvous."""

    engine: _core.Engine
    log: Log
    patience: float  # seconds
    silence: float  # seconds that it waits before it says so

    def outlast(self) -> None:
        """Waits until the others have left the job, too, or it has failed; at most for its patience."""
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
    """What every store of gradwire's own has, whatever its keys."""

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
        self.waited_seconds = 0.0  # in wait_until()
        traced = values.timeline is not None and not (self._is_local and values.is_in_a_job)
        self._recorder = Recorder(engine, kind, str(values.timeline)) if traced else None

    @property
    def type(self) -> str:
        """The name it was created by."""
        return self._kind

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self.engine.rank

    @property
    def num_workers(self) -> int:
        """How many workers the job has."""
        return self.engine.num_workers

    @property
    def goes_on(self) -> bool:
        """Whether its job goes on without workers that die."""
        return connect.goes_on(self._kind, self._settings)

    @property
    def generation(self) -> int:
        """How often the job has met: 1, and more after each change of its members."""
        return self.engine.generation

    @property
    def _is_local(self) -> bool:
        return connect.is_local(self._kind)

    def barrier(self) -> None:
        """Waits for every worker. In `dist_async*` what all have pushed before it is in the weights behind it."""
        self.engine.barrier()

    _barrier = barrier  # MXNet's name

    def join(self) -> int:
        """Says that this worker has run out of data; for workers with different numbers of batches.

        The others' rounds go on without it, as sums of what they push, until they join too; then all are awaited
        again, from one round on. What this worker's codec has not sent yet is kept, and comes with its next push.
        Meanwhile no worker may call another collective (barrier, init, set_gradient_compression, ...).

        Returns: the rank that joined last, the same on all ranks: it has seen all rounds, so its weights are the
            ones to broadcast.

        Raises:
            ValueError: a store in which a library sums (`allreduce_mpi`, `nccl`), or hierarchy=host; `dist_async*`,
                whose workers wait for the others in barrier() instead.
            gradwire.TimeoutError: a worker has not joined within GRADWIRE_SLOW_ABORT; names it.
        """
        return self.engine.join()

    def stats(self, servers: bool = False) -> dict[str, Any]:
        """Returns what this worker's end of the store has done so far.

        Args:
            servers: also what the servers say, who are asked and waited for: waited_for: by rank, how often a
                partition's round was whole only when that worker's push came (with hierarchy=host of the workers that
                lead their hosts; 0 where a library sums); slowest_rank: whose it was most often, None where there was
                no round; bytes_mirrored, with GRADWIRE_REPLICAS=1, else 0: of payload that servers have passed on to
                their mirrors.

        Returns: bytes_raw: pushed, as float32; bytes_encoded: the payloads made of them, of rows with their ids; ratio:
            how many times smaller those are, None where there are none; residual_norm: Euclidean, of all that this
            worker's codecs have not sent yet, of keys and rows, in one pass over it, None while a round is in progress;
            share_sent: of what they were given, x = gradient + residual, how much they sent, 1 - |residual|^2 / |x|^2,
            over all tables, and keys whose residual is on the host, that are compressed now, measured in a key's first
            two rounds and in every 16th, None without; bytes_sent, bytes_received: at the sockets, headers and what is
            no gradient included; codec_seconds: of all threads that encode and decode; stage_seconds: of all partitions
            in each stage (`gradwire timeline --help`), while they were traced (GRADWIRE_TIMELINE or timeline()), else
            0. Of servers those that live in this process.
            decisions: what compression="auto" has chosen, step by step, and why. staleness, of
            `dist_async*`: {staleness: parts of tensors}, how many parts this worker has pushed whose weight had
            that many pushes of other workers since this one had been given it; of a table of rows, what of it lies at
            one server is a part, whichever rows were pushed.
            replaced_servers: {rank: rank}, servers that have died, and who serves in their place (GRADWIRE_REPLICAS).
            faults: under GRADWIRE_FAULTS, {what was done to frames that this worker sent: how many}, else empty.

            With hierarchy=host, bytes_encoded is what the worker that leads its host has made of the host's sum, and 0
            on the others; so ratio is the leader's own gradients over the host's payloads, and None on the others.
        """
        raw, encoded = self.engine.pushed()
        counters = self.engine.counters()
        asked: dict[str, Any] = {}
        if servers:
            waited_for = self.engine.waited_for()
            asked["waited_for"] = waited_for
            asked["bytes_mirrored"] = self.engine.mirrored_bytes()
            asked["slowest_rank"] = waited_for.index(max(waited_for)) if any(waited_for) else None
        return asked | {
            "bytes_raw": raw,
            "bytes_encoded": encoded,
            "ratio": raw / encoded if encoded else None,
            "residual_norm": self.engine.residual_norm(),
            "share_sent": self.engine.share_sent(),
            "bytes_sent": counters["bytes_sent"],
            "bytes_received": counters["bytes_received"],
            "codec_seconds": self.engine.codec_seconds(),
            "stage_seconds": self.engine.stage_seconds(),
            "decisions": list(self.decisions),
            "staleness": self.engine.staleness(),
            "replaced_servers": self.engine.replaced_servers(),
            "faults": self.engine.faults(),
        }

    @contextlib.contextmanager
    def timeline(self, folder: str) -> Iterator[None]:
        """Traces what every partition goes through meanwhile: on every rank, with the same folder, around some steps.

        `gradwire timeline FOLDER` shows it. Servers of their own are traced only in a job that was started with
        `gradwire run --timeline` (GRADWIRE_TIMELINE), which traces all of it.

        Args:
            folder: to which this rank writes its part when it is over; made if it is not there.

        Raises:
            RuntimeError: all of the job is traced already.
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
        """Ends what is under way, and leaves the job cleanly. Called at exit for stores still open.

        A server that this process hosts goes on serving the others, and the process waits at its exit until they have
        left too. Where it serves the rendezvous, close() waits for them itself; and over MPI, which ends for all ranks
        at once. Not so where an uncaught error has ended the script: then the job ends with this process, but over MPI;
        or goes on without it, if it goes on without workers that die.
        """
        if self.is_open and not self._is_local:
            self._report_left()
            self._report_faults()
        self.is_open = False
        with contextlib.ExitStack() as leaving:
            leaving.callback(self._leave)
            if not uncaught_error.ended_the_script():  # others may never send what it waits for
                for finish in list(self.unfinished):
                    leaving.callback(finish)

    def give_up(self, error: BaseException | None) -> None:
        """Tells the others, where the job goes on, that this worker ends with an error, so that they go on without it
        at once; None: one of which Python tells no more.
        """
        if not self.goes_on:
            return
        words = "an error" if error is None else f"{type(error).__name__}: {error}"
        with contextlib.suppress(_core.TransportError, RuntimeError):  # nobody is there to tell
            self.engine.regroup(f"ended with {words}", False)

    def report_joined(self) -> None:
        """Reports, to who asked for it, what job this is."""
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
        """Rank 0 says that GRADWIRE_COMPRESSION was set, and that nothing was compressed by it."""
        codec = self._settings.compression
        if self.rank == 0 and codec not in (None, "none") and codec_override.is_taken() is False:
            self._log.say(
                "warning",
                f"GRADWIRE_COMPRESSION={codec} is set, and nothing was compressed by it: call "
                "set_gradient_compression(), or wrap the optimizer, for which it stands then",
            )

    def _leave(self) -> None:
        self._report_untaken_codec()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()
        if uncaught_error.ended_the_script():
            self.give_up(getattr(sys, "last_value", None))
        self.engine.close(self._own_error())
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
        """What ends this process, for those who wait for it in vain; empty: nothing, or what they have heard, too."""
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
        """Calls done(seconds) until it returns True, and prints in between what the engine has to say."""
        began = time.perf_counter()
        self.engine.change_endless(1)
        try:
            while not done(1.0):
                self.print_notices()
        finally:
            self.engine.change_endless(-1)
        self.waited_seconds += time.perf_counter() - began

    def print_notices(self) -> None:
        """Reports on stderr what the engine has to say: a rank that is waited for, a codec that a device lacks; and, to
        who asked for level debug, each message that was sent or heard.
        """
        for notice in self.engine.take_notices():
            self._log.say("warning", notice)
        self._print_messages()

    def _print_messages(self) -> None:
        if self._log.reports("debug"):  # else there are none
            for line in self.engine.take_messages():
                self._log.say("debug", line)
