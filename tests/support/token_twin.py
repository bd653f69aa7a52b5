"""nn.TransformerLM and nn.Seq2SeqTransformer in torch, as its users build them around torch.nn.Transformer."""

from __future__ import annotations

import warnings

import numpy as np


def sinusoids(length, dim):
    """Vaswani et al. 2017, section 3.5, in float64."""
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, dim, 2) / dim)
    table = np.empty((length, dim))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


def make(torch, ours):
    """The model of the same parameters and dtype, in eval mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of why there are to be no nested tensors
        theirs = (_seq2seq if ours.is_encoder_decoder else _language_model)(torch, ours)
    theirs.to(getattr(torch, ours.dtype.name)).eval()
    state = {key: torch.from_numpy(array) for key, array in ours.state_dict().items()}
    theirs.load_state_dict(state, strict=True)
    return theirs


def _positions(torch, positions):
    """A torch.nn.Embedding where they are learned: its weight has the same name; else a function."""
    if positions.learned:
        return torch.nn.Embedding(positions.max_length, positions.embed_dim)
    return None


def _embed(torch, model, ids, embedding, positions):
    """(N, L) to (N, L, d_model)."""
    x = embedding(ids) * model.d_model**0.5
    if positions is None:
        return x + torch.from_numpy(sinusoids(ids.shape[1], model.d_model)).to(x.dtype)
    return x + positions(torch.arange(ids.shape[1]))


def _language_model(torch, ours):
    class LanguageModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.d_model = ours.d_model
            self.embedding = torch.nn.Embedding(ours.vocab_size, ours.d_model)
            self.positions = _positions(torch, ours.positions)
            layer = ours.encoder.layers[0]
            norm = None
            if ours.encoder.norm is not None:
                bias = layer.linear1.bias is not None
                norm = torch.nn.LayerNorm(ours.d_model, ours.encoder.norm.eps, bias=bias)
            self.encoder = torch.nn.TransformerEncoder(
                torch.nn.TransformerEncoderLayer(**_options(ours, layer)), ours.encoder.num_layers, norm
            )
            self.generator = torch.nn.Linear(ours.d_model, ours.vocab_size, layer.linear1.bias is not None)

        def forward(self, ids, padding):
            """ids and padding (N, L)."""
            later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
            x = _embed(torch, self, ids, self.embedding, self.positions)
            return self.generator(self.encoder(x, later, padding))

    return LanguageModel()


def _seq2seq(torch, ours):
    class Translator(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.d_model = ours.d_model
            self.src_embedding = torch.nn.Embedding(ours.src_vocab_size, ours.d_model)
            self.tgt_embedding = torch.nn.Embedding(ours.vocab_size, ours.d_model)
            self.src_positions = _positions(torch, ours.src_positions)
            self.tgt_positions = _positions(torch, ours.tgt_positions)
            encoder, decoder = ours.transformer.encoder, ours.transformer.decoder
            layers = {"num_encoder_layers": encoder.num_layers, "num_decoder_layers": decoder.num_layers}
            self.transformer = torch.nn.Transformer(**_options(ours, encoder.layers[0]), **layers)
            bias = encoder.layers[0].linear1.bias is not None
            self.generator = torch.nn.Linear(ours.d_model, ours.vocab_size, bias)

        def forward(self, src, tgt, src_padding, tgt_padding):
            """All of them (N, length)."""
            later = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
            hidden = self.transformer(
                _embed(torch, self, src, self.src_embedding, self.src_positions),
                _embed(torch, self, tgt, self.tgt_embedding, self.tgt_positions),
                tgt_mask=later,
                src_key_padding_mask=src_padding,
                tgt_key_padding_mask=tgt_padding,
                memory_key_padding_mask=src_padding,
            )
            return self.generator(hidden)

    return Translator()


def _options(ours, layer):
    return {
        "d_model": ours.d_model,
        "nhead": layer.self_attn.num_heads,
        "dim_feedforward": layer.linear1.out_features,
        "activation": layer.activation,
        "layer_norm_eps": layer.norm1.eps,
        "batch_first": True,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
    }
