"""gradwire for MXNet 1.9: scripts that use MXNet's own key-value stores run on gradwire's.

    import gradwire.mxnet                      # before `import mxnet`
    gradwire.mxnet.patch()

    kv = mx.kv.create("dist_sync")             # gradwire's, as is every other name of gradwire.kv.stores()
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    mod.fit(..., kvstore=kv)                   # or gluon.Trainer(..., kvstore=kv)

To run a script unchanged, use `python -m gradwire.mxnet SCRIPT ...`. Without patch(), a plugin of MXNet's KVStoreBase
interface sums and broadcasts, and leaves the optimizer to the worker:

    import gradwire.mxnet
    trainer = gluon.Trainer(params, "sgd", {...}, kvstore=mx.kv.create("gradwire"))

In a process whose role is server or scheduler (DMLC_ROLE, as MXNet's launch.py sets it), importing this package serves
the job to its end and then exits, as `import mxnet` would. So import it first. python/docs/howto/from_mxnet.md lists
what changes in meaning.
"""

from __future__ import annotations

from gradwire.mxnet.roles import require_mxnet, serve_unless_worker

serve_unless_worker()
require_mxnet()

from gradwire.mxnet.errors import KVStoreError  # noqa: E402 (MXNet is needed from here on)
from gradwire.mxnet.patching import patch, unpatch  # noqa: E402
from gradwire.mxnet.plugin import Gradwire  # noqa: E402
from gradwire.mxnet.store import KVStore  # noqa: E402

__all__ = ["Gradwire", "KVStore", "KVStoreError", "patch", "unpatch"]
