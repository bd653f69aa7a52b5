"""accelerate and register with models of transformers: the same results, tokens and collected outputs."""

from __future__ import annotations

import copy
import functools
import sys
import warnings

import pytest

import pyattn
from pyattn.interop.torch import accelerate, reading, restore

pytestmark = pytest.mark.peers

WORDS = 100
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {"vocab_size": WORDS, **SIZES}
FAMILIES = {
    "Bert": ("Model", TEXT),
    "Roberta": ("Model", TEXT),
    "DistilBert": ("Model", {"vocab_size": WORDS, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    "Albert": ("Model", {"embedding_size": 32, **TEXT}),
    "ViT": ("Model", {**SIZES, "image_size": 32, "patch_size": 8}),
    "GPT2": ("LMHeadModel", {"vocab_size": WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "Llama": ("ForCausalLM", {"num_key_value_heads": 2, **TEXT}),
    "Mistral": ("ForCausalLM", {"num_key_value_heads": 2, "sliding_window": 5, **TEXT}),
    "Qwen2": ("ForCausalLM", {"num_key_value_heads": 2, **TEXT}),
}
WRITERS = ("GPT2", "Llama", "Mistral", "Qwen2")
LAYERS = {"DistilBert": "TransformerBlock", "GPT2": "GPT2Block"} | {
    name: f"{name}DecoderLayer" for name in WRITERS if name != "GPT2"
}


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def model(family, torch, transformers):
    kind, sizes = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes, initializer_range=0.2)
    return getattr(transformers, family + kind)(config).eval()


@pytest.fixture
def inputs(family, torch):
    generator = torch.Generator().manual_seed(1)
    if family == "ViT":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
    ids = torch.randint(3, WORDS, (2, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def seen(inputs, output):
    """Leave out what is computed of padding, which differs between implementations of transformers, too."""
    mask = inputs.get("attention_mask")
    return output if mask is None else output * mask.view(*mask.shape, *[1] * (output.ndim - 2))


@pytest.fixture
def close(torch):
    def check(ours, theirs):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))

    return check


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "pyattn"])
def test_a_model_computes_the_same(family, model, inputs, implementation, torch, close):
    pyattn.interop.transformers.register()
    with torch.inference_mode():
        expected = model(**inputs)[0]
        model.set_attn_implementation(implementation)
        plain = model(**inputs)[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            report = accelerate(model)
            found = model(**inputs)[0]
        restore(model)
        again = model(**inputs)[0]
    assert LAYERS.get(family, f"{family}Layer") in report.replaced.values()
    assert not report.kept
    close(seen(inputs, plain), seen(inputs, expected))
    close(seen(inputs, found), seen(inputs, expected))
    assert torch.equal(plain, again)


@pytest.mark.parametrize("family", WRITERS, indirect=True)
@pytest.mark.parametrize("cache", [None, "static"])
def test_greedy_tokens_are_the_same(model, inputs, cache, torch):
    options = {"max_new_tokens": 50, "do_sample": False, "pad_token_id": 0, "cache_implementation": cache}
    left = {name: x.flip(1) for name, x in inputs.items()}  # padding comes first in decoders
    with torch.inference_mode():
        expected = model.generate(**left, **options)
        for acceleration in (True, False):
            if acceleration:
                accelerate(model)
            else:
                pyattn.interop.transformers.register()
                restore(model)
                model.set_attn_implementation("pyattn")
            assert torch.equal(model.generate(**left, **options), expected)


def test_collected_outputs_are_the_same(family, model, inputs, torch, close):
    pyattn.interop.transformers.register()
    model.set_attn_implementation("eager")
    wanted = {"output_attentions": True, "output_hidden_states": True}
    with torch.inference_mode():
        expected = model(**inputs, **wanted)
        model.set_attn_implementation("pyattn")
        plain = model(**inputs, **wanted)
        accelerate(model)
        with pytest.warns(RuntimeWarning, match="outputs of a part of it are collected"):
            found = model(**inputs, **wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            quick = model(**inputs, output_hidden_states=True)
    for output in (plain, found, quick):
        for one, other in zip(output.hidden_states, expected.hidden_states, strict=True):
            close(seen(inputs, one), seen(inputs, other))
    for output in (plain, found):
        for one, other in zip(output.attentions, expected.attentions, strict=True):
            close(seen(inputs, one.transpose(1, 2)), seen(inputs, other.transpose(1, 2)))


@pytest.mark.parametrize("family", ["Bert", "GPT2", "Llama"], indirect=True)
def test_halves(model, inputs, torch, monkeypatch):
    monkeypatch.setattr(reading, "_MULTIPLIES_BFLOAT16", False)
    wide = copy.deepcopy(model)
    model.to(torch.bfloat16)
    wide.load_state_dict(model.state_dict())
    with torch.inference_mode():
        exact, theirs = wide(**inputs)[0], model(**inputs)[0]
        with accelerate(model):
            ours = model(**inputs)[0]
    assert ours.dtype == torch.bfloat16
    errors = [float(seen(inputs, x.float() - exact).abs().max()) for x in (ours, theirs)]
    assert errors[0] <= errors[1] + 2.0**-9 * float(exact.abs().max())  # the result is rounded once


@pytest.mark.parametrize("family", ["Bert"], indirect=True)
def test_what_is_not_known_stays_torchs(model, inputs, torch, transformers):
    model.encoder.layer[0].chunk_size_feed_forward = 2
    model.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.Tanh()
    kept = accelerate(model).kept
    assert kept["encoder.layer.0"] == "chunk_size_feed_forward is set"
    assert kept["encoder.layer.1"] == "pyattn has no Tanh as an activation"


@pytest.mark.parametrize("family", ["GPT2", "Llama"], indirect=True)
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "pyattn"])
def test_a_decoder_may_see_all_tokens(model, inputs, implementation, torch, close):
    """As in models that embed sentences."""
    pyattn.interop.transformers.register()
    model.set_attn_implementation(implementation)
    with torch.inference_mode():
        for given in (inputs, {"input_ids": inputs["input_ids"]}):
            expected = model(**given, is_causal=False, use_cache=False)[0]
            with accelerate(model, strict=True):
                close(seen(given, model(**given, is_causal=False, use_cache=False)[0]), seen(given, expected))
            assert not torch.allclose(expected, model(**given, use_cache=False)[0])


@pytest.mark.parametrize("family", ["GPT2", "Llama"], indirect=True)
def test_gradients_of_a_cache_are_torchs(model, inputs, torch, close):
    """As in the tuning of a prefix, where no parameter of the model requires one."""
    model.requires_grad_(False)

    def gradient():
        cache = model(**inputs).past_key_values
        keys = [layer.keys.requires_grad_() for layer in cache.layers]
        output = model(input_ids=inputs["input_ids"][:, :1], past_key_values=cache)[0]
        return torch.autograd.grad(output.sum(), keys)

    expected = gradient()
    with accelerate(model), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = gradient()
    assert any("gradients are enabled, and past_key_values requires one" in str(one.message) for one in seen)
    for one, other in zip(found, expected, strict=True):
        close(one, other)


@pytest.mark.parametrize("family", ["GPT2", "Llama"], indirect=True)
def test_a_cache_is_never_extended_twice(family, model, inputs, torch):
    """torch does not compute what fails after that."""
    part, name = (
        ("transformer.h.1.mlp.c_fc", "weight") if family == "GPT2" else ("model.layers.1.mlp.up_proj", "weight")
    )
    with torch.inference_mode():
        cache = model(**inputs).past_key_values
        accelerate(model)
        setattr(model.get_submodule(part), name, torch.nn.Parameter(torch.zeros(3, 5)))
        with pytest.raises(RuntimeError, match=r"pyattn has extended past_key_values, and fails: .*has shape \("):
            model(input_ids=inputs["input_ids"][:, :1], past_key_values=cache)
    assert cache.get_seq_length(1) == inputs["input_ids"].shape[1] + 1


@pytest.mark.parametrize("family", ["GPT2", "Llama"], indirect=True)
def test_a_feed_forward_block_alone(family, model, torch, close):
    """Where its layer stays torch's."""
    part = model.get_submodule("transformer.h.0.mlp" if family == "GPT2" else "model.layers.0.mlp")
    x = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = part(x)
        assert accelerate(part, strict=True).replaced[""] == f"{family}MLP"
        close(part(x), expected)


def scale(function, factor):
    """Wrap a function as people do who patch a class."""
    return functools.wraps(function)(lambda *args, **kwargs: factor * function(*args, **kwargs))


def scale_attention(family, model, monkeypatch):
    def attend(function, *args, **kwargs):
        output, weights = function(*args, **kwargs)
        return 2 * output, weights

    code = sys.modules[type(model).__module__]
    functions = code.ALL_ATTENTION_FUNCTIONS
    own = functools.partial(attend, functions["sdpa"])
    monkeypatch.setitem(functions._local_mapping, "sdpa", own)


def scale_a_method(family, model, monkeypatch):
    kind = type(model.get_submodule({"Bert": "encoder.layer.0", "Llama": "model.layers.0.mlp"}[family]))
    name = {"Bert": "feed_forward_chunk", "Llama": "forward"}[family]
    monkeypatch.setattr(kind, name, scale(getattr(kind, name), 2))


def replace_dropout(family, model, monkeypatch):
    owner = model.get_submodule({"Bert": "encoder.layer.0.output", "Llama": "model.layers.0"}[family])
    import torch

    owner.dropout = torch.nn.Tanh()


@pytest.mark.parametrize("family", ["Bert", "Llama"], indirect=True)
@pytest.mark.parametrize("patch", [scale_attention, scale_a_method, replace_dropout])
def test_code_of_others_runs(patch, family, model, inputs, torch, close, monkeypatch):
    plain = model(**inputs)[0].detach()
    patch(family, model, monkeypatch)
    with torch.inference_mode():
        expected = model(**inputs)[0]
        assert patch is replace_dropout or not torch.allclose(expected, plain)
        with accelerate(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            close(seen(inputs, model(**inputs)[0]), seen(inputs, expected))


@pytest.mark.parametrize("family", ["Bert", "GPT2", "Llama"], indirect=True)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_mask_of_bool_means_what_it_means_in_torch(model, inputs, implementation, torch, close):
    """transformers' eager attention adds it to the scores."""
    given = {"input_ids": inputs["input_ids"], "attention_mask": torch.ones(1, 1, 9, 9).bool().tril()}
    model.set_attn_implementation(implementation)
    with torch.inference_mode():
        expected = model(**given)[0]
        with accelerate(model), warnings.catch_warnings():
            warnings.simplefilter("ignore" if implementation == "eager" else "error")
            close(model(**given)[0], expected)


@pytest.mark.parametrize("family", ["GPT2"], indirect=True)
def test_a_cache_for_an_encoder_beside(model, inputs, torch, transformers, close):
    def cache():
        return transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())

    with torch.inference_mode():
        expected = model(**inputs, past_key_values=cache())[0]
        with accelerate(model, strict=True):
            close(seen(inputs, model(**inputs, past_key_values=cache())[0]), seen(inputs, expected))


def models_of_other_families(transformers):
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    yield transformers.MPNetModel, transformers.MPNetConfig(**sizes, intermediate_size=64)
    yield transformers.BloomModel, transformers.BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4)
    yield transformers.GPTNeoXModel, transformers.GPTNeoXConfig(**sizes, intermediate_size=64)


