"""What is measured, and the bar for each: every line of the table."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases import (
    AdditiveCase,
    AttentionCase,
    Bar,
    Case,
    EncoderLayerCase,
    LinearCase,
    MultiHeadCase,
    SelfAttentionCase,
)
from benchmarks.models import GenerateCase, SentencesCase

Shape = tuple[int, int, int, int, int]

OF_A_READ = Bar("of a read", 0.9)
PREFILL: tuple[tuple[Shape, float, float | None], ...] = (  # the bars on torch: plain, causal
    ((1, 12, 128, 128, 64), 1.2, 1.5),
    ((1, 12, 512, 512, 64), 1.2, 2.0),
    ((1, 16, 1024, 1024, 64), 1.2, 1.5),
    ((1, 8, 4096, 4096, 64), 1.2, 1.2),
    ((1, 8, 4096, 4096, 128), 1.1, 1.1),
    ((1, 8, 64, 2048, 64), 1.2, None),
    ((8, 12, 128, 128, 64), 1.2, 1.5),
)
RAGGED: tuple[tuple[Shape, bool], ...] = (
    ((1, 12, 77, 203, 40), False),
    ((1, 12, 203, 203, 40), True),
    ((1, 12, 500, 500, 80), False),
    ((1, 12, 300, 700, 96), False),
    ((1, 8, 512, 512, 256), False),
)
STRIDED: tuple[Shape, ...] = (
    (1, 16, 1024, 1024, 64),
    (1, 16, 1024, 1024, 128),
    (1, 32, 1024, 1024, 128),
)  # 4, 8, 16 KB
CACHE = (  # (heads, kv_heads, q_len, kv_len, head_dim)
    (12, 12, 1, 1024, 64),
    (32, 32, 1, 4096, 128),
    (32, 8, 1, 4096, 128),
    (32, 8, 4, 4096, 64),
    (16, 16, 512, 4096, 64),
)
HALF: tuple[tuple[Shape, float], ...] = (  # its time / float32's: out of the caches, in a cache, prefill
    ((1, 32, 1, 4096, 128), 1 / 1.6),
    ((1, 2, 1, 512, 128), 1 / 0.9),
    ((1, 12, 512, 512, 64), 1.06),
    ((1, 8, 2048, 2048, 64), 1.06),
)
LINEAR = ((768, 768), (768, 2304), (768, 3072), (3072, 768))  # (in_features, out_features)
QUICK_LINEAR = (128, 768, 2304)
ROWS = (1, 4, 16, 48, 64, 128, 256, 512, 1024)
FEW_ROWS = (1, 2, 3)
FEW_ROWS_LINEAR = (  # strides that share sets of a cache and strides that do not; the last one lies out of the caches
    (640, 640),
    (1008, 1008),
    (1024, 1024),
    (1040, 1040),
    (4096, 4096),
    (4112, 4096),
    (4096, 16384),
)
FROM_MEMORY = {"out_in": 0.85, "in_out": 0.9}  # of a read, for the last of them
MULTI_HEAD: tuple[tuple[tuple[int, int, int, int], str, float], ...] = (  # the bar on torch
    ((1, 10, 64, 4), "", 4.0),
    ((1, 128, 768, 12), "", 1.1),
    ((8, 128, 768, 12), "", 1.1),
    ((1, 512, 768, 12), "", 1.1),
    ((1, 1024, 1024, 16), "", 1.3),
    ((1, 1024, 1024, 16), "causal", 1.3),
    ((8, 128, 768, 12), "padding", 1.05),
    ((1, 512, 768, 12), "padding", 1.05),
    ((8, 128, 768, 12), "weights", 1.05),
    ((1, 512, 768, 12), "weights", 1.05),
)


def grid() -> Iterator[Case]:
    """Every case, in the order of the table."""
    yield from _attention()
    yield AdditiveCase("scores additive", (8, 256, 256, 128), {"torch": 1.5, "numpy": 5.0}, quick=True)
    for order in ("out_in", "in_out"):
        for sizes in LINEAR:
            for rows in ROWS:
                bar = 1.0 if rows <= 256 else 0.95
                yield LinearCase("linear", (rows, *sizes), bar, order=order, quick=(rows, *sizes) == QUICK_LINEAR)
        for sizes in FEW_ROWS_LINEAR:
            for rows in FEW_ROWS:
                far = rows == 1 and sizes is FEW_ROWS_LINEAR[-1]
                own = (Bar("of a read", FROM_MEMORY[order]),) if far else ()
                yield LinearCase("linear", (rows, *sizes), 1.0, order=order, own=own)
    for rows in (1, 4, 16, 64, 256):
        for features in (640, 768):
            yield SelfAttentionCase("self-attention", (rows, features), least=1.0 if rows == 1 else 1.3)
    for layers in (1, 12):
        yield MultiHeadCase("mha", (1, 1, 768, 12), 1.05, layers=layers, own=(OF_A_READ,), quick=layers == 1)
    for shape, variant, bar in MULTI_HEAD:
        yield MultiHeadCase("mha", shape, bar, variant, quick=shape[:2] in ((1, 10), (1, 128)))
    for sizes, bar in (((1, 128), 1.1), ((8, 128), 1.0), ((1, 1), 1.05)):
        own = (OF_A_READ,) if sizes == (1, 1) else ()
        yield EncoderLayerCase("encoder layer", (*sizes, 768, 12, 3072), bar, own=own, quick=sizes == (1, 128))
    yield GenerateCase("generate", (1, 512, 128, 768, 12, 12), 1.3, own=(Bar("of a read", 0.85),))
    for sizes, bar in (((1, 16), 2.5), ((32, 128), 1.2)):
        yield SentencesCase("sentences", (*sizes, 384, 12, 6, 1536), bar, quick=sizes == (1, 16))
    for sizes in ((1, 1), (1, 16), (1, 128), (16, 128)):
        yield SentencesCase("sentences", (*sizes, 768, 12, 4, 3072), 1.0)


def live_share(documents: int, length: int) -> float:
    """The share of tiles of 48 queries and 64 keys that hold a pair of one of so many equal documents."""
    size, live = length // documents, 0
    for query in range(0, length, 48):
        last = min(query + 48, length) - 1
        first, end = query // size * size, (last // size + 1) * size
        live += -(-end // 64) - first // 64
    return live / (-(-length // 48) * -(-length // 64))


def _attention() -> Iterator[AttentionCase]:
    half_microsecond = Bar("microseconds", 0.5, at_least=False)
    yield AttentionCase("tiny", (1, 1, 3, 3, 3), (7.0, 7.0), own=(half_microsecond,), quick=True)
    yield AttentionCase("tiny", (1, 8, 16, 16, 64), (3.0, 3.0))
    for shape, plain, causal in PREFILL:
        quick = shape[:3] in ((1, 12, 128), (1, 12, 512))
        yield AttentionCase("prefill", shape, (plain, plain), quick=quick)
        if causal is not None:
            yield AttentionCase("prefill", shape, (causal, causal), causal=True, quick=quick and shape[2] == 512)
    for shape, is_causal in RAGGED:
        bar = 1.5 if is_causal else 1.2
        yield AttentionCase("ragged", shape, (bar, bar), causal=is_causal)
    for q_len in (1, 2, 4, 16):
        yield AttentionCase("decode", (1, 32, q_len, 4096, 128), (1.1, 1.25), own=(OF_A_READ,), quick=q_len == 1)
    yield AttentionCase("decode", (1, 32, 1, 4096, 128), (1.1, 1.25), kv_heads=8, own=(OF_A_READ,))
    for shape in STRIDED:
        yield AttentionCase("strided", shape, (1.1, 1.1), strided=True, quick=shape is STRIDED[0])
    yield AttentionCase("grouped", (1, 32, 1024, 1024, 64), (1.1, 1.1), kv_heads=8)
    yield AttentionCase("grouped", (1, 32, 512, 512, 128), (1.1, 1.1), kv_heads=4)
    for shape, is_causal in (((1, 12, 128, 128, 64), False), ((1, 12, 512, 512, 64), False),
                             ((1, 12, 512, 512, 64), True), ((1, 8, 512, 512, 128), False)):  # fmt: skip
        yield AttentionCase("float64", shape, (1.5, 1.5), causal=is_causal, dtype="float64")
    for mask in ("bool", "padding", "float"):
        yield AttentionCase(f"{mask} mask", (2, 12, 512, 512, 64), (1.2, 1.2), mask=mask, quick=mask == "bool")
    for shape in ((1, 12, 128, 128, 64), (1, 12, 512, 512, 64), (1, 16, 1024, 1024, 64)):
        yield AttentionCase("weights", shape, own=(Bar("cost", 1.25, at_least=False),), quick=shape[2] == 512)
    for half in ("float16", "bfloat16"):
        of_a_read = Bar("of a read", 0.8)
        yield AttentionCase("decode", (1, 32, 1, 4096, 128), (1.3, 1.3), dtype=half, own=(of_a_read,))
        yield AttentionCase("prefill", (1, 12, 512, 512, 64), (1.3, 1.3), dtype=half)
        for shape, cost in HALF:
            bar = Bar("cost", cost, at_least=False)
            yield AttentionCase("half", shape, dtype=half, own=(bar,), quick=half == "bfloat16")
    for score in ("cosine", "distance", "bilinear"):
        dear = Bar("cost", 1.15, at_least=False)
        yield AttentionCase("scores", (1, 12, 512, 512, 64), score=score, own=(dear,), quick=score == "cosine")
    for heads, kv_heads, q_len, kv_len, head_dim in CACHE:
        near = Bar("cost", 1.05, at_least=False)
        yield AttentionCase(
            "cache", (1, heads, q_len, kv_len, head_dim), kv_heads=kv_heads, own=(near,), quick=kv_len == 1024
        )
    for kind in ("scores", "values"):
        yield AttentionCase(f"denormal {kind}", (1, 12, 512, 512, 64), own=(Bar("cost", 1.5, at_least=False),))
    read = Bar("cost", 1.3, at_least=False)
    for mask in (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "float32 columns",
        "bool",
        "bool columns",
        "every second bool",
    ):
        for shape in ((1, 12, 2048, 2048, 64), (1, 1, 128, 128, 64)):
            yield AttentionCase(f"mask of {mask}", shape, mask=mask, own=(read,), quick=mask == "float64")
    for documents, most in ((8, 1.3), (64, 1.6)):
        alive = Bar("cost", most * live_share(documents, 2048), at_least=False)
        mask = f"{documents} documents"
        yield AttentionCase(mask, (1, 12, 2048, 2048, 64), mask=mask, own=(alive,))
    for kind in ("values", "queries"):
        yield AttentionCase(f"NaN {kind}", (1, 12, 2048, 2048, 64), own=(read,))
