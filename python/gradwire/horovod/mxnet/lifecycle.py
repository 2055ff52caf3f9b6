"""init() and shutdown() for operations on MXNet's NDArrays, and the end of a process that has called no shutdown()."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable
from typing import Any

import mxnet as mx

from gradwire.horovod import lifecycle, numpy_arrays, session
from gradwire.horovod.mxnet import submission
from gradwire.horovod.process_sets import ProcessSet
from gradwire.mxnet.engine import wait_for_all
from gradwire.stores import uncaught_error


def init(comm: Any = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Joins the job. A collective of all ranks.

    It uses the store that this process has created, else it opens one: `dist_sync` if the job has servers, `allreduce`
    if not. Does nothing if init() was called already, and shutdown() has not been called since.

    Args:
        comm: None, or a list of all ranks. Horovod also takes some of a launcher's ranks; here ranks are the
            launcher's. Default: None.
        process_sets: process sets to add. As with Horovod's "dynamic", add_process_set() may be called at any time.
            Default: None.

    Raises:
        ValueError: comm has other ranks; a process set that is not possible; a store without exact collectives; init()
            was called for another framework.
        gradwire.TimeoutError: not every rank joined in time; names the missing ones.
    """
    lifecycle.begin(numpy_arrays, comm, process_sets)


def shutdown() -> None:
    """Leaves, once this rank's operations are over: what others wait for then fails on all ranks, and so does what they
    submit until all have called init() again. Waits until they have heard. No-op where init() was not called.

    The process stays in its job, so that init() can follow, and leaves it at its end.
    """
    if session.exists():
        wait_for_all()  # calls have returned that others count on
    lifecycle.shutdown()


def _leave_at_exit() -> None:
    """Has what a script has started come to its end, as MXNet does; or fail at once, where an error has ended it. MXNet
    must not call us when Python has ended.
    """
    failed = None
    if session.exists() and (now := session.current()).library is numpy_arrays:
        if uncaught_error.ended_the_script():
            session.leave()
            now.store.engine.close(uncaught_error.in_words())  # ends what others may never take part in
        else:
            try:
                mx.nd.waitall()
            except Exception as error:
                failed = error
            session.leave()
        wait_for_all()
    submission.close()
    if failed is not None:
        print(
            f"gradwire.horovod.mxnet: an operation failed that the script has not heard of: {failed}\ncall "
            "mx.nd.waitall() before the results are used",
            file=sys.stderr,
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # the code of an exit that has begun cannot be changed otherwise


atexit.register(_leave_at_exit)  # after session's, so it runs first
