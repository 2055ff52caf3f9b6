"""What who reads an NDArray gets where the operation that was to write it has failed."""

from __future__ import annotations

from mxnet.base import MXNetError, register_error

from gradwire.horovod.errors import HorovodInternalError

NAME = "HorovodInternalError"  # MXNet makes the error of a text that begins with this and a colon


@register_error(NAME)
class ReadError(HorovodInternalError, MXNetError):  # type: ignore[misc]
    """An operation has failed: on all ranks, or because of what this one has asked for. Scripts catch it as
    hvd.HorovodInternalError, which calls that wait raise, or as an MXNetError, which Horovod's are.
    """
