"""`pyattn.generate`: read the arguments, run the search, and assemble the result."""

from __future__ import annotations

from typing import SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_count, as_finite, as_flag
from pyattn._util.random import draw_seed
from pyattn._util.typing import RNG
from pyattn.generation.arguments import (
    EarlyStopping,
    Options,
    Prompts,
    Source,
    TokenIds,
    as_early_stopping,
    as_length_penalty,
    as_token_ids,
    as_top_p,
    read_prompts,
)
from pyattn.generation.beam_search import beam_search
from pyattn.generation.callbacks import Callback, StepRecorder
from pyattn.generation.decoding import Decodable, begin_decoding, check_decodable
from pyattn.generation.result import CandidateSequence, Generation, GenerationStep
from pyattn.generation.sampling import sample
from pyattn.generation.sequences import pad_sequences
from pyattn.nn.module import Module

__all__ = ["generate"]


def generate(
    model: Decodable | Module,
    source: Source = None,
    *,
    max_new_tokens: SupportsIndex,
    source_lengths: npt.ArrayLike | None = None,
    start_token_id: SupportsIndex | None = None,
    eos_token_id: TokenIds = None,
    padding_idx: SupportsIndex | None = None,
    min_new_tokens: SupportsIndex = 0,
    do_sample: bool = False,
    num_beams: SupportsIndex = 1,
    num_return_sequences: SupportsIndex = 1,
    temperature: SupportsFloat = 1.0,
    top_k: SupportsIndex | None = None,
    top_p: SupportsFloat | None = None,
    repetition_penalty: SupportsFloat = 1.0,
    length_penalty: SupportsFloat = 1.0,
    early_stopping: EarlyStopping = False,
    rng: RNG = None,
    callback: Callback | None = None,
    progress: bool = False,
    return_steps: bool = False,
    use_cache: bool = True,
) -> Generation:
    """Generate token ids with a model, one token per step.

    Greedy search, the default, takes the most likely token in each step. ``do_sample=True`` draws tokens at random from
    the model's probabilities, and num_beams > 1 searches for the most likely sequence. Arguments have the names
    of Hugging Face's transformers, except for padding_idx, which is pad_token_id there.

    Parameters
    ----------
    model : TransformerLM, Seq2SeqTransformer, a decoder of `pyattn.models`, or another Decodable
        In eval mode. It is not changed.
    source : array_like of int, (batch, length) or (length,), or a sequence of rows, optional
        Token ids: the source that an encoder-decoder encodes, or the prompts that another model continues. Rows may
        have different lengths. Default: None, start_token_id is the prompt; for models without an encoder.
    max_new_tokens : int
        Maximum number of tokens to generate; a row without an end symbol by then is cut off.
    source_lengths : array_like of int, (batch,), optional
        Number of tokens in each row of source; the rest of the row is padding. Default: None, leading and
        trailing padding is stripped; from lists and tuples only if padding_idx is the model's own.
    start_token_id : int, optional
        The start symbol, ``<s>``. An encoder-decoder needs one; for other models it is put before each prompt.
        Default: None.
    eos_token_id : int or sequence of int, optional
        The end symbol, ``<end>``, or several: a row ends with the first one that it gets. Default: None, every row
        gets max_new_tokens.
    padding_idx : int, optional
        The padding token. It is stripped from source, unless it is also an end symbol, and fills result rows that end
        before the longest one. Default: the model's padding_idx. If it has none, source is not stripped, and the
        result is filled with the first eos_token_id, or 0.
    min_new_tokens : int
        Minimum number of tokens: no row ends earlier. Default: 0.
    do_sample : bool
        Draw each token at random. Default: False.
    num_beams : int
        Number of beams; 1 means no beam search. Default: 1.
    num_return_sequences : int
        Number of results for each row of source: the best beams, or independent samples. Default: 1.
    temperature : float
        For sampling: divides the logits. Default: 1.0.
    top_k : int, optional
        For sampling: draw from the k most likely tokens and from ties with the k-th. Default: None, all.
    top_p : float, optional
        For sampling: draw from the fewest most likely tokens whose total probability reaches top_p. Applied after
        top_k. Default: None, all.
    repetition_penalty : float
        Above 1: makes tokens less likely that the row, prompt included, already has. Their positive scores are divided
        by it, negative ones multiplied. Default: 1.0.
    length_penalty : float
        For beams: their scores are divided by ``length ** length_penalty``. Default: 1.0.
    early_stopping : bool or 'never'
        For beams: when to stop once num_beams sequences have ended. True: at once. False: when the best running beam
        would be worse if it ended now. 'never': when it would be worse at any length. Default: False.
    rng : None, int, SeedSequence or Generator
        Source of random numbers for sampling. A row's numbers depend on the seed and the row's index, not on the other
        rows. Default: None, fresh entropy, so each call differs.
    callback : callable, optional
        Called with the `GenerationStep` after each step; generation stops if it returns True. Default: None.
    progress : bool
        Show a progress bar; needs tqdm. Default: False.
    return_steps : bool
        Return all steps, attention weights included. Default: False.
    use_cache : bool
        Use a KV cache if the model has one. Tokens and scores are bit-identical without it, except beyond the trained
        length of a model whose RoPE scaling is 'dynamic' or 'longrope'; see `CachedDecoding`. Default: True.

    Returns
    -------
    Generation
        Tokens, lengths and scores, and the steps with return_steps.

    Raises
    ------
    TypeError
        model cannot generate tokens, or an argument has the wrong type.
    ValueError
        source is empty or holds an id outside the vocabulary, the result would need more positions than the model has,
        an option is out of range or has no effect with the others, model is in training mode, or its logits hold NaN.
    ImportError
        progress is True, and tqdm is not installed.

    References
    ----------
    Beam search: Sutskever et al. 2014; its length penalty: Wu et al. 2016. Top-k sampling: Fan et al. 2018. Top-p
    (nucleus) sampling: Holtzman et al. 2020.

    Examples
    --------
    A model made by hand: its one layer passes vectors through unchanged, and its output weights score the next word.

    >>> import numpy as np, pyattn
    >>> words = ["<s>", "I", "am", "a", "student", "<end>"]
    >>> model = pyattn.nn.TransformerLM(6, d_model=6, nhead=1, num_layers=1, dim_feedforward=6, rng=0).eval()
    >>> layer = model.encoder.layers[0]
    >>> for array in (layer.self_attn.out_proj.weight, layer.linear2.weight, layer.linear2.bias):
    ...     array[:] = 0
    >>> model.embedding.weight[:] = 9 * np.eye(6)
    >>> model.generator.weight[:] = 2 * np.roll(np.eye(6), 1, axis=0)
    >>> options = {"max_new_tokens": 20, "start_token_id": 0, "eos_token_id": 5}
    >>> generation = pyattn.generate(model, **options, return_steps=True)
    >>> " ".join(words[token] for token in generation.tokens[0])
    'I am a student <end>'
    >>> print(generation.table(vocabulary=words))
    step  decoder input       next token  probability  alternatives
       1  <s>                 I                0.9768  <s> 0.0051, am 0.0051, student 0.0051
       2  <s> I               am               0.9769  <s> 0.0051, student 0.0051, I 0.0049
       3  <s> I am            a                0.9767  <s> 0.0052, student 0.0052, I 0.0051
       4  <s> I am a          student          0.9767  <s> 0.0057, I 0.0047, a 0.0047
       5  <s> I am a student  <end>            0.9764  <s> 0.0057, student 0.0057, a 0.0047

    Several prompts at once, each with its own end, and a random sample:

    >>> generation = pyattn.generate(model, [[0], [0, 1, 2, 3]], max_new_tokens=20, eos_token_id=5)
    >>> generation.tokens
    array([[1, 2, 3, 4, 5],
           [4, 5, 5, 5, 5]])
    >>> generation.lengths
    array([5, 2])
    >>> drawn = pyattn.generate(model, **options, do_sample=True, temperature=4.0, rng=2)
    >>> " ".join(words[token] for token in drawn.tokens[0])
    'I <end>'
    """
    options = Options(
        max_new_tokens=as_count(max_new_tokens, "max_new_tokens", least=1),
        eos_token_ids=as_token_ids(eos_token_id, "eos_token_id"),
        min_new_tokens=as_count(min_new_tokens, "min_new_tokens", least=0),
        do_sample=as_flag(do_sample, "do_sample"),
        num_beams=as_count(num_beams, "num_beams", least=1),
        num_return_sequences=as_count(num_return_sequences, "num_return_sequences", least=1),
        temperature=as_finite(temperature, "temperature", above=0),
        top_k=None if top_k is None else as_count(top_k, "top_k", least=1),
        top_p=as_top_p(top_p),
        repetition_penalty=as_finite(repetition_penalty, "repetition_penalty", above=0),
        length_penalty=as_length_penalty(length_penalty),
        early_stopping=as_early_stopping(early_stopping),
    )
    for flag, name in ((progress, "progress"), (return_steps, "return_steps"), (use_cache, "use_cache")):
        as_flag(flag, name)
    start = None if start_token_id is None else as_count(start_token_id, "start_token_id", least=0)
    padding: int | None = (
        getattr(model, "padding_idx", None) if padding_idx is None else as_count(padding_idx, "padding_idx", least=0)
    )
    check_decodable(model)
    seed = draw_seed(rng) if options.do_sample else 0
    prompts = read_prompts(model, source, source_lengths, start, padding, options.eos_token_ids)
    _check_positions(model, prompts, options)

    with StepRecorder(callback, return_steps, progress, options.max_new_tokens) as recorder:
        state = begin_decoding(
            model, prompts.source, prompts.source_lengths, use_cache=use_cache, need_weights=recorder.needs_steps
        )
        if options.num_beams > 1:
            hypotheses = beam_search(state, prompts.prompts, options, recorder)
        else:
            hypotheses = sample(state, prompts.prompts, options, seed, recorder)
    filling = next((x for x in (padding, *options.eos_token_ids) if x is not None), 0)
    return _make_result(hypotheses, prompts, options, recorder.steps, filling)


