"""`generate`: its arguments, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_count, as_flag
from pyattn._util.random import draw_seed
from pyattn._util.typing import RNG
from pyattn.generation.beams import search_beams
from pyattn.generation.inputs import Beginning, read_beginning
from pyattn.generation.options import EarlyStopping, Options, TokenIds
from pyattn.generation.protocol import Decodable
from pyattn.generation.result import Generation
from pyattn.generation.scoring import Grown
from pyattn.generation.search import search
from pyattn.generation.sequences import pad_sequences
from pyattn.generation.starting import begin
from pyattn.generation.watching import Callback, Watch
from pyattn.nn.module import Module

__all__ = ["generate"]


def generate(
    model: Decodable | Module,
    source: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
    *,
    max_new_tokens: SupportsIndex,
    source_lengths: npt.ArrayLike | None = None,
    start_token_id: SupportsIndex | None = None,
    eos_token_id: TokenIds = None,
    pad_token_id: SupportsIndex | None = None,
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
    """Let a model write: token by token, each chosen by the scores that it gives to what may follow those before it.

    The likeliest each time (greedy search); by chance (do_sample); or the likeliest sequence that a beam search finds
    (num_beams). Arguments have the names and the meaning that they have in Hugging Face's transformers.

    Parameters
    ----------
    model : TransformerLM, Seq2SeqTransformer or another Decodable
        In eval mode. Nothing of it changes, whatever happens on the way.
    source : array_like of int, (batch, length) or (length,), or a sequence of rows, optional
        Token ids: what an encoder-decoder encodes, or what a model without an encoder continues. Rows may differ in
        length. Default: None, for a model without an encoder: start_token_id alone.
    max_new_tokens : int
        A row that has not ended by then is cut off.
    source_lengths : array_like of int, (batch,), optional
        How many tokens of each row of source are no padding. Default: None, all but pad_token_id at the ends of rows;
        of a list, which needs no padding, only where it is the model's padding_idx.
    start_token_id : int, optional
        ``<s>``: what follows it is generated. An encoder-decoder needs one; for other models it is put before each row.
        Default: None.
    eos_token_id : int or sequence of int, optional
        ``<end>``: a row that gets it is finished. Default: None, all rows get max_new_tokens.
    pad_token_id : int, optional
        What an array's rows are padded with, before or behind, unless it is an end symbol, too; and what is put behind
        rows of the result that are shorter than others. Default: None, the model's padding_idx, if it has one;
        behind rows else the first eos_token_id, or 0.
    min_new_tokens : int
        No end symbol comes before so many tokens. Default: 0.
    do_sample : bool
        Draw each token. Default: False.
    num_beams : int
        Sequences that are searched for at once; with 1 there is no beam search. Default: 1.
    num_return_sequences : int
        How many for each row of source: the best beams, or samples. Default: 1.
    temperature : float
        Of sampling: scores are divided by it. Default: 1.0.
    top_k : int, optional
        Of sampling: the k likeliest tokens alone, and those as likely as the last of them. Default: None, all.
    top_p : float, optional
        Of sampling: the likeliest tokens alone that have this probability together, after top_k. Default: None, all.
    repetition_penalty : float
        What scores of tokens that a row has already, in its prompt, too, are divided by; multiplied with where they are
        negative. Default: 1.0.
    length_penalty : float
        Of beams: their scores are divided by ``length ** length_penalty``. Default: 1.0.
    early_stopping : bool or 'never'
        Of beams: True ends as soon as num_beams sequences have ended; False when the best beam that goes on, were it to
        end here, is worse than these; 'never' when it is worse at any length. Default: False.
    rng : None, int, SeedSequence or Generator
        Where the numbers of sampling come from. A row's depend on the seed and its place, not on the rows beside it.
        Default: None, others each time.
    callback : callable, optional
        Is called with each `GenerationStep`; with True as its answer that step is the last. Default: None.
    progress : bool
        Show a bar; needs the package tqdm. Default: False.
    return_steps : bool
        The result has every step, with the weights of attention. Default: False.
    use_cache : bool
        Keep keys and values, where the model has a cache, the default. The tokens are the same without, but for rotary
        positions with the scaling dynamic or longrope beyond the trained length: there keys stay as they were stored,
        and a row depends on the longest of its batch, too.

    Returns
    -------
    Generation

    Raises
    ------
    TypeError
        model cannot be decoded, or an argument has another type.
    ValueError
        source is empty or has ids that the model does not know, the result would be longer than the model's positions,
        an option is out of range or has no effect beside the others, the model is in training mode, or it gives NaN.
    ImportError
        progress without tqdm.

    References
    ----------
    Beam search: Sutskever et al. 2014, and Wu et al. 2016 for the length penalty's form. Sampling: Fan et al. 2018
    (top-k), Holtzman et al. 2020 (nucleus).

    Examples
    --------
    A model made by hand, whose one layer lets through what comes in, and whose vocabulary knows the next word:

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

    Several rows at once, which end when they like; and what is drawn by chance:

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
    options = Options.read(
        eos_token_id=eos_token_id,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        do_sample=do_sample,
        num_beams=num_beams,
        num_return_sequences=num_return_sequences,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    for flag, name in ((progress, "progress"), (return_steps, "return_steps"), (use_cache, "use_cache")):
        as_flag(flag, name)
    start = None if start_token_id is None else as_count(start_token_id, "start_token_id", least=0)
    padding = (
        getattr(model, "padding_idx", None) if pad_token_id is None else as_count(pad_token_id, "pad_token_id", least=0)
    )
    _check_model(model)
    seed = draw_seed(rng) if options.do_sample else 0
    beginning = read_beginning(model, source, source_lengths, start, padding, options.eos_token_ids)
    _check_room(model, beginning, options)

    with Watch(callback, return_steps, progress, options.max_new_tokens) as watch:
        state = begin(model, *beginning[1:], use_cache=use_cache, need_weights=watch.looks)
        if options.num_beams > 1:
            grown = search_beams(state, beginning.prompts, options, watch)
        else:
            grown = search(state, beginning.prompts, options, seed, watch)
    filling = next((x for x in (padding, *options.eos_token_ids) if x is not None), 0)
    return _make_result(grown, beginning, options, watch, filling)


def _check_model(model: Any) -> None:
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}, expected one of its objects: call it with sizes")
    if not hasattr(model, "is_encoder_decoder"):
        begin(model, None, None, use_cache=True, need_weights=False)  # says what is wrong
    if getattr(model, "training", False):
        raise ValueError("model is in training mode, in which dropout leaves out numbers by chance; call model.eval()")


