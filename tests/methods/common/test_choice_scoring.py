"""Log-likelihoods of choices against a token-by-token loop, in both layouts and on models that take only one."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from methods.common.choice_scoring import (
    ChoiceScorer,
    ChoiceScores,
    Item,
    encode_item,
    encode_rows,
)
from methods.common.errors import DataError
from methods.common.packed_scoring import is_packable
from tests.tiny_models import tiny_llama

ROWS = [
    {"context": "the apple is", "choices": [" red", " green and the sea is blue", " black"], "gold": 0},
    {"context": "the sky is blue and the night is", "choices": [" black", " red ."], "gold": 1},
    {"context": "", "choices": ["the leaf", "the coal is"], "gold": 0},
    {"context": "the rose is ", "choices": ["red"], "gold": 0},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("scoring") / "model")


def load(folder: Path, attention: str = "sdpa") -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(10)  # else all continuations are about equally likely
    return model, AutoTokenizer.from_pretrained(folder)


def slowly(model: Any, context: list[int], tokens: list[int]) -> float:
    """Each token's probability from a forward pass of its own."""
    total = 0.0
    for number, token in enumerate(tokens):
        logits = model(torch.tensor([context + tokens[:number]])).logits[0, -1]
        total += float(logits.double().log_softmax(-1)[token])
    return total


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("packed", [True, False, None])
def test_equals_a_loop_over_tokens(folder: Path, attention: str, packed: bool | None) -> None:
    model, tokenizer = load(folder, attention)
    items = encode_rows(tokenizer, ROWS, max_length=64)
    scorer = ChoiceScorer(items, batch_tokens=40, packed=packed)
    found = scorer(model).values
    for item, values in zip(items, found, strict=True):
        expected = [slowly(model, item.context, tokens) for tokens in item.choices]
        assert values == pytest.approx(expected, abs=1e-4)
    if packed is None:
        assert is_packable(model)


@torch.no_grad()
def test_tokens_are_those_of_the_whole_text(folder: Path) -> None:
    _, tokenizer = load(folder)
    item = encode_item(tokenizer, "the rose is ", ["red"], 0, max_length=64)
    assert item.context + item.choices[0] == tokenizer("the rose is red")["input_ids"]
    assert item.context == tokenizer("the rose is")["input_ids"]
    assert (item.sizes, item.lengths) == ([3], [3])
    spaced = encode_item(tokenizer, "the rose is", [" rot", " grün"], 0, max_length=64)
    assert (spaced.sizes, spaced.lengths) == ([4, 6], [3, 4])
    empty = encode_item(tokenizer, "", ["the leaf"], 0, max_length=64)
    assert empty.context == [tokenizer.bos_token_id]


@torch.no_grad()
def test_an_adapter_and_a_wrapper_are_looked_through(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model, tokenizer = load(folder)
    items = encode_rows(tokenizer, ROWS, max_length=64)
    before = ChoiceScorer(items)(model).values
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    ).eval()
    wrapped = torch.nn.Module()
    wrapped.module = adapted
    assert is_packable(adapted)
    assert is_packable(wrapped)
    found = ChoiceScorer(items)(wrapped).values
    assert found[0] != pytest.approx(before[0], abs=1e-3)
    for item, values in zip(items, found, strict=True):
        assert values == pytest.approx([slowly(adapted, item.context, t) for t in item.choices], abs=1e-4)


def test_an_adapted_output_layer_is_not_packed(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model, _ = load(folder)
    assert not is_packable(get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"])))


@torch.no_grad()
def test_batches_do_not_matter(folder: Path) -> None:
    model, tokenizer = load(folder)
    items = encode_rows(tokenizer, ROWS * 3, max_length=64)
    small, large = (ChoiceScorer(items, batch_tokens=n)(model).values for n in (1, 4096))
    for a, b in zip(small, large, strict=True):
        assert a == pytest.approx(b, abs=1e-4)


@torch.no_grad()
def test_a_sliding_window_takes_the_plain_layout() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=4,
        )
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(30 if weight.dim() == 2 else 1)
    items = [Item(list(range(1, 11)), [[11, 12, 13], [14, 15, 16, 17], [18]], [3, 4, 1], [3, 4, 1], 0)]
    assert not is_packable(model)
    scorer = ChoiceScorer(items)
    expected = [slowly(model, items[0].context, tokens) for tokens in items[0].choices]
    assert scorer(model).values[0] == pytest.approx(expected, abs=1e-3)
    # the block mask would take the window's place
    with torch.no_grad():
        together = ChoiceScorer(items, packed=True)(model).values[0]
    assert together != pytest.approx(expected, abs=0.1)


def test_figures_by_hand() -> None:
    items = [Item([1], [[2], [3]], [1, 4], [1, 4], 0), Item([1], [[2], [3], [4], [5]], [2] * 4, [2] * 4, 3)]
    scores = ChoiceScores(items, [[-1.0, -2.0], [-4.0, -3.0, -2.5, -2.0]])
    assert scores.gold_bits_per_byte == pytest.approx((1.0 + 2.0) / math.log(2) / (1 + 2))
    assert scores.accuracy == 1.0
    assert scores.accuracy_norm == 0.5  # -1/1 loses to -2/4
    assert scores.chance == pytest.approx((1 / 2 + 1 / 4) / 2)


def test_a_long_prompt_loses_its_beginning(folder: Path) -> None:
    _, tokenizer = load(folder)
    text = "the apple is red and " * 10 + "the sky is"
    full = encode_item(tokenizer, text, [" blue"], 0, max_length=500)
    cut = encode_item(tokenizer, text, [" blue"], 0, max_length=12)
    assert len(cut.context) + len(cut.choices[0]) == 12
    assert full.context[-len(cut.context) :] == cut.context


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"context": "a", "choices": [" b"], "gold": 1}, "gold=1"),
        ({"context": "a", "choices": [" b", ""], "gold": 0}, "no tokens"),
        ({"context": "a", "choices": [" the" * 60], "gold": 0}, "max_length=32"),
    ],
)
def test_items_that_cannot_be_scored(folder: Path, row: dict[str, Any], words: str) -> None:
    _, tokenizer = load(folder)
    with pytest.raises(DataError, match=words) as caught:
        encode_rows(tokenizer, [row], max_length=32)
    assert "\n" not in str(caught.value)


def test_nothing_to_score() -> None:
    with pytest.raises(DataError, match="empty"):
        ChoiceScorer([])
