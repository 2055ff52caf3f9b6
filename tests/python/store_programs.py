"""Random programs of what people do with a store, and the one thing that must hold after each of their steps.

delivered + owed = given, element by element: what all ranks gave to a key is what came back of it, and what codecs
keep, at the workers and at the servers, to send later. Whatever changes meanwhile: codec, reply, how weights are sent,
the job itself, which is saved and gone on from by as many workers or others, loses workers and takes in new ones.

A program is drawn from a seed, as a list of steps that is the same for all ranks; gradients are drawn by seed, step and
rank. Ranks are threads, each with the server of its share; `local` and `device` are of one. A worker that dies or comes
is what gradwire.elastic makes of it: the others go on in a new job from what store.unsent() has kept.

    PYTHONPATH=tests python -m python.store_programs --seeds 0 10000
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gradwire import RowSparse, _core, kv
from gradwire.settings import definitions as settings
from gradwire.stores.unsent import Unsent
from python.random_programs import add_seeds, play_all

DEADLINE = 120.0  # seconds, for what takes milliseconds on a machine that is not busy
RATE = 0.5  # of the servers' optimizer: a power of two, so that weights show gradients as they are
SHAPES = ((1,), (5,), (3, 4), (300,), (2, 3, 5))
LARGE = ((70_000,), (140_000,))  # several units of a codec; cut over the servers
ROWS = ((4, 3), (40, 2), (9, 1))
CODECS = (
    *(
        "none",
        "none",
        "fp16",
        "bf16",
        "2bit:threshold=0.5",
        "2bit:threshold=2",
        "2bit:threshold=auto",
        "int8",
    ),
    *(
        "int4:block=32",
        "nf2",
        "nf4",
        "fp8",
        "1bit",
        "1bit:threshold=0.5",
        "topk:ratio=0.3",
        "randomk:ratio=0.4",
        "qsgd",
    ),
    *("terngrad", "natural"),
)
WEIGHTS = ("fp32", "fp16", "bf16", "delta:int8", "delta:topk:ratio=0.3")
DTYPES = ("float32", "float16", "float64", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Step:
    """What all ranks do next. what: the name of a method of Player or, where a job ends with it, of Game."""

    what: str
    given: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.what}({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"


@dataclasses.dataclass(frozen=True)
class Program:
    seed: int
    kind: str  # of store
    workers: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number}: {step}" for number, step in enumerate(self.steps))
        return f"program {self.seed}: a {self.kind} store of {self.workers} workers\n{steps}"


@dataclasses.dataclass
class Account:
    """Of one key, or of one table as a whole array.

    Attributes:
        given, delivered: float64, sums of all rounds.
        mass: of the magnitudes that were given, by which rounding is judged.
        weight: with an optimizer, what it was when that was set, less what had been delivered by then.
        dtype: of the key, to which a pull into such an array would round; ours are into float32.
    """

    shape: tuple[int, ...]
    is_table: bool
    given: Any
    delivered: Any
    mass: Any
    weight: Any = None
    rounds: int = 0


# ------------------------------------------------------------------------------------- programs


class Author:
    """Draws a program. Keeps as much of the state as decides what may come next."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        self._keys: list[tuple[str, tuple[int, ...]]] = []
        self._tables: list[tuple[str, tuple[int, ...]]] = []
        self._codec = "none"
        self._has_optimizer = False
        self._is_saved = False
        self._has_sums_alone = (
            False  # of a checkpoint that was loaded: keys have no value before their next round
        )
        self._kind = self._rng.choice(("allreduce",) * 6 + ("local", "device", "dist_async"))
        self._is_local = self._kind in ("local", "device")
        self._applies_at_once = self._kind == "dist_async"
        self._workers = 1 if self._is_local else self._rng.choice((1, 2, 2, 3, 3))

    def write(self) -> Program:
        workers = self._workers
        steps = [self._init(is_first=True)]
        if self._applies_at_once:
            steps.append(self._set_optimizer())
        for _ in range(self._rng.randint(6, 16)):
            steps.append(self._next())
        steps += [Step("change", {"codec": "none"}), Step("flush", {})]
        return Program(self._seed, self._kind, workers, tuple(steps))

    def _next(self) -> Step:
        choices: list[tuple[int, Callable[[], Step]]] = [
            (8, self._exchange),
            (3, self._change),
            (1, self._init),
            (1, self._save),
            (1, self._refused),
        ]
        if self._tables:
            choices.append((4, self._exchange_rows))
        if self._is_saved:
            choices.append((2, self._load))
        if self._keys and not self._tables and not self._applies_at_once:  # tables need every worker
            choices.append((1, self._uneven))
        if not self._has_optimizer and not self._has_sums_alone and not self._codec.endswith("auto"):
            choices.append((1, self._set_optimizer))
        if not self._has_optimizer and not self._is_local:
            choices += [(1, self._die)] if self._workers > 1 else []
            choices += [(1, self._come)] if self._workers < 4 else []
        weights, calls = zip(*choices, strict=True)
        return self._rng.choices(calls, weights)[0]()

    def _init(self, is_first: bool = False) -> Step:
        number = len(self._keys) + len(self._tables)
        if self._rng.random() < 0.25 and not is_first:
            name, shape = f"table.{number}", self._rng.choice(ROWS)
            self._tables.append((name, shape))
            return Step("init_table", {"name": name, "shape": shape})
        new = []
        for place in range(self._rng.choice((1, 1, 2))):
            shape = self._rng.choice(LARGE if self._rng.random() < 0.05 else SHAPES)
            new.append((f"key.{number + place}", shape))
        self._keys += new
        by_first_use = self._rng.random() < 0.3 and not is_first
        return Step("init", {"keys": tuple(new), "by_first_use": by_first_use})

    def _exchange(self) -> Step:
        names = [name for name, _ in self._rng.choices(self._keys, k=self._rng.choice((1, 1, 2, 3)))]
        return Step(
            "exchange",
            {
                "names": tuple(names),  # one may be there twice
                "verb": self._rng.choice(("push", "pushpull", "push_pull")),
                "devices": self._rng.choice((1, 1, 1, 2, 3)),
                "dtype": self._rng.choice(DTYPES),
                "is_torch": self._rng.random() < 0.5,
                "in_place": self._rng.random() < 0.3,
                "rounds": self._rng.choice((1, 1, 2, 3)),
            },
        )

    def _exchange_rows(self) -> Step:
        name = self._rng.choice(self._tables)[0]
        return Step("exchange_rows", {"name": name, "verb": self._rng.choice(("push", "pushpull"))})

    def _change(self) -> Step:
        codecs = [text for text in CODECS if not (self._has_optimizer and text.endswith("auto"))]
        self._codec = self._rng.choice(codecs)
        options, name = [], self._codec.partition(":")[0]
        if self._rng.random() < 0.6 and not self._is_local:
            options.append(f"reply={self._rng.choice((name, 'fp32'))}")
        if self._has_optimizer and not self._is_local and self._rng.random() < 0.5:
            options.append(f"weights={self._rng.choice(WEIGHTS)}")
        mark = "," if ":" in self._codec else ":"
        codec = self._codec + (mark + ",".join(options) if options else "")
        return Step("change", {"codec": codec})

    def _uneven(self) -> Step:
        name = self._rng.choice(self._keys)[0]
        return Step("uneven", {"name": name, "rounds": tuple(self._rng.choices(range(4), k=4))})

    def _refused(self) -> Step:
        return Step("refused", {"name": self._rng.choice(self._keys)[0], "odd": self._rng.random() < 0.5})

    def _set_optimizer(self) -> Step:
        self._has_optimizer = True
        return Step("set_optimizer", {})

    def _save(self) -> Step:
        self._is_saved = True
        self._saved = (list(self._keys), list(self._tables), self._has_optimizer)
        return Step("save", {})

    def _load(self) -> Step:
        """A job of the checkpoint's keys: what was done since it was saved is forgotten."""
        keys, tables, self._has_optimizer = self._saved
        self._keys, self._tables = list(keys), list(tables)
        self._has_sums_alone = not self._has_optimizer
        if not self._is_local:
            self._workers = self._rng.choice((self._workers, self._rng.randint(1, 3)))
        self._change()
        return Step(
            "load", {"workers": self._workers, "codec": self._codec, "before": self._rng.random() < 0.5}
        )

    def _die(self) -> Step:
        self._workers -= 1
        return Step("die", {"rank": self._rng.randint(0, self._workers), "rounds": self._rng.randint(0, 2)})

    def _come(self) -> Step:
        self._workers += 1
        return Step("come", {})


