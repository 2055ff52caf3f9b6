"""The key-value store: MXNet's kvstore interface, with compression in every call.

Example:
    kv = gradwire.kv.create("dist_sync")
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.init(3, weight)
    kv.push(3, grad, priority=-1)
    kv.pull(3, out=total)      # no optimizer set: the sum of this round's pushes

`broadcast(name, tensor, root_rank)` and `push_pull(name, tensor, output)` are the same in the words of MXNet's RFC
16795, and all that a store of another maker needs: see `register`.

Values are float32, float16, bfloat16 or float64 arrays: NumPy's or PyTorch's. Float32 ones that are contiguous are sent
from and received into their own memory. PyTorch's may lie on a CUDA device: they are then encoded and decoded there,
behind the current stream, and only what is encoded crosses to the host; where the codec cannot do that, the floats do,
which is said once on stderr.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, overload

import numpy as np

from gradwire import _core, auto_placement, backend, checkpoint, environments, joining, settings
from gradwire.backend import AbstractKVStore, register
from gradwire.checkpoint import Restored
from gradwire.collectives import Collectives
from gradwire.compress import Compression
from gradwire.devices import DeviceSum, is_on_device, stream_of
from gradwire.log import Log
from gradwire.sparse import RowSparse, SparseKeys, holds_rows
from gradwire.timeline.recorder import Recorder

__all__ = ["AbstractKVStore", "KVStore", "Restored", "create", "join", "joined", "register", "stores"]

OwnName = Literal[
    "local",
    "local_update_cpu",
    "local_allreduce_cpu",
    "device",
    "local_allreduce_device",
    "dist",
    "dist_sync",
    "dist_sync_device",
    "dist_device_sync",
    "dist_async",
    "dist_async_device",
    "dist_device_async",
    "p3",
    "byteps",
    "allreduce",
    "horovod",
    "dist_sync_mpi",
    "allreduce_mpi",
    "nccl",
]

_DTYPES = ("float32", "float16", "bfloat16", "float64")

Key = int | str
_open: weakref.WeakSet[KVStore] = weakref.WeakSet()


def stores() -> list[str]:
    """Names every store that create() knows: gradwire's own, then those of other makers."""
    return [*joining.names(), *backend.names()]


@overload
def create(name: OwnName = "local", *, staleness: int | None = None) -> KVStore: ...


@overload
def create(name: str, *, staleness: int | None = None) -> Any: ...


