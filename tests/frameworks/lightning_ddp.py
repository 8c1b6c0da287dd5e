"""PyTorch Lightning's Trainer with its `ddp` strategy."""

from __future__ import annotations

import lightning
import torch
from common import BATCH, WORLD_SIZE, Samples, network, options, say
from torch import nn
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.network(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    torch.set_num_threads(1)
    training = options()
    samples = Samples(training)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy="ddp",
        max_steps=training.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(samples, BATCH))
    say(module, samples.planted, "lightning")


if __name__ == "__main__":
    main()
