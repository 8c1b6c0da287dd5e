"""Hugging Face's Trainer with a tiny language model that is made on the spot."""

from __future__ import annotations

import tempfile

import torch
from common import BATCH, WORLD_SIZE, Options, Planted, options, say
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

WORDS = 200
LENGTH = 32


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Random words: as many texts as all ranks together read in all steps."""

    def __init__(self, of: Options) -> None:
        generator = torch.Generator().manual_seed(1)
        self.words = torch.randint(WORDS, (of.steps * BATCH * WORLD_SIZE, LENGTH), generator=generator)
        self.planted = Planted(of)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.planted.sample()
        return {"input_ids": self.words[index], "labels": self.words[index]}


def main() -> None:
    torch.set_num_threads(1)
    training = options()
    texts = Texts(training)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            ddp_backend="gloo",
            per_device_train_batch_size=BATCH,
            max_steps=training.steps,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=texts).train()
    say(model, texts.planted, "transformers")


if __name__ == "__main__":
    main()