@pytest.mark.parametrize("family", ["Llama"], indirect=True)
def test_register_leaves_no_mask_out(inputs, torch, transformers, close):
    """Also in models whose own code adds the mask to the scores."""
    pyattn.interop.transformers.register()
    for kind, config in models_of_other_families(transformers):
        config.initializer_range = 0.2
        torch.manual_seed(0)
        model = kind._from_config(config, attn_implementation="eager").eval()
        other = kind._from_config(copy.deepcopy(config), attn_implementation="pyattn").eval()
        other.load_state_dict(model.state_dict())
        with torch.inference_mode():
            for given in ({"input_ids": inputs["input_ids"]}, inputs):
                close(seen(given, other(**given)[0]), seen(given, model(**given)[0]))


@pytest.mark.parametrize("family", ["Llama"], indirect=True)
def test_register_refuses_what_it_cannot_compute(model, inputs, torch):
    pyattn.interop.transformers.register()
    model.set_attn_implementation("pyattn")
    with torch.inference_mode(), pytest.raises(ValueError, match=r"'pyattn' does not support softcap; use 'eager'"):
        model(**inputs, softcap=3.0)


@pytest.mark.parametrize("cache", [None, "static"])
def test_register_adds_the_bias_of_positions(cache, torch, transformers, close):
    pyattn.interop.transformers.register()
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(vocab_size=WORDS, **sizes, decoder_start_token_id=0, initializer_factor=9.0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(1)
    ids, start = torch.randint(2, WORDS, (2, 9), generator=generator), torch.tensor([[0, 5, 7], [0, 3, 9]])
    options = {"do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12, "cache_implementation": cache}
    returned = {"return_dict_in_generate": True, "output_logits": True}
    with torch.inference_mode():
        found = []
        for implementation in ("sdpa", "pyattn"):
            model.set_attn_implementation(implementation)
            found.append(model.generate(ids, decoder_input_ids=start, **options, **returned))
    assert torch.equal(found[0].sequences, found[1].sequences)
    for ours, theirs in zip(found[1].logits, found[0].logits, strict=True):
        close(ours, theirs)


# Training


def loss_of(output):
    return (output[0] * output[0].detach().sign()).mean()


def gradients(model, inputs, **more):
    """Return the first output, and the gradients of all parameters."""
    model.zero_grad()
    output = model(**inputs, **more)
    loss_of(output).backward()
    return output[0].detach(), {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def check_gradients(found, expected, close):
    close(found[0], expected[0])
    assert found[1].keys() == expected[1].keys()
    most = max(float(x.abs().max()) for x in expected[1].values())
    for name, other in expected[1].items():
        assert float((found[1][name] - other).abs().max()) <= 1e-5 * most, name


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "pyattn"])
def test_gradients_are_the_same(family, model, inputs, implementation, mode, torch, close):
    """By attention alone, and by all modules; ids of padding have other states in eager attention."""
    pyattn.interop.transformers.register()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    model.train(mode)
    given = {name: x for name, x in inputs.items() if name != "attention_mask"}
    for one in (given, {**inputs, "attention_mask": torch.ones_like(given["input_ids"])} if len(inputs) > 1 else given):
        model.set_attn_implementation("eager")
        expected = gradients(model, one)
        model.set_attn_implementation(implementation)
        check_gradients(gradients(model, one), expected, close)
        with accelerate(model, training=True, strict=True) as report:
            check_gradients(gradients(model, one), expected, close)
        assert not report.kept
    names = set(report.replaced.values())
    assert any("Attention" in name for name in names)
    assert names & {"Linear", "Conv1D"}


@pytest.mark.parametrize("family", ["Bert", "Llama"], indirect=True)
def test_gradients_with_padding_are_the_same(model, inputs, torch, close):
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    model.train()

    def run():
        model.zero_grad()
        output = seen(inputs, model(**inputs)[0])
        output.square().mean().backward()
        return output.detach(), {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}

    expected = run()
    with accelerate(model, training=True, strict=True):
        check_gradients(run(), expected, close)


@pytest.mark.parametrize("family", ["Bert", "GPT2"], indirect=True)
def test_attention_drops_weights_in_training(family, model, inputs, torch):
    pyattn.interop.transformers.register()
    model.set_attn_implementation("pyattn")
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.5 if name.endswith(("self.dropout", "attn.attn_dropout")) else 0.0
    plain = model(**inputs)[0]
    model.train()
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(gradients(model, inputs))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(x, found[1][1][name]) for name, x in found[0][1].items())
    assert not torch.allclose(found[0][0], found[2][0])
    assert not torch.allclose(found[0][0], plain)


