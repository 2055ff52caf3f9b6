"""Doors for frameworks that wrap models in DistributedDataParallel themselves. Each module imports its framework.

| framework | what a script adds |
|---|---|
| Lightning | `Trainer(strategy=gradwire.integrations.lightning.CompressedDDPStrategy(codec="int8"))` |
| Accelerate | `gradwire.integrations.accelerate.compress_gradients(accelerator, codec="int8")` |
| transformers | `Trainer(callbacks=[gradwire.integrations.transformers.CompressGradients(codec="int8")])` |
"""
