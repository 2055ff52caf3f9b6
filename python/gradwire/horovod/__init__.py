"""Horovod's interface on gradwire's store: `import gradwire.horovod.torch as hvd`.

A script that imports `horovod.torch` itself runs unchanged under `python -m gradwire.horovod.run script.py`, or after
`gradwire.horovod.shim.install()`. What differs in meaning is in python/docs/howto/from_horovod.md.

How tensors meet that ranks submit in different orders: negotiation.py. Who runs them: coordinator.py.
"""