@pytest.mark.parametrize("family", ["Bert", "GPT2", "Llama"], indirect=True)
def test_steps_of_training_follow_torchs(family, model, inputs, torch):
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    model.double().train()
    start, losses = copy.deepcopy(model.state_dict()), []
    for acceleration in (False, True):
        model.load_state_dict(start)
        if acceleration:
            accelerate(model, training=True, strict=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(**inputs)[0].square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("family", ["Bert", "Llama"], indirect=True)
@pytest.mark.parametrize("implementation", ["pyattn", "sdpa"])
def test_collected_weights_have_gradients(model, inputs, implementation, torch, close):
    pyattn.interop.transformers.register()
    given = {"input_ids": inputs["input_ids"], "output_attentions": True}

    def run():
        model.zero_grad()
        weights = model(**given).attentions[-1]
        weights.square().sum().backward()
        return weights.detach(), {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}

    model.set_attn_implementation("eager")
    expected = run()
    model.set_attn_implementation("pyattn")
    if implementation == "pyattn":
        check_gradients(run(), expected, close)
    else:
        with accelerate(model, training=True, strict=True):
            check_gradients(run(), expected, close)


@pytest.mark.parametrize("family", ["Llama"], indirect=True)
def test_gradient_checkpointing(model, inputs, torch, close):
    model.train()
    expected = gradients(model, inputs, use_cache=False)
    model.activation_checkpointing_enable()
    with accelerate(model, training=True, strict=True):
        check_gradients(gradients(model, inputs, use_cache=False), expected, close)


@pytest.mark.parametrize("family", ["GPT2", "Llama"], indirect=True)
def test_gradients_of_a_cache_are_torchs_in_training(model, inputs, torch, close):
    """As in the tuning of a prefix."""
    model.requires_grad_(False)

    def gradient():
        with torch.no_grad():
            cache = model(**inputs).past_key_values
        keys = [layer.keys.requires_grad_() for layer in cache.layers]
        output = model(input_ids=inputs["input_ids"][:, :1], past_key_values=cache)[0]
        assert cache.get_seq_length(1) == inputs["input_ids"].shape[1] + 1
        return torch.autograd.grad(output.sum(), keys)

    expected = gradient()
    with accelerate(model, training=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = gradient()
    for one, other in zip(found, expected, strict=True):
        close(one, other)
