"""Every number on the lesson pages is what plain NumPy computes, to the last printed digit.

The inputs are those of article.json, and on the pages about the Transformer and about training the parameters of small
models.

A page claims numbers in three kinds of places: the output of its code, its tables and its sentences. Each kind is read
in order and compared with a list computed here, without the functions of pyattn.
"""

from __future__ import annotations

import ast
import doctest
import functools
import re
from typing import NamedTuple

import numpy as np
import pytest
from support.helpers import ROOT
from support.language_model_twin import Twin, cosine_rate

from pyattn import nn
from pyattn.models.examples import student

LESSONS = ROOT / "docs" / "tutorials"
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[-+]\d+)?(?![\w])")
BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)
SPAN = re.compile(r"`([^`\n]*)`")


class Claims(NamedTuple):
    """Numbers by place, as arrays or as lists of arrays: outputs by the code that prints them."""

    printed: dict
    tables: list
    prose: list


def flat(truth):
    """All numbers of nested lists of arrays and numbers, in order."""
    if isinstance(truth, (list, tuple)):
        return [number for part in truth for number in flat(part)]
    return np.asarray(truth, np.float64).ravel().tolist()


def decimals_of(text):
    """How many decimals a number is printed with; 6.3379e-02 has six."""
    mantissa, _, exponent = text.partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)


def assert_printed(texts, truth, place, one_precision=False):
    """Each number is the true one, rounded to the decimals it has, or to those of the most precise one."""
    expected = flat(truth)
    assert len(texts) == len(expected), f"{place}: {texts} for {expected}"
    most = max(map(decimals_of, texts), default=0)
    for text, number in zip(texts, expected, strict=True):
        unit = 10.0 ** -(most if one_precision else decimals_of(text))
        assert abs(float(text) - number) <= 0.500001 * unit, f"{place}: {text} where {number} is true"


def without_words(text):
    """Leave only the code spans that are vectors: the digits of others are names and sizes."""
    return SPAN.sub(lambda span: span[1] if re.fullmatch(r"\[[-\d., ]+\]", span[1]) else "", text)


def prose_of(page):
    """All numbers with decimals in sentences, and all numbers of vectors."""
    text = TABLE.sub("", BLOCK.sub("", page))
    vectors = re.compile(r"`\[[-\d., ]+\]`")
    found = [(at.start(), NUMBER.findall(at[0])) for at in vectors.finditer(text)]
    rest = SPAN.sub(lambda span: " " * len(span[0]), text)
    found += [(at.start(), [at[0]]) for at in NUMBER.finditer(rest) if "." in at[0].rstrip(".")]
    return [number for _, numbers in sorted(found) for number in numbers]


def examples_of(page):
    """What each statement of a page prints."""
    return {re.sub(r"\s*#.*", "", one.source).strip(): one.want for one in doctest.DocTestParser().get_examples(page)}


def check(page, claims):
    """Hold the text of a page against its claims; what it prints and is not listed is a mistake, too."""
    printed = examples_of(page)
    with_numbers = {source for source, want in printed.items() if NUMBER.search(want)}
    assert with_numbers == claims.printed.keys(), with_numbers ^ claims.printed.keys()
    for source, truth in claims.printed.items():
        assert_printed(NUMBER.findall(printed[source]), truth, source, one_precision="array(" in printed[source])
    tables = [NUMBER.findall(without_words(table)) for table in TABLE.findall(BLOCK.sub("", page))]
    tables = [numbers for numbers in tables if len(numbers) > 3]  # a table of words may say that weights sum to 1
    assert len(tables) == len(claims.tables)
    for n, (numbers, truth) in enumerate(zip(tables, claims.tables, strict=True), 1):
        assert_printed(numbers, truth, f"table {n}")
    assert_printed(prose_of(page), claims.prose, "prose")


