"""A loop of one's own with Hugging Face Accelerate."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from common import BATCH, Samples, network, options, say
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    samples = Samples(options())
    plain = network()
    model, optimizer, batches = accelerator.prepare(
        plain, torch.optim.Adam(plain.parameters(), lr=1e-3), DataLoader(samples, BATCH)
    )
    for x, y in batches:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
    say(accelerator.unwrap_model(model), samples.planted, "accelerate")
    accelerator.end_training()


if __name__ == "__main__":
    main()
