"""byteps_push_pull: sums and means of all ranks' NDArrays of one name.

Ranks may ask for names in any order, and need not have declared them: those of a name meet.
"""

from __future__ import annotations

from typing import Any

from gradwire.byteps.compression_params import of_attributes, read
from gradwire.byteps.declarations import declare, place_of, store_priority
from gradwire.byteps.lifecycle import require_init
from gradwire.horovod import reduce_ops
from gradwire.horovod.compression import codec_text, compressor_of
from gradwire.horovod.mxnet.compression import Compression
from gradwire.horovod.mxnet.submission import require_tensors
from gradwire.horovod.mxnet.sums import start_sum
from gradwire.horovod.process_sets import global_process_set

_compressors: dict[str, Any] = {}  # by declared name


def byteps_declare_tensor(name: str, **kwargs: Any) -> None:
    """Gives a name its place among those of equal priority, and its compression.

    Args:
        name: of a tensor.
        kwargs: BytePS's attributes of a parameter, byteps_compressor_type="onebit" and the like, for all that is summed
            under this name from now on.

    Raises:
        TypeError: name is no text.
        ValueError: an attribute that is not known, or means something that there is not.
    """
    declare(name)
    if kwargs:
        wanted = read(of_attributes(kwargs))
        _compressors[name] = Compression.none if wanted.codec is None else Compression.codec(wanted.codec)


def byteps_push_pull(
    tensor: Any,
    version: int = 0,
    priority: int = 0,
    name: str | None = None,
    is_average: bool = True,
    compression: Any = None,
) -> None:
    """Sums the ranks' NDArrays of one name, in place. Returns at once; who reads tensor waits for the sum.

    Args:
        tensor: an NDArray, dense, of any shape, the same on all ranks; uint8, int8, int32, int64, bool or float16 to
            float64.
        version: BytePS's; the n-th sum of a name is of all ranks' n-th here.
        priority: the higher, the sooner MXNet begins it, within +-32767, and of equal ones what was declared first;
            and of a name's sums from the second on, of float32 or compressed by a codec, the sooner it is sent.
        name: by which ranks mean the same tensor. None: the next of the names that this rank has not given.
        is_average: the mean; of integers it is cut off towards zero. False: the sum. Sums of integers wrap, and so
            does the sum of a mean of int64.
        compression: bps.Compression.none or fp16, or a codec of gradwire's, "2bit", which needs a name. Default: what
            byteps_declare_tensor() was given for the name.

    Raises:
        TypeError, ValueError: what was given; init() was not called. What fails later, a reader of tensor gets, as an
        MXNetError: ranks that differ in shape, dtype, is_average or codec, or a job that has failed.
    """
    require_init("byteps_push_pull")
    if compression is None:
        compression = Compression.none if name is None else _compressors.get(name, Compression.none)
    require_tensors("allreduce", [tensor])  # before fp16 looks at it
    compressor = compressor_of(compression)
    changed, context = compressor.compress(tensor)
    start_sum(
        [changed],
        name,
        reduce_ops.Average if is_average else reduce_ops.Sum,
        (1.0, 1.0),
        global_process_set,
        in_place=True,
        priority=store_priority(priority, place_of(name)),
        codec=codec_text(compressor),
    )
    if changed is not tensor:
        compressor.decompress(changed, context).copyto(tensor)