def given_arrays(page):
    """The matrices that the page's code types in, by name."""
    found = {}
    for example in doctest.DocTestParser().get_examples(page):
        for node in ast.walk(ast.parse(example.source)):
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("np.array("):
                found[node.targets[0].id] = np.array(ast.literal_eval(node.value.args[0]), np.float64)
    return found


def attend(x, w_query, w_key, w_value, scale=1.0):
    """Scores, weights, weighted values (key, query, v_dim) and outputs of one head, by the formulas of the texts."""
    queries, keys, values = x @ w_query, x @ w_key, x @ w_value
    scores = queries @ keys.T * scale
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    weighted = values[:, None] * weights.T[:, :, None]
    return scores, weights, weighted, weighted.sum(axis=0)


FIVE_DIGITS = """for {0}:
    print(*(f"{{weight:.4e}}" for weight in row))"""
FOUR_DECIMALS = """for row in {0}:
    print(*(f"{{weight:.4f}}" for weight in row))"""
STEP_TITLES = """for step in trace.steps:
    print(step.number, step.title, sorted(step.arrays))"""


def eight_steps(article, page):
    given = given_arrays(page)
    for name in ("x", "w_query", "w_key", "w_value"):
        np.testing.assert_array_equal(given[name], article[name], err_msg=name)
    x, w_query, w_key, w_value = (article[name] for name in ("x", "w_query", "w_key", "w_value"))
    _, weights, weighted, outputs = attend(x, w_query, w_key, w_value)
    np.testing.assert_allclose(weights, article["softmax"], rtol=1e-4)  # five digits are given
    rounded, products, sums = (
        article[name] for name in ("softmax_rounded", "weighted_values_of_rounded", "outputs_of_rounded")
    )
    doubled = attend(x, 2 * w_query, w_key, w_value)
    first_zero, changed = w_query.copy(), w_value.copy()
    first_zero[0, 0], changed[0, 0] = 0, 1
    other = attend(x, first_zero, w_key, w_value)
    with_one = attend(x, w_query, w_key, changed)[3][0]
    printed = {
        "x": x,
        "keys": article["keys"],
        "queries": article["queries"],
        "values": article["values"],
        "queries[0] @ keys.T": article["scores"][0],
        "weights.round(4)": weights[0],
        "weighted_values.round(4)": weighted[:, 0],
        "weighted_values.sum(axis=0).round(4)": outputs[0],
        "scores": article["scores"],
        FIVE_DIGITS.format("row in weights"): article["softmax"],
        "outputs.round(4)": outputs,
        "weighted_values.shape": products.shape,
        "rounded.weights": rounded,
        "rounded.weighted_values": products,
        "rounded.outputs": sums,
        "pyattn.self_attention(x, w_query, w_key, w_value, scale=1).round(4)": outputs,
        "pyattn.attention(queries, keys, values, scale=1).round(4)": outputs,
        "trace": [len(x), len(x), w_key.shape[1], w_value.shape[1]],
        STEP_TITLES: [1, 2, 3, 4, 1, 5, 6, 7, 1, 8, 4, 7],
        "print(trace.for_query(1)[0])": [
            [4, 2, 2, article["queries"][1], article["scores"][1], 1, 3],
            [article["scores"][1]],
        ],
        "pyattn.trace(x, w_query, w_key, w_value).outputs[0].round(4)": with_one,
        "columns.queries": article["queries"].T,
        FIVE_DIGITS.format("row in columns.weights"): article["softmax"].T,
        "columns.outputs.round(4)": outputs.T,
        "pyattn.trace(x, other, w_key, w_value).weights[0].round(4)": other[1][0],
        "pyattn.trace(x, 2 * w_query, w_key, w_value).weights[0].round(4)": doubled[1][0],
        "pyattn.trace(x[[0, 2, 1]], w_query, w_key, w_value).outputs.round(4)": outputs[[0, 2, 1]],
    }
    table = []
    for i in range(3):
        for j in range(3):
            table += [i + 1, j + 1, weights[i, j], rounded[i, j], weighted[j, i], products[j, i]]
        table += [i + 1, i + 1, weights[i].sum(), rounded[i].sum(), outputs[i], sums[i]]
    prose = [rounded[0, 1:], sums[0], outputs[0], weights[0, 0], weights[0, 0], with_one]
    prose += [(x @ first_zero)[0], other[0][0], doubled[0][0], weights[0, 0], doubled[1][0, 0]]
    return Claims(printed, [table], prose)