def _check_room(model: Any, beginning: Beginning, options: Options) -> None:
    """Refuse what needs more positions than there are; the last token needs none."""
    most, longest = getattr(model, "max_length", None), max(map(len, beginning.prompts))
    if most is None:
        return
    if longest > most:
        raise ValueError(
            f"the longest row of source makes a prompt of {longest} tokens, and the model has {most} positions; "
            "shorten it, or take a model with more of them"
        )
    if longest + options.max_new_tokens - 1 > most:
        raise ValueError(
            f"max_new_tokens is {options.max_new_tokens} after a prompt of {longest}, and the model has {most} "
            f"positions; pass {most - longest + 1} or less"
        )


def _make_result(grown: list[Grown], beginning: Beginning, options: Options, watch: Watch, filling: int) -> Generation:
    tokens, lengths = pad_sequences([np.array(one.tokens, np.int64) for one in grown], padding_value=filling)
    source = beginning.source_lengths
    return Generation(
        tokens=tokens,
        lengths=lengths,
        scores=np.array([one.score for one in grown]),
        prompts=[one.prompt for one in grown],
        source_lengths=None if source is None else np.repeat(source, options.num_return_sequences),
        trails=[np.array(one.trail, np.int64) for one in grown],
        steps=watch.steps,
    )
