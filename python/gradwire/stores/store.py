"""KVStore: keys, pushes and pulls, and what servers do with them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from gradwire import _core
from gradwire.compress import Compression
from gradwire.settings import definitions as settings
from gradwire.sparse import SparseKeys, holds_rows, zeros_like
from gradwire.stores import checkpoint, codec_override, connect
from gradwire.stores.arrays import Target, widened
from gradwire.stores.checkpoint import Restored
from gradwire.stores.codec_choice import naming_the_variable
from gradwire.stores.dense import DenseKeys
from gradwire.stores.devices import DeviceSum, is_on_device, on_host, stream_of
from gradwire.stores.keys import Key, check_priority, gathered, pairs
from gradwire.stores.nonfinite import NonfiniteSums
from gradwire.stores.refusals import told_to_all
from gradwire.stores.store_compression import StoreCompression
from gradwire.stores.unsent import Unsent
from gradwire.stores.worker import Worker


class KVStore(Worker):
    """A worker's end of a store. create() makes it.

    Methods that take a key also take a list of keys with a list of values. A value may be a list of arrays, one per
    device, which are summed first: uncompressed in `dist_*`; through the codec with a residual per device in `local`
    and `device`, as in MXNet. Ctrl-C interrupts every call that waits.
    """

    def __init__(self, kind: str, engine: _core.Engine, values: settings.Settings) -> None:
        super().__init__(kind, engine, values)
        self.nonfinite = NonfiniteSums(self.rank)
        self.devices = DeviceSum("none", self.nonfinite)  # what local stores encode
        self.asked_compression: Compression | None = None  # by set_gradient_compression(), last
        self._optimizer: tuple[str, dict[str, float]] | None = None
        self.rows = SparseKeys(self)  # keys that were initialised with RowSparse
        uses_devices = _core.build_info()["cuda_devices"] > 0
        self.dense = DenseKeys(engine, self.rows, uses_devices)  # all other keys
        self._compression = StoreCompression(engine, (self.dense, self.rows))

    @property
    def compression(self) -> Compression:
        """The compression in force: that of a gradwire.torch optimizer or hook while it has borrowed it (lend())."""
        return self._compression.in_force

    @property
    def own_compression(self) -> Compression:
        """The compression of this store's keys and tables, as it was set on the store."""
        return self._compression.own

    @property
    def passthrough(self) -> bool:
        """True if a pushed value comes back unchanged: one local worker without compression."""
        return self._is_local and self.compression.spec == "none"

    @property
    def optimizer(self) -> tuple[str, dict[str, float]] | None:
        """Name and parameters of the servers' optimizer, from set_optimizer() or a file; None if there is none."""
        return self._optimizer

    @property
    def keeps_weights(self) -> bool:
        """True if servers have an optimizer: they then reply to a push with a weight, not with a sum."""
        return self._optimizer is not None

    def is_capable(self, capability: str) -> bool:
        """Returns True if the store has "optimizer", "gradient_compression" or "gradient_compression:CODEC".

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

    def stats(self, servers: bool = False, *, residuals: bool = True) -> dict[str, Any]:
        """As Worker.stats(). In `local` and `device`, each device of a value encodes.

        There, bytes_raw, bytes_encoded, ratio, residual_norm and share_sent count what the devices gave, each by
        itself.

        Args:
            servers, residuals: as Worker.stats().
        """
        found = super().stats(servers, residuals=residuals)
        return found | self.devices.stats_beside(found, residuals) if self._is_local else found

    # ---------------------------------------------------------------- settings, the same on all ranks

    def set_gradient_compression(self, compression_params: Mapping[str, Any] | str) -> None:
        """Compresses every push from now on. Collective; waits for this worker's earlier pushes.

        Args:
            compression_params: a codec as a mapping, {"type": "2bit", "threshold": 0.5}, or as text,
                "2bit:threshold=0.5,reply=2bit". `gradwire codecs` lists all codecs. GRADWIRE_COMPRESSION overrides it.
                Two more parameters are accepted with every codec:

                - "reply": how sums are sent back: "exact", "fp32" or the codec's name. Default: "exact" if the codec
                  has it, else the codec's name.
                - "weights": how servers with an optimizer send weights: "fp32"; "fp16" or "bf16", rounded, while the
                  server keeps float32; or "delta:CODEC", such as "delta:int8": the weight first, then encoded changes.
                  In text it comes last: "2bit:threshold=0.5,weights=delta:int8:block=64". Default: "fp32".

        With deltas, what the codec leaves out is sent later. All workers that got the reply of the same round have the
        same bits. Each worker then keeps a second copy of the weights, and each server one, in `dist_async*` one for
        every worker. Tables of rows are always sent as float32.

        A codec cannot send a NaN or an infinity, and fp16 no value beyond 65504. If a worker pushes one, the key's sum
        is NaN on every rank, with a warning that names the key. Weights of servers with an optimizer stay finite.
        Optimizers and hooks of gradwire.torch that are given a codec use it for themselves only.

        Raises:
            ValueError: a bad type, parameter, reply or weights; threshold=auto where servers have an optimizer; weights
                for a store without servers; ranks differ (all ranks get the same error).
        """
        codec_override.take()
        override = self._settings.compression
        given = override or compression_params
        with told_to_all(self.engine, "compression"), naming_the_variable(override):
            parsed = Compression.parse(given, reply=self._settings.reply)
        if not self._is_local:
            self.use_compression(parsed)
            self.asked_compression = parsed
            return
        parsed.require_whole_weights(f"set_gradient_compression: the store {self.type!r} has no servers")
        self.devices.use(parsed.spec)
        self._compression.use_beside_engine(parsed)

    def use_compression(self, compression: Compression) -> None:
        """Compresses what the engine sends. Collective. For front ends that read settings themselves.

        Ends a loan: whatever has borrowed then uses this compression too.
        """
        self._compression.use(compression)

    def lend(self, compression: Compression, borrower: object) -> None:
        """Compresses everything without a codec of its own as given, until give_back(). Collective.

        Keys and tables of this store, also later ones, keep the compression that was set before.

        Args:
            compression: applies until give_back().
            borrower: kept until the loan ends; replaces an earlier one.
        """
        self._compression.lend(compression, borrower)

    def give_back(self, borrower: object) -> None:
        """Ends a loan, unless another borrower has come since.

        Not a collective, so that a worker may end by itself. Whatever is made next at this store calls reclaim().
        """
        self._compression.give_back(borrower)

    def reclaim(self) -> None:
        """Restores the engine's compression after a loan that has ended. Collective if there was one."""
        self._compression.reclaim()

    def set_optimizer(self, name: str, /, **parameters: float) -> None:
        """Lets the servers update weights: pulls return weights from now on. Collective; init keys first.

        | name | parameters with their defaults |
        |---|---|
        | "sgd" | learning_rate=0.01, momentum=0, nesterov=0 (or 1, which needs a momentum) |
        | "adam", "adamw" | learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8 |
        | "adagrad" | learning_rate=0.01, epsilon=1e-10 |
        | "mxnet_sgd" | as "sgd"; its momentum holds steps, so a new learning rate leaves it unchanged |
        | "test" | rescale_grad only; MXNet's test optimizer |

        All but "test" also take wd=0, rescale_grad=1 and clip_gradient=-1 (no clipping). rescale_grad=1/num_workers
        turns sums into means. Formulas are those of torch.optim, and of MXNet for "mxnet_sgd". The defaults are
        torch.optim's, except the learning rate of SGD (0.001 there) and the weight decay of AdamW (0.01 there).

        The same name again changes parameters and keeps the optimizer's state. Another name starts again. Servers keep
        weights in float32, whatever the dtype of their keys (MXNet's multi_precision). A pull rounds them to it. Keys
        that were pushed before start with what pull() returns, the sum of their last round, as in MXNet.

        Args:
            name: see the table.
            parameters: see the table. A number is anything that float() accepts, also NumPy's; True is 1.

        Raises:
            ValueError: an unknown name or parameter; a value out of range; ranks differ; a compression with
                threshold=auto; a store of on_failure="continue"; or a key without a value: one from a checkpoint of
                sums that was not pushed since.
        """
        with told_to_all(self.engine, "optimizer"):
            if not isinstance(name, str) or len(name.split()) != 1:
                raise ValueError(
                    f"set_optimizer: name={name!r} was given, expected one word; give parameters beside it, as in "
                    "set_optimizer('sgd', learning_rate=0.1)"
                )
            numbers = {key: _number(name, key, value) for key, value in parameters.items()}
        self.engine.set_optimizer(" ".join([name, *(f"{key}={value!r}" for key, value in numbers.items())]))
        self._optimizer = (name, numbers)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Changes the learning rate of the servers' optimizer, from the next round on. Collective.

        Raises:
            RuntimeError: no optimizer is set.
            ValueError: as set_optimizer().
        """
        if self._optimizer is None:
            raise RuntimeError("set_learning_rate: no optimizer is set; call set_optimizer() first")
        name, parameters = self._optimizer
        self.set_optimizer(name, **{**parameters, "learning_rate": learning_rate})

    def save_optimizer_states(self, fname: str | PathLike[str], dump_optimizer: bool = False) -> None:
        """Writes the servers' optimizer state of every key (momentum, moments, step counts) to one file, whole or not
        at all.

        Weights are not in it: pull and save those. It is not a collective: rank 0 may call it alone between its steps,
        as in `if kv.rank == 0:`. Servers take no step without this worker, so the states fit together. In `dist_async*`
        they do take steps, and give the current state of each partition. The file is written on this worker's host. If
        several ranks write one file, the last one counts.

        Args:
            fname: the file. Its folder must exist.
            dump_optimizer: also write the optimizer's parameters, such as the learning rate, for
                load_optimizer_states() to set. Default: False.

        Raises:
            RuntimeError: no optimizer is set, or the file cannot be written.
            ValueError: a key was initialised with a RowSparse, whose state no file holds.

        Source: MXNet 1.9.1, KVStore.save_optimizer_states, which refuses stores of several processes.
        """
        self.engine.save_optimizer_states(os.fspath(fname), bool(dump_optimizer))

    def load_optimizer_states(self, fname: str | PathLike[str]) -> None:
        """Restores the file of save_optimizer_states(). Collective between steps; init keys and set_optimizer() first.

        The job must have the same keys and optimizer. It may have other weights and other numbers of workers and
        servers.

        Args:
            fname: the file, as rank 0 sees it (`allreduce_mpi` and `nccl`: every rank). If it was written with
                dump_optimizer, its optimizer is set first, whatever was set before.

        Raises:
            gradwire.DecodeError: the file is damaged or has another format; names it. Nothing has changed.
            ValueError: it has other keys or another optimizer; ranks that read it have different files; nothing has
                changed. Or a key was initialised with a RowSparse.
            RuntimeError: no optimizer is set, or the file cannot be read.
        """
        optimizer = self.engine.load_optimizer_states(os.fspath(fname))
        if optimizer:
            self._optimizer = checkpoint.parse_optimizer(optimizer)

    # ---------------------------------------------------------------- keys

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Declares keys and stores rank 0's values. Collective; once per key.

        Args:
            key: a str or an int, the same kind for all keys of a store; or a list of them.
            value: an array of any shape and any floating or complex dtype; or a list of them, one per key. float64 and
                complex128 are summed in 64 bits with the codec "none"; other codecs, and servers with an optimizer,
                work in float32. Or a RowSparse with the shape of a table, to which rows are pushed (gradwire.sparse).

        Raises:
            ValueError: a key was declared before; int and str keys are mixed; or ranks differ in key, shape or dtype
                (every rank gets the same error, which names the first difference).
        """
        self._declare("init", key, value, 0)

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Adds value to the key's sum of this round; in `dist_async*`, lets servers apply it.

        It returns when value was taken, which may then be reused. That is at once; or, if GRADWIRE_PUSH_AHEAD_BYTES are
        taken by rounds that cannot begin yet, when the key's earlier rounds are over.

        Args:
            key: the key, as init() was given it.
            value: an array of the key's size. If it has the key's dtype, float16 or bfloat16, it is read from its own
                memory; else it is copied. For a table, a RowSparse.
            priority: a higher priority is sent sooner, as a whole number of 32 bits. For front layers first use -index.
                Default: 0.

        Raises:
            ValueError: the key was not initialised, or value has another size.
            gradwire.TransportError: the job has failed; names the rank at fault.
        """
        check_priority("push", priority)
        keys, (values,) = gathered(*pairs("push", key, value))
        if holds_rows(values):
            return self.rows.push(keys, values, priority)
        checked = [self.dense.arrays("push", name, item) for name, item in zip(keys, values, strict=True)]
        for name, arrays in zip(keys, checked, strict=True):
            merged = self._merged(name, arrays)
            taken, _ = self.engine.push(self.dense.ids[name], merged, priority, **stream_of(merged))
            self.wait_until(taken.wait)
        return None

    def pull(self, key: Key | Sequence[Key], out: Any, priority: int = 0) -> None:
        """Writes to out what the store holds after this worker's last push of the key.

        That is the sum of that round, or the weight if an optimizer is set, or the initial value. It waits for the
        other workers' pushes; in `dist_async*` only if this worker is too far ahead of them.

        If servers send weights as deltas, the first pull after a push returns the weight that all workers hold, which
        lacks what the deltas' codec left out. The next pull, or one after pushpull(), returns the server's own weight:
        use it for an evaluation, a file or the end of training.

        Args:
            key: the key, as init() was given it.
            out: an array, or a list of arrays that all get the value.
            priority: as in push(). Default: 0.
        """
        check_priority("pull", priority)
        keys, (outs,) = gathered(*pairs("pull", key, out))
        targets = [self.dense.target("pull", name, item) for name, item in zip(keys, outs, strict=True)]
        tickets = [
            self.engine.pull(self.dense.ids[name], target.array, priority, **stream_of(target.array))
            for name, target in zip(keys, targets, strict=True)
        ]
        self._finish(keys, tickets, targets, [None] * len(keys))

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> None:
        """Pushes and pulls in one call. The fastest: arrays are sent from and received into their own memory.

        The first call with a new key declares it, with zeros, and is then a collective.

        Args:
            key: the key, as init() was given it, or a new one.
            value: what to push, as in push().
            out: as in pull(). For a table a RowSparse, which gets all rows of the round; in `dist_async*` those of
                value, as they are then. Default: value is overwritten.
            priority: as in push(). Default: 0.
        """
        self._push_pull("pushpull", key, value, out, priority)

    def row_sparse_pull(
        self, key: Key | Sequence[Key], out: Any, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Writes the rows row_ids of a table to out, as this worker's last push left them.

        They are rows of the round's sum, the weights if an optimizer is set, or the first values. It waits for the
        other workers' pushes; in `dist_async*` only if this worker is too far ahead of them, and it returns the current
        rows.

        Args:
            key: the key, as init() was given it, with a RowSparse.
            out: an array (len(row_ids), ...), which gets the rows in the order of row_ids; or a RowSparse, which gets
                each row once, in ascending order; or a list of these, which all get the rows.
            priority: as in push(). Default: 0.
            row_ids: whole numbers, (n,), in any order, with or without repetition; for a list of keys, a list of them.

        Raises:
            ValueError: the key is not a table; row_ids outside the table; or an out of another shape.
        """
        check_priority("row_sparse_pull", priority)
        if row_ids is None:
            raise ValueError(
                "row_sparse_pull: row_ids is missing; say which rows, or pull a key that is no table"
            )
        keys, outs = pairs("row_sparse_pull", key, out)
        _, wanted = pairs("row_sparse_pull", key, row_ids)
        self.rows.pull(keys, outs, wanted, priority)

    def broadcast(
        self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0, root_rank: int = 0
    ) -> None:
        """Declares keys with one worker's values, and writes these to out on every rank. Collective; once per key.

        Args:
            key: a str or an int, or a list of them, as in init().
            value: an array or a list of arrays, as in init().
            out: as in pull(). A number is root_rank, as in the RFC's broadcast(name, tensor, root_rank). Default: value
                is overwritten.
            priority: as in pull(). Default: 0.
            root_rank: the worker whose values all workers get. Default: 0.

        Raises:
            ValueError: as init() and pull(); or value is a RowSparse.
        """
        if holds_rows(value):
            raise ValueError("broadcast: rows are stored by init() and read by row_sparse_pull(); call these")
        if isinstance(out, int | np.integer):
            out, root_rank = None, int(out)
        outs = value if out is None else out
        self._declare("broadcast", key, value, root_rank, outs)
        self.pull(key, outs, priority)

    def push_pull(
        self, name: Key | Sequence[Key], tensor: Any, output: Any = None, priority: int = 0
    ) -> None:
        """As pushpull(name, tensor, output, priority). The name is that of MXNet's RFC 16795."""
        self._push_pull("push_pull", name, tensor, output, priority)

    def save_checkpoint(self, folder: str | PathLike[str], extra: bytes = b"") -> None:
        """Writes the state of workers and servers to a folder. Collective, between steps.

        The checkpoint has, for keys and for the rows of tables: values and weights, the servers' optimizer with its
        state, the residuals of ranks and servers, agreed scales, and the numbers of rounds. It replaces the previous
        checkpoint only when all of it is on disk. Sums of past rounds are not in it: without an optimizer, push a key
        before you pull it.

        Args:
            folder: a folder that all workers see, such as one on NFS. It is made if it does not exist.
            extra: this worker's own data, which load_checkpoint() returns: a framework's weights, the state of its
                optimizer, the position in the data. Default: empty.

        Raises:
            RuntimeError: a file cannot be written, on any rank; or a step is in progress.
        """
        checkpoint.save(self.engine, folder, extra, self.devices)

    def load_checkpoint(self, folder: str | PathLike[str]) -> Restored:
        """Resumes from a checkpoint, in a job with the same keys that has pushed nothing yet. Collective.

        Call it after keys are initialised. With gradwire.torch, make the optimizer and load its state_dict first. With
        the same number of workers, the resumed run has the bits of one that never stopped. The job may have other
        numbers of workers and servers; residuals are kept then too (kvstore/checkpoint/FORMAT.md). In `dist_async*`,
        all workers resume from the step of the one that was furthest.

        Args:
            folder: the folder that save_checkpoint() was given.

        Returns: the checkpoint's num_workers, and the extra of this rank; a new rank gets that of `rank`.

        Raises:
            gradwire.DecodeError: a file is damaged, or is not a checkpoint; nothing has changed.
            ValueError: folder is a file; it has other keys, tables or another optimizer; it has none and this store is
                a `dist_async*`; it has one that set_optimizer() rejects here; or this job has pushed. Nothing has
                changed.
            RuntimeError: a file cannot be read.
        """
        optimizer, restored = checkpoint.load(self.engine, folder, self.devices)
        if optimizer is not None:
            self._optimizer = optimizer
        return restored

    def unsent(self) -> Unsent:
        """Returns this worker's residuals by key. Waits for this worker's own rounds."""
        if self.dense.ids or self.rows.names:
            self.engine.await_rounds()
        return Unsent(self.dense.residuals(), self.rows.residuals(), self.devices.state())

    def go_on_with(self, unsent: Unsent) -> None:
        """Takes over what unsent() returned, maybe of another store, so that the next pushes send it.

        Residuals of keys that do not exist yet are used when these are initialised. Call it between this worker's
        rounds.

        Raises: ValueError: a key has another number of elements.
        """
        self.dense.set_residuals(unsent.keys)
        self.rows.set_residuals(unsent.tables)
        self.devices.load(*unsent.devices)

    # ---------------------------------------------------------------- inside

    # What a call was given is checked whole before any of it is sent: a call that fails halfway would leave this
    # worker a round ahead of the others in the keys before the mistake.

    def _declare(self, verb: str, key: Key | Sequence[Key], value: Any, root: int, outs: Any = None) -> None:
        has_rows = holds_rows(value)
        with told_to_all(self.engine, "declare rows" if has_rows else "declare"):
            keys, values = pairs(verb, key, value)
            if not 0 <= root < self.num_workers:
                raise ValueError(
                    f"{verb}: root_rank={root} is no worker's; expected 0 to {self.num_workers - 1}"
                )
            known = itertools.chain(self.dense.ids, self.rows.names)  # which are all of one type
            if len({type(name) for name in [*itertools.islice(known, 1), *keys]}) > 1:
                raise ValueError(
                    f"{verb}: mixed key types are not allowed; use either all int or all str keys in one store"
                )
            once: set[Key] = set()
            for name in keys:
                if self._is_known(name) or name in once:
                    raise ValueError(f"{verb}: key {name!r} was declared before; declare each key once")
                once.add(name)
            first_rows = self.rows.checked(verb, keys, values) if has_rows else []
            first_values = [] if has_rows else self.dense.checked(verb, keys, values)
            if outs is not None:
                self.dense.expect_outs(verb, keys, first_values, pairs(verb, key, outs)[1])
        if has_rows:
            self.rows.init(keys, first_rows, root)
        else:
            self.dense.init(keys, first_values, root)
        self._compression.cover_new_keys()

    def _is_known(self, key: Key) -> bool:
        return key in self.dense.ids or key in self.rows

    def _push_pull(self, verb: str, key: Key | Sequence[Key], value: Any, out: Any, priority: int) -> None:
        check_priority(verb, priority)
        names, given = pairs(verb, key, value)
        _, targets_given = pairs(verb, key, value if out is None else out)
        self._declare_new(verb, names, given)
        keys, (values, outs) = gathered(names, given, targets_given)
        if holds_rows(values):
            return self.rows.push_pull(keys, values, outs, priority)
        checked = [self.dense.arrays(verb, name, item) for name, item in zip(keys, values, strict=True)]
        targets = [self.dense.target(verb, name, item) for name, item in zip(keys, outs, strict=True)]
        tickets, sent = [], []
        for name, arrays, target in zip(keys, checked, targets, strict=True):
            merged = target.meet(self._merged(name, arrays))
            sent.append(merged)
            identity, array = self.dense.ids[name], target.array
            tickets.append(self.engine.push_pull(identity, merged, array, priority, **stream_of(array)))
        self._finish(keys, tickets, targets, sent)
        return None

    def _declare_new(self, verb: str, keys: Sequence[Key], values: Sequence[Any]) -> None:
        firsts = dict(zip(keys[::-1], values[::-1], strict=True))  # of a key that comes twice
        if new := [key for key in dict.fromkeys(keys) if not self._is_known(key)]:
            with told_to_all(self.engine, "declare rows" if holds_rows(firsts[new[0]]) else "declare"):
                zeros = [zeros_like(verb, key, firsts[key]) for key in new]
            self._declare(verb, new, zeros, 0)

    def _merged(self, key: Key, arrays: list[Any]) -> Any:
        is_dense = self.own_compression.spec == "none"
        compresses = self._is_local and (not is_dense or self.devices.has_leftover(key))
        if len(arrays) == 1 and not compresses:
            return arrays[0]
        if is_on_device(arrays[0]) and not compresses:
            return self.devices.add_on_device([widened(array) for array in arrays])
        return self.devices.summed(key, [widened(on_host(array)) for array in arrays])

    def _finish(
        self,
        keys: Sequence[Key],
        tickets: Sequence[_core.Ticket],
        targets: Sequence[Target],
        sent: Sequence[Any],
    ) -> None:
        for key, ticket, target, given in zip(keys, tickets, targets, sent, strict=True):
            self.wait_until(ticket.wait)
            self.mark(key, ticket, [target.array], given)
            target.deliver()
        self.print_notices()

    def mark(self, key: Key, ticket: _core.Ticket, sums: Sequence[Any], given: Any = None) -> None:
        """Has what a round brought for a key be NaN where a worker's values were not finite, and warns of it: see
        gradwire.stores.nonfinite. For front ends that call the engine themselves.

        Args:
            ticket: of the round; done.
            sums: arrays in which they are.
            given: what this worker gave, where that is still known.
        """
        spec = self._compression.of_keys.spec
        if self.keeps_weights or connect.applies_at_once(self.type):
            self.nonfinite.warn_of_update(key, spec, ticket, given)
        else:
            self.nonfinite.mark(key, spec, ticket, sums, given)


def _number(optimizer: str, parameter: str, value: Any) -> float:
    """A parameter as what servers read: also NumPy's numbers and 0-dimensional arrays, and True."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise ValueError(
            f"set_optimizer: {parameter}={value!r} of {optimizer} is a {type(value).__name__}, expected a number"
        )
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"set_optimizer: {parameter} of {optimizer} is a whole number beyond 1.8e308, expected a float"
        ) from None
