"""Names that users type: public names of modules and keywords of functions, and errors for unknown ones."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

__all__ = [
    "FROM_ARRAYS",
    "naming_keywords",
    "naming_keywords_of_class",
    "nearest",
    "offer",
    "publish",
    "refuse_call",
    "showing",
    "unknown_field",
    "unknown_name",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type)

# Other libraries' words -> ours; the first that the function has is meant.
_ELSEWHERE = {
    "apply_rope": ("rotary_embedding", "RotaryEmbedding"),
    "attn_mask": ("src_mask", "tgt_mask"),
    "attention_mask": ("key_padding_mask", "src_key_padding_mask", "attn_mask"),
    "base": ("theta",),
    "causal": ("is_causal",),
    "d_in": ("embed_dim",),
    "d_model": ("embed_dim",),
    "d_out": ("key_dim",),
    "dim": ("axis", "normalized_shape", "embed_dim", "d_model"),
    "dropout": ("dropout_p", "p"),
    "embed_dim": ("d_model",),
    "generator": ("rng",),
    "gpt": ("TransformerLM",),
    "grad": ("grad_outputs",),
    "grad_output": ("grad_outputs",),
    "input": ("x",),
    "key_mask": ("key_padding_mask",),
    "key_padding_mask": ("attn_mask",),
    "k": ("key",),
    "kv_len": ("S",),
    "labels": ("tokens",),
    "lengths": ("key_lengths",),
    "mask": ("attn_mask", "src_mask"),
    "max_len": ("max_length",),
    "max_seq_len": ("max_length",),
    "num_heads": ("nhead", "num_kv_heads"),
    "output_attentions": ("need_weights",),
    "pad_id": ("padding_idx",),
    "pad_token_id": ("padding_idx",),
    "padding": ("key_lengths", "source_lengths", "lengths"),
    "past_key_values": ("cache", "use_cache"),
    "plot": ("steps",),
    "q": ("query",),
    "q_len": ("L",),
    "return_attention_weights": ("need_weights",),
    "return_weights": ("need_weights",),
    "rope": ("rotary", "rotary_embedding", "RotaryEmbedding"),
    "rope_theta": ("theta",),
    "seed": ("rng",),
    "src_mask": ("mask", "attn_mask"),
    "use_cache": ("cache",),
    "v": ("value",),
    **{f"{w}{word[0]}": (f"w_{word}",) for w in ("w", "w_") for word in ("query", "key", "value")},
}
_CACHES = {"cache", "past_key_values", "use_cache"}
_HEADS = {"heads", "n_head", "n_heads", "nhead", "num_attention_heads", "num_heads"}
_GRADIENTS = "output, backward = module.vjp(...) is the way to gradients of a module"
_HOMES = {  # names whose module is elsewhere
    "from_pretrained": "models.load",
    "from_torch": "interop.torch.from_torch",
    "functional": "functional",
    "load": "models.load",
    "to_torch": "interop.torch.to_torch",
}
_HOW = {  # names without a function here
    **dict.fromkeys(("autograd", "grad"), _GRADIENTS),
    "backward": f"{_GRADIENTS}, and pyattn.trace(...).backward(grad_outputs) shows those of one head",
    "no_grad": "a plain call keeps nothing for gradients: leave it out",
    "attention_weights": "pyattn.attention(query, key, value, need_weights=True) returns them",
    "relu": "numpy.maximum(x, 0) is the same",
    "split_heads": "x.reshape(*x.shape[:-1], heads, -1).swapaxes(-3, -2) is the same",
    "tanh": "numpy.tanh(x) is the same",
}
# A keyword that a function lacks, and one that it has: what to do about the first.
_ADVICE = {
    ("attention_mask", "source_lengths"): "rows are padded at the end: pass source_lengths=attention_mask.sum(axis=1), "
    "or a list of lists of ids",
    **dict.fromkeys(
        (("axis", "align"), ("axis", "enable_gqa")), "the length is the axis before the last: move axes with swapaxes"
    ),
    ("alibi", "attn_mask"): "ALiBi is a float attn_mask, -slope * distance, which is added to the scores",
    ("bias", "attn_mask"): "a bias is attn_mask: floats are added to the scores",
    ("input_ids", "source"): "source takes the ids",
    ("max_length", "max_new_tokens"): "max_new_tokens counts new tokens alone, without the prompt",
    ("state_dict", "dtype"): "make the module, then call its load_state_dict(state_dict)",
}
# Functions whose arguments are often those of another one.
_INSTEAD = {
    "KVCache.append": "call append(layer, key, value)",
    "KVCache.attend": "call append(layer, key, value) and then attend(layer, query)",
    "MultiheadAttention.forward": "for self-attention pass x three times: module(x, x, x)",
    "attention": "a mask is attn_mask; for x and three weights call pyattn.self_attention",
    "trace": "trace_attention takes query, key and value, and modules have a method trace",
}
FROM_ARRAYS = "nn.SelfAttention.from_arrays(w_query, w_key, w_value) makes a module of arrays"
_WEIGHTS = {f"{w}{name}" for w in ("w", "w_") for name in ("q", "k", "v", "query", "key", "value")}


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Guess which of the names was meant; of names with dots the last part counts."""
    known = {full.rpartition(".")[2].lower(): full for full in sorted(names, key=len, reverse=True)}
    word = name.lower()
    if word in _HEADS:  # num_threads is near
        known = {other: full for other, full in known.items() if "head" in other}
    for ours in _ELSEWHERE.get(word, ()):
        if ours.lower() in known:
            return known[ours.lower()]
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    if not close and len(word) >= 4:
        close = [other for other in known if word in other]
    return known[close[0]] if len(close) == 1 else None


