"""A Transformer from tokens to tokens in PyTorch, with the names of pyattn.nn.Seq2SeqTransformer, and its training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import numpy as np
import torch


class Translator(torch.nn.Module):
    """As Vaswani et al. 2017: embeddings times sqrt(d_model), sines and cosines, encoder and decoder, vocabulary."""

    def __init__(self, src_vocab_size, tgt_vocab_size, d_model, *, padding_idx, max_length=64, **sizes):
        super().__init__()
        self.padding_idx, self.d_model = padding_idx, d_model
        self.src_embedding = torch.nn.Embedding(src_vocab_size, d_model, padding_idx)
        self.tgt_embedding = torch.nn.Embedding(tgt_vocab_size, d_model, padding_idx)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of why there are to be no nested tensors
            self.transformer = torch.nn.Transformer(d_model, dropout=0, batch_first=True, **sizes)
        self.transformer.encoder.use_nested_tensor = False  # or it would warn that they are a prototype
        self.generator = torch.nn.Linear(d_model, tgt_vocab_size)
        for weight in self.parameters():
            if weight.ndim > 1:
                torch.nn.init.xavier_uniform_(weight)
        angles = torch.arange(max_length)[:, None] / 10000 ** (torch.arange(0, d_model, 2) / d_model)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(max_length, d_model)
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, src, tgt):
        """Scores of what follows each token of tgt: (rows, length, vocabulary)."""
        padding, length = src == self.padding_idx, tgt.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.transformer(
            self.src_embedding(src) * math.sqrt(self.d_model) + self.positions[: src.shape[1]],
            self.tgt_embedding(tgt) * math.sqrt(self.d_model) + self.positions[:length],
            tgt_mask=later,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.generator(hidden)

    @torch.no_grad()
    def write(self, src, start, end, most):
        """The likeliest token each time, (rows, most); what stands behind an end symbol does not count."""
        self.eval()
        tgt = torch.full((len(src), 1), start)
        for _ in range(most):
            following = self(src, tgt)[:, -1].argmax(-1)
            tgt = torch.cat([tgt, following[:, None]], dim=1)
            if (tgt == end).any(dim=1).all():
                break
        return tgt[:, 1:]


def train(
    model: Translator, batches: Iterable[tuple[np.ndarray, np.ndarray]], start: int, steps: int, rate: float
) -> None:
    """Adam with a rate that rises for a twentieth of the steps, and then falls along a cosine to nothing."""
    torch.set_num_threads(1)  # matrices this small lose by more
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    model.train()
    for step, (source, target) in enumerate(batches):
        share = (step + 1) / steps
        optimizer.param_groups[0]["lr"] = rate * min(20 * share, 0.5 + 0.5 * math.cos(math.pi * share))
        src, tgt = torch.from_numpy(source), torch.from_numpy(target)
        before = torch.cat([torch.full((len(tgt), 1), start), tgt[:, :-1]], dim=1)
        logits = model(src, before)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=model.padding_idx)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % (steps // 10) == 0 or step + 1 == steps:
            print(f"step {step:6} of {steps}: loss {loss.item():.5f}", flush=True)


def arrays_of(model: Translator) -> dict[str, np.ndarray]:
    """Its parameters by name, for pyattn's load_state_dict."""
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
