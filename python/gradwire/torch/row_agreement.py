"""RowAgreement: which parameters' gradients travel as rows, on which ranks agree once each has seen a gradient.

Only gradients tell whether they are sparse, as those of nn.Embedding(sparse=True), and a rank may have none in a step.
So all are summed as dense ones in the first step, after which each rank tells what it has got.

Of some parameters no rank has a gradient then. Where there are tables, these stay unseen: ranks agree again at the end
of the step whose sum, which all have alike, is the first that is not zero. Where there are none, they are dense from
then on: a rank may be away (join()), which no job with tables allows, and could not agree.

Threading: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gradwire.torch.exchange import Exchange

_NO_GRADIENT, _SPARSE, _STRIDED = range(3)  # what a parameter has got, as ranks tell each other


class RowAgreement:
    """
    Attributes:
        is_made: there is nothing to agree on: until parameters are added.
        rows: indices of those whose gradients are sparse.
        groups: the same, as they were added together: others travel together from then on, in other buckets.
    """

    def __init__(self, exchange: Exchange, *, sends_rows: bool) -> None:
        """sends_rows: sparse gradients travel as rows; else all are dense, and there is nothing to agree on."""
        self._exchange = exchange
        self.sends_rows = sends_rows
        self.is_made = True
        self.rows: set[int] = set()
        self.groups: list[list[int]] = []
        self._layouts = bytearray()  # of gradients so far
        self._without_gradient: set[int] = set()  # on any rank
        self._was_made_since_join = self._stood_in = False

    def grow(self, count: int) -> None:
        """Takes more parameters in: also in the middle of a step, where they thaw."""
        self._layouts += bytearray(count)
        self.is_made = not self.sends_rows

    def note(self, index: int, *, is_sparse: bool) -> None:
        """Says what gradient a parameter has got."""
        self._layouts[index] = _SPARSE if is_sparse else _STRIDED

    def make(self) -> list[int]:
        """Returns the parameters that had a sparse gradient on some rank and no other kind on any, for
        LiveParameters.use_rows(). A collective, unless it is made.
        """
        if self.is_made:
            return []
        self.is_made = self._was_made_since_join = True
        layouts = self._exchange.gather("layouts of gradients", bytes(self._layouts))
        found = {
            index: set(kinds)
            for index, kinds in enumerate(zip(*layouts, strict=True))
            if index not in self.rows
        }
        self._without_gradient = {index for index, kinds in found.items() if kinds == {_NO_GRADIENT}}
        return [index for index, kinds in found.items() if _SPARSE in kinds and _STRIDED not in kinds]

    def make_again(self) -> None:
        """Has make() be a collective once more. On all ranks."""
        self.is_made = False

    @property
    def unseen(self) -> Collection[int]:
        """Parameters of which no rank has had a gradient yet, where there are tables. The same on all ranks."""
        return self._without_gradient if self._exchange.has_tables else ()

    @unseen.setter
    def unseen(self, indices: Collection[int]) -> None:
        self._without_gradient = set(indices)

    def is_dense(self, index: int) -> bool:
        """Whether ranks have agreed that a parameter's gradients travel as dense ones, though rows can travel."""
        return self.sends_rows and self.is_made and index not in self.rows and index not in self.unseen

    def add(self, indices: Sequence[int]) -> None:
        """Notes that gradients of these are sparse."""
        if indices:
            self.rows |= set(indices)
            self.groups.append(list(indices))

    # -- ranks that have no batch left -----------------------------------------------------------------

    def stand_in(self) -> None:
        """Says that this rank takes part in the first step without a batch."""
        self._stood_in = True

    def last_to_step(self, last: int) -> int:
        """Returns who has taken all steps, of which `last` has been in all: that may be one that stood in. A collective
        where ranks have agreed since the last time.
        """
        if not self._was_made_since_join:
            return last
        stood_in = self._exchange.gather("ranks without a step", bytes([self._stood_in]))
        self._was_made_since_join = self._stood_in = False
        # If it stood in, nobody has been in more steps than that one, in which all were.
        ranks = [last, *range(len(stood_in))]
        return next((rank for rank in ranks if not stood_in[rank][0]), last)