# Keywords


def offer(word: str, names: Collection[str]) -> str:
    """Say which keyword was probably meant by an unknown one; the message goes on with the function's names."""
    meant = nearest(word, names)
    return _advice(word, meant, names) or (f"did you mean {meant}? It takes" if meant else "it takes")


def _advice(word: str, meant: str | None, names: Collection[str]) -> str | None:
    """Say what to do about a keyword where another name alone does not help."""
    for (lacked, has), advice in _ADVICE.items():
        if word == lacked and has in names:
            return f"{advice}; it takes"
    if word.lower() in _WEIGHTS and "key_dim" in names:
        return f"{FROM_ARRAYS}; it takes"
    if word == "dtype" and {"query", "out"} <= {*names}:
        return "the result has the arrays' dtype: convert it with astype; it takes"
    if word in ("query", "key", "value") and {"x", "w_query"} <= {*names}:
        takes = "trace_attention" if "tokens" in names else "attention"
        return f"pyattn.{takes} takes query, key and value; this function computes them from x, and takes"
    pairs, without = "[..., None, None, :]", ", without heads [..., None, :]"
    if "x" in names or "tokens" in names:  # a trace's mask is (L, S)
        pairs, without = "" if "tokens" in names else "[..., None, :]", ""
    if word == "attention_mask" and meant is not None:
        over_queries = f"attn_mask=attention_mask.astype(bool){pairs}{without}"
        same = f"{meant}=attention_mask == 0" if "key" in meant else over_queries
        return f"a tokenizer's attention_mask is {same}; it takes"
    if word in _CACHES and meant is None and {"lengths", "need_weights"} <= {*names}:  # a language model's call
        return "decode_step(input, cache) takes a step with a cache that new_cache() makes; it takes"
    if word in _HEADS and meant is None and "context_dim" in names:
        return "SelfAttention has one head, MultiheadAttention(embed_dim, num_heads) more; it takes"
    if word in _HEADS and meant is None and {"query", "w_query"} & {*names}:
        return "heads are an axis, (..., heads, length, dim), which pyattn.MultiheadAttention makes; it takes"
    if (word, meant) == ("key_padding_mask", "attn_mask"):
        return f"give it as attn_mask=pyattn.masks.from_blocked(key_padding_mask{pairs}){without}; it takes"
    if (word, meant) == ("mask", "attn_mask"):
        means = "blocked" if "key_padding_mask" in names else "attend"
        lengths = ", and key_lengths takes the lengths of padding" if "key_lengths" in names else ""
        return f"did you mean attn_mask (bools: True = {means}; floats are added to the scores{lengths})? It takes"
    return None


def naming_keywords(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function's refusal of an unknown keyword say which one was meant. A call takes 0.1 to 0.2 us more."""
    if function.__code__.co_flags & inspect.CO_VARKEYWORDS:
        return function

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            refuse_call(error, args, kwargs, function, _called(call, args))
            raise

    return call


def naming_keywords_of_class(cls: _Class) -> _Class:
    """Do the same for a class's constructor, and for methods of pyattn that take arguments by name only."""
    for name, member in list(vars(cls).items()):
        function = getattr(member, "__func__", member)  # of class and static methods
        if not inspect.isfunction(function):
            continue
        # `Module.__call__` does this for forward, where a wrapper would slow down every call.
        has_options = function.__code__.co_kwonlyargcount > 0 and function.__module__.startswith("pyattn.")
        if name == "__init__" or (has_options and not name.startswith("_") and name != "forward"):
            naming = naming_keywords(function)
            setattr(cls, name, naming if member is function else type(member)(naming))
    return cls


def refuse_call(
    error: TypeError, args: Sequence[Any], kwargs: Mapping[str, Any], function: Callable[..., Any], called: str
) -> None:
    """Raise if a call failed because of its keywords or the number of its arguments, saying what the function takes."""
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:  # it came from inside the function
        return
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # not a function, or one in C without a signature
        return
    parameters = {name: p for name, p in signature.parameters.items() if name not in ("self", "cls")}
    kinds = {p.kind for p in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return
    unknown = [keyword for keyword in kwargs if keyword not in parameters]
    takes = ", ".join(parameters) or "no arguments"
    if unknown:
        raise TypeError(f"{called}() got {_about_keywords(unknown, parameters)} {takes}") from None
    given = len(args) - (len(signature.parameters) - len(parameters))
    by_position = [name for name, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]
    other_kinds = kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}
    if other_kinds or {*by_position[:given]} & {*kwargs}:  # given twice: Python's own message says it
        return
    by_name = [name for name in parameters if name not in by_position]
    advice = instead(called)
    if given > len(by_position) and by_name:
        takes = f"{', '.join(by_position) or 'nothing'} by position, and by name {', '.join(by_name)}"
        number = "an argument" if given == 1 else f"{given} arguments"
        raise TypeError(f"{called}() is given {number} by position{advice}; it takes {takes}") from None
    bound = {*by_position[:given], *kwargs}
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in bound]
    if missing:
        raise TypeError(f"{called}() is called without {', '.join(missing)}{advice}; it takes {takes}") from None


