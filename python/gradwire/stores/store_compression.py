"""StoreCompression: which codec a store's engine uses, and which one the store's own keys keep.

The engine has one compression, for everything without a codec of its own. An optimizer or a hook of gradwire.torch
borrows it. Meanwhile the keys and tables of the store get the store's compression as their own codec, so that their
sums do not change. Once that has been done it is kept up, also after the loan.

Threading: the thread that calls the store. Methods that change the engine are collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gradwire.compress import Compression

if TYPE_CHECKING:
    from gradwire import _core


class Keyed(Protocol):
    """Keys or tables of a store."""

    def use_compression(self, compression: Compression) -> None:
        """Has all of them use this compression, whatever the engine uses."""
        ...


class StoreCompression:
    """A store begins without compression, and nobody has borrowed it."""

    def __init__(self, engine: _core.Engine, keyed: Sequence[Keyed]) -> None:
        """
        Args:
            engine: encodes by it.
            keyed: the store's keys and tables.
        """
        self._engine = engine
        self._keyed = keyed
        self._current = Compression()
        self._of_engine = Compression()  # a local store's engine has none where devices encode
        self._lent: tuple[Compression, Compression] | None = None  # both, as they were before
        self._borrower: object = None
        self._has_own_codecs = False  # keys and tables have the store's as their own

    @property
    def in_force(self) -> Compression:
        """That of a borrower while there is one, else the store's own."""
        return self._current if self._borrower is not None else self.own

    @property
    def own(self) -> Compression:
        """The store's, as it was set on it."""
        return self._current if self._lent is None else self._lent[0]

    @property
    def of_keys(self) -> Compression:
        """That by which the engine sends the store's keys and tables."""
        return self._of_engine if self._lent is None else self._lent[1]

    def use(self, compression: Compression) -> None:
        """Sets the store's compression. Ends a loan: whatever has borrowed then uses this compression too."""
        self._tell_engine(compression)
        self._lent = self._borrower = None
        self._give_to_keys()

    def use_beside_engine(self, compression: Compression) -> None:
        """Sets the store's compression where devices encode, and not the engine. A loan of the engine goes on. Not a
        collective.
        """
        if self._lent is None:
            self._current = compression
        else:
            self._lent = compression, self._lent[1]

    def lend(self, compression: Compression, borrower: object) -> None:
        """Has the engine use this compression until give_back(); it replaces what an earlier borrower had."""
        if self._lent is None:
            self._lent = self._current, self._of_engine
            self._has_own_codecs = True
            self._give_to_keys()
        self._tell_engine(compression)
        self._borrower = borrower

    def give_back(self, borrower: object) -> None:
        """Ends a loan, unless another borrower has come since. Not a collective: the engine is left as it is until
        reclaim().
        """
        if self._borrower is borrower:
            self._borrower = None

    def reclaim(self) -> None:
        """Restores the engine's compression after a loan that has ended. Not a collective if there was none."""
        if self._lent is None or self._borrower is not None:
            return
        before, of_engine = self._lent
        self._tell_engine(of_engine)
        self._current, self._lent = before, None

    def cover_new_keys(self) -> None:
        """Follows a declaration of keys or tables: during a loan, they get the store's compression too."""
        if self._lent is not None:
            self._has_own_codecs = True
            self._give_to_keys()

    def _tell_engine(self, compression: Compression) -> None:
        self._engine.set_compression(compression.spec, compression.reply, compression.weights)
        self._current = self._of_engine = compression

    def _give_to_keys(self) -> None:
        if self._has_own_codecs:
            for keyed in self._keyed:
                keyed.use_compression(self.of_keys)