def several_heads(article, page):
    given = given_arrays(page)
    for name in ("x", "w_query", "w_key", "w_value"):
        np.testing.assert_array_equal(given[name if name == "x" else f"{name}_1"], article[name], err_msg=name)
    x, w_out = article["x"], given["w_out"]
    matrices = [[given[f"{name}_{h}"] for name in ("w_query", "w_key", "w_value")] for h in (1, 2)]
    plain, scaled = ([attend(x, *own, scale) for own in matrices] for scale in (1.0, 3**-0.5))
    (_, weights_1, _, head_1), (scores_2, weights_2, _, head_2) = scaled
    concatenated, stacked = np.hstack([head_1, head_2]), np.vstack([head[3].T for head in plain])
    outputs, columns = concatenated @ w_out, w_out.T @ stacked
    only_1 = np.hstack([head_1, 0 * head_2]) @ w_out
    parameters = sum(matrix.size for own in matrices for matrix in own) + w_out.size
    grad_concatenated = w_out[:, 0]  # the loss is number 1 of output 1
    grad_weights = x @ given["w_value_2"] @ grad_concatenated[3:]
    grad_scores_2 = weights_2[0] * (grad_weights - weights_2[0] @ grad_weights)
    printed = {
        "backward": [len(matrices), outputs.shape],
        "backward.grad_concatenated[0]": grad_concatenated,
        "backward.heads[1].grad_outputs[0]": grad_concatenated[3:],
        "backward.heads[1].grad_scores[0].round(4)": grad_scores_2,
        "backward.grad_w_query.shape": (x.shape[1], len(w_out)),
        FOUR_DECIMALS.format("weights_1"): weights_1,
        "head_1.round(4)": head_1,
        FOUR_DECIMALS.format("weights_2"): weights_2,
        "head_2.round(4)": head_2,
        "concatenated.round(4)": concatenated,
        "outputs.round(4)": outputs,
        "traced": [len(matrices), outputs.shape],
        "traced.heads[1].scores.round(4)": scores_2,
        "print(traced.concatenation)": [
            [9, 2, 1, 1, head_1[0], 2, 1, head_2[0], concatenated[0], concatenated.shape],
            [concatenated],
        ],
        "print(traced.projection)": [
            [10, 1, concatenated[0], outputs[0], concatenated.shape, concatenated],
            [w_out.shape, w_out, outputs.shape, outputs],
        ],
        "output_1.round(4)": plain[0][3].T,
        "output_2.round(4)": plain[1][3].T,
        "(w_out.T @ stacked).round(4)": columns,
        FOUR_DECIMALS.format("columns.heads[0].weights"): plain[0][1].T,
        FOUR_DECIMALS.format("columns.heads[1].weights"): plain[1][1].T,
        "print(columns.concatenation)": [
            [9, 2, 1, 1, stacked[:3, 0], 2, 1, stacked[3:, 0], stacked[:, 0], stacked.shape],
            [stacked],
        ],
        "print(columns.projection)": [
            [10, 1, stacked[:, 0], columns[:, 0], stacked.shape, stacked],
            [w_out.T.shape, w_out.T, columns.shape, columns],
        ],
        "nn.from_heads(w_query, w_key, w_value, only_1).trace(x).outputs.round(4)": only_1,
        "[sum(p.size for p in module.parameters()) for module in (mha, one_head)]": [parameters] * 2,
    }
    sizes = [x.shape, x.T.shape, matrices[0][0].shape, matrices[0][0].T.shape, *[head_1.shape] * 4]
    sizes += [concatenated.shape, stacked.shape, outputs.shape, columns.shape]
    scores, weights, sums = [], [], []
    for h in range(2):
        for i in range(3):
            for table, which in ((scores, 0), (weights, 1), (sums, 3)):
                table += [h + 1, i + 1, plain[h][which][i], scaled[h][which][i]]
    for i in range(3):
        sums += [i + 1, columns[:, i], outputs[i]]
    return Claims(printed, [sizes, scores, weights, sums], [])


