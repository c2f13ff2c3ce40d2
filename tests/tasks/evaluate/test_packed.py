"""Packed prompts against a plain loop and against the harness's own model, on each architecture that is packed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from methods.common.errors import DataError
from methods.common.packed_scoring import PACKABLE, group_requests
from tasks.evaluate.packed import PackedLM
from tasks.quiet import quiet_logs
from tests.tasks.evaluate.oracle import loglikelihood, token_loglikelihood

ITEMS = [
    ("the apple is", (" red", " green", " blue and the sea is black", " black .")),
    (
        "the sea",
        (" is blue", " is black and the coal is red ."),
    ),
    ("the sky is red and the night is", (" a",)),
    ("grass", (" is green", " is green .", " is", " x", " yz q", " green green green")),
    ("", (" the rose", " the coal is")),
    ("the leaf ", ("is green", "is red .")),
]
SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=8),
    "olmo2": Olmo2Config(**SMALL),
    "smollm3": SmolLM3Config(**SMALL),
}


def build(config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def requests() -> list[Instance]:
    pairs = [(context, choice) for context, choices in ITEMS for choice in choices]
    return [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i) for i, pair in enumerate(pairs)
    ]


def make(cls: Any, model: Any, tokenizer: Any, **more: Any) -> Any:
    with quiet_logs("lm_eval"):
        return (
            cls(model, tokenizer, **more)
            if cls is PackedLM
            else cls(pretrained=model, tokenizer=tokenizer, **more)
        )


@pytest.mark.parametrize("kind", sorted(PACKABLE))
def test_every_packed_architecture_equals_the_plain_loop(kind: str, tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = build(CONFIGS[kind])
    lm = make(PackedLM, model, tokenizer, batch_tokens=64)
    assert lm.packs
    found = lm.loglikelihood(requests())
    for request, (value, greedy) in zip(requests(), found, strict=True):
        context, answer = request.args
        if context:
            stripped = context.rstrip()
            expected = loglikelihood(model, tokenizer, stripped, context[len(stripped) :] + answer)
        else:
            tokens = tokenizer(answer, add_special_tokens=False)["input_ids"]
            expected = token_loglikelihood(model, [lm.prefix_token_id], tokens)
        assert value == pytest.approx(expected[0], abs=1e-4)
        assert greedy == expected[1]


def test_greedy_answers_are_recognised(tiny: Path) -> None:
    """Random answers are never the greedy one: take those that the model itself writes."""
    tokenizer, model = AutoTokenizer.from_pretrained(tiny), AutoModelForCausalLM.from_pretrained(tiny).eval()
    lm = make(PackedLM, model, tokenizer, batch_tokens=256)
    context = tokenizer("the sea is")["input_ids"]
    written = model.generate(torch.tensor([context]), max_new_tokens=5, min_new_tokens=5, do_sample=False)[
        0
    ].tolist()
    answer = written[len(context) :]
    wrong = [*answer[:-1], (answer[-1] + 1) % 200]
    found = lm._loglikelihood_tokens([(None, context, answer), (None, context, wrong)])
    assert [greedy for _, greedy in found] == [True, False]
    for (value, _), tokens in zip(found, (answer, wrong), strict=True):
        assert value == pytest.approx(token_loglikelihood(model, context, tokens)[0], abs=1e-4)


@pytest.mark.parametrize("batch_tokens", [1, 16, 4096])
def test_the_size_of_a_batch_changes_nothing(batch_tokens: int, tiny: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(tiny), AutoModelForCausalLM.from_pretrained(tiny).eval()
    packed = make(PackedLM, model, tokenizer, batch_tokens=batch_tokens).loglikelihood(requests())
    plain = make(HFLM, model, tokenizer).loglikelihood(requests(), disable_tqdm=True)
    assert [value for value, _ in packed] == pytest.approx([value for value, _ in plain], abs=1e-4)
    assert [greedy for _, greedy in packed] == [greedy for _, greedy in plain]


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL, sliding_window=4),
        GPT2Config(
            vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=0, eos_token_id=1
        ),
    ],
    ids=["sliding window", "learned positions"],
)
def test_other_architectures_take_the_harness_s_own_way(config: Any, tiny: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(tiny), build(config)
    lm = make(PackedLM, model, tokenizer, batch_tokens=512)
    assert not lm.packs
    plain = make(HFLM, model, tokenizer).loglikelihood(requests(), disable_tqdm=True)
    assert [v for v, _ in lm.loglikelihood(requests())] == pytest.approx([v for v, _ in plain], abs=1e-4)


def test_a_prompt_that_is_too_long_loses_its_start(tiny: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(tiny), AutoModelForCausalLM.from_pretrained(tiny).eval()
    lm = make(PackedLM, model, tokenizer, batch_tokens=4096)
    long = [5 + i % 100 for i in range(lm.max_length + 40)]
    answers = [[7, 8, 9], [10]]
    found = lm._loglikelihood_tokens([(None, long, answer) for answer in answers])
    with quiet_logs("lm_eval"):
        plain = make(HFLM, model, tokenizer)._loglikelihood_tokens(
            [(None, long, answer) for answer in answers], disable_tqdm=True
        )
    assert [v for v, _ in found] == pytest.approx([v for v, _ in plain], abs=1e-4)
    kept = long[-(lm.max_length - 2) :]
    assert found[0][0] == pytest.approx(token_loglikelihood(model, kept, answers[0])[0], abs=1e-4)


def test_a_prompt_is_read_once(tiny: Path) -> None:
    wanted = [
        (None, [1, 2, 3], [4]),
        (None, [1, 2, 3], [5, 6]),
        (None, [1, 2], [7]),
        (None, [1, 2, 3], [8, 9, 10]),
    ]
    groups = group_requests(wanted, max_length=64, batch_tokens=64)
    assert [(g.context, [n for n, _ in g.answers]) for g in groups] == [([1, 2, 3], [0, 1, 3]), ([1, 2], [2])]
    assert groups[0].length == 3 + 0 + 1 + 2
    assert len(group_requests(wanted, max_length=64, batch_tokens=4)) == 3  # the long answer stands alone


def test_an_answer_without_a_token_of_its_own_is_named() -> None:
    with pytest.raises(DataError, match="'x' melts into its prompt"):
        group_requests([(("prompt", "x"), [1, 2], [])], max_length=64, batch_tokens=64)


def test_two_answers_do_not_tie_in_bfloat16(tiny: Path) -> None:
    """Logits rounded to 8 bits tie often; the scores of different single-token answers must not."""
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16).eval()
    lm = make(PackedLM, model, tokenizer, batch_tokens=4096)
    size = model.config.vocab_size
    values = [v for v, _ in lm._loglikelihood_tokens([(None, [5, 6, 7], [token]) for token in range(size)])]
    assert len(set(values)) > 0.98 * size
    assert sum(torch.tensor(values).exp()) == pytest.approx(1.0, abs=0.02)
    assert AutoConfig.from_pretrained(tiny).model_type in PACKABLE
