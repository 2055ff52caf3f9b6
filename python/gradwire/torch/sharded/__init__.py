"""FSDP2: the reduce-scatter of gradients travels compressed; HSDP: the all-reduce between replicas."""
