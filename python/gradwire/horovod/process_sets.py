"""ProcessSet: some of the ranks, for operations among themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradwire.horovod import session
from gradwire.horovod.request import GLOBAL_SET, Request


class ProcessSet:
    """Ranks that operate together. Pass it to init() or add_process_set(), and then to operations.

    Attributes:
        process_set_id: its number; None before it is added, and after it is removed or shutdown() is called.
        ranks: its members, in order.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        """
        Args:
            ranks: of this job.

        Raises:
            ValueError: something in it is no rank. An MPI communicator is not taken: give its ranks.
        """
        members = list(ranks) if isinstance(ranks, Iterable) else [None]
        if any(not isinstance(rank, int) or isinstance(rank, bool) for rank in members):
            raise ValueError(f"ProcessSet: {ranks!r} is no list of ranks; give whole numbers, such as [0, 2]")
        self.ranks: list[int] = sorted(set(members))
        self.process_set_id: int | None = None

    def included(self) -> bool:
        """Returns True if this process is a member."""
        return session.current().store.rank in self.members()

    def size(self) -> int | None:
        """Returns the number of members; None if the set is not added."""
        return None if self.process_set_id is None else len(self.members())

    def rank(self) -> int | None:
        """Returns this process's place among the members; None if it is not a member, or the set is not added."""
        members, own = self.members(), session.current().store.rank
        return members.index(own) if self.process_set_id is not None and own in members else None

    def members(self) -> list[int]:
        """Its ranks; those of the global set are known from init() on."""
        return self.ranks

    def forget(self) -> None:
        """Makes it one that is not added."""
        self.process_set_id = None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalSet(ProcessSet):
    """All ranks, whatever job this process is in."""

    def __init__(self) -> None:
        super().__init__([])
        self.process_set_id = GLOBAL_SET

    def __reduce__(self) -> str:
        """Pickled by its name, so that it is the same one afterwards."""
        return "global_process_set"

    def members(self) -> list[int]:
        self.ranks = list(range(session.current().store.num_workers))
        return self.ranks


global_process_set: ProcessSet = _GlobalSet()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a process set. Every rank calls it, members or not, with the same ranks.

    Returns: process_set, or a new one of these ranks.

    Raises:
        ValueError: there is a set of these ranks, or a rank is not in this job.
        HorovodInternalError: ranks pass different sets.
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    now = session.current()
    if outside := [rank for rank in added.ranks if not 0 <= rank < now.store.num_workers]:
        raise ValueError(f"{added}: {outside[0]} is no rank; expected 0 to {now.store.num_workers - 1}")
    if not added.ranks:
        raise ValueError(f"{added} has no ranks; give at least one")
    identity = now.ask(Request("add_process_set", "", ranks=tuple(added.ranks)))
    if identity is None:
        raise ValueError(f"{added}: there is a process set of these ranks; use that one, or remove it first")
    added.process_set_id = identity
    now.at_end.append(added.forget)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set; operations that wait in it fail. Every rank calls it.

    Returns: True; False for a set that does not exist, and for the global one.
    """
    identity = process_set.process_set_id
    if identity is None or identity == GLOBAL_SET:
        return False
    process_set.forget()
    return bool(session.current().ask(Request("remove_process_set", "", ranks=(identity,))))
