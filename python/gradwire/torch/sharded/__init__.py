"""FSDP2 and HSDP: the reduce-scatter of gradients travels compressed."""
