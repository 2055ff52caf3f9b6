"""Training that goes on from its last commit after an operation has failed.

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 90):
            ...
            state.commit()

A job of gradwire has the ranks that it was started with: none comes and none goes. So commit() has no hosts to ask
after, and where a rank has died the job has failed: run() then raises, and a new job goes on from a file.
"""

from gradwire.horovod.torch.elastic.run import run
from gradwire.horovod.torch.elastic.sampler import ElasticSampler
from gradwire.horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