def create(name: str = "local", *, staleness: int | None = None) -> Any:
    """Opens a store; all but `local` and `device` join the job that the environment describes (see `gradwire run`).

    `dist` and `dist_sync*` sum on parameter servers, and so do `byteps` and `p3`, the latter in slices of 256 KiB that
    urgent ones overtake. The names `local_*` are MXNet's for `local` and `device`.

    In `dist_async`, `dist_async_device` and `dist_device_async` servers apply each push when it arrives, whatever the
    other workers do, each part of a tensor (GRADWIRE_PARTITION_BYTES) as one: set_optimizer() first. pull() brings the
    weight as it is then, pushpull() the weight with this push in it. With a staleness bound a worker that is ahead by
    more steps waits for the slowest; stats() counts how stale pushes were.

    `allreduce` and `horovod` sum without: every worker owns a share of each
    gradient, and sums that for all. They join by MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE (as torchrun sets
    them) too. `dist_sync_mpi` is `allreduce` over MPI's messages, and in `allreduce_mpi` MPI sums as well, so that
    every worker must push the same keys in the same order: start these with mpirun (`--bind-to none`, or the threads
    of a rank share one core). What else in the process uses MPI (mpi4py) must have initialised it with
    MPI_THREAD_MULTIPLE; after a failure nobody finalises MPI, and mpirun ends the job. In `nccl` NCCL sums, on a GPU
    that each worker has to itself (arrays are still handed over on the CPU); it joins as `allreduce` does, and asks
    for the same order.

    With GRADWIRE_HIERARCHY=host the workers of one host sum first, uncompressed, and one of them sends; compression
    then acts on the host's sum. All else is as without, but that `allreduce_mpi` and `nccl` refuse it.

    With GRADWIRE_PLACEMENT=auto (`gradwire run --placement auto`) workers first measure their link, and rank 0 chooses
    between peers, servers and the library that sums, by GRADWIRE_PAYLOAD_BYTES; it tells why on stderr. The name then
    says only whether ranks reach each other over MPI (`*_mpi`) or by sockets.

    A store of another maker (see `register`) is whatever its class is, made without arguments.

    In a process whose role is server or scheduler (DMLC_ROLE or GRADWIRE_ROLE) it serves the job to its end and
    then ends the process, as users of MXNet's scripts expect.

    Args:
        name: one of `stores()`.
        staleness: of `dist_async*`: how many steps (pushes of a key) a worker may be ahead of the slowest. The same on
            all ranks. Default: the setting GRADWIRE_STALENESS_BOUND, which is none: any number.

    Returns: a KVStore, or the AbstractKVStore of another maker.

    Raises:
        TypeError: name is not a string.
        ValueError: an unknown name (the nearest valid ones are named), settings that are missing or bad, a staleness
            that is negative or for a store that sums, or a job that this process has joined already.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
        gradwire.TransportError: MPI or NCCL cannot be used here; says why, and what else can.
    """
    if not isinstance(name, str):
        raise TypeError(f"kv.create: name is {name!r}, expected a string such as 'dist_sync'")
    kind = name.lower()
    foreign = None if kind in joining.names() else _foreign(name)
    if staleness is not None:
        _check_staleness(name, staleness)
    if foreign is not None:
        return foreign()
    is_local = joining.is_local(kind)
    if not is_local and (other := joined()) is not None:
        raise ValueError(
            f"kv.create({name!r}): this process has joined its job already, by the store {other.type!r}; use that "
            "one everywhere (a process is one worker)"
        )
    settings.warn_unknown_variables()
    values = settings.read()
    if staleness is not None:
        values = dataclasses.replace(values, staleness_bound=int(staleness))
    if values.role != "worker":
        joining.serve(values)
    chooses = values.placement == "auto" and not is_local
    joined_by = (auto_placement if chooses else joining).open_engine(kind, values)
    store = KVStore(joined_by.store, joined_by.engine, values)
    _open.add(store)
    if not is_local:
        store.report_joined()
    if not is_local and store.rank == 0:
        environments.tell(store.type, store.num_workers)
    return store


