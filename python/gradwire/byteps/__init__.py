"""BytePS's interface on gradwire's store: `import gradwire.byteps.torch as bps`.

What differs in meaning is in python/docs/howto/from_byteps.md. How tensors meet that ranks submit in different orders is
what Horovod's interface needs too, and is there: gradwire/horovod/coordinator.py.
"""
