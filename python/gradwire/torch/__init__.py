"""gradwire for PyTorch: wrap the optimizer, and `backward()` leaves the workers' mean gradient in `p.grad`.

    import gradwire as gw
    import gradwire.torch

    gw.torch.broadcast_parameters(model.state_dict())
    optimizer = gw.torch.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression="2bit"
    )

Gradients are sent while `backward()` still runs, the front layers first. What `p.grad` holds after
`backward()` is what DistributedDataParallel would leave there, so clipping, learning-rate schedules and
logging need no change.
"""

from gradwire.torch.broadcast import broadcast_optimizer_state, broadcast_parameters
from gradwire.torch.optimizer import DistributedOptimizer
from gradwire.torch.session import default_store

__all__ = ["DistributedOptimizer", "broadcast_optimizer_state", "broadcast_parameters", "default_store"]