def join(roll_call: str, rank: int, num_workers: int) -> KVStore:
    """Joins, as create("allreduce") does, a job that the environment says nothing of.

    Args:
        roll_call: where rank 0 is to serve the roll call, the same on all ranks: tcp://host:port, a port that is free.
        rank: this worker's number, from 0.
        num_workers: how many there are.

    Raises:
        ValueError: this process has joined a job already.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    if (other := joined()) is not None:
        raise ValueError(f"kv.join: this process has joined its job already, by the store {other.type!r}")
    here = dataclasses.replace(
        settings.read(), master=roll_call, scheduler=None, rank=rank, num_workers=num_workers, num_servers=0
    )
    store = KVStore("allreduce", joining.open_engine("allreduce", here).engine, here)
    _open.add(store)
    return store


def _check_staleness(name: str, staleness: Any) -> None:
    if not isinstance(staleness, int | np.integer) or isinstance(staleness, bool) or staleness < 0:
        raise ValueError(f"kv.create({name!r}): staleness={staleness!r}, expected a whole number, 0 or more")
    kind = name.lower()
    if not joining.applies_at_once(kind):
        at_once = ", ".join(store for store in joining.names() if joining.applies_at_once(store))
        raise ValueError(
            f"kv.create({name!r}): staleness={staleness} was given, and in this store no worker is ahead of another; "
            f"leave it out, or use one of {at_once}"
        )


def _foreign(name: str) -> type[AbstractKVStore]:
    if (kind := backend.find(name.lower())) is not None:
        return kind
    near = _core.nearest(name.lower(), stores()) if name else stores()[0]
    raise ValueError(
        f"kv.create: unknown store {name!r}; did you mean {near!r}? Valid are {', '.join(stores())}"
    )


def joined() -> KVStore | None:
    """Returns the open store by which this process has joined a job; None where there is none but local ones."""
    return next((store for store in _open if not store._is_local), None)


class KVStore(AbstractKVStore):
    """A worker's end of a store. Made by create().

    Methods that take a key also take a list of keys, with a list of values. A value may be a list of arrays, one
    per device, which are summed first: as they are in `dist_*`, through the codec with a residual per device in
    `local` and `device`, as MXNet does. Every call that waits can be interrupted by Ctrl-C.
    """

    def __init__(self, kind: str, engine: _core.Engine, values: settings.Settings) -> None:
        self._kind = kind
        self._settings = values
        self._ids: dict[Key, int] = {}
        self._sizes: dict[Key, int] = {}  # elements
        self._compression = Compression()
        self._devices = DeviceSum("none")
        self._optimizer: tuple[str, dict[str, float]] | None = None
        self._encodes_on_devices = not self._is_local and _core.build_info()["cuda_devices"] > 0
        self._log = Log.of(values, engine.rank)
        self.engine = engine
        self.unfinished: set[Callable[[], None]] = set()  # what close() is to end first, on this thread
        self.rows = SparseKeys(self)  # keys that were initialised with RowSparse
        self.collectives = Collectives(engine)  # all_reduce, all_gather, ...: exact, of any arrays
        self.decisions: list[dict[str, Any]] = []  # of compression="auto", for stats()
        self.waited_seconds = 0.0  # in wait_until()
        traced = values.timeline is not None and not (self._is_local and values.is_in_a_job)
        self._recorder = Recorder(engine, kind, str(values.timeline)) if traced else None

    # ---------------------------------------------------------------- what it is

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
    def compression(self) -> Compression:
        """The compression in force."""
        return self._compression

    @property
    def passthrough(self) -> bool:
        """True when a push of one value would come back as it went: one local worker, nothing compressed."""
        return self._is_local and self._compression.spec == "none"

    @property
    def _is_local(self) -> bool:
        return joining.is_local(self._kind)

    def is_capable(self, capability: str) -> bool:
        """Tells whether the store has "optimizer", "gradient_compression" or "gradient_compression:CODEC".

        Raises:
            ValueError: an unknown capability.
        """
        name, _, codec = capability.lower().partition(":")
        if name == "optimizer" and not codec:
            return True
        if name == "gradient_compression":
            return not codec or codec in [row["name"] for row in _core.codecs()]
        raise ValueError(
            f"is_capable: unknown capability {capability!r}; valid are optimizer, gradient_compression, "
            "gradient_compression:CODEC"
        )

    # ---------------------------------------------------------------- settings, the same on all ranks

    def set_gradient_compression(self, compression_params: Mapping[str, Any] | str) -> None:
        """Compresses every push from now on. Collective.

        Args:
            compression_params: {"type": "2bit", "threshold": 0.5}, plus "reply": "exact" (default where the codec
                has it), "fp32" or the codec's name; or the same as text, "2bit:threshold=0.5,reply=2bit".
                The setting GRADWIRE_COMPRESSION overrides it.

        Raises:
            ValueError: a bad type, parameter or reply; threshold=auto where servers have an optimizer; or ranks that
                differ (all ranks get the same error).
        """
        given = self._settings.compression or compression_params
        parsed = Compression.parse(given, reply=self._settings.reply)
        if not self._is_local:
            return self.use_compression(parsed)
        self._devices = DeviceSum(parsed.spec)
        self._compression = parsed
        return None

    def use_compression(self, compression: Compression) -> None:
        """Compresses what the engine sends, as given: for front ends that read settings themselves. Collective."""
        if self._optimizer is not None:
            self._require_own_scale("set_gradient_compression", compression)
        self.engine.set_compression(compression.spec, compression.reply)
        self._compression = compression

    def set_optimizer(self, name: str, /, **parameters: float) -> None:
        """Lets the servers update weights: pulls return weights from now on. Collective; init keys first.

        The same name again changes parameters and keeps the optimizer's state; another name begins anew. Servers keep
        weights in float32, whatever their keys' dtype (MXNet's multi_precision); a pull rounds them to it.

        Args:
            name: "sgd" (learning_rate, momentum, nesterov=0 or 1), "adam" and "adamw" (learning_rate, beta1, beta2,
                epsilon), "adagrad" (learning_rate, epsilon), all with wd, rescale_grad and clip_gradient; or "test"
                (rescale_grad), MXNet's. The formulas are torch.optim's; rescale_grad=1/num_workers makes means of sums.

        Raises:
            ValueError: an unknown name or parameter, a value out of range, ranks that differ, or a compression with
                threshold=auto.
        """
        self._require_own_scale("set_optimizer", self._compression)
        self.engine.set_optimizer(
            " ".join([name, *(f"{key}={value!r}" for key, value in parameters.items())])
        )
        self._optimizer = (name, parameters)

    def _require_own_scale(self, verb: str, compression: Compression) -> None:
        """Weights, which servers with an optimizer answer with, do not tell the scale of the next round; local stores
        encode before the engine does.
        """
        if not self._is_local and "threshold=auto" in compression.spec:
            raise ValueError(
                f"{verb}: {compression.spec} takes its scale from the sums of rounds, and servers with an optimizer "
                "answer with weights; give a threshold, as 2bit:threshold=0.5, or take another codec"
            )

    def set_learning_rate(self, learning_rate: float) -> None:
        """Gives the servers' optimizer another learning rate, from the next round on. Collective.

        Raises:
            RuntimeError: no optimizer is set.
            ValueError: as set_optimizer().
        """
        if self._optimizer is None:
            raise RuntimeError("set_learning_rate: no optimizer is set; call set_optimizer() first")
        name, parameters = self._optimizer
        self.set_optimizer(name, **{**parameters, "learning_rate": learning_rate})

    # ---------------------------------------------------------------- keys

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Declares keys and stores rank 0's values. Collective; once per key.

        Args:
            key: a str or an int, the same kind for all keys of a store; or a list of them.
            value: an array of any shape and dtype of float; or a list of them, one per key. Or RowSparse with their
                shapes: such a key is a table, to which rows are pushed (gradwire.sparse).

        Raises:
            ValueError: a key was declared before, int and str keys are mixed, or ranks differ in key, shape or
                dtype (every rank gets the same error, which names the first difference).
        """
        self._declare("init", key, value, 0)

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Adds value to the key's sum of this round; in `dist_async*` has servers apply it. Returns when value was
        taken; it may be reused then.

        Args:
            key: as init() was given it.
            value: an array of the key's size; float32 travels from its own memory. Or a RowSparse, of a table.
            priority: higher is sent sooner; front layers first is priority=-index. A whole number of 32 bits.

        Raises:
            ValueError: the key was not initialised, or value has another size.
            gradwire.TransportError: the job has failed; names the rank at fault.
        """
        _check_priority("push", priority)
        keys, values = _pairs("push", key, value)
        if holds_rows(values):
            return self.rows.push(keys, values, priority)
        checked = [self._arrays("push", name, item) for name, item in zip(keys, values, strict=True)]
        for name, arrays in zip(keys, checked, strict=True):
            merged = self._merged(name, arrays)
            self.engine.push(self._ids[name], merged, priority, **stream_of(merged))
        return None

    def pull(self, key: Key | Sequence[Key], out: Any, priority: int = 0) -> None:
        """Writes to out what the store holds after this worker's last push of the key: the sum of that round, or
        the weight when an optimizer is set, or the initial value. Waits for the other workers' pushes; in
        `dist_async*` only where this worker is too far ahead of them.

        Args:
            key: as init() was given it.
            out: an array, or a list of arrays that all get the value.
            priority: as in push().
        """
        _check_priority("pull", priority)
        keys, outs = _pairs("pull", key, out)
        targets = [self._target("pull", name, item) for name, item in zip(keys, outs, strict=True)]
        tickets = [
            self.engine.pull(self._ids[name], target.array, priority, **stream_of(target.array))
            for name, target in zip(keys, targets, strict=True)
        ]
        self._finish(tickets, targets)

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> None:
        """Push and pull in one; without out, in place. The fastest: arrays travel from and to their own memory.

        Args:
            key, value, priority: as in push().
            out: as in pull(). Of a table a RowSparse, which is set to all rows of the round.
        """
        _check_priority("pushpull", priority)
        keys, values = _pairs("pushpull", key, value)
        _, outs = _pairs("pushpull", key, value if out is None else out)
        if holds_rows(values):
            return self.rows.push_pull(keys, values, outs, priority)
        checked = [self._arrays("pushpull", name, item) for name, item in zip(keys, values, strict=True)]
        targets = [self._target("pushpull", name, item) for name, item in zip(keys, outs, strict=True)]
        tickets = []
        for name, arrays, target in zip(keys, checked, targets, strict=True):
            merged = target.meet(self._merged(name, arrays))
            identity, array = self._ids[name], target.array
            tickets.append(self.engine.push_pull(identity, merged, array, priority, **stream_of(array)))
        self._finish(tickets, targets)
        return None

    def row_sparse_pull(
        self, key: Key | Sequence[Key], out: Any, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Writes to out the rows row_ids of a table as this worker's last push left them: those of the round's sum,
        the weights when an optimizer is set, or the first values. Waits for the other workers' pushes.

        Args:
            key: as init() was given it, with a RowSparse.
            out: an array (len(row_ids), ...), which gets the rows in the order of row_ids; or a RowSparse, which is set
                to them ascending and each once; or a list of these, which all get the rows.
            priority: as in push().
            row_ids: whole numbers, (n,), in any order, repeated or not; for a list of keys, a list of them.

        Raises:
            ValueError: a key that is no table, row_ids outside it, or an out of another shape.
        """
        _check_priority("row_sparse_pull", priority)
        if row_ids is None:
            raise ValueError(
                "row_sparse_pull: row_ids is missing; say which rows, or pull a key that is no table"
            )
        keys, outs = _pairs("row_sparse_pull", key, out)
        _, wanted = _pairs("row_sparse_pull", key, row_ids)
        self.rows.pull(keys, outs, wanted, priority)

    def broadcast(
        self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0, root_rank: int = 0
    ) -> None:
        """Declares keys with one worker's values, and writes those to out on every rank. Collective; once a key.

        Args:
            key, value, priority: as in init() and pull().
            root_rank: of the worker whose values all get.
            out: as pull() takes it; without, value itself is written. A number is root_rank, as in the RFC's
                broadcast(name, tensor, root_rank).

        Raises:
            ValueError: as init() and pull(); or value is a RowSparse.
        """
        if holds_rows(value):
            raise ValueError("broadcast: rows are stored by init() and read by row_sparse_pull(); call these")
        if isinstance(out, int | np.integer):
            out, root_rank = None, int(out)
        self._declare("broadcast", key, value, root_rank)
        self.pull(key, value if out is None else out, priority)

    def push_pull(
        self, name: Key | Sequence[Key], tensor: Any, output: Any = None, priority: int = 0
    ) -> None:
        """As pushpull(name, tensor, output, priority), and a name that is new is declared, with zeros, by its first
        call: then a collective.
        """
        names, values = _pairs("push_pull", name, tensor)
        known = {*self._ids, *self.rows.names}
        if new := [i for i, one in enumerate(names) if one not in known]:
            self.init([names[i] for i in new], [_zeros_like(_first(values[i])) for i in new])
        self.pushpull(name, tensor, output, priority)

    def save_checkpoint(self, folder: str | PathLike[str], extra: bytes = b"") -> None:
        """Writes what workers and servers keep from step to step to a folder. Collective, between steps.

        That is: values and weights, the servers' optimizer with its state, what each rank's and each server's codec has
        not sent yet, agreed scales, numbers of rounds. It takes the place of what was in the folder only when all of it
        is on the disk. Sums of past rounds are not in it: without an optimizer, pull a key after a push of it.

        Args:
            folder: one that all workers see, such as one on NFS; made if it is not there.
            extra: this worker's own, for load_checkpoint() to give back: weights that a framework has, the state of its
                optimizer, where the data were.

        Raises:
            RuntimeError: a file cannot be written, on any rank; or a step is under way.
        """
        checkpoint.save(self.engine, folder, extra, self._devices)

    def load_checkpoint(self, folder: str | PathLike[str]) -> Restored:
        """Goes on from a checkpoint: in a job of the same keys that has pushed nothing yet. Collective, once keys are
        initialised and, for gradwire.torch, the optimizer is made and its state_dict is loaded.

        With as many workers, what follows is, bit for bit, what would have followed where it was saved. The job may
        have other numbers of workers and servers: what was not sent yet is kept then too (kvstore/README.md,
        "Checkpoints").

        Args:
            folder: as save_checkpoint() was given it.

        Returns: the checkpoint's num_workers, and the extra of this rank; of a rank that is new, that of `rank`.

        Raises:
            gradwire.DecodeError: a file is damaged, or none of a checkpoint; nothing has changed.
            ValueError: it is of other keys or of another optimizer, or this job has pushed; nothing has changed.
            RuntimeError: a file cannot be read.
        """
        optimizer, restored = checkpoint.load(self.engine, folder, self._devices)
        if optimizer is not None:
            self._optimizer = optimizer
        return restored

    def barrier(self) -> None:
        """Waits until every worker is here."""
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
            ValueError: a store in which a library sums (`allreduce_mpi`, `nccl`), or hierarchy=host.
            gradwire.TimeoutError: a worker has not joined within GRADWIRE_SLOW_ABORT; names it.
        """
        return self.engine.join()

    def stats(self, servers: bool = False) -> dict[str, Any]:
        """Returns what this worker's end of the store has done so far.

        Args:
            servers: also what the servers say, who are asked and waited for: waited_for: by rank, how often a
                partition's round was whole only when that worker's push came (of one thread of each server; with
                hierarchy=host of the workers that lead their hosts; 0 where a library sums); slowest_rank: whose it was
                most often, None where there was no round.

        Returns: bytes_raw: pushed, as float32; bytes_encoded: the payloads made of them; ratio: how many times smaller
            those are, None where there are none; residual_norm: Euclidean, of all that this worker's codecs have not
            sent yet, in one pass over it, None while a round is in progress; bytes_sent, bytes_received: at the
            sockets, headers and what is no gradient included; codec_seconds: of all threads that encode and decode;
            stage_seconds: of all partitions in each stage (`gradwire timeline --help`), while they were traced
            (GRADWIRE_TIMELINE or timeline()), else 0. Of servers those that live in this process.
            decisions: what compression="auto" has chosen, step by step, and why. staleness, of
            `dist_async*`: {staleness: parts of tensors}, how many parts this worker has pushed whose weight had
            that many pushes of other workers since this one had been given it.

            With hierarchy=host, bytes_encoded is what the worker that leads its host has made of the host's sum, and 0
            on the others; so ratio is the leader's own gradients over the host's payloads, and None on the others.
        """
        raw, encoded = self.engine.pushed()
        counters = self.engine.counters()
        asked: dict[str, Any] = {}
        if servers:
            waited_for = self.engine.waited_for()
            asked["waited_for"] = waited_for
            asked["slowest_rank"] = waited_for.index(max(waited_for)) if any(waited_for) else None
        return asked | {
            "bytes_raw": raw,
            "bytes_encoded": encoded,
            "ratio": raw / encoded if encoded else None,
            "residual_norm": self.engine.residual_norm(),
            "bytes_sent": counters["bytes_sent"],
            "bytes_received": counters["bytes_received"],
            "codec_seconds": self.engine.codec_seconds(),
            "stage_seconds": self.engine.stage_seconds(),
            "decisions": list(self.decisions),
            "staleness": self.engine.staleness(),
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

        Where others need this process to the end (it serves the roll call; or over MPI, which ends for all ranks at
        once), waits until they have left too.
        """
        if self in _open and not self._is_local:
            self._report_left()
        _open.discard(self)
        with contextlib.ExitStack() as leaving:
            leaving.callback(self._leave)
            for finish in list(self.unfinished):
                leaving.callback(finish)

    def report_joined(self) -> None:
        """Reports, to who asked for it, what job this is."""
        workers, servers = self.num_workers, self.engine.num_servers
        text = f"has joined {self.type!r} with {workers} workers and {servers} servers"
        self._log.say("info", text, store=self.type, workers=workers, servers=servers)

    def _report_left(self) -> None:
        if not self._log.reports("info"):
            return
        stats = self.stats()
        sent, received = stats["bytes_sent"], stats["bytes_received"]
        self._log.say("info", f"leaves after {sent} bytes sent and {received} received", **stats)

    def _leave(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()
        self.engine.close()
        if recorder is not None:
            recorder.write()
        began = time.monotonic()
        pause = 5.0
        while not self.engine.outlast(pause) and time.monotonic() - began < self._settings.slow_abort:
            waited = f"{time.monotonic() - began:.0f} s"
            self._log.say(
                "warning",
                f"all is done here; has waited {waited} for the other workers to leave the job, which needs this "
                "process to its end",
            )
            pause = 60.0

    # ---------------------------------------------------------------- inside

    # What a call was given is checked whole before any of it is sent: a call that fails halfway would leave this
    # worker a round ahead of the others in the keys before the mistake.

    def _declare(self, verb: str, key: Key | Sequence[Key], value: Any, root: int) -> None:
        keys, values = _pairs(verb, key, value)
        known = [*self._ids, *self.rows.names]
        if len({type(name) for name in [*known, *keys]}) > 1:
            raise ValueError(
                f"{verb}: mixed key types are not allowed; use either all int or all str keys in one store"
            )
        if holds_rows(values) or set(keys) & set(self.rows.names):
            if twice := [name for name in keys if name in known]:
                raise ValueError(f"{verb}: key {twice[0]!r} was declared before; declare each key once")
            return self.rows.init(verb, keys, values, root)
        arrays = [_array(verb, name, _first(item)) for name, item in zip(keys, values, strict=True)]
        ids = self.engine.declare(
            [
                (str(k), list(np.shape(_first(v))), _dtype(_first(v)))
                for k, v in zip(keys, values, strict=True)
            ]
        )
        for name, identity, array in zip(keys, ids, arrays, strict=True):
            self._ids[name], self._sizes[name] = identity, _size(array)
            self.engine.init(identity, array, root)
        return None

    def _expect_size(self, verb: str, key: Key, given: int) -> None:
        self.rows.require_dense(verb, key)
        if key not in self._ids:
            known = [str(name) for name in self._ids]
            near = f"; did you mean {_core.nearest(str(key), known)!r}?" if known else ""
            raise ValueError(f"{verb}: key {key!r} has not been initialised{near}; call init first")
        if given != self._sizes[key]:
            raise ValueError(f"{verb}: key {key!r} has {self._sizes[key]} elements, {given} given")

    def _arrays(self, verb: str, key: Key, value: Any) -> list[Any]:
        """The values of a key's devices as float32, contiguous; on their devices where all are."""
        values = value if isinstance(value, list | tuple) else [value]
        stay = self._encodes_on_devices and all(is_on_device(part) for part in values)
        arrays = [_array(verb, key, part, stay) for part in values]
        _expect_one_shape(f"{verb}: the values of key {key!r}", arrays)
        self._expect_size(verb, key, _size(arrays[0]))
        return arrays

    def _target(self, verb: str, key: Key, out: Any) -> _Target:
        target = _Target(verb, key, out, self._encodes_on_devices)
        self._expect_size(verb, key, _size(target.array))
        return target

    def _merged(self, key: Key, arrays: list[Any]) -> Any:
        compresses = self._is_local and not self.passthrough
        if len(arrays) > 1 and is_on_device(arrays[0]):
            return self._devices.add_on_device(arrays)
        return self._devices.add(key, arrays) if len(arrays) > 1 or compresses else arrays[0]

    def _finish(self, tickets: Sequence[_core.Ticket], targets: Sequence[_Target]) -> None:
        for ticket, target in zip(tickets, targets, strict=True):
            self.wait_until(ticket.wait)
            target.deliver()
        self.print_notices()

    def wait_until(self, done: Callable[[float], bool]) -> None:
        """Calls done(seconds) until it returns True, and prints in between what the engine has to say."""
        began = time.perf_counter()
        while not done(1.0):
            self.print_notices()
        self.waited_seconds += time.perf_counter() - began

    def print_notices(self) -> None:
        """Reports on stderr what the engine has to say: a rank that is waited for, a codec that a device lacks."""
        for notice in self.engine.take_notices():
            self._log.say("warning", notice)


class _Target:
    """Where a pull writes: the caller's own memory, or a float32 array that is copied out at the end."""

    def __init__(self, verb: str, key: Key, out: Any, may_be_on_device: bool) -> None:
        self._outs = [_out(verb, key, item) for item in (out if isinstance(out, list | tuple) else [out])]
        _expect_one_shape(f"{verb}: the outs of key {key!r}", self._outs)
        first = self._outs[0]
        if _is_plain(first) and (may_be_on_device or not is_on_device(first)):
            self.array, self._copies = first, self._outs[1:]
        else:
            self._receive_on_host()

    def _receive_on_host(self) -> None:
        self.array, self._copies = np.empty(tuple(self._outs[0].shape), dtype=np.float32), self._outs

    def meet(self, value: Any) -> Any:
        """Returns the value where the engine can take both: on one device, or else both on the host."""
        if is_on_device(value) and is_on_device(self.array) and value.device == self.array.device:
            return value
        if is_on_device(self.array):
            self._receive_on_host()
        return value.cpu() if is_on_device(value) else value

    def deliver(self) -> None:
        for item in self._copies:
            if isinstance(item, np.ndarray):
                item[...] = np.asarray(self.array)
            else:
                item.copy_(_like(item, self.array))


def _out(verb: str, key: Key, out: Any) -> Any:
    """Checks one array that a pull is to write to; a tensor of torch comes back without its history."""
    if not hasattr(out, "dtype") or isinstance(out, np.generic):
        raise TypeError(
            f"{verb}: out of key {key!r} is a {type(out).__name__}, expected a NumPy or PyTorch array to write to"
        )
    if _dtype(out) not in _DTYPES:
        raise ValueError(
            f"{verb}: out of key {key!r} has dtype {_dtype(out)}, expected one of {', '.join(_DTYPES)}"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError(f"{verb}: out of key {key!r} is read-only; give a writable array")
    return _detached(out)


def _expect_one_shape(what: str, arrays: Sequence[Any]) -> None:
    shapes = [tuple(array.shape) for array in arrays]
    if len(set(shapes)) != 1:
        given = ", ".join(map(str, shapes)) or "no array at all"
        raise ValueError(f"{what} have shapes {given}; give one shape, or no list")


def _size(array: Any) -> int:
    return math.prod(array.shape)


def _zeros_like(value: Any) -> Any:
    if isinstance(value, RowSparse):
        return RowSparse([], [], value.shape)
    return np.zeros(np.shape(value), np.float32)


def _like(item: Any, array: Any) -> Any:
    import torch  # item is a torch tensor, so torch is there

    return torch.as_tensor(array).reshape(item.shape)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) else value


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _is_plain(value: Any) -> bool:
    """True for memory that the engine can use as it is: float32, contiguous, on the CPU or a CUDA device."""
    if isinstance(value, np.ndarray):
        return value.dtype == np.float32 and bool(value.flags.c_contiguous)
    return (
        str(value.dtype) == "torch.float32" and value.device.type in ("cpu", "cuda") and value.is_contiguous()
    )


def _array(verb: str, key: Key, value: Any, may_be_on_device: bool = False) -> Any:
    if not hasattr(value, "dtype"):
        raise TypeError(
            f"{verb}: the value of key {key!r} is a {type(value).__name__}, expected a NumPy or PyTorch array"
        )
    if _dtype(value) not in _DTYPES:
        raise ValueError(
            f"{verb}: the value of key {key!r} has dtype {_dtype(value)}, expected one of {', '.join(_DTYPES)}"
        )
    plain = np.asarray(value) if isinstance(value, np.generic) else _detached(value)
    if isinstance(plain, np.ndarray):
        return plain if _is_plain(plain) else np.asarray(plain, dtype=np.float32, order="C")
    here = plain if may_be_on_device else plain.cpu()
    return here.float().contiguous()


def _key(verb: str, key: Any) -> Key:
    if not isinstance(key, int | str | np.integer):
        raise TypeError(f"{verb}: key {key!r} is a {type(key).__name__}, expected a str or an int")
    if not isinstance(key, str):
        return int(key)
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{verb}: key {key!r} is not text that UTF-8 can write; name it otherwise") from None
    return key


def _check_priority(verb: str, priority: Any) -> None:
    if not isinstance(priority, int | np.integer) or not -(2**31) <= priority < 2**31:
        raise ValueError(
            f"{verb}: priority={priority!r}, expected a whole number that 32 bits hold, such as -3"
        )


def _pairs(verb: str, key: Key | Sequence[Key], value: Any) -> tuple[list[Key], list[Any]]:
    if isinstance(key, int | str | np.integer):
        return [_key(verb, key)], [value]
    if not isinstance(key, list | tuple | np.ndarray):
        raise TypeError(f"{verb}: key is {key!r}, expected a str, an int or a list of them")
    keys = [_key(verb, name) for name in key]
    if value is None or len(value) != len(keys):
        given = "none" if value is None else str(len(value))
        raise ValueError(f"{verb}: {len(keys)} keys but {given} values; give one value per key")
    return keys, list(value)


def _close_all() -> None:
    with contextlib.ExitStack() as closing:  # all of them, also where one fails
        for store in list(_open):
            closing.callback(store.close)


atexit.register(_close_all)