# ------------------------------------------------------------------------------------- what ranks do


class Game:
    """Plays a program, job after job, and judges each step."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.workers = program.workers
        self.accounts: dict[str, Account] = {}
        self.saved: tuple[dict[str, Account], int] = ({}, 0)
        self.codec = "none"
        self.at = 0
        self.unsent: list[Unsent] = []  # by rank, of the commit that a new job goes on from
        self.loads: Step | None = None
        # Of one job: whether it goes on from another; what ranks show each other.
        self.goes_on = False
        self.shown: list[Any] = []
        self.all_here = threading.Barrier(1)

    def play(self) -> None:
        try:
            while self.at < len(self.program.steps):
                self._play_job()
        except BaseException as error:
            raise AssertionError(
                f"step {self.at} of {self.program}\n{type(error).__name__}: {error}"
            ) from error

    def _play_job(self) -> None:
        is_local = self.program.kind in ("local", "device")
        network = None if is_local else _core.InprocNetwork(self.workers)
        options = {"staleness_bound": None} if self.program.kind == "dist_async" else {}
        self.shown, self.all_here = [None] * self.workers, threading.Barrier(self.workers)
        self.goes_on = bool(self.accounts) or self.loads is not None  # before any rank begins
        errors: dict[int, BaseException] = {}

        def run(rank: int) -> None:
            try:
                engine = (
                    network.connect(rank, codec_threads=1, **options)
                    if network is not None
                    else _core.local_engine(codec_threads=1)
                )
                store = kv.KVStore(self.program.kind, engine, settings.read())
                try:
                    Player(self, store).play()
                finally:
                    store.close()
            except BaseException as error:
                errors[rank] = error
                self.all_here.abort()

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        real = {
            rank: error
            for rank, error in errors.items()
            if not isinstance(error, threading.BrokenBarrierError)
        }
        if real or errors:
            raise (real or errors)[min(real or errors)]
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        self._end_job(self.program.steps[self.at - 1] if self.at else None)

    def _end_job(self, last: Step | None) -> None:
        """Makes of the last step, where a job ends with it, what the next begins with."""
        self.loads = None
        if self.at == len(self.program.steps) and (last is None or last.what == "flush"):
            return
        assert last is not None
        if last.what == "load":
            self.loads = last
            self.workers, self.unsent = last.given["workers"], []
            self.accounts = _copied(self.saved[0])
        if last.what == "die":
            self.workers -= 1
        if last.what == "come":
            self.workers += 1
            self.unsent.append(Unsent())


def _copied(accounts: dict[str, Account]) -> dict[str, Account]:
    return {
        name: dataclasses.replace(
            account, given=account.given.copy(), delivered=account.delivered.copy(), mass=account.mass.copy()
        )
        for name, account in accounts.items()
    }


class Player:
    """One rank of one job."""

    def __init__(self, game: Game, store: kv.KVStore) -> None:
        self.game = game
        self.store = store
        self.rank, self.workers = store.rank, store.num_workers
        self.steps = game.program.steps
        self.accounts = game.accounts  # rank 0 changes them, between two meetings of all
        self.applies_at_once = game.program.kind == "dist_async"

    def play(self) -> None:
        at = self.game.at
        self._begin()
        while at < len(self.steps):
            step = self.steps[at]
            self.number = at
            ends = getattr(self, step.what)(**step.given)
            if not ends:  # else the next job judges what it begins with
                self._judge()
            at += 1
            if self.rank == 0:
                self.game.at = at
            if ends:
                return

    # ---------------------------------------------------------------- meeting

    def _show(self, value: Any) -> list[Any]:
        """Gives all ranks what each shows."""
        self.game.shown[self.rank] = value
        self.game.all_here.wait(DEADLINE)
        found = list(self.game.shown)
        self.game.all_here.wait(DEADLINE)
        return found

    def _judge(self) -> None:
        """delivered + owed = given."""
        owed = {name: np.zeros(account.shape) for name, account in self.accounts.items()}
        for unsent in self._show(self.store.unsent()):
            for name, residual in unsent.keys.items():
                owed[name] += residual.reshape(owed[name].shape)
            for (name, _), residual in unsent.devices[0].items():
                owed[name] += residual.reshape(owed[name].shape)
            for name, (ids, rows) in unsent.tables.items():
                np.add.at(owed[name], ids, rows.reshape(len(ids), owed[name].shape[1]))
        if self.rank == 0:
            for name, account in self.accounts.items():
                if account.is_table:
                    ids, rows = self.store.engine.server_row_residual(self.store.rows._tables[name].number)
                    np.add.at(owed[name], ids, rows.reshape(len(ids), owed[name].shape[1]))
                else:
                    residual = self.store.engine.server_residual(self.store.dense.ids[name])
                    if residual.size:
                        owed[name] += residual.reshape(account.shape)
                found, limit = account.delivered + owed[name], 1e-5 * (1 + account.rounds + account.mass)
                wrong = np.flatnonzero(np.abs(found - account.given).reshape(-1) > limit.reshape(-1))
                if wrong.size:
                    place = wrong[0]
                    raise AssertionError(
                        f"element {place} of {name}: {account.delivered.reshape(-1)[place]} delivered + "
                        f"{owed[name].reshape(-1)[place]} owed != {account.given.reshape(-1)[place]} given"
                    )
        self.game.all_here.wait(DEADLINE)

    def _enter(self, name: str, given: Any, delivered: Any) -> None:
        """Rank 0 enters a round: the ranks' gradients, (ranks,) + shape, and what came of them."""
        if self.rank == 0:
            account = self.accounts[name]
            account.given += given.sum(axis=0)
            account.mass += np.abs(given).sum(axis=0)
            account.rounds += len(given)
            if account.weight is None:
                account.delivered += delivered
            else:
                account.delivered = (account.weight - delivered) / RATE
        self.game.all_here.wait(DEADLINE)

    # ---------------------------------------------------------------- how a job begins

    def _begin(self) -> None:
        """A job that is not the first has the same keys, and what the one before has left."""
        if not self.game.goes_on:
            return
        loads = self.game.loads
        codec = self.game.codec if loads is None else loads.given["codec"]
        if loads is None or loads.given["before"]:
            self.store.set_gradient_compression(codec)
        dense = [(name, account.shape) for name, account in self.accounts.items() if not account.is_table]
        if dense:
            names, shapes = zip(*dense, strict=True)
            self.store.init(list(names), [np.zeros(shape, np.float32) for shape in shapes])
        if loads is None:
            self.store.go_on_with(self.game.unsent[self.rank])  # some before they are declared, some after
        for name, account in self.accounts.items():
            if account.is_table:
                self.store.init(name, RowSparse([], [], account.shape))
        if loads is not None:
            self.store.load_checkpoint(self.game.folder)
            if not loads.given["before"]:
                self.store.set_gradient_compression(codec)
            if self.rank == 0:
                self.game.codec = codec
        self._judge()

    # ---------------------------------------------------------------- steps

    def init(self, keys: Sequence[tuple[str, tuple[int, ...]]], by_first_use: bool) -> None:
        if self.rank == 0:
            for name, shape in keys:
                self.accounts[name] = _account(shape, is_table=False, has_optimizer=self.store.keeps_weights)
        self.game.all_here.wait(DEADLINE)
        names = [name for name, _ in keys]
        if by_first_use:
            self.exchange(
                names, "push_pull", devices=1, dtype="float32", is_torch=False, in_place=False, rounds=1
            )
        else:
            self.store.init(names, [np.zeros(shape, np.float32) for _, shape in keys])

    def init_table(self, name: str, shape: tuple[int, ...]) -> None:
        if self.rank == 0:
            self.accounts[name] = _account(shape, is_table=True, has_optimizer=self.store.keeps_weights)
        self.game.all_here.wait(DEADLINE)
        self.store.init(name, RowSparse([], [], shape))

    def exchange(
        self,
        names: Sequence[str],
        verb: str,
        devices: int,
        dtype: str,
        is_torch: bool,
        in_place: bool,
        rounds: int,
    ) -> None:
        once = list(dict.fromkeys(names))
        for number in range(rounds):
            drawn = [self._gradients((number, place), name, devices) for place, name in enumerate(names)]
            values = [[_array(part, dtype, is_torch) for part in each[self.rank]] for each in drawn]
            values = [each[0] if devices == 1 else each for each in values]
            outs = [np.zeros(self.accounts[name].shape, np.float32) for name in once]
            if verb == "push":
                self.store.push(list(names), values)
                self.store.pull(once, outs)
            elif in_place and devices == 1 and len(once) == len(names) and dtype in ("float32", "float64"):
                getattr(self.store, verb)(list(names), values)
                outs = [np.array(value, np.float32) for value in values]
            else:
                places = [once.index(name) for name in names]
                getattr(self.store, verb)(list(names), values, [outs[place] for place in places])
            for name, out in zip(once, outs, strict=True):
                parts = [each for each, given in zip(drawn, names, strict=True) if given == name]
                self._settle(name, sum(each.sum(axis=1) for each in parts), out)

    def _settle(self, name: str, given: Any, out: Any) -> None:
        """What all ranks got is the same; of weights what the servers hold counts, however they send it."""
        if self.applies_at_once:
            self.store.barrier()
        else:
            self._require_same(name, out)
        self._enter(name, given, self._whole_weight(name) if self.store.keeps_weights else out)

    def _require_same(self, name: str, out: Any) -> None:
        for rank, theirs in enumerate(self._show(out)):
            assert np.array_equal(theirs, out), f"ranks {rank} and {self.rank} got different values of {name}"

    def _whole_weight(self, name: str) -> Any:
        before = self.store.compression
        own = np.zeros(self.accounts[name].shape, np.float32)
        lags = before.weights.startswith("delta") and not self.applies_at_once
        if lags:  # a second pull brings the server's own
            self.store.pull(name, own)
        elif before.weights != "fp32":
            self.store.use_compression(dataclasses.replace(before, weights="fp32"))
        self.store.pull(name, own)
        if before.weights != "fp32" and not lags:
            self.store.use_compression(before)
        self._require_same(name, own)
        return own

    def exchange_rows(self, name: str, verb: str) -> None:
        account = self.accounts[name]
        ids = [self._drawn(rank, 0).integers(account.shape[0], size=5) for rank in range(self.workers)]
        rows = self._gradients((1,), name, 1)[:, 0, :5]
        given = np.zeros((self.workers, *account.shape))
        for rank in range(self.workers):
            ids[rank] = ids[rank][: len(rows[rank])]
            np.add.at(given[rank], ids[rank], rows[rank][: len(ids[rank])])
        own = RowSparse(
            ids[self.rank], rows[self.rank][: len(ids[self.rank])].astype(np.float32), account.shape
        )
        out = np.zeros(account.shape, np.float32)
        if verb == "push":
            self.store.push(name, own)
        else:
            self.store.pushpull(name, own, RowSparse([], [], account.shape))
        if self.applies_at_once:
            self.store.barrier()
        self.store.row_sparse_pull(name, out, row_ids=np.arange(account.shape[0]))
        self._require_same(name, out)
        self._enter(name, given, out)

    def change(self, codec: str) -> None:
        self.store.set_gradient_compression(codec)
        if self.rank == 0:
            self.game.codec = codec

    def set_optimizer(self) -> None:
        before = {}
        for name, account in self.accounts.items():
            before[name] = np.zeros(account.shape, np.float32)
            if account.is_table:
                self.store.row_sparse_pull(name, before[name], row_ids=np.arange(account.shape[0]))
            else:
                self.store.pull(name, before[name])
        self.store.set_optimizer("sgd", learning_rate=RATE)
        if self.rank == 0:
            for name, account in self.accounts.items():
                account.weight = before[name].astype(np.float64) + RATE * account.delivered
        self.game.all_here.wait(DEADLINE)

    def uneven(self, name: str, rounds: Sequence[int]) -> None:
        """Ranks run out of data one after the other; the rank with the most rounds has seen all sums."""
        own, most = rounds[self.rank], max(rounds[: self.workers])
        outs = []
        for number in range(own):
            value = self._gradients((number,), name, 1)[self.rank, 0].astype(np.float32)
            self.store.pushpull(name, value)
            outs.append(value)
        self.store.join()
        shown = self._show(outs)
        furthest = max(range(self.workers), key=lambda rank: rounds[rank])
        for number in range(most):
            given = self._gradients((number,), name, 1).sum(axis=1)
            given[[rank for rank in range(self.workers) if rounds[rank] <= number]] = 0
            out = shown[furthest][number]
            if self.store.keeps_weights:
                out = self._whole_weight(name) if number == most - 1 else out
            self._enter(name, given, out)

    def refused(self, name: str, odd: bool) -> None:
        """Calls that are wrong, on one rank or on all: nothing of them is sent."""
        shape = self.accounts[name].shape
        right, wrong = np.ones(shape, np.float32), np.ones(int(np.prod(shape)) + 1, np.float32)
        calls: list[Callable[[], Any]] = [
            lambda: self.store.init(name, right),
            lambda: self.store.set_gradient_compression("3bit"),
        ]
        if odd:
            calls.append(lambda: self.store.init("never", np.ones(3, np.int32) if self.rank == 0 else right))
        else:
            calls += [
                lambda: self.store.push([name, name], [right, wrong]),
                lambda: self.store.pushpull(name, wrong),
            ]
        for number, call in enumerate(calls):
            try:
                call()
            except (TypeError, ValueError):
                continue
            raise AssertionError(f"wrong call {number} was taken")

    def save(self) -> None:
        self.store.save_checkpoint(self.game.folder)
        if self.rank == 0:
            self.game.saved = (_copied(self.accounts), self.workers)

    # ---------------------------------------------------------------- steps with which a job ends

    def load(self, workers: int, codec: str, before: bool) -> bool:
        return True

    def die(self, rank: int, rounds: int) -> bool:
        """The others go back to the commit. What it and the servers had not sent is lost: it was never given."""
        kept = self._show(self.store.unsent())
        accounts = _copied(self.accounts)
        self._lose_what_servers_keep(accounts)
        for number in range(rounds):
            for name in [name for name, account in self.accounts.items() if not account.is_table]:
                value = self._gradients((number,), name, 1)[self.rank, 0].astype(np.float32)
                self.store.pushpull(name, value)
        self.game.all_here.wait(DEADLINE)
        if self.rank == 0:
            self._lose(accounts, kept[rank])
            self.game.unsent = [each for place, each in enumerate(kept) if place != rank]
            self.accounts.clear()
            self.accounts.update(accounts)
        self.game.all_here.wait(DEADLINE)
        return True

    def _lose_what_servers_keep(self, accounts: dict[str, Account]) -> None:
        if self.rank == 0:
            for name, account in accounts.items():
                if account.is_table:
                    ids, rows = self.store.engine.server_row_residual(self.store.rows._tables[name].number)
                    np.subtract.at(account.given, ids, rows.reshape(len(ids), account.shape[1]))
                elif (residual := self.store.engine.server_residual(self.store.dense.ids[name])).size:
                    account.given -= residual.reshape(account.shape)
        self.game.all_here.wait(DEADLINE)

    @staticmethod
    def _lose(accounts: dict[str, Account], unsent: Unsent) -> None:
        for name, residual in unsent.keys.items():
            accounts[name].given -= residual.reshape(accounts[name].shape)
        for name, (ids, rows) in unsent.tables.items():
            np.subtract.at(accounts[name].given, ids, rows.reshape(len(ids), accounts[name].shape[1]))

    def come(self) -> bool:
        """What servers have not sent goes into the workers' residuals; the newcomer has none."""
        self.store.engine.draw_residuals()
        kept = self._show(self.store.unsent())
        if self.rank == 0:
            self.game.unsent = kept
        self.game.all_here.wait(DEADLINE)
        return True

    def flush(self) -> None:
        """Without a codec all that is owed comes with the next round."""
        for name, account in self.accounts.items():
            if account.is_table:
                out = np.zeros(account.shape, np.float32)
                self.store.push(name, RowSparse([], [], account.shape))
                if self.applies_at_once:  # what the others owed is in
                    self.store.barrier()
                self.store.row_sparse_pull(name, out, row_ids=np.arange(account.shape[0]))
                self._enter(name, np.zeros((self.workers, *account.shape)), out)
            else:
                out = np.zeros(account.shape, np.float32)
                self.store.pushpull(name, out)
                self._settle(name, np.zeros((self.workers, *account.shape)), out)
        unsent = self.store.unsent()
        assert not unsent.keys, "a key has a residual that nothing sends"
        assert not unsent.tables, "a table has a residual that nothing sends"
        assert not unsent.devices[0], "a device has a residual that nothing sends"

    # ---------------------------------------------------------------- gradients

    def _drawn(self, rank: int, *place: int) -> np.random.Generator:
        return np.random.default_rng([self.game.program.seed, self.number, rank, *place])

    def _gradients(self, place: Sequence[int], name: str, devices: int) -> Any:
        """(ranks, devices) + shape: multiples of 1/8, which are the same in every dtype; many are zero."""
        shape = self.accounts[name].shape
        index = list(self.accounts).index(name)
        found = np.zeros((self.workers, devices, *shape))
        for rank in range(self.workers):
            rng = self._drawn(rank, index, *place)
            found[rank] = rng.integers(-16, 17, size=(devices, *shape)) / 8
            found[rank] *= rng.random(size=(devices, *shape)) < rng.choice((0.1, 0.7, 1.0))
        return found


def _account(shape: tuple[int, ...], is_table: bool, has_optimizer: bool) -> Account:
    zeros = [np.zeros(shape) for _ in range(3)]
    return Account(shape, is_table, *zeros, weight=np.zeros(shape) if has_optimizer else None)


def _array(values: Any, dtype: str, is_torch: bool) -> Any:
    if is_torch or dtype == "bfloat16":
        return torch.from_numpy(values.copy()).to(getattr(torch, dtype))
    return values.astype(dtype)


def play(seed: int) -> None:
    """Draws a program and plays it.

    Raises: AssertionError: what did not hold, behind which step of which program.
    """
    with tempfile.TemporaryDirectory() as folder:
        Game(Author(seed).write(), Path(folder)).play()


def play_seeds(seeds: Iterable[int]) -> None:
    """Plays the programs of seeds."""
    for seed in seeds:
        play(seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_seeds(parser)
    parser.set_defaults(seeds=(0, 200))
    torch.set_num_threads(1)
    sys.exit(play_all(range(*parser.parse_args().seeds), play_seeds))


if __name__ == "__main__":
    main()
