"""The common tests of transformers with tiny models; run.py copies this file beside them.

With PYATTN_ACCELERATE=eval every model is accelerated when it goes into eval mode; with PYATTN_ACCELERATE=training when
it goes into either mode, so that it also trains accelerated.
"""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

from .generation.test_utils import GenerationTesterMixin
from .test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor, random_attention_mask

if os.environ["PYATTN_ACCELERATE"]:
    import pyattn

    trains = os.environ["PYATTN_ACCELERATE"] == "training"

    def accelerate_in_mode(model: Any, mode: bool = True) -> Any:
        """Go into training or eval mode."""
        torch.nn.Module.train(model, mode)
        if trains or not mode:
            pyattn.interop.torch.accelerate(model, training=trains)
        return model

    PreTrainedModel.train = accelerate_in_mode

WORDS, BATCH, LENGTH, SIDE = 99, 13, 7, 30
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 64, **SIZES}
GPT2 = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 37, "n_positions": 64}


class TextTester:
    """What the common tests ask for."""

    batch_size, seq_length, is_training = BATCH, LENGTH, True
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def __init__(self, config: Callable[[], Any]) -> None:
        self.get_config = config

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        """Return a configuration, and arguments of a call."""
        ids, mask = ids_tensor([BATCH, LENGTH], WORDS), random_attention_mask([BATCH, LENGTH])
        return self.get_config(), {"input_ids": ids, "attention_mask": mask}


class ImageTester(TextTester):
    """The same for pictures."""

    mask_length = (SIDE // 2) ** 2
    seq_length = mask_length + 1
    num_masks = seq_length // 2

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        """Return a configuration, and arguments of a call."""
        return self.get_config(), {"pixel_values": floats_tensor([BATCH, 3, SIDE, SIDE])}


class Bert(ModelTesterMixin, unittest.TestCase):
    """BERT."""

    all_model_classes = (BertModel, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification)

    def setUp(self) -> None:
        """Before each test."""
        self.model_tester = TextTester(lambda: BertConfig(**TEXT))


class Gpt2(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    """GPT-2."""

    all_model_classes = (GPT2Model, GPT2LMHeadModel, GPT2ForSequenceClassification)

    def setUp(self) -> None:
        """Before each test."""
        last = WORDS - 1
        ends = {"bos_token_id": last, "eos_token_id": last, "pad_token_id": last}
        self.model_tester = TextTester(lambda: GPT2Config(**GPT2, **ends))


class Llama(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    """Llama."""

    all_model_classes = (LlamaModel, LlamaForCausalLM, LlamaForSequenceClassification)

    def setUp(self) -> None:
        """Before each test."""
        self.model_tester = TextTester(lambda: LlamaConfig(**TEXT, num_key_value_heads=2, pad_token_id=0))


class ViT(ModelTesterMixin, unittest.TestCase):
    """A vision transformer; it has no embeddings of tokens."""

    all_model_classes = (ViTModel, ViTForImageClassification)
    test_resize_embeddings = False
    test_model_get_set_embeddings = None

    def setUp(self) -> None:
        """Before each test."""
        self.model_tester = ImageTester(lambda: ViTConfig(**SIZES, image_size=SIDE, patch_size=2))
