"""BytePS's interface on gradwire's store: `import gradwire.byteps.torch as bps`.

python/docs/howto/from_byteps.md lists what differs in meaning. Ranks may submit tensors in different orders; Horovod's
interface matches them in the same way (gradwire/horovod/coordinator.py).
"""
