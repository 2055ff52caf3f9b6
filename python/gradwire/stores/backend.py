"""Stores that gradwire did not make: what they must implement, and how kv.create() finds them.

    @gradwire.kv.register
    class Telegraph(gradwire.kv.AbstractKVStore):     # kv.create("telegraph")
        ...

Or, without an import, in the metadata of an installed package:

    [project.entry-points."gradwire.kvstores"]
    telegraph = "telegraph.store:Telegraph"

Source: MXNet RFC 16795, "Introducing a common interface for distributed training": broadcast, push_pull, set_optimizer,
register, create. The RFC leaves compression out; this interface has it too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["AbstractKVStore", "find", "names", "register"]

ENTRY_POINTS = "gradwire.kvstores"

_registered: dict[str, type[AbstractKVStore]] = {}
Kind = TypeVar("Kind", bound="type[AbstractKVStore]")


class AbstractKVStore(ABC):
    """A worker's end of a store. kv.create() makes it without arguments, in a process that is one worker of a job.

    Tensors are NumPy's or PyTorch's arrays, as the backend accepts them. A name is a str or an int, and stands for the
    same tensor in every call. Every worker makes the same calls.
    """

    @property
    def type(self) -> str:
        """The name that the store is created by."""
        return type(self).__name__.lower()

    @property
    @abstractmethod
    def rank(self) -> int:
        """This worker's rank, from 0."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """The number of workers in the job."""

    @abstractmethod
    def broadcast(self, name: Any, tensor: Any, root_rank: Any = 0, /) -> None:
        """Overwrites the tensors of this name on all workers with root_rank's, in place."""

    @abstractmethod
    def push_pull(self, name: Any, tensor: Any, output: Any = None, /) -> None:
        """Writes the sum of all workers' tensors of this name to output; without output, to tensor itself."""

    def set_optimizer(self, optimizer: Any, /, **parameters: Any) -> None:
        """Lets the store update weights; push_pull writes weights from then on.

        Args:
            optimizer: what the backend takes, such as "sgd".
            **parameters: the optimizer's own, such as learning_rate.

        Raises: NotImplementedError: it only sums.
        """
        raise NotImplementedError(
            f"the store {self.type!r} sums and does not update weights; let the workers' optimizer do that"
        )

    def save_optimizer_states(self, fname: Any, dump_optimizer: bool = False) -> None:
        """Writes what its optimizer remembers to a file.

        Args:
            fname: the file.
            dump_optimizer: writes the optimizer itself too, by name and parameters.

        Raises: NotImplementedError: it has none, or cannot.
        """
        raise NotImplementedError(
            f"the store {self.type!r} gives no optimizer's states; save those of the workers' optimizer"
        )

    def load_optimizer_states(self, fname: Any) -> None:
        """Reads them back.

        Args: fname: the file.
        Raises: NotImplementedError: it has none, or cannot.
        """
        raise NotImplementedError(
            f"the store {self.type!r} takes no optimizer's states; load those of the workers' optimizer"
        )

    def set_gradient_compression(self, compression_params: Mapping[str, Any] | str) -> None:
        """Compresses every push_pull from now on.

        Args:
            compression_params: a codec's spec such as "2bit:threshold=0.5", or a mapping with "type".

        Raises: NotImplementedError: it cannot.
        """
        raise NotImplementedError(
            f"the store {self.type!r} does not compress; use one of gradwire's own, or gradwire.gathered_sum"
        )

    def is_capable(self, capability: str) -> bool:
        """Tells whether it has "optimizer" or "gradient_compression": whether it overrides what refuses them.

        Raises: ValueError: an unknown capability.
        """
        verbs = {"optimizer": "set_optimizer", "gradient_compression": "set_gradient_compression"}
        verb = verbs.get(capability.lower().partition(":")[0])
        if verb is None:
            raise ValueError(f"is_capable: unknown capability {capability!r}; valid are {', '.join(verbs)}")
        return getattr(type(self), verb) is not getattr(AbstractKVStore, verb)

    def close(self) -> None:  # noqa: B027 (most have nothing to leave)
        """Leaves the job."""


def register(kind: Kind) -> Kind:
    """Makes a class known to kv.create() by its name in lower case; as a decorator. Again: the newer one counts.

    Raises: TypeError: it is not a class of AbstractKVStore. ValueError: gradwire has a store of this name.
    """
    if not (isinstance(kind, type) and issubclass(kind, AbstractKVStore)):
        raise TypeError(
            f"kv.register: given {kind!r}, expected a class derived from gradwire.kv.AbstractKVStore"
        )
    from gradwire.stores import connect

    name = kind.__name__.lower()
    if name in connect.names():
        raise ValueError(f"kv.register: {name!r} is a store of gradwire's own; name the class otherwise")
    _registered[name] = kind
    return kind


def names() -> list[str]:
    """Names what was registered and what installed packages offer; nothing of theirs is imported."""
    return list(dict.fromkeys([*_registered, *_entry_points()]))


def find(name: str) -> type[AbstractKVStore] | None:
    """Returns the class of this name; None: there is none.

    Raises: ImportError: a package offers it and cannot be imported. TypeError: what it offers is not such a class.
    """
    if name in _registered:
        return _registered[name]
    entry = _entry_points().get(name)
    if entry is None:
        return None
    kind = entry.load()
    if not (isinstance(kind, type) and issubclass(kind, AbstractKVStore)):
        raise TypeError(
            f"kv.create({name!r}): {entry.value} of {entry.dist.name if entry.dist else 'a package'} is {kind!r}, "
            "expected a class derived from gradwire.kv.AbstractKVStore"
        )
    return kind


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # a fifth of the time that `import gradwire.kv` would take

    return {entry.name.lower(): entry for entry in entry_points(group=ENTRY_POINTS)}
