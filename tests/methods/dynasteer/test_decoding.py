"""Algorithm 1 against a decoder without a cache, budgets, the gate, and generation that no trigger touches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.dynasteer import EntropyGate, GenConfig, Policy, decode
from methods.dynasteer.gate import ALWAYS, NEVER
from methods.dynasteer.heads import head_layout
from methods.dynasteer.sampling import TokenTexts, choose, token_entropy
from methods.dynasteer.world import ID, STOP
from tests.methods.dynasteer.tiny import KINDS, TOKENIZER, prompts, random_edit, reference, tiny_model

CONFIG = GenConfig(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=20, batch_size=7, seed=5)
GATE = EntropyGate(2.0)


def ids(found: Any) -> list[list[int]]:
    return [decoded.ids for decoded in found]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("qwen3", {}),
        ("llama", {"scope": "sentence"}),
        ("llama", {"rollback": False}),
        ("llama", {"restore": True}),
        ("llama", {"first": 1, "last": 1}),
    ],
)
def test_rollback_with_a_cache_is_the_algorithm_without_one(kind: str, options: dict[str, Any]) -> None:
    model = tiny_model(kind)
    policy = Policy(gate=GATE, edit=random_edit(model), **options)
    asked = prompts(50 if not options and kind == "llama" else 8)
    config = replace(CONFIG, max_new_tokens=12)
    found = decode(model, TOKENIZER, asked, config, policy)
    for key, (prompt, decoded) in enumerate(zip(asked, found, strict=True)):
        assert (decoded.ids, decoded.discarded) == reference(model, prompt, config, policy, key)
    assert sum(decoded.triggers for decoded in found) > 2
    assert ids(found) != ids(decode(model, TOKENIZER, asked, config, replace(policy, edit=None)))


def test_always_on_is_an_edit_of_every_token() -> None:
    model = tiny_model("llama")
    policy = Policy(edit=random_edit(model), scope="always")
    found = decode(model, TOKENIZER, prompts(6), CONFIG, policy)
    for key, (prompt, decoded) in enumerate(zip(prompts(6), found, strict=True)):
        assert (decoded.ids, 0) == reference(model, prompt, CONFIG, policy, key)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_trigger_generation_is_plain_bit_for_bit(kind: str) -> None:
    model = tiny_model(kind)
    plain = decode(model, TOKENIZER, prompts(9), CONFIG)
    never = decode(model, TOKENIZER, prompts(9), CONFIG, Policy(NEVER, random_edit(model)))
    assert [d.sentences for d in never] == [d.sentences for d in plain]  # entropies too
    # alpha = 0 moves nothing: what is left is the resample control.
    still = Policy(GATE, random_edit(model, alpha=0.0))
    resample = decode(model, TOKENIZER, prompts(9), CONFIG, replace(still, edit=None))
    assert [d.sentences for d in decode(model, TOKENIZER, prompts(9), CONFIG, still)] == [
        d.sentences for d in resample
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_decoding_is_transformers_own(kind: str) -> None:
    model = tiny_model(kind)
    config = replace(CONFIG, temperature=0.0)
    for prompt, decoded in zip(prompts(6), decode(model, TOKENIZER, prompts(6), config), strict=True):
        table = torch.tensor([prompt])
        theirs = model.generate(
            table, attention_mask=torch.ones_like(table), do_sample=False, max_new_tokens=20, pad_token_id=0
        )
        assert decoded.ids == theirs[0, len(prompt) :].tolist()


def test_an_answer_does_not_depend_on_its_company() -> None:
    model, asked = tiny_model("qwen3"), prompts(12)
    policy = Policy(GATE, random_edit(model))
    together = ids(decode(model, TOKENIZER, asked, CONFIG, policy))
    order = np.random.default_rng(0).permutation(12).tolist()
    alone = decode(
        model, TOKENIZER, [asked[i] for i in order], replace(CONFIG, batch_size=3), policy, keys=order
    )
    assert [together[i] for i in order] == ids(alone)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 30), st.integers(1, 9), st.sampled_from([-1.0, 1.5, 2.5]), st.booleans())
def test_budgets_are_kept_and_sentences_add_up(
    budget: int, sentence: int, gamma: float, rollback: bool
) -> None:
    model = tiny_model("llama")
    config = replace(CONFIG, max_new_tokens=budget, max_sentence_tokens=sentence)
    policy = Policy(EntropyGate(gamma), None, rollback=rollback)
    for decoded in decode(model, TOKENIZER, prompts(5), config, policy):
        assert len(decoded.ids) <= budget
        assert decoded.finished or len(decoded.ids) == budget
        assert decoded.finished == (decoded.ids[-1] == ID["<eos>"])
        for number, s in enumerate(decoded.sentences, start=1):
            assert len(s.ids) <= sentence
            assert ID[STOP] not in s.ids[:-1]
            assert (s.discarded > 0) == (s.triggered and rollback)
            assert s.triggered == (s.lookahead > gamma)
            if number < len(decoded.sentences):
                assert s.ids[-1] == ID[STOP] or len(s.ids) == sentence


def test_a_gate_that_is_always_open_costs_nearly_double_and_the_usual_one_what_it_triggers() -> None:
    model = tiny_model("llama")

    def cost(gate: EntropyGate) -> float:
        found = decode(model, TOKENIZER, prompts(40), CONFIG, Policy(gate))
        kept = sum(len(d.ids) for d in found)
        return (kept + sum(d.discarded for d in found)) / kept

    assert cost(NEVER) == 1
    assert cost(ALWAYS) >= 1.8


def test_tau_decay_ends_the_steering() -> None:
    model = tiny_model("llama")
    for last in (1, 2):
        found = decode(model, TOKENIZER, prompts(10), CONFIG, Policy(ALWAYS, random_edit(model), last=last))
        assert all(
            [s.triggered for s in d.sentences][:3]
            == [True] * min(last, len(d.sentences))
            + [False] * (min(3, len(d.sentences)) - min(last, len(d.sentences)))
            for d in found
        )


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 60), st.floats(0.01, 30))
def test_entropy_is_scipys(seed: int, size: int, scale: float) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).standard_normal((3, size)) * scale)
    p = logits.softmax(-1).numpy()
    np.testing.assert_allclose(token_entropy(logits), scipy_entropy(p, axis=-1), atol=1e-6)
    np.testing.assert_allclose(token_entropy(logits.float()), scipy_entropy(p, axis=-1), atol=1e-5)
    top = np.sort(p, axis=-1)[:, -min(5, size) :]
    np.testing.assert_allclose(token_entropy(logits, "topk", 5), scipy_entropy(top, axis=-1), atol=1e-6)


def test_entropy_of_impossible_tokens_is_finite() -> None:
    assert float(token_entropy(torch.tensor([0.0, -torch.inf, 0.0]))) == pytest.approx(np.log(2))


def test_drawn_tokens_have_the_models_probabilities_and_respect_the_cuts() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.5, -1.0, -3.0]]).expand(20_000, -1)
    u = torch.from_numpy(np.random.default_rng(0).random(20_000))
    plain = GenConfig(temperature=0.7, top_p=1.0, top_k=0)
    share = np.bincount(choose(logits, u, plain), minlength=5) / 20_000
    np.testing.assert_allclose(share, (logits[0] / 0.7).softmax(-1), atol=0.015)
    assert choose(logits, u, replace(plain, top_k=2)).unique().tolist() == [0, 1]
    # 0.79 and 0.19 of the probability: the second token is needed to reach 0.8, the third is not.
    assert choose(logits, u, replace(plain, top_p=0.8)).unique().tolist() == [0, 1]
    edge = torch.tensor([np.nextafter(1.0, 0)] * len(logits))
    assert choose(logits, edge, replace(plain, top_k=2)).unique().tolist() == [1]


def test_an_answer_ends_with_the_sentence_that_stop_is_found_in() -> None:
    model, config = tiny_model("llama"), replace(CONFIG, stop="so|then", max_new_tokens=30)
    asked = [[*prompt, ID[":"]] for prompt in prompts(12)]
    plain = decode(model, TOKENIZER, asked, replace(config, stop=""))
    stopped = decode(model, TOKENIZER, asked, config)
    words = {ID["so"], ID["then"]}
    for whole, cut in zip(plain, stopped, strict=True):
        first = next((i for i, token in enumerate(whole.ids) if token in words), None)
        assert cut.ids == (whole.ids if first is None else whole.ids[: first + 1])
        assert cut.finished or first is None
    assert sum(len(a.ids) for a in stopped) < sum(len(a.ids) for a in plain)
    # What ends an answer may begin in a sentence that was accepted, or in the prompt's last token.
    across = decode(model, TOKENIZER, asked, replace(config, stop=r"\n(?!$)"))
    for whole, cut in zip(plain, across, strict=True):
        first = whole.ids.index(ID[STOP]) if ID[STOP] in whole.ids else len(whole.ids)
        assert cut.ids == whole.ids[: first + 2]
    assert all(len(a.ids) == 1 for a in decode(model, TOKENIZER, asked, replace(config, stop=":.")))


def test_a_delimiter_may_lie_across_tokens() -> None:
    class Letters:
        def decode(self, ids: list[int]) -> str:
            return {4: "a", 5: ".", 6: "\n"}.get(ids[0], "b")

    texts = TokenTexts(Letters())
    assert "".join(texts[t] for t in (4, 5, 6)) == "a.\n"


def test_hooks_are_gone_after_an_error_inside_generation() -> None:
    model = tiny_model("llama")

    class Broken:
        def decode(self, ids: list[int]) -> str:
            raise RuntimeError("broken tokenizer")

    with pytest.raises(RuntimeError, match="broken tokenizer"):
        decode(model, Broken(), prompts(2), CONFIG, Policy(ALWAYS, random_edit(model)))
    assert not any(p._forward_pre_hooks for p in head_layout(model).projections)


def test_mistakes_are_told() -> None:
    model = tiny_model("llama")
    for wrong, says in (
        ({"temperature": -1}, "temperature -1: give a number of at least 0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"seed": -1}, "seed -1: give a whole number"),
        ({"top_p": 0}, "top_p=0 is not in"),
        ({"entropy": "half"}, "entropy='half' is not known"),
        ({"delimiter": "("}, "is no regular expression"),
        ({"delimiter": ""}, "delimiter='' is found in an empty text"),
        ({"stop": "x*"}, "stop='x\\*' is found in an empty text"),
        ({"batch_size": 0}, "batch_size 0: give a whole number of at least 1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens 1.5: give a whole number"),
        ({"top_k": -1}, "top_k -1: give a whole number of at least 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            replace(CONFIG, **wrong)
    with pytest.raises(ConfigError, match="gamma was fitted on 'topk'"):
        decode(model, TOKENIZER, prompts(1), CONFIG, Policy(EntropyGate(1.0, "topk")))
    with pytest.raises(ConfigError, match="prompt 0 has no token"):
        decode(model, TOKENIZER, [[]], CONFIG)
    with pytest.raises(ConfigError, match="scope='always' has no gate"):
        Policy(GATE, random_edit(model), scope="always")
    with pytest.raises(ConfigError, match=r"tau_decay \(last\) 2: give a whole number of at least 3"):
        Policy(GATE, first=3, last=2)
    with pytest.raises(ConfigError, match="gamma is not a number"):
        EntropyGate(float("nan"))
    with pytest.raises(ConfigError, match=r"tau_decay \(last\) -1: give a whole number"):
        Policy(GATE, last=-1)
    model.config.sliding_window = 8
    with pytest.raises(DataError, match="attends to the last 8 tokens only"):
        decode(model, TOKENIZER, prompts(1), CONFIG)


def test_logits_that_are_no_numbers_stop_at_once() -> None:
    model = tiny_model("llama")
    model.lm_head.weight[3] = torch.nan
    with pytest.raises(NumericalError, match="logits hold NaN or infinity; weaken the edit"):
        decode(model, TOKENIZER, prompts(2), CONFIG)
