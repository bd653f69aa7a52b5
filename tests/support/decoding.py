"""Models to decode: a Markov chain, and models of transformers behind pyattn's protocol."""

from __future__ import annotations

import numpy as np

from pyattn.generation import ModelStep

# Logits of six tokens and their log-probabilities; and a chain 0 -> 1 -> 2 -> 3 -> 4 -> END -> 0.
END = 5
TABLE = np.random.default_rng(4).standard_normal((6, 6)) * 1.5
LOG = TABLE - np.log(np.exp(TABLE).sum(-1, keepdims=True))
CHAIN = np.full((6, 6), -9.0)
CHAIN[np.arange(6), (np.arange(6) + 1) % 6] = 9


class Markov:
    """Row `last` of a table (V, V) has the logits after that token; an encoder adds half of the source's first row."""

    def __init__(self, table, *, encodes=False):
        self.table = np.asarray(table)
        self.is_encoder_decoder, self.vocab_size = encodes, len(self.table)
        self.steps = 0

    def begin(self, source, source_lengths=None, *, need_weights=False):
        assert (source is None) == (not self.is_encoder_decoder)
        return MarkovState(self, source, source_lengths, need_weights)


class MarkovState:
    def __init__(self, model, source, source_lengths, need_weights):
        self.model, self.need_weights = model, need_weights
        self.bias = None if source is None else model.table[source[:, 0]] * 0.5
        self.source_length = None if source is None else int(max(source_lengths))
        self.rows = [[] for _ in range(0 if source is None else len(source))]

    @property
    def lengths(self):
        return np.array([len(row) for row in self.rows])

    def step(self, ids, lengths=None):
        ids = np.asarray(ids)
        self.model.steps += 1
        self.rows = self.rows or [[] for _ in ids]
        assert len(ids) == len(self.rows)
        counts = np.full(len(ids), ids.shape[1]) if lengths is None else lengths
        for row, new, count in zip(self.rows, ids.tolist(), counts, strict=True):
            row += new[:count]
        logits = self.model.table[[row[-1] for row in self.rows]]
        logits = logits if self.bias is None else logits + self.bias
        shape = (3, len(ids), 2, ids.shape[1])  # layers, rows, heads, n; each weight is the number of tokens in its row
        own = np.zeros((*shape, self.lengths.max())) + self.lengths[:, None, None, None]
        cross = None if self.source_length is None else np.ones((*shape, self.source_length))
        return ModelStep(logits, own, cross) if self.need_weights else ModelStep(logits)

    def reorder(self, index):
        self.rows = [list(self.rows[i]) for i in index]
        self.bias = None if self.bias is None else self.bias[index]


class Peer:
    """A model of transformers, which gives its logits without a cache; its own search is not used."""

    def __init__(self, torch, model):
        self.torch, self.model = torch, model
        self.is_encoder_decoder, self.vocab_size = model.config.is_encoder_decoder, model.config.vocab_size

    def begin(self, source, source_lengths=None, *, need_weights=False):
        return PeerState(self, source, source_lengths)


class PeerState:
    def __init__(self, peer, source, source_lengths):
        self.peer, self.tokens = peer, None
        self.source = None
        if source is not None:
            mask = np.arange(source.shape[1]) < source_lengths[:, None]
            self.source = [peer.torch.from_numpy(x) for x in (source, mask.astype(np.int64))]

    @property
    def lengths(self):
        return np.array([len(row) for row in self.tokens])

    def step(self, ids, lengths=None):
        torch, counts = self.peer.torch, np.full(len(ids), len(ids[0])) if lengths is None else lengths
        new = [list(row[:count]) for row, count in zip(np.asarray(ids).tolist(), counts, strict=True)]
        before = self.tokens or [[] for _ in new]
        self.tokens = [old + more for old, more in zip(before, new, strict=True)]
        longest = max(map(len, self.tokens))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in self.tokens])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in self.tokens])
        options = {"attention_mask": mask, "input_ids": padded}
        if self.source is not None:
            options = {"input_ids": self.source[0], "attention_mask": self.source[1]}
            options |= {"decoder_input_ids": padded, "decoder_attention_mask": mask}
        with torch.no_grad():
            logits = self.peer.model(**options, use_cache=False).logits.numpy()
        return ModelStep(logits[np.arange(len(logits)), self.lengths - 1])

    def reorder(self, index):
        self.tokens = self.tokens and [self.tokens[i] for i in index]
        self.source = self.source and [x[list(index)] for x in self.source]


def peer_of(torch, transformers, kind, seed, vocabulary=60):
    """A tiny GPT-2 or BART of transformers, with logits that differ clearly."""
    torch.manual_seed(seed)
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
    if kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
        config = transformers.GPT2Config(vocab_size=vocabulary, **sizes, **tokens, initializer_range=0.7)
        return transformers.GPT2LMHeadModel(config).eval()
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64}
    tokens |= {"pad_token_id": 0, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    config = transformers.BartConfig(vocab_size=vocabulary, **sizes, **tokens, init_std=0.25)
    return transformers.BartForConditionalGeneration(config).eval()
