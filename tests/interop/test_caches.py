"""Caches of transformers that are extended in place: they hold what transformers' own update would give."""

from __future__ import annotations

import copy

import numpy as np
import pytest

pytestmark = pytest.mark.peers

BATCH, HEADS, DIM = 2, 3, 4


@pytest.fixture
def extend():
    from pyattn.interop.torch.caches import extend

    return extend


def tokens(torch, rng, count):
    shape = BATCH, HEADS, count, DIM
    return [torch.from_numpy(rng.standard_normal(shape, np.float32)) for _ in range(2)]


def test_a_cache_is_extended_as_by_its_update(torch, transformers, extend):
    """Whatever its user does between: tensors and copies that he holds stay as they were."""
    rng = np.random.default_rng(0)
    ours, theirs = transformers.DynamicCache(), transformers.DynamicCache()
    held, in_place = [], 0

    def layers():
        return ours.layers[0], theirs.layers[0]

    def places():
        return [(layer, name) for layer in layers() for name in ("keys", "values")]

    def hold():
        held.append([(getattr(layer, name), getattr(layer, name).clone()) for layer, name in places()])

    def put_back():
        for (tensor, _), (layer, name) in zip(held[-1] if held else [], places(), strict=False):
            setattr(layer, name, tensor)

    def extend_copies():
        more = tokens(torch, rng, 2)
        for cache, update in ((copy.copy(ours), extend), (copy.deepcopy(ours), extend)):
            cache.layers = [copy.copy(layer) for layer in cache.layers]
            update(cache, *more, 0)

    def for_both(change):
        for layer in layers():
            change(layer)

    changes = [
        hold,
        put_back,
        extend_copies,
        lambda: for_both(lambda layer: layer.crop(-2)),
        lambda: for_both(lambda layer: layer.reorder_cache(torch.tensor([1, 0]))),
        lambda: for_both(lambda layer: layer.batch_select_indices(torch.tensor([1, 1]))),
        lambda: for_both(lambda layer: layer.reset()),
    ]
    for step in range(600):
        more = tokens(torch, rng, int(rng.choice([1, 1, 1, 2, 30])))
        with torch.inference_mode(bool(step // 50 % 2)):
            address = ours.layers[0].keys.data_ptr() if ours.layers and ours.layers[0].is_initialized else 0
            returned = extend(ours, *more, 0)
            in_place += returned[0].data_ptr() == address
            expected = theirs.update(*more, 0)
            for one, other, kept in zip(returned, expected, (ours.layers[0].keys, ours.layers[0].values), strict=True):
                assert torch.equal(one, other)
                assert torch.equal(kept, other)
            assert all(torch.equal(tensor, before) for four in held for tensor, before in four)
            if rng.random() < 0.2 or ours.get_seq_length() > 300:
                change = changes[-1] if ours.get_seq_length() > 300 else rng.choice(changes)
                change()
    assert in_place > 300


def test_other_caches_update_themselves(torch, transformers, extend):
    """Sliding, static, a subclass with an update of its own, and dtypes that torch promotes."""
    rng = np.random.default_rng(0)
    config = transformers.MistralConfig(sliding_window=3, num_hidden_layers=1, head_dim=DIM, num_key_value_heads=HEADS)

    class Counting(transformers.DynamicCache):
        calls = 0

        def update(self, *args, **options):
            self.calls += 1
            return super().update(*args, **options)

    makers = (
        Counting,
        transformers.DynamicCache,
        lambda: transformers.DynamicCache(config=config),
        lambda: transformers.StaticCache(config=config, max_cache_len=9),
    )
    for make in makers:
        ours, theirs = make(), make()
        for step in range(4):
            more = tokens(torch, rng, 2)
            if make is transformers.DynamicCache and step == 3:
                more = [x.double() for x in more]
            for one, other in zip(extend(ours, *more, 0), theirs.update(*more, 0), strict=True):
                assert one.dtype == other.dtype
                assert torch.equal(one, other)
        assert make is not Counting or ours.calls == 4
