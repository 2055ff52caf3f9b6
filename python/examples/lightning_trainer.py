"""Lightning with gradients compressed to 8 bits an element.

Start: torchrun --nproc-per-node 2 lightning_trainer.py
Or: gradwire run -n 2 python lightning_trainer.py
"""

import torch
import toy_images
from gradwire.integrations.lightning import CompressedDDPStrategy
from lightning.pytorch import LightningModule, Trainer


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.network = toy_images.network()

    def training_step(self, batch):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)
        if self.global_step % 10 == 9:
            print(f"rank {self.global_rank} step {self.global_step + 1}: loss {loss.item():.3f}")
        return loss

    def train_dataloader(self):
        images = torch.randn(512, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        labels = (images.mean((1, 2, 3)) > 0).long()
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=256)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = Trainer(
    accelerator="cpu",
    devices=2,
    strategy=CompressedDDPStrategy(codec="int8"),
    max_steps=30,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Classifier())
