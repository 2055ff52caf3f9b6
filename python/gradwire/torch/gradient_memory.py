"""GradientMemory: p.grad of an exchange's parameters, the slots in which gradients travel, and who has written where.

A user may set p.grad, write to it or move it at any time. So nothing is remembered that can be asked: whether p.grad is
a slot's memory, whether it can be, and whether it still is what an exchange has left there.

Threading: one thread at a time.
"""

from __future__ import annotations

import warnings

import torch

from gradwire.torch.slots import Slot, gradient_dtype
from gradwire.torch.sparse_gradients import has_float32_rows


class GradientMemory:
    """Parameters are known by their index, in order of add()."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.parameters: list[torch.Tensor] = []
        self.index_of: dict[torch.Tensor, int] = {}
        self._slots: list[Slot | None] = []  # None: travels as rows
        self._sparse_again: set[int] = set()  # summed as dense ones, and given back as sparse ones
        self._taken, self._delivered = _Seen(), _Seen()

    def add(self, name: str, parameter: torch.Tensor, slot: Slot | None) -> None:
        """slot: None where gradients travel as rows."""
        self.index_of[parameter] = len(self.parameters)
        self.names.append(name)
        self.parameters.append(parameter)
        self._slots.append(slot)

    def __len__(self) -> int:
        return len(self.parameters)

    def use_rows(self, index: int) -> None:
        """Says that a parameter's gradients are sparse: they travel as rows from now on where rows can hold them, and
        else as dense ones, which take_mean() gives back as sparse ones.
        """
        if has_float32_rows(self.parameters[index]):
            self._slots[index] = None
        else:
            self._sparse_again.add(index)

    def travels_as_rows(self, index: int) -> bool:
        return self._slots[index] is None

    def slot(self, index: int) -> Slot:
        """Requires not travels_as_rows()."""
        slot = self._slots[index]
        assert slot is not None
        return slot

    # -- p.grad and the slot ---------------------------------------------------------------------------

    def share(self, index: int) -> bool:
        """Has p.grad be the slot's memory. Returns False where it cannot: the parameter is of another kind, or its
        gradient travels as rows.
        """
        parameter, slot = self.parameters[index], self._slots[index]
        if slot is None or not slot.fits(parameter):
            return False
        if not slot.holds(parameter.grad):  # zero_grad(set_to_none=True), the default, took it away
            parameter.grad = slot.shared()
        return True

    def spare_kept(self, index: int) -> None:
        """Goes before a slot is written: whoever has kept the gradient before, across zero_grad(), keeps its values, as
        with torch, where the next one is another tensor. From then on it is one here too.
        """
        slot = self._slots[index]
        if slot is None or slot.holds(self.parameters[index].grad) or not slot.is_kept():
            return
        if not slot.part():
            warnings.warn(
                f"gradwire.torch: a view of the gradient of {self.names[index]!r} (detach(), view(), numpy() or a "
                "slice) was kept across zero_grad(), and now holds the next gradient, once; clone() what you keep",
                RuntimeWarning,
                stacklevel=2,
            )

    def take_mean(self, index: int) -> None:
        """Has p.grad be the mean that has arrived in the slot; that of rows it is already."""
        parameter, slot = self.parameters[index], self._slots[index]
        gradient = parameter.grad
        if slot is None:
            self._delivered.note(index, gradient, keeps=True)
            return
        if index in self._sparse_again:
            parameter.grad = slot.values.to(parameter).to_sparse(1)
            self._delivered.note(index, parameter.grad, keeps=True)
            return
        if not slot.holds(gradient) and not self.share(index):
            self._convert_back(index)
            self._delivered.note(index, parameter.grad, keeps=True)
            return
        self._delivered.note(index, parameter.grad, keeps=False)

    def withhold_mean(self, index: int) -> None:
        """Leaves no p.grad, in the place of take_mean()."""
        self.parameters[index].grad = None
        self._delivered.note(index, None, keeps=False)

    def _convert_back(self, index: int) -> None:
        parameter, slot = self.parameters[index], self.slot(index)
        if not self.can_take(index, parameter.grad) or slot.holds(parameter.grad):
            parameter.grad = torch.empty_like(parameter, dtype=gradient_dtype(parameter), requires_grad=False)
        assert parameter.grad is not None
        parameter.grad.copy_(slot.values)

    def can_take(self, index: int, gradient: torch.Tensor | None) -> bool:
        """True where a gradient's memory can hold that of a parameter as an optimizer expects it: laid out alike."""
        parameter = self.parameters[index]
        return (
            gradient is not None
            and gradient.layout == torch.strided
            and (gradient.dtype, gradient.device) == (gradient_dtype(parameter), parameter.device)
            and (gradient.shape, gradient.stride()) == (parameter.shape, parameter.stride())
        )

    # -- who has written since -------------------------------------------------------------------------

    def note_taken(self, index: int) -> None:
        """Says that a gradient is on its way as p.grad holds it."""
        self._taken.note(index, self.parameters[index].grad, keeps=False)

    def is_as_taken(self, index: int) -> bool:
        """False where p.grad was written, or set anew, since note_taken()."""
        gradient = self.parameters[index].grad
        return gradient is not None and self._taken.is_untouched(index, gradient)

    def is_delivered(self, index: int) -> bool:
        """True where p.grad is the memory that take_mean() has left there; it may have been written since."""
        gradient = self.parameters[index].grad
        return gradient is not None and self._delivered.is_there(index, gradient)

    def is_mean(self, index: int) -> bool:
        """As is_delivered(), and also where somebody has moved it since, with what it held."""
        if self.is_delivered(index):
            return True
        gradient, slot = self.parameters[index].grad, self._slots[index]
        return (
            gradient is not None
            and slot is not None
            and gradient.layout == torch.strided
            and torch.equal(slot.values.to(gradient), gradient)
        )

    def is_by_hand(self, index: int) -> bool:
        """True where p.grad is neither what take_mean() has left there nor zeros."""
        gradient = self.parameters[index].grad
        if gradient is None or self._delivered.is_untouched(index, gradient):
            return False
        return bool(gradient.any())

    def release(self) -> None:
        """Keeps no gradients whose memory is torch's. is_delivered() is False of those from now on."""
        self._delivered.release()


class _Seen:
    """What p.grad was at some time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}  # address and version
        self._kept: dict[int, torch.Tensor] = {}  # so that no other tensor gets their memory

    def note(self, index: int, gradient: torch.Tensor | None, *, keeps: bool) -> None:
        """keeps: keeps the gradient until release(): another tensor may get its memory once it is gone."""
        if gradient is None:
            self._known.pop(index, None)
            self._kept.pop(index, None)
            return
        self._known[index] = _address(gradient), gradient._version
        if keeps:
            self._kept[index] = gradient
        elif self._kept:
            self._kept.pop(index, None)

    def is_there(self, index: int, gradient: torch.Tensor) -> bool:
        known = self._known.get(index)
        return known is not None and known[0] == _address(gradient)

    def is_untouched(self, index: int, gradient: torch.Tensor) -> bool:
        return self._known.get(index) == (_address(gradient), gradient._version)

    def release(self) -> None:
        for index in self._kept:
            del self._known[index]
        self._kept.clear()


def _address(gradient: torch.Tensor) -> int:
    """Of a sparse one, which has several, that of the tensor itself."""
    return id(gradient) if gradient.layout != torch.strided else gradient.data_ptr()
