"""Answers by depth against a model that is known to be right, or lost at one depth; the report; other windows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from methods.common.errors import ConfigError
from methods.rope_psd import evaluate_positions, position_report, set_rope, view_gap
from methods.rope_psd.positions import answer_tokens, make_prompts, score_text
from methods.rope_psd.ruler import Material, Prompt
from tests.methods.rope_psd.tiny import ids, model
from tests.tiny_models import sentences, tiny_llama

MATERIAL = Material(sentences(200), words=("apple", "leaf", "sky"))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def test_scores_are_those_of_the_model_alone(loaded: tuple[Any, Any]) -> None:
    made, tokenizer = loaded
    frame = evaluate_positions(
        made, tokenizer, "recall", 200, (0.0, 0.5, 1.0), 2, material=MATERIAL, batch_tokens=1000
    )
    assert list(frame.columns) == ["task", "length", "depth", "sample", "tokens", "correct", "logprob"]
    assert len(frame) == 6
    prompts = make_prompts(tokenizer, "recall", 200, (0.0, 0.5, 1.0), 2, material=MATERIAL)
    for (_, row), (depth, sample, prompt, tokens) in zip(frame.iterrows(), prompts, strict=True):
        assert (row.depth, row["sample"], row.tokens) == (depth, sample, len(tokens))
        answer = answer_tokens(tokenizer, prompt)
        with torch.no_grad():
            logits = made(torch.tensor([tokens + answer])).logits[0].log_softmax(-1)
            out = made.generate(
                torch.tensor([tokens]), max_new_tokens=len(answer) + 8, do_sample=False, pad_token_id=0
            )
        places = range(len(tokens) - 1, len(tokens) + len(answer) - 1)
        expected = sum(float(logits[place, token]) for place, token in zip(places, answer, strict=True))
        assert row.logprob == pytest.approx(expected, abs=1e-3)
        assert row.correct == score_text(prompt, tokenizer.decode(out[0, len(tokens) :]))


def test_a_model_that_is_lost_in_the_middle(loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made, tokenizer = loaded
    grid = (0.0, 0.5, 1.0)
    prompts = make_prompts(tokenizer, "recall", 200, grid, 4, material=MATERIAL)
    lost = {tuple(tokens) for depth, *_, tokens in prompts if depth == 0.5}

    def scores(inner: Any, requests: Any, **_: Any) -> Any:
        return [(-9.0, False) if tuple(context) in lost else (-0.1, True) for _, context, _ in requests]

    monkeypatch.setattr("methods.rope_psd.positions.packed_loglikelihoods", scores)
    frame = evaluate_positions(made, tokenizer, "recall", 200, grid, 4, material=MATERIAL, decode=False)
    report = position_report(frame).iloc[0]
    assert (report.worst, report.worst_depth, report.spread) == (0.0, 0.5, 1.0)
    assert report["mean"] == pytest.approx(2 / 3)
    assert report["std"] == pytest.approx(np.std([1, 0, 1], ddof=1))
    both = position_report(pd.concat([frame, frame.assign(length=400)]))
    assert both.length.tolist() == [200, 400]


def test_scoring_is_the_benchmarks() -> None:
    several = Prompt("", "", ("12", "Ab"))
    assert score_text(several, "it is 12 and ab.") == 1
    assert score_text(several, "it is 12") == 0.5
    assert score_text(Prompt("", "", ("12", "Ab"), any_counts=True), "AB!") == 1


def test_chat_prompts_go_through_the_template(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %} [answer] "
    plain, chat = (
        make_prompts(tokenizer, "recall", 200, (0.5,), 1, material=MATERIAL, chat=chat)[0]
        for chat in (False, True)
    )
    assert "[user]" in tokenizer.decode(chat[3])
    assert "[user]" not in tokenizer.decode(plain[3])


def test_view_gap_grows_from_nothing() -> None:
    made = model()
    rows = ids(3, 24)
    near, far = view_gap(made, rows, [1, 300], batch=2)
    assert 0 < near["kl"] < far["kl"]
    with torch.no_grad():
        expected = made(rows, labels=rows).loss
    assert near["standard_ce"] == pytest.approx(float(expected), abs=1e-5)
    assert near["perturbed_ce"] != far["perturbed_ce"]
    assert made.training


def test_another_base_and_yarn_change_the_rotation_and_are_saved(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    from methods.rope_psd import RopePSDLoss

    made = model().eval()
    rows = ids(1, 24)
    with torch.no_grad():
        before = made(rows).logits
        set_rope(made, theta=8e6, window=1024)
        based = made(rows).logits
        set_rope(made, yarn_factor=4.0)
        yarn = made(rows).logits
    assert (before - based).abs().max() > 1e-3
    assert (based - yarn).abs().max() > 1e-3
    assert made.config.max_position_embeddings == 4096
    assert made.config.rope_parameters["original_max_position_embeddings"] == 1024
    made.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path).double().eval()
    with torch.no_grad():
        assert (again(rows).logits - yarn).abs().max() <= 1e-5
    # Its frequencies do not move with the indices: the two views stay comparable.
    told = RopePSDLoss()(made, rows, perturbation=(torch.tensor([0]), torch.tensor([40])))
    assert abs(float(told["kl"])) <= 1e-8
    set_rope(made, yarn_factor=1.0)
    with torch.no_grad():
        assert (made(rows).logits - based).abs().max() <= 1e-12
    assert made.config.max_position_embeddings == 1024


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"theta": 1.0}, "rope_theta=1.0"),
        ({"yarn_factor": 0.5}, "yarn_factor=0.5"),
        ({"window": 0}, "window=0"),
    ],
)
def test_wrong_windows_are_refused(changes: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        set_rope(model(), **changes)
