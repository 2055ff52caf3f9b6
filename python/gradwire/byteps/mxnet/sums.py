"""byteps_push_pull: sums and means of the NDArrays that ranks give under one name.

Ranks may submit names in any order and need not declare them: NDArrays are matched by name.
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
        name: name of a tensor.
        kwargs: BytePS's attributes of a parameter, such as byteps_compressor_type="onebit", for everything that is
            summed under this name from now on.

    Raises:
        TypeError: name is not a str.
        ValueError: an unknown attribute, or one without a counterpart here.
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
    """Sums the ranks' NDArrays of one name, in place. Returns at once; code that reads tensor waits for the sum.

    Args:
        tensor: a dense NDArray of any shape, the same on all ranks; uint8, int8, int32, int64, bool or float16 to
            float64.
        version: not used: the n-th sum of a name has all ranks' n-th NDArrays.
        priority: within +-32767; a higher one is started sooner by MXNet, and among equal ones the name that was
            declared first. From the second sum of a name on, float32 or compressed NDArrays of a higher one are also
            sent sooner. Default: 0.
        name: name by which ranks match NDArrays. None: numbered in the order of calls without a name. Default: None.
        is_average: True: the mean; of integers it is rounded towards zero. False: the sum. Sums of integers wrap, as
            does the sum of a mean of int64. Default: True.
        compression: bps.Compression.none or fp16, or a codec of gradwire, such as "2bit", which needs a name. Default:
            what byteps_declare_tensor() was given for the name.

    Raises:
        TypeError, ValueError: an argument is not valid; init() was not called. Later errors reach code that reads
            tensor, as an MXNetError: ranks that differ in shape, dtype, is_average or codec, or a job that has failed.
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
