"""Creates a process group's part of the backend "gradwire": torch's own ProcessGroupGloo, which does every collective.

README.md says why. What a policy compresses are sums that DistributedDataParallel and FSDP2 hand over at their own
extension points (ddp_models.py, fsdp_models.py).
"""

from __future__ import annotations

import atexit
import contextlib
from typing import Any

import torch
import torch.distributed as dist

from gradwire.settings import definitions as settings
from gradwire.stores import codec_override, uncaught_error
from gradwire.stores.log import Log
from gradwire.torch.backend import ddp_models, ended_ranks, fsdp_models, policy

_is_end_watched = False
_MOST_BYTES = 256  # of a rank's GRADWIRE_COMPRESSION that are compared


def create(options: Any) -> Any:
    """Connects the group's ranks. A collective of them, which waits no longer than the group's timeout.

    Args:
        options: torch's DistributedBackendOptions.

    Raises:
        ValueError: GRADWIRE_COMPRESSION is not valid; or it differs between the ranks, in which case all get the same
            text.
        RuntimeError: torch was built without Gloo; or ranks could not be reached in time.
    """
    if not dist.is_gloo_available():
        raise RuntimeError(
            "gradwire: the backend of torch.distributed needs Gloo, and this torch was built without it; install one "
            "that has it, as torch's own packages for Linux do"
        )
    from torch.distributed import ProcessGroupGloo

    given = settings.read().compression
    if given is not None:
        policy.compresses(given)  # raises for a bad one, before anybody waits
    group = ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    with contextlib.suppress(AttributeError):  # of PyTorch's own records, which old ones do not have
        group.options.group_name = options.group_id
        group.options.global_ranks_in_group = options.global_ranks_in_group
    group._set_sequence_number_for_group()
    _require_one_codec(group, given or "")
    ended_ranks.watch(options.store, options.group_rank, options.group_size)
    ddp_models.watch()
    if given is not None:
        fsdp_models.watch()
        _watch_end(given, options.group_rank)
    return group


def _watch_end(given: str, rank: int) -> None:
    """Has rank 0 warn at its end, once, if nothing was compressed by GRADWIRE_COMPRESSION: sums of which nobody
    knows which parameter is where in them stay exact.
    """
    global _is_end_watched
    if _is_end_watched:
        return
    _is_end_watched = True

    def report() -> None:
        # With a store of gradwire's, its end says so (stores/worker.py).
        if codec_override.is_taken() is None and not uncaught_error.ended_the_script():
            Log.of(settings.read(), rank).say(
                "warning",
                f'GRADWIRE_COMPRESSION={given} is set, and nothing was compressed by it: the backend "gradwire" '
                "compresses the gradient sums of DistributedDataParallel and of FSDP2, whose parameters it knows, and "
                "this process has trained no such model over one of its groups",
            )

    if rank == 0 and policy.compresses(given):
        atexit.register(report)


def _require_one_codec(group: Any, given: str) -> None:
    """Raises ValueError if ranks have different values of GRADWIRE_COMPRESSION: some of them would compress a sum, and
    the others would wait for it.
    """
    octets = given.encode()[:_MOST_BYTES].ljust(_MOST_BYTES, b"\0")
    own = torch.tensor(list(octets), dtype=torch.uint8, device="cpu")
    everyone = [torch.empty_like(own) for _ in range(group.size())]
    group.allgather([everyone], [own]).wait()
    texts = [_text(each) for each in everyone]
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise ValueError(
                f"gradwire: GRADWIRE_COMPRESSION is {texts[0]} on rank 0 and {text} on rank {rank} of a process group; "
                "set it to one value on all ranks, or on none"
            )


def _text(octets: torch.Tensor) -> str:
    text = bytes(octets.tolist()).rstrip(b"\0").decode("utf-8", "replace")
    return repr(text) if text else "not set"
