"""gradwire as a plugin of MXNet's KVStoreBase interface: it sums; optimizers stay in workers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import mxnet as mx

from gradwire import _core, kv
from gradwire.mxnet.agreement import Agreement
from gradwire.mxnet.errors import KVStoreError
from gradwire.mxnet.job_sums import JobSums
from gradwire.mxnet.key_lists import grouped
from gradwire.mxnet.local_sums import LocalSums
from gradwire.mxnet.no_autograd import no_autograd
from gradwire.stores.default_store import open_default

__all__ = ["Gradwire"]

_of_the_job: JobSums | None = None  # a process joins once; every Gradwire in it sums there
_numbers = itertools.count()  # of those that do, by which their keys differ


@mx.kvstore.KVStoreBase.register
class Gradwire(mx.kvstore.KVStoreBase):  # type: ignore[misc]
    """The store of mx.kv.create("gradwire").

    Inside a job it uses the job's servers, or its workers if there are none. Outside a job it runs in this process
    alone. A job may have several, each with its own keys: all ranks make equally many, in the same order.

    Calls take NDArrays and lists of them as gradwire.mxnet.KVStore's do, and return as early.
    """

    def __init__(self) -> None:
        """Raises:
        ValueError: the environment tells of several workers and not of where they meet.
        As gradwire.kv.create().
        """
        self._store = _store()
        self._is_local = self._store.type == "local"
        self._sums = LocalSums(self._store) if self._is_local else _sums(self._store)
        self._number = 0 if self._is_local else next(_numbers)
        self._declared: set[str] = set()
        self._agreement: Agreement | None = None  # of the Trainers that have it

    @property
    def type(self) -> str:
        """The name that the store is created by: "gradwire"."""
        return "gradwire"

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._store.rank

    @property
    def num_workers(self) -> int:
        """The number of workers of the job."""
        return self._store.num_workers

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Returns True if it has "gradient_compression" or "gradient_compression:CODEC"; it does not have "optimizer".

        Raises: ValueError: an unknown capability.
        """
        name, _, codec = capability.lower().partition(":")
        if name == "optimizer" and not codec:
            return False
        if name == "gradient_compression":
            return not codec or codec in [row["name"] for row in _core.codecs()]
        raise ValueError(
            f"is_capable: unknown capability {capability!r}; valid are optimizer, gradient_compression, "
            "gradient_compression:CODEC"
        )

    @no_autograd
    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Writes rank 0's value to out on every rank, bit for bit, as often as you like. Collective, and waits.

        Args:
            key: a str or an int, or a list of them.
            value: an NDArray per key, of the same shape and dtype on all ranks.
            out: an NDArray, or a list that all get the value.
            priority: not used. Default: 0.
        """
        wanted = dict(grouped("broadcast", key, out))
        for name, values in grouped("broadcast", key, value):
            first = values[0]
            if self.num_workers > 1:
                first = mx.nd.array(self._store.collectives.broadcast(first.asnumpy()), dtype=first.dtype)
            for one in wanted[name]:
                first.copyto(one)

    @no_autograd
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Writes the sum of all workers' values to out. The first call with a key is a collective.

        Args:
            key: a str or an int, or a list of them.
            value: an NDArray, or one per device; float32, float16 or float64, the same shape on all ranks.
            out: an NDArray, or a list that all get the sum. Default: value is overwritten.
            priority: a higher priority is sent sooner. For front layers first use -index. Default: 0.

        Raises:
            KVStoreError: a value is row_sparse or has another dtype.
            gradwire.TransportError: the job has failed; names the rank at fault.
        """
        wanted = dict(grouped("pushpull", key, value if out is None else out))
        for name, values in grouped("pushpull", key, value):
            _require_dense(name, [*values, *wanted[name]])
            # Beside the keys of a KVStore of the same job, and of others like this.
            identity = f"gradwire {self._number} {name!r}"
            if identity not in self._declared:
                self._sums.init([(identity, mx.nd.zeros(values[0].shape, dtype=values[0].dtype))])
                self._declared.add(identity)
            total = self._sums.push_pull(identity, values, priority)
            for one in wanted[name]:
                total.copyto(one)

    def compare_optimizers(self, optimizer: Any) -> None:
        """As gradwire.mxnet.KVStore.compare_optimizers(), which patch() has a Trainer call."""
        if self._agreement is None:
            self._agreement = self._sums.agreement(optimizer)
        if self._agreement is not None:
            self._agreement.compare(optimizer)

    def set_gradient_compression(self, compression_params: Mapping[str, Any] | str) -> None:
        """Compresses every pushpull from now on. Collective.

        Args:
            compression_params: as for gradwire.mxnet.KVStore.set_gradient_compression().

        Raises: ValueError: a bad type or parameter, or ranks differ.
        """
        self._store.set_gradient_compression(compression_params)
        self._sums.use_compression(self._store.compression.spec)

    def set_optimizer(self, optimizer: Any) -> None:
        """Raises NotImplementedError: the optimizer stays in the worker."""
        raise NotImplementedError(_NO_OPTIMIZER)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Raises NotImplementedError: use Trainer.save_states()."""
        raise NotImplementedError(_NO_OPTIMIZER)

    def load_optimizer_states(self, fname: str) -> None:
        """Raises NotImplementedError: use Trainer.load_states()."""
        raise NotImplementedError(_NO_OPTIMIZER)


_NO_OPTIMIZER = (
    "the store 'gradwire' sums, and the worker's optimizer updates: gluon.Trainer(update_on_kvstore=False) does; or "
    "gradwire.mxnet.patch() and mx.kv.create('dist_sync')"
)


def _store() -> kv.KVStore:
    """The store by which this process is in its job, joined now if need be; outside of a job one of its own."""
    if (joined := kv.joined()) is not None:
        return joined
    return open_default("gradwire.mxnet")


def _sums(store: kv.KVStore) -> JobSums:
    global _of_the_job
    if _of_the_job is None or not _of_the_job.is_of(store):
        _of_the_job = JobSums(store)
    return _of_the_job


def _require_dense(name: Any, arrays: list[Any]) -> None:
    if any(array.stype != "default" for array in arrays):
        raise KVStoreError(
            f"pushpull: key {name!r} has a row_sparse value, which the plugin does not sum; use gradwire.mxnet.patch() "
            "and mx.kv.create('dist_sync')"
        )
