"""Four ranks train on sequences; one rank's are longer, and the others wait for it.

No rank is slow: each takes as long per token as the others. One rank has more of them in every batch, as happens
when a sampler shares out sequences and not tokens. The remedy is in the sampler and not in the machine, so the
report calls this uneven work. `distprof launch --nproc-per-node 4 examples/uneven_batches.py`

With `--healthy` all sequences are equally long.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH = 64


class Sequences(Dataset[torch.Tensor]):
    """Random sequences of equally many tokens."""

    def __init__(self, sequences: int, tokens: int) -> None:
        self.data = torch.randn(sequences, tokens, WIDTH, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", action="store_true", help="all sequences are equally long")
    parser.add_argument("--uneven-rank", type=int, default=3)
    parser.add_argument("--times", type=int, default=6, help="so many times as long are the sequences of that rank")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    uneven = dist.get_rank() == arguments.uneven_rank and not arguments.healthy
    tokens = arguments.tokens * (arguments.times if uneven else 1)
    data = Sequences(arguments.steps * arguments.batch_size, tokens)
    loader = DataLoader(data, batch_size=arguments.batch_size)
    layer = nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH))
    model = DistributedDataParallel(nn.Sequential(layer, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for batch in loader:
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
