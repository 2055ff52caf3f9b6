"""FSDP2: the reduce-scatter of gradients travels compressed; HSDP: the all-reduce between replicas.

Raises: ImportError: PyTorch is older than 2.9, whose FSDP2 is the first that takes collectives of others.
"""

import torch

if torch.__version__ < "2.9":
    raise ImportError(
        f"gradwire.torch: FSDP2 and HSDP need PyTorch 2.9 or later, and {torch.__version__} is installed; pip install "
        "--upgrade torch, or use DistributedDataParallel with gradwire.torch.ddp_hook"
    )