def instead(called: str) -> str:
    """Say what a call with a wrong number of arguments may have meant; the core's functions ask, too."""
    return f"; {_INSTEAD[called]}" if called in _INSTEAD else ""


def _about_keywords(unknown: Sequence[str], names: Collection[str]) -> str:
    """Say which keywords a function does not have, and which were probably meant."""
    if len(unknown) == 1:
        return f"an unexpected keyword argument {unknown[0]!r}; {offer(unknown[0], names)}"
    wrong = f"unexpected keyword arguments {', '.join(map(repr, unknown))}; "
    if "key_dim" in names and {word.lower() for word in unknown} in ({"query", "key", "value"}, {"q", "k", "v"}):
        return f"{wrong}{FROM_ARRAYS}; it takes"
    guesses = [(word, nearest(word, names)) for word in unknown]
    advice = {_advice(word, ours, names) for word, ours in guesses}
    if len(advice) == 1 and None not in advice:
        return f"{wrong}{advice.pop()}"
    meant = " and ".join(f"{ours} for {word}" for word, ours in guesses if ours and not _advice(word, ours, names))
    return wrong + (f"did you mean {meant}? It takes" if meant else "it takes")


def _called(call: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Name a function as its caller does: a constructor by its class, a method by the class that inherits it."""
    holder, _, name = call.__qualname__.rpartition(".")
    if holder and args:
        own = args[0] if isinstance(args[0], type) else type(args[0])
        methods = ((cls.__name__, getattr(cls, name, None)) for cls in own.__mro__)
        holder = next((found for found, method in methods if getattr(method, "__func__", method) is call), holder)
    return holder if name == "__init__" else f"{holder}.{name}" if holder else name


# Names of modules


def showing(
    module: str, names: Iterable[str], hot: Collection[str] = ()
) -> tuple[Callable[[str], NoReturn], Callable[[], list[str]]]:
    """Publish a module's names, and make its __getattr__ and __dir__; the hot functions stay as fast as they are."""
    shown = vars(sys.modules[module])
    for name in names:
        if name not in hot:  # naming keywords takes 0.2 us, too much for a function that takes 3
            shown[name] = publish(shown[name], module)

    def refuse(name: str) -> NoReturn:
        raise unknown_name(module, name, names)

    return refuse, lambda: sorted(names)


def publish(value: Any, module: str) -> Any:
    """Make a function in Python name its keywords, as the module's own, where pickle looks for it; return others."""
    if not inspect.isfunction(value):
        return value
    naming = naming_keywords(value)
    if naming is not value:
        naming.__module__ = module
    return naming


def unknown_name(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Make the error, with the name that was probably meant, or all; names of other modules are given in full."""
    wrong, owner = f"module {module!r} has no attribute {name!r}", sys.modules[module]  # with obj Python adds no guess
    if name.startswith("_"):
        return AttributeError(wrong, obj=owner)
    if name in _HOW:
        return AttributeError(f"{wrong}; {_HOW[name]}", obj=owner)
    meant = f"pyattn.{_HOMES[name]}" if name in _HOMES else nearest(name, names)
    if meant is None:
        own = sorted(full for full in names if "." not in full and not full.startswith("_"))
        return AttributeError(f"{wrong}; it has {', '.join(own)}", obj=owner)
    return AttributeError(f"{wrong}; did you mean {meant if '.' in meant else f'{module}.{meant}'}?", obj=owner)


def unknown_field(owner: Any, name: str, names: Iterable[str], advice: Mapping[str, str], rest: str = "") -> NoReturn:
    """Raise the error for a field that a result lacks: what to read instead, or all that it has."""
    kind = type(owner).__name__
    wrong = f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind} has no {name!r}"
    if name.startswith("_"):
        raise AttributeError(wrong, name=name, obj=owner)
    meant = advice.get(name) or nearest(name, names)
    hint = f"did you mean {meant}?" if meant else f"it has {', '.join(names)}"
    raise AttributeError(f"{wrong}; {hint}{rest}")
