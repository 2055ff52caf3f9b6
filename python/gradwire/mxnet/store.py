"""MXNet's KVStore on gradwire's stores: the same methods, with compression in all of them.

In a store that sums, each worker updates its own copy of the weights with MXNet's own optimizer, from the sum, which is
the same on all workers. So any optimizer, scheduler and multiplier works, the learning rate can change, and the state
can be saved. Nothing is pickled and sent. Optimizers whose numbers differ in a step are an error (agreement.py). In
`dist_async*` there are no sums, and the servers update, by one of their own rules.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from gradwire import kv
from gradwire.mxnet import optimizers, rows
from gradwire.mxnet.agreement import Agreement
from gradwire.mxnet.errors import KVStoreError
from gradwire.mxnet.job_sums import JobSums
from gradwire.mxnet.key_lists import Key, grouped
from gradwire.mxnet.local_sums import LocalSums
from gradwire.mxnet.no_autograd import no_autograd
from gradwire.stores import connect

__all__ = ["KVStore"]


class _Declared:
    """A key as it was initialised."""

    def __init__(self, value: Any) -> None:
        self.shape = value.shape
        self.dtype = np.dtype(value.dtype).name
        self.stype = value.stype


class KVStore(mx.kvstore.KVStore):  # type: ignore[misc]
    """A worker's end of a store, with the methods of `mxnet.kvstore.KVStore`. mx.kv.create() makes it after patch().

    Methods that take a key also take a list of keys with a list of values. For each key a value is an NDArray, or a
    list of NDArrays of several devices, which are summed first. float32 NDArrays on the host are sent from their own
    memory.

    Calls return before their work is done, as MXNet's do; code that reads an NDArray waits for it. The next call raises
    errors that occur meanwhile. Calls on row_sparse arrays wait, and so does every call in a store in which a library
    sums (`allreduce_mpi`, `nccl`).
    """

    def __init__(self, name: str = "local") -> None:
        """
        Args:
            name: one of gradwire.kv.stores(). All but `local`, `device` and their other names join the job that the
                environment describes.

        Raises: as gradwire.kv.create().
        """
        self._name = name.lower()
        self._store: kv.KVStore = kv.create(name)
        self._is_local = connect.is_local(self._store.type)
        self._updates_on_servers = connect.applies_at_once(self._store.type)
        self._sums = LocalSums(self._store) if self._is_local else JobSums(self._store)
        self._keys: dict[Key, _Declared] = {}
        self._weights: dict[Key, Any] = {}  # where this worker updates them
        self._own_updater: Callable[[Key, Any, Any], None] | None = None
        self._agreement: Agreement | None = None  # of the optimizers in it
        self._on_servers = optimizers.OnServers(self._store)
        self._keeps_float32 = False
        self._warned_of_sparse = False

    def __del__(self) -> None:
        """MXNet's would free a handle, which there is not."""

    # ---------------------------------------------------------------- what it is

    @property
    def type(self) -> str:
        """The name that the store was created by."""
        return self._name

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._store.rank

    @property
    def num_workers(self) -> int:
        """The number of workers of the job."""
        return self._store.num_workers

    @property
    def is_open(self) -> bool:
        """False once the store is closed."""
        return self._sums.is_of(self._store)

    @property
    def _updater(self) -> Any:
        """What updates, by MXNet's name for it: Trainer.load_states() asks it for its optimizer."""
        return self._on_servers if self._updates_on_servers else self._own_updater

    @_updater.setter
    def _updater(self, updater: Any) -> None:
        self._own_updater = updater

    @property
    def gradwire(self) -> kv.KVStore:
        """The gradwire.kv store below: stats(), collectives, timeline()."""
        return self._store

    def is_capable(self, capability: str) -> bool:
        """Returns True if the store has "optimizer", "gradient_compression" or "gradient_compression:CODEC".

        Raises: ValueError: an unknown capability.
        """
        return self._store.is_capable(capability)

    def get_num_dead_node(self, node_id: int = 0, timeout: int = 60) -> int:
        """Returns 0: with gradwire a peer's death ends the job, so a worker that can ask has no dead peers.

        MXNet before 1.0 had this method.

        Args:
            node_id, timeout: not used; dead peers are noticed by themselves (GRADWIRE_LIVENESS_TIMEOUT).

        Raises: gradwire.TransportError: the job has failed; names the rank at fault.
        """
        self._sums.raise_failure()
        return 0

    # ---------------------------------------------------------------- settings, the same on all ranks

    def set_gradient_compression(self, compression_params: Mapping[str, Any] | str) -> None:
        """Compresses every push and pushpull from now on, before or after init(). Collective.

        Args:
            compression_params: {"type": "2bit", "threshold": 0.5} or any other codec of gradwire, as for
                gradwire.kv.KVStore.set_gradient_compression(). `gradwire codecs` lists all.

        Raises:
            ValueError: a bad type, parameter or reply, or ranks differ.
        """
        self._store.set_gradient_compression(compression_params)
        self._sums.use_compression(self._store.compression.spec)

    def set_optimizer(self, optimizer: Any) -> None:
        """Makes pulls return weights from now on, which the optimizer updates. Collective.

        Args:
            optimizer: an optimizer of MXNet. In a store that sums, any; later changes of it apply (learning rate,
                scheduler), and all workers make them in the same step. In `dist_async*` SGD, NAG, Adam or Test, without
                scheduler and multipliers.

        Raises:
            KVStoreError: the workers' optimizers differ, or the servers do not have it.
        """
        if self._updates_on_servers:
            return self._on_servers.give(optimizer)
        if not self._is_local:
            self._require_agreement(optimizer)
        self._keeps_float32 = bool(getattr(optimizer, "multi_precision", False))
        self._set_updater(mx.optimizer.get_updater(optimizer))
        self._agreement = self._sums.agreement(optimizer)
        return None

    def set_updater(self, updater: Callable[[Key, Any, Any], None]) -> None:
        """Makes each push call updater(key, sum, weight), which changes weight in place, in this worker.

        Args:
            updater: the same function on all workers. Pulls return the weight.

        Raises: KVStoreError: `dist_async*`, where servers update.
        """
        if self._updates_on_servers:
            raise KVStoreError(
                f"set_updater: in {self.type!r} the servers update, and run no function of the script's; use "
                "set_optimizer(), or a store that sums, such as dist_sync"
            )
        self._own_updater, self._agreement = updater, None

    _set_updater = set_updater  # MXNet's name

    def set_learning_rate(self, learning_rate: float) -> None:
        """Changes the optimizer's learning rate. In `dist_async*` it is the servers', and this is a collective.

        Trainer.set_learning_rate() changes this worker's, which is enough in stores that sum. In `dist_async*` the next
        push after it raises KVStoreError.

        Raises:
            RuntimeError: no optimizer is set.
            KVStoreError: set_updater() has set a function, which has no learning rate.
        """
        if self._updates_on_servers:
            return self._on_servers.set_learning_rate(learning_rate)
        if self._own_updater is None:
            raise RuntimeError("set_learning_rate: no optimizer is set; call set_optimizer() first")
        if not isinstance(self._own_updater, mx.optimizer.Updater):
            raise KVStoreError(
                "set_learning_rate: what updates is a function of the script's, given to set_updater(), and no "
                "optimizer; change the rate where the function has it, or call set_optimizer()"
            )
        self._own_updater.optimizer.set_learning_rate(learning_rate)
        return None

    # ---------------------------------------------------------------- keys

    @no_autograd
    def init(self, key: Any, value: Any) -> None:
        """Declares keys and stores rank 0's values. Collective; once per key.

        Args:
            key: a str or an int, the same kind for all keys of a store; or a list of them.
            value: an NDArray of float32, float16 or float64, in `local` and `device` of any dtype. A row_sparse array
                makes a table of rows.

        Raises:
            KVStoreError: a key was declared before, int and str keys are mixed, or another dtype.
            ValueError: ranks differ in key, shape or dtype.
        """
        pairs = [(name, values[0]) for name, values in grouped("init", key, value)]
        for name, _ in pairs:
            if name in self._keys:
                raise KVStoreError(f"init: key {name!r} was declared before; declare each key once")
        if len({type(name) for name in [*self._keys, *(name for name, _ in pairs)]}) > 1:
            raise KVStoreError(
                "init: mixed key types are not allowed; use either all int or all str keys in one store"
            )
        self._sums.init(pairs)
        self._keys |= {name: _Declared(first) for name, first in pairs}

    @no_autograd
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Adds value to the key's sum of this round. With an optimizer, the sum of all workers updates the weight.

        Args:
            key: the key, as init() was given it.
            value: NDArrays of the key's shape, dense or row_sparse.
            priority: a higher priority is sent sooner. For front layers first use -index. Default: 0.

        Raises:
            KVStoreError: the key was not initialised; value has another shape; or the learning rate of an optimizer on
                servers was changed in this worker only.
            gradwire.TransportError: the job has failed; names the rank at fault.
        """
        self._tell_servers("push")
        for name, values in self._given("push", key, value):
            if self._own_updater is None:
                self._sums.push(name, values, priority)
            else:
                self._update(name, values, priority)

    @no_autograd
    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Writes to out what the store holds after this worker's last push of the key.

        That is the weight if an optimizer is set, else the sum of that round, or the first value.

        Args:
            key: the key, as init() was given it.
            out: an NDArray, or a list that all get the value.
            priority: as in push(). Default: 0.
            ignore_sparse: True: leaves row_sparse outs unchanged, and warns once. False: writes all rows to them.
                row_sparse_pull() writes some. Default: True.

        Raises: KVStoreError: as push().
        """
        for name, outs in self._given("pull", key, out):
            taken = [one for one in outs if one.stype == "default" or not ignore_sparse]
            if len(taken) < len(outs):
                self._warn_of_sparse(name)
            if taken:
                self._deliver(self._held(name, priority), taken)

    @no_autograd
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Pushes and pulls in one call.

        Args:
            key, value, priority: as in push().
            out: as in pull(). Default: value is overwritten.
        """
        self._tell_servers("pushpull")
        wanted = dict(self._given("pushpull", key, value if out is None else out))
        given = self._given("pushpull", key, value)
        may_reuse = len(given) == 1  # else keys may share arrays, and one's sum would be another's value
        held = {
            name: self._exchanged(name, values, wanted[name] if may_reuse else [], priority)
            for name, values in given
        }
        for name, outs in wanted.items():
            self._deliver(held[name], [one for one in outs if not _are_same(one, held[name])])

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Declares keys with rank 0's values, and writes these to out on every rank. Collective; once per key.

        Args:
            key, value: as in init().
            out, priority: as in pull().
        """
        self.init(key, value)
        self.pull(key, out, priority)

    @no_autograd
    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Writes the rows row_ids of a table to out, and waits for them.

        Args:
            key: the key, as init() was given it, with a row_sparse value.
            out: a RowSparseNDArray, which is set to these rows; or a list of them.
            priority: as in push(). Default: 0.
            row_ids: an NDArray of whole numbers, of any shape, in any order, with or without repetition; for several
                keys or outs a list of them, or a list of one for all.

        Raises:
            KVStoreError: row_ids is missing, an out is not row_sparse, or the key is not a table.
        """
        if row_ids is None:
            raise KVStoreError("row_sparse_pull: row_ids is missing; say which rows")
        given = self._given("row_sparse_pull", key, out)
        ids = _flat(row_ids)
        count = sum(len(outs) for _, outs in given)
        if len(ids) not in (1, count):
            raise KVStoreError(
                f"row_sparse_pull: {len(ids)} row_ids but {count} outs; give one for each, or one for all"
            )
        of_outs = iter(list(ids) * (count // len(ids)))
        for name, outs in given:
            for one in outs:
                self._pull_rows(name, one, rows.distinct(next(of_outs)), priority)

    def barrier(self) -> None:
        """Waits until every worker has called it.

        In `dist_async*`, weights after it contain what all workers pushed, and waited for by waitall(), before it.
        """
        self._sums.raise_failure()
        self._store.barrier()

    _barrier = barrier  # MXNet's name

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Writes the optimizer's state to a file. Every worker has all of it.

        In `dist_async*` it is the servers' state, with this worker's pushes, in the format of gradwire.kv; any worker
        may call it alone.

        Args:
            fname: path of the file.
            dump_optimizer: also write the optimizer, with its learning rate and counts. Default: False.

        Raises: KVStoreError: this worker has no optimizer; in `dist_async*` the servers have none before the first
        push.
        """
        if self._updates_on_servers:
            if self._on_servers.is_waiting:
                raise KVStoreError(
                    "save_optimizer_states: the servers get their optimizer with the first push, and have no states "
                    "yet; save after it"
                )
            self._sums.finish()
            return self._store.save_optimizer_states(fname, dump_optimizer)
        self._require_states("save_optimizer_states")
        super().save_optimizer_states(fname, dump_optimizer)
        return None

    def load_optimizer_states(self, fname: str) -> None:
        """Restores the file of save_optimizer_states(), on all workers, from the same bytes.

        In `dist_async*` it is a collective that reads rank 0's file, after init() and set_optimizer(). A learning rate
        in the file then applies to the optimizer here too.

        Args:
            fname: path of the file.

        Raises:
            KVStoreError: no optimizer is set in this worker.
            Others: in `dist_async*` as gradwire.kv.KVStore.load_optimizer_states().
        """
        if self._updates_on_servers:
            self._on_servers.hand_over()
            self._sums.finish()
            before = self._store.optimizer
            self._store.load_optimizer_states(fname)
            if self._store.optimizer is not before:  # the file has brought its own
                self._on_servers.take_over()
            return
        self._require_states("load_optimizer_states")
        super().load_optimizer_states(fname)

    def close(self, *, finish: bool = True) -> None:
        """Leaves the job. Called at the end of the script for stores that are still open.

        Args:
            finish: True: complete all earlier calls first. False: leave at once, and the job fails for the others.

        Raises: gradwire.TransportError: with finish, the job has failed, and no call has reported it yet.
        """
        self._sums.close(finish=finish)

    def _send_command_to_servers(self, head: int, body: str) -> None:
        raise KVStoreError(
            f"_send_command_to_servers({head}, ...): gradwire's servers take no commands, and unpickle nothing; use "
            "set_optimizer(), set_gradient_compression(), or `gradwire run --timeline` in place of the profiler's"
        )

    def compare_optimizers(self, optimizer: Any) -> None:
        """Begins to compare the workers' optimizers, of which each takes its next step outside of the store, as that of
        a Trainer with update_on_kvstore=False. Collective.

        Raises: KVStoreError: their numbers differed in the last step; names ranks and values.
        """
        if self._agreement is None:
            self._agreement = self._sums.agreement(optimizer)
        if self._agreement is not None:
            self._agreement.compare(optimizer)

    # ---------------------------------------------------------------- inside

    def _given(self, verb: str, key: Any, value: Any) -> list[tuple[Key, list[Any]]]:
        """The keys and values of a call, checked whole before any of it is sent."""
        if value is None:
            raise KVStoreError(f"{verb}: there is no {'out' if 'pull' in verb else 'value'}; give an NDArray")
        pairs = grouped(verb, key, value)
        for name, arrays in pairs:
            if name not in self._keys:
                raise KVStoreError(f"{verb}: key {name!r} has not been initialised; call init first")
            if arrays[0].shape != self._keys[name].shape:
                raise KVStoreError(
                    f"{verb}: key {name!r} has shape {self._keys[name].shape}, {arrays[0].shape} given"
                )
        return pairs

    def _update(self, name: Key, values: Sequence[Any], priority: int) -> None:
        assert self._own_updater is not None
        weight = self._weight(name)
        if self._agreement is not None and isinstance(self._own_updater, mx.optimizer.Updater):
            self._agreement.note_push(name, self._own_updater.optimizer)
        total = self._sums.push_pull(name, values, priority)
        self._own_updater(name, total if total.dtype == weight.dtype else total.astype(weight.dtype), weight)

    def _exchanged(self, name: Key, values: Sequence[Any], outs: Sequence[Any], priority: int) -> Any:
        """What a pushpull brings. Where a value is the only one of outs too, it may be written at once."""
        if self._own_updater is not None:
            self._update(name, values, priority)
            return self._weights[name]
        in_place = len(values) == 1 == len(outs) and _are_same(values[0], outs[0])
        return self._sums.push_pull(name, values, priority, values[0] if in_place else None)

    def _weight(self, name: Key) -> Any:
        """The weight that this worker updates: at first what the store holds, in the key's storage type and dtype."""
        if name not in self._weights:
            declared, held = self._keys[name], self._sums.pull(name, 0)
            dtype = "float32" if self._keeps_float32 and declared.dtype == "float16" else declared.dtype
            weight = held.tostype("default").astype(dtype)  # a copy
            self._weights[name] = _all_rows(weight) if declared.stype == "row_sparse" else weight
        return self._weights[name]

    def _held(self, name: Key, priority: int) -> Any:
        return self._sums.pull(name, priority) if self._own_updater is None else self._weight(name)

    def _deliver(self, held: Any, outs: Sequence[Any]) -> None:
        for one in outs:
            (held if held.stype == one.stype else held.tostype(one.stype)).copyto(one)

    def _pull_rows(self, name: Key, out: Any, row_ids: Any, priority: int) -> None:
        if out.stype != "row_sparse":
            raise KVStoreError(f"row_sparse_pull: out of key {name!r} is {out.stype}, expected row_sparse")
        count = self._keys[name].shape[0]
        if outside := [int(row) for row in row_ids if not 0 <= row < count]:
            raise KVStoreError(
                f"row_sparse_pull: row_ids of key {name!r} hold {outside[0]}, and it has {count} rows"
            )
        if len(row_ids) == 0:
            found = mx.nd.sparse.zeros("row_sparse", out.shape, dtype=out.dtype)
        elif self._own_updater is None:
            found = self._sums.pull_rows(name, row_ids, priority)
        else:
            found = mx.nd.sparse.retain(self._weight(name), mx.nd.array(row_ids, dtype="int64"))
        (found if found.dtype == out.dtype else found.astype(out.dtype)).copyto(out)

    def _warn_of_sparse(self, name: Key) -> None:
        if not self._warned_of_sparse:
            warnings.warn(
                f"pull: row_sparse outs are left as they are (key {name!r}, and others); use row_sparse_pull(), or "
                "pull(..., ignore_sparse=False) for all rows",
                stacklevel=4,
            )
            self._warned_of_sparse = True

    def _tell_servers(self, verb: str) -> None:
        """Hands over the servers' optimizer at the first push: after the keys, before which scripts may set it."""
        self._on_servers.hand_over()
        self._on_servers.require_its_rate(verb)

    def _require_agreement(self, optimizer: Any) -> None:
        mine = json.dumps(optimizers.hyper_parameters(optimizer)).encode()
        everyone = self._store.engine.all_gather("gradwire.mxnet optimizer", mine)
        difference = optimizers.first_difference([json.loads(text) for text in everyone])
        if difference is not None:
            raise KVStoreError(
                f"set_optimizer: {difference}; each worker updates its own copy of the weights, so give all the same"
            )

    def _require_states(self, verb: str) -> None:
        if not isinstance(self._own_updater, mx.optimizer.Updater):
            raise KVStoreError(
                f"{verb}: there is no optimizer in this worker; call set_optimizer() on a store that sums"
            )


def _are_same(one: Any, other: Any) -> bool:
    return bool(one.handle.value == other.handle.value)


def _flat(nested: Any) -> list[Any]:
    return [leaf for item in nested for leaf in _flat(item)] if isinstance(nested, list | tuple) else [nested]


def _all_rows(weight: Any) -> Any:
    """A dense array as a RowSparseNDArray that has all rows, those of zeros too, as MXNet's optimizers demand."""
    every = mx.nd.arange(weight.shape[0], dtype="int64")
    return mx.nd.sparse.row_sparse_array((weight, every), shape=weight.shape, dtype=weight.dtype)
