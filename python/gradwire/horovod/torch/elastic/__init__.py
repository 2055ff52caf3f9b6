"""Elastic training: returns to the last commit after an operation has failed.

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 90):
            ...
            state.commit()

    gradwire run -n 4 -s 0 --on-failure continue --min-workers 2 --restarts 3 python train.py
    gradwire run --join tcp://10.0.0.1:40123 -n 1 -s 0 python train.py    # one more, from any machine

In such a job ranks may die, and new ones are admitted at a commit. Call no collective between init() and run(): a rank
that joins later would call it alone. Without --on-failure continue, the ranks are those that the job started with. If
one dies, the job has failed: run() raises, and a new job resumes from a file.
"""

from gradwire.horovod.torch.elastic.run import run
from gradwire.horovod.torch.elastic.sampler import ElasticSampler
from gradwire.horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
