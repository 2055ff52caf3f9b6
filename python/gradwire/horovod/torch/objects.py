"""Objects know no framework; the names are here as Horovod's torch/functions.py has them."""

from __future__ import annotations

from gradwire.horovod.objects import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object"]