# The lesson on the Transformer has the numbers of a small trained model, whose parameters are read from its file.

SOURCE, TARGET = ["je", "suis", "étudiant"], ["I", "am", "a", "student"]


def student_by_hand():
    """Every array of "I am a student" by the formulas of the text, in float64."""
    model, source_words, target_words = student()
    p = {name: np.asarray(array, np.float64) for name, array in model.state_dict().items()}

    def embed(name, ids):
        t, i = np.arange(len(ids))[:, None], np.arange(4)
        angles = t / 10000 ** (2 * i / 8)
        positions = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(ids), 8)
        embedded = p[f"{name}_embedding.weight"][ids] * 8**0.5
        return embedded, positions, embedded + positions

    def several(name, x, memory, visible=True):
        query, key, value = np.split(p[f"{name}.in_proj_weight"], 3)
        b_query, b_key, b_value = np.split(p[f"{name}.in_proj_bias"], 3)
        q, k, v = x @ query.T + b_query, memory @ key.T + b_key, memory @ value.T + b_value
        weights, outputs = [], []
        for head in (slice(0, 4), slice(4, 8)):
            exponentials = np.where(visible, np.exp(q[:, head] @ k[:, head].T * 0.5), 0)
            weights.append(exponentials / exponentials.sum(axis=-1, keepdims=True))
            outputs.append(weights[-1] @ v[:, head])
        return weights, np.hstack(outputs) @ p[f"{name}.out_proj.weight"].T + p[f"{name}.out_proj.bias"]

    def norm(name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        normalised = centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
        return normalised, normalised * p[f"{name}.weight"] + p[f"{name}.bias"]

    def feed_forward(name, x):
        activated = np.maximum(x @ p[f"{name}.linear1.weight"].T + p[f"{name}.linear1.bias"], 0)
        return activated, activated @ p[f"{name}.linear2.weight"].T + p[f"{name}.linear2.bias"]

    found = {"parameters": sum(array.size for array in p.values())}
    layer = "transformer.encoder.layers.0"
    found["source_ids"] = [source_words.index(word) for word in SOURCE]
    found["embedded"], found["positions"], x = embed("src", found["source_ids"])
    found["encoder_weights"], found["attention"] = several(f"{layer}.self_attn", x, x)
    found["sum_1"] = x + found["attention"]
    found["normalised"], found["norm_1"] = norm(f"{layer}.norm1", found["sum_1"])
    found["activated"], found["feed_forward"] = feed_forward(layer, found["norm_1"])
    outputs = norm(f"{layer}.norm2", found["norm_1"] + found["feed_forward"])[1]
    memory = found["memory"] = norm("transformer.encoder.norm", outputs)[1]

    layer = "transformer.decoder.layers.0"
    y = embed("tgt", [target_words.index(word) for word in ("<s>", *TARGET[:-1])])[2]
    found["mask"] = np.array([[j <= i for j in range(4)] for i in range(4)])
    found["masked_weights"], attention = several(f"{layer}.self_attn", y, y, found["mask"])
    y = norm(f"{layer}.norm1", y + attention)[1]
    found["cross_weights"], found["cross"] = several(f"{layer}.multihead_attn", y, memory)
    y = norm(f"{layer}.norm2", y + found["cross"])[1]
    y = norm(f"{layer}.norm3", y + feed_forward(layer, y)[1])[1]
    scores = norm("transformer.decoder.norm", y)[1][-1] @ p["generator.weight"].T + p["generator.bias"]
    found["probabilities"] = np.exp(scores) / np.exp(scores).sum()
    return found


def transformer(article, page):
    of = student_by_hand()
    assert f"A Transformer of {round(of['parameters'], -2):,} parameters" in page
    sum_1 = of["sum_1"][0]
    printed = {
        "source_ids": of["source_ids"],
        "print(embedded.round(2))": of["embedded"],
        "print(positions.round(3))": of["positions"],
        "print(trace.stages[1])": [
            0.5,
            2,
            [[3, 3, head] for head in of["encoder_weights"]],
            3,
            8,
            of["attention"],
        ],
        "print(sum_1[0].round(4))": sum_1,
        "print(sum_1[0].mean().round(4), sum_1[0].var().round(4))": [sum_1.mean(), sum_1.var()],
        "print(normalised.round(4))": of["normalised"][0],
        "print(norm_1[0].round(4))": of["norm_1"][0],
        "int((activated[0] > 0).sum())": (of["activated"][0] > 0).sum(),
        "print(feed_forward[0].round(4))": of["feed_forward"][0],
        "print(memory.round(2))": of["memory"],
        "print(mask)": of["mask"],
        'print(trace.attentions["self_attention"].heads[0].weights.round(4))': of["masked_weights"][0],
        "print(trace.stages[3])": [0.5, 2, [[4, 3, head] for head in of["cross_weights"]], 4, 8, of["cross"]],
        'print(target_words[best], f"{probabilities[best]:.3f}")': of["probabilities"].max(),
    }
    for source, want in examples_of(page).items():  # enumerations: stages by number, and the five steps
        found = [int(n) for n in re.findall(r"^(?:step )?(\d+)", want, re.MULTILINE)]
        if source.startswith(("for number", "while")):
            printed[source] = list(range(1, len(found) + 1))
    return Claims(printed, [], [0.5, 0.5, of["mask"][0]])


def backwards(x, w_query, w_key, w_value, grad_outputs):
    """Gradients by their formulas, with the softmax's Jacobian written out: by the names of the page."""
    queries, keys, values = x @ w_query, x @ w_key, x @ w_value
    weights = attend(x, w_query, w_key, w_value)[1]
    found = {"grad_values": weights.T @ grad_outputs, "grad_weights": grad_outputs @ values.T}
    jacobians = [np.diag(row) - np.outer(row, row) for row in weights]
    found["grad_scores"] = np.array([j @ grad for j, grad in zip(jacobians, found["grad_weights"], strict=True)])
    found |= {"grad_queries": found["grad_scores"] @ keys, "grad_keys": found["grad_scores"].T @ queries}
    for name, plural in (("query", "queries"), ("key", "keys"), ("value", "values")):
        found[f"grad_w_{name}"] = x.T @ found[f"grad_{plural}"]
    of_keys, of_queries = found["grad_keys"] @ w_key.T, found["grad_queries"] @ w_query.T
    found["grad_x"] = of_keys + of_queries + found["grad_values"] @ w_value.T
    return found


TRAINING = """for n in range(501):
    trace = pyattn.trace(x, w_query, w_key, w_value)
    error = trace.outputs - values
    if n in (0, 1, 10, 100, 500):
        print(f"round {n}: loss {0.5 * (error**2).sum():.4f}")
    backward = trace.backward(error)
    w_query -= 0.01 * backward.grad_w_query
    w_key -= 0.01 * backward.grad_w_key"""


def gradients(article, page):
    given = given_arrays(page)
    for name in ("x", "w_query", "w_key", "w_value"):
        np.testing.assert_array_equal(given[name], article[name], err_msg=name)
    x, w_query, w_key, w_value = (article[name] for name in ("x", "w_query", "w_key", "w_value"))
    weights = attend(x, w_query, w_key, w_value)[1]
    found = backwards(x, w_query, w_key, w_value, given["grad_outputs"])
    printed = {f"{name}.round(4)": array for name, array in found.items() if name != "grad_weights"}
    printed |= {
        "outputs.round(4)": attend(x, w_query, w_key, w_value)[3],
        "grad_weights": found["grad_weights"],
        "delta.round(4)": (weights * found["grad_weights"]).sum(axis=1),
        "backward": [len(x), len(x), w_key.shape[1], w_value.shape[1]],
        "for step in backward.steps:\n    print(step.number, step.title)": [*range(8, 0, -1)],
        "ones.grad_values[0].round(4)": [weights[:, 0].sum()] * 3,
    }
    w_query, w_key, rounds = w_query.copy(), w_key.copy(), []
    for n in range(501):
        error = attend(x, w_query, w_key, w_value)[3] - x @ w_value
        rounds += [n, 0.5 * (error**2).sum()] if n in (0, 1, 10, 100, 500) else []
        last = attend(x, w_query, w_key, w_value)[1]
        step = backwards(x, w_query, w_key, w_value, error)
        w_query -= 0.01 * step["grad_w_query"]
        w_key -= 0.01 * step["grad_w_key"]
    printed |= {TRAINING: rounds, "trace.weights.round(2)": last}
    prose = [given["grad_outputs"][0], weights[2, 2], last[2, 2], weights[:, 0].sum(), weights[0, 0], weights[0, 0]]
    return Claims(printed, [], [*prose, found["grad_scores"][0, 0]])


SORT, PEAK, WARM_UP, STEPS = 10, 5e-3, 40, 400
SHOWN_STEPS, SHOWN_RATES = (1, 10, 50, 100, 200, 300, 400), (0, 20, 40, 130, 220, 310, 400)
SORTING = """for n in range(1, 401):
    inputs, targets = inputs_and_targets(draw(rng, 64))
    logits, backward = model.vjp(inputs)
    loss, grad_logits = nn.losses.cross_entropy(logits, targets)
    model.zero_grad()
    _ = backward(grad_logits)
    norm = optim.clip_grad_norm_(model, max_norm=1.0)
    optimizer.step()
    schedule.step()
    if n in (1, 10, 50, 100, 200, 300, 400):
        print(f"step {n}: loss {loss:.4f}, validation {loss_of(model, validation):.4f}, norm {norm:.2f}")"""


def rows_to_sort(seed, count, parity):
    """Yield batches of five digits whose sum is even (0) or odd (1), the token SORT, and the digits in order."""
    rng = np.random.default_rng(seed)
    while True:
        digits = rng.integers(0, 10, (4 * count, 5))
        digits = digits[digits.sum(axis=1) % 2 == parity][:count]
        yield np.array([[*row, SORT, *sorted(row)] for row in digits])


def last_five(rows):
    return np.where(np.arange(rows.shape[1] - 1) < 5, -100, rows[:, 1:])


@functools.cache
def sorting_by_hand():
    """All numbers of the page by the formulas of texts, with the first parameters of the page's model."""
    model = nn.TransformerLM(11, 32, 2, 2, 64, dtype=np.float64, rng=0)
    twin = Twin(model.state_dict(), heads=2)
    rows, pair = next(rows_to_sort(5, 64, 1)), next(rows_to_sort(5, 2, 1))
    found = {"pair": pair, "inputs": rows[0, :-1], "targets": last_five(rows)[0], "grads": len(twin.parameters)}
    found["parameters"] = sum(array.size for array in twin.parameters.values())
    logits, back = twin.forward(rows[:, :-1])
    found["shape"] = logits.shape
    found["loss"], grad = twin.cross_entropy(logits, last_five(rows))
    back(grad)
    found["bias"] = twin.grads["generator.bias"]

    validation, batches, lines = next(rows_to_sort(2, 200, 0)), rows_to_sort(1, 64, 1), []
    for n in range(1, STEPS + 1):
        rows = next(batches)
        logits, back = twin.forward(rows[:, :-1])
        loss, grad = twin.cross_entropy(logits, last_five(rows))
        back(grad)
        norm = twin.clip(1.0)
        twin.adamw(cosine_rate(n - 1, PEAK, WARM_UP, STEPS))
        if n in SHOWN_STEPS:
            judged = twin.cross_entropy(twin.forward(validation[:, :-1])[0], last_five(validation))[0]
            lines += [n, loss, judged, norm]
    found["lines"] = lines

    def write(rows):
        for _ in range(5):
            rows = np.hstack([rows, twin.forward(rows)[0][:, -1:].argmax(-1)])
        return rows[:, 6:]

    found["written"] = write(np.array([[7, 1, 9, 3, 1, SORT]]))
    found["right"] = (write(validation[:, :6]) == validation[:, 6:]).all(axis=1).sum()
    return found


def train_it(article, page):
    of = sorting_by_hand()
    optimizer = [PEAK, 0.9, 0.999, 1e-8, 0.01]  # with the arguments that the page gives
    printed = {
        "draw(np.random.default_rng(5), 2)": of["pair"],
        "inputs[0]": of["inputs"],
        "targets[0]": of["targets"],
        "sum(array.size for array in model.parameters())": of["parameters"],
        "logits.shape": of["shape"],
        'print(f"{loss:.4f}")': of["loss"],
        "grad_logits.shape": of["shape"],
        "len(model.grads)": of["grads"],
        'model.grads["generator.bias"].round(4)': of["bias"],
        "optimizer": optimizer,
        f"[round(rates[n], 5) for n in {SHOWN_RATES}]": [cosine_rate(n, PEAK, WARM_UP, STEPS) for n in SHOWN_RATES],
        SORTING: of["lines"],
        "pyattn.generate(model.eval(), [[7, 1, 9, 3, 1, SORT]], max_new_tokens=5).tokens": of["written"],
        'print(f"{right.sum()} of {len(right)} rows are sorted")': [of["right"], 200],
    }
    return Claims(printed, [], [np.log(11), 0.4 * np.log(10), np.log(10), 0.4 * np.log(10)])


TRUTHS = {
    "gradients.md": gradients,
    "the-eight-steps.md": eight_steps,
    "the-eight-steps.zh-CN.md": eight_steps,
    "several-heads.md": several_heads,
    "train-it.md": train_it,
    "transformer.md": transformer,
}
PAGES = sorted(page.name for page in LESSONS.glob("*.md"))  # one without an entry above fails


@pytest.fixture
def tensors(article):
    return {name: np.asarray(tensor, np.float64) for name, tensor in article.items()}


@pytest.mark.parametrize("name", PAGES)
def test_every_number_of_a_lesson_is_computed_from_the_article(name, tensors):
    page = (LESSONS / name).read_text(encoding="utf-8")
    check(page, TRUTHS[name](tensors, page))


@pytest.mark.parametrize("name", PAGES)
def test_a_wrong_digit_in_a_lesson_is_found(name, tensors):
    """Each copy of the page has another last digit in one number."""
    page = (LESSONS / name).read_text(encoding="utf-8")
    claims = TRUTHS[name](tensors, page)
    shown = re.sub(r"^ *(?:>>>|\.\.\.) .*$", lambda line: "-" * len(line[0]), page, flags=re.MULTILINE)
    places = [at for at in NUMBER.finditer(shown) if "." in at[0].rstrip(".")]
    assert len(places) > 40
    for at in places:
        last = at.start() + len(at[0].partition("e")[0]) - 1
        wrong = page[:last] + str((int(page[last]) + 1) % 10) + page[last + 1 :]
        with pytest.raises(AssertionError, match=r"where .* is true"):
            check(wrong, claims)


def test_answers_have_the_same_code_in_chinese():
    english, chinese = (
        (LESSONS / name).read_text(encoding="utf-8") for name in ("the-eight-steps.md", "the-eight-steps.zh-CN.md")
    )
    assert len(BLOCK.findall(english)) == 19
    assert BLOCK.findall(english) == BLOCK.findall(chinese)
