"""Horovod's interface on gradwire's store: `import gradwire.horovod.torch as hvd`.

A script that imports `horovod.torch` runs unchanged under `python -m gradwire.horovod.run script.py`, or after
`gradwire.horovod.shim.install()`. python/docs/howto/from_horovod.md lists what differs in meaning.

negotiation.py matches tensors that ranks submit in different orders. coordinator.py runs them.
"""