def _check_positions(model: object, prompts: Prompts, options: Options) -> None:
    """Refuse prompts and results that need more positions than the model has; the last token needs none."""
    most: int | None = getattr(model, "max_length", None)
    longest = max(map(len, prompts.prompts))
    if most is None:
        return
    if longest > most:
        raise ValueError(
            f"the longest prompt has {longest} tokens, but the model has {most} positions; shorten it, or use a model "
            "with a larger max_length"
        )
    if longest + options.max_new_tokens - 1 > most:
        raise ValueError(
            f"max_new_tokens is {options.max_new_tokens} after a prompt of {longest} tokens, but the model has {most} "
            f"positions; pass {most - longest + 1} or less"
        )


def _make_result(
    hypotheses: list[CandidateSequence],
    prompts: Prompts,
    options: Options,
    steps: list[GenerationStep] | None,
    filling: int,
) -> Generation:
    """Pad the new tokens into one array."""
    tokens, lengths = pad_sequences([np.array(one.tokens, np.int64) for one in hypotheses], padding_value=filling)
    source_lengths = prompts.source_lengths
    return Generation(
        tokens=tokens,
        lengths=lengths,
        scores=np.array([one.score for one in hypotheses]),
        prompts=[one.prompt for one in hypotheses],
        source_lengths=None if source_lengths is None else np.repeat(source_lengths, options.num_return_sequences),
        beam_indices=[np.array(one.rows, np.int64) for one in hypotheses],
        steps=steps,
        do_sample=options.do_sample,
    )
