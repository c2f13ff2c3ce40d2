"""The probes against what a model computes when it is taken apart by hand."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.common.sublayers import SUBLAYERS, blocks_of, layout_of, without_sublayer
from methods.pruning_representations import RepresentationProbe, drop_sublayers, magnitude
from methods.pruning_representations.compare import compare_logits, compare_states, compare_top
from methods.pruning_representations.decoding import choose, write
from methods.pruning_representations.second_order import (
    angular,
    cosine_of_probabilities,
    kl,
    second_order_cos,
    second_order_kl,
    third_order,
)
from tests.methods.pruning_representations.tiny import tiny, tokens
from tests.methods.pruning_representations.words import Numbers, prompt

CAUSAL = sorted(kind for kind, layout in SUBLAYERS.items() if layout.final_norm)


def texts(count: int = 3, length: int = 14) -> list[str]:
    return [prompt(row.tolist()) for row in tokens(count, length)]


def probe(model: Any, **settings: Any) -> RepresentationProbe:
    return RepresentationProbe(model, Numbers(), **settings)


def test_one_pass_gives_what_the_single_functions_give() -> None:
    z, dz = torch.randn(2, 6, 80, dtype=torch.float64).unbind(0)
    z, z2 = 2 * z, 2 * z + dz
    found = compare_logits(z, z2, 0.7)
    expected = {
        "cos_z": angular(z, z2).cosine,
        "cos_p": cosine_of_probabilities(z, z2, 0.7),
        "kl": kl(z, z2, 0.7),
        "kl_reverse": kl(z2, z, 0.7),
        "kl_estimate": second_order_kl(z, z2, 0.7),
        "cos_p_estimate": second_order_cos(z, z2, 0.7),
        "third_order": third_order(z, z2, 0.7),
        "cos_z_estimate": angular(z, z2).first,
        "var_dz": (z2 - z).var(-1, correction=0),
    }
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12, msg=name)
    torch.testing.assert_close(compare_states(z, z2)["cos_h"], expected["cos_z"])
    p, q = (values[0].float().softmax(-1).numpy() for values in (z, z2))
    five = np.argsort(-p)[:5]
    assert float(compare_top(z, z2)["top5_l1"][0]) == pytest.approx(
        float(np.abs(p - q)[five].sum()), rel=1e-4
    )


@pytest.mark.parametrize("sublayer", ["attn", "mlp", "block"])
@pytest.mark.parametrize("model_type", CAUSAL)
def test_dropping_in_the_last_block_is_what_the_dropped_model_says(model_type: str, sublayer: Any) -> None:
    """What leaves the last block goes to the head at once, so a real drop there shows in the model's own logits."""
    model = tiny(model_type)
    ids = tokens(1, 14)
    layout, block = layout_of(model), blocks_of(model)[-1]
    table = probe(model).layerwise([prompt(ids[0].tolist())], sublayer=sublayer, layers=[2]).frame
    with torch.no_grad():
        dense = model(input_ids=ids).logits[0, 8:]
        if sublayer == "attn" and model_type != "gpt_neox":
            with without_sublayer(block, layout, "mlp"):  # the state after the attention, with and without it
                dense = model(input_ids=ids).logits[0, 8:]
                changed = drop_sublayers(model, blocks=[2])(input_ids=ids).logits[0, 8:]
        else:
            gone = {"blocks": [2]} if sublayer == "block" else {sublayer: [2]}
            changed = drop_sublayers(model, **gone)(input_ids=ids).logits[0, 8:]
    expected = compare_logits(dense, changed)
    assert len(table) == 6
    for name in ("cos_z", "cos_p", "kl", "kl_estimate"):
        assert table[name].to_numpy() == pytest.approx(expected[name].numpy(), rel=2e-3, abs=1e-5), name


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox", "gemma2", "gemma3_text", "qwen3"])
def test_another_models_sublayers_on_the_dense_input(model_type: str) -> None:
    model = tiny(model_type)
    other = magnitude(copy.deepcopy(model), sparsity=0.6)
    for sublayer in ("attn", "mlp", "block"):
        same = probe(model).layerwise(texts(), mode="pruned", other=copy.deepcopy(model), sublayer=sublayer)
        assert same.frame.kl.abs().max() < 1e-5
        assert same.frame.cos_h.min() > 1 - 1e-5
        table = probe(model).layerwise(texts(), mode="pruned", other=other, sublayer=sublayer).frame
        assert table.kl.min() > 1e-4
    # In the last layer, the block's change alone explains the logits of a model that has it.
    mixed = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in blocks_of(mixed)[-1].state_dict().items():
            value.copy_(blocks_of(other)[-1].state_dict()[name])
        ids = tokens(1, 14)
        expected = compare_logits(model(input_ids=ids).logits[0, 8:], mixed(input_ids=ids).logits[0, 8:])
    last = probe(model).layerwise([prompt(ids[0].tolist())], "pruned", other, "block", layers=[2]).frame
    assert last.kl.to_numpy() == pytest.approx(expected["kl"].numpy(), rel=1e-3, abs=1e-6)


def test_a_dropped_model_as_the_other_is_the_dropped_mode() -> None:
    model = tiny()
    plain = probe(model).layerwise(texts(), sublayer="attn", layers=[1]).frame
    for other in (drop_sublayers(model, attn=[1]), drop_sublayers(model, blocks=[1])):
        table = probe(model).layerwise(texts(), "pruned", other, "attn").frame
        one = table[table.layer == 1]
        assert one.kl.to_numpy() == pytest.approx(plain.kl.to_numpy(), rel=1e-3, abs=1e-6)
        assert table[table.layer != 1].kl.max() < 1e-5


def test_the_generated_tokens_are_probed_when_steps_are_given() -> None:
    model = tiny()
    table = probe(model).layerwise(texts(2), steps=5)
    assert len(table.frame) == 3 * 2 * 5
    written = write(model, [[int(t) for t in text.split()] for text in texts(2)], max_new_tokens=5)
    whole = [
        prompt([*map(int, text.split()), *more[:-1]]) for text, more in zip(texts(2), written, strict=True)
    ]
    by_hand = probe(model).layerwise(whole, max_tokens=1000).frame
    per_text = (
        by_hand.groupby(["text", "layer"]).kl.apply(lambda v: v.to_numpy()[-5:]).explode().astype(float)
    )
    assert sorted(per_text) == pytest.approx(sorted(table.frame.kl), rel=1e-3, abs=1e-6)


def test_lens_without_the_norm_is_another_number_and_is_recorded() -> None:
    tables = [probe(tiny(), final_norm=norm).layerwise(texts()) for norm in (True, False)]
    assert [table.final_norm for table in tables] == [True, False]
    assert not np.allclose(tables[0].frame.kl, tables[1].frame.kl)
    summary = tables[0].summary()
    assert list(summary.layer) == [0, 1, 2]
    frame = tables[0].frame
    assert summary.cos_p_q05[1] == pytest.approx(frame[frame.layer == 1].cos_p.quantile(0.05))
    assert (summary.cos_p_q05 <= summary.cos_p_q50).all()


def test_greedy_writing_with_stops_is_generate_row_by_row() -> None:
    model = tiny("qwen2")
    model.generation_config.eos_token_id = None
    rows = [row.tolist()[: 4 + 2 * i] for i, row in enumerate(tokens(5, 14))]
    expected = [
        model.generate(torch.tensor([row]), max_new_tokens=9, do_sample=False, pad_token_id=0)[
            0, len(row) :
        ].tolist()
        for row in rows
    ]
    assert write(model, rows, max_new_tokens=9, batch_size=3) == expected
    stop = expected[0][3]
    ended = write(model, rows, max_new_tokens=9, stop=lambda made: made[-1] == stop)
    for whole, cut in zip(expected, ended, strict=True):
        assert cut == (whole[: whole.index(stop) + 1] if stop in whole else whole)


def test_decoding_free_and_forced() -> None:
    model = tiny()
    other = drop_sublayers(model, attn=[1])
    table = probe(model).decoding(texts(3), other, max_new_tokens=7, batch_size=2)
    frame = table.frame
    assert len(frame) == 2 * 3 * 7
    free, forced = (
        frame[frame["mode"] == mode].sort_values(["prompt", "step"]) for mode in ("free", "forced")
    )
    rows = [[int(t) for t in text.split()] for text in texts(3)]
    mine, theirs = (write(m, rows, max_new_tokens=7) for m in (model, other))
    assert free.token.to_numpy().reshape(3, 7).tolist() == mine
    assert free.token_other.to_numpy().reshape(3, 7).tolist() == theirs
    firsts = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), 7)
        for x, y in zip(mine, theirs, strict=True)
    ]
    assert table.first_divergence().tolist() == firsts
    # While both have written the same, both ways of comparing are one.
    together = free.same_history.to_numpy()
    assert together.any()
    assert free.kl.to_numpy()[together] == pytest.approx(forced.kl.to_numpy()[together], rel=1e-3, abs=1e-5)
    # Forced, by hand: the other model on the dense model's text.
    with torch.no_grad():
        ids = torch.tensor([rows[1] + mine[1][:-1]])
        expected = compare_logits(*(m(input_ids=ids).logits[0, -7:] for m in (model, other)))
    assert forced[forced.prompt == 1].kl.to_numpy() == pytest.approx(
        expected["kl"].numpy(), rel=1e-3, abs=1e-6
    )
    assert table.curves().groupby("mode").size().tolist() == [7, 7]
    assert set(table.summary()) >= {"first_divergence", "free/agreement", "forced/kl"}
    assert table.texts[0][0] == prompt(mine[0])


def test_a_model_compared_with_itself_never_parts_even_when_it_samples() -> None:
    model = tiny()
    table = probe(model, temperature=0.5).decoding(texts(2), copy.deepcopy(model), 6, do_sample=True, seed=3)
    assert table.frame.agree.all()
    assert table.frame.kl.abs().max() < 1e-6
    assert (table.first_divergence() == 6).all()
    again = probe(model, temperature=0.5).decoding(texts(2), copy.deepcopy(model), 6, do_sample=True, seed=4)
    assert table.texts != again.texts


def test_sampling_follows_the_distribution() -> None:
    z = torch.tensor([0.0, 1.0, 2.0])
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    drawn = choose(z.expand(20_000, 3), 0.5, uniform)
    share = torch.bincount(drawn, minlength=3) / 20_000
    torch.testing.assert_close(share, (z / 0.5).softmax(-1), atol=0.01, rtol=0)
    assert int(choose(z[None])) == 2


def test_steps_after_the_end_of_text_are_left_out() -> None:
    model, tokenizer = tiny(), Numbers()
    rows = [[int(t) for t in text.split()] for text in texts(1)]
    tokenizer.eos_token_id = write(model, rows, max_new_tokens=4)[0][2]
    first = write(model, rows, max_new_tokens=4)[0].index(tokenizer.eos_token_id)
    table = RepresentationProbe(model, tokenizer).decoding(texts(1), drop_sublayers(model, mlp=[0]), 6)
    assert table.frame.groupby("mode").step.max().tolist() == [first, first]


def test_options_against_numpy() -> None:
    model = tiny()
    other = drop_sublayers(model, mlp=[2])
    questions = texts(5)
    table = probe(model).options(questions, ("7", "9", "11"), other, batch_size=2)
    frame = table.frame
    with torch.no_grad():
        for i, question in enumerate(questions):
            ids = torch.tensor([[int(t) for t in question.split()]])
            z, z2 = (m(input_ids=ids).logits[0, -1].double().numpy() for m in (model, other))
            p, q = (np.exp(v[[7, 9, 11]] - v.max()) for v in (z, z2))
            p, q = p / p.sum(), q / q.sum()
            assert frame.option_kl[i] == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-3, abs=1e-7)
            # Only differences between the options count.
            d = (z2 - z)[[7, 9, 11]]
            assert frame.option_kl_estimate[i] == pytest.approx(float(p @ (d - p @ d) ** 2 / 2), rel=1e-3)
            assert frame.best_rank[i] == (z > z[[7, 9, 11]].max()).sum()
            assert (frame.choice[i], frame.choice_other[i]) == (p.argmax(), q.argmax())
            assert frame.logp_7[i] == pytest.approx(z[7] - np.log(np.exp(z).sum()), rel=1e-4)
    assert table.summary()["agreement"] == float(frame.agree.mean())


def test_hooks_are_gone_afterwards_and_after_an_error() -> None:
    model = tiny()
    other = tiny(hidden_size=32, head_dim=16)
    with pytest.raises(DataError, match="hidden sizes differ: 16 and 32"):
        probe(model).layerwise(texts(), "pruned", other)
    probe(model).layerwise(texts())
    with pytest.raises(IndexError):
        probe(model).layerwise([prompt([1] * 9 + [99])])
    assert not any(
        m._forward_hooks or m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules()
    )


BAD_CALLS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("layerwise", {"mode": "pruned"}, ConfigError, "mode 'pruned': needs other model"),
    ("layerwise", {"other": tiny()}, ConfigError, "mode 'dropped': takes no other model"),
    ("layerwise", {"mode": "drop"}, ConfigError, "mode 'drop': give 'dropped' or 'pruned'"),
    (
        "layerwise",
        {"sublayer": "attention"},
        ConfigError,
        "sublayer 'attention': give 'attn', 'mlp' or 'block'",
    ),
    ("layerwise", {"max_tokens": 0}, ConfigError, "max_tokens 0: give an integer of at least 1"),
    ("layerwise", {"max_length": 0}, ConfigError, "max_length 0: give"),
    ("layerwise", {"steps": -1}, ConfigError, "steps -1: give"),
    ("layerwise", {"steps": 64}, ConfigError, "64 tokens to write: the model reads at most 64"),
    (
        "layerwise",
        {"layers": [0, 3]},
        ConfigError,
        r"layers \[0, 3\]: give some of this model's, which has 0 to 2",
    ),
    ("layerwise", {"layers": []}, ConfigError, "give some of this model's"),
    ("layerwise", {"texts": "5 6 7 8 9"}, DataError, "no texts to probe; give a list"),
    ("decoding", {"texts": "5 6 7 8 9"}, DataError, "no prompts to probe; give a list"),
    ("layerwise", {"texts": []}, DataError, "no texts to probe"),
    ("layerwise", {"texts": ["5 6 7"]}, DataError, "no text has more than 8 tokens"),
    (
        "layerwise",
        {"mode": "pruned", "other": tiny(num_hidden_layers=4)},
        DataError,
        "blocks that do not correspond",
    ),
    (
        "layerwise",
        {"mode": "pruned", "other": tiny("gemma2")},
        DataError,
        "architectures differ: llama and gemma2",
    ),
    ("layerwise", {"mode": "pruned", "other": tiny(vocab_size=62)}, DataError, "vocabularies differ"),
    ("decoding", {"other": tiny(vocab_size=62)}, DataError, "vocabularies differ: 61 and 62"),
    ("decoding", {"other": None}, ConfigError, "other: is no model"),
    ("decoding", {"texts": []}, DataError, "no prompts"),
    ("decoding", {"max_new_tokens": 0}, ConfigError, "max_new_tokens 0: give"),
    ("decoding", {"max_new_tokens": 64}, ConfigError, "64 tokens to write: the model reads at most 64"),
    ("decoding", {"batch_size": 0}, ConfigError, "batch_size 0: give"),
    ("options", {"option_strings": ("5", "6 7")}, ConfigError, "'6 7': is 2 tokens"),
    ("options", {"option_strings": ("5", "5")}, ConfigError, "'5': is the same token as another"),
    ("options", {"option_strings": ("5",)}, ConfigError, "give at least two"),
    ("options", {"other": None}, ConfigError, "other: is no model"),
    ("options", {"texts": []}, DataError, "no questions"),
    ("options", {"batch_size": 0}, ConfigError, "batch_size 0: give"),
]


@pytest.mark.parametrize(
    ("call", "changes", "error", "message"), BAD_CALLS, ids=lambda value: str(value)[:40]
)
def test_bad_inputs(call: str, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    usual: dict[str, dict[str, Any]] = {
        "layerwise": {},
        "decoding": {"other": tiny(), "max_new_tokens": 4},
        "options": {"other": tiny(), "option_strings": ("5", "6")},
    }
    given = usual[call] | changes
    asked = given.pop("texts", texts())
    with pytest.raises(error, match=message):
        getattr(probe(tiny()), call)(asked, **given)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf"), "1"])
def test_bad_temperatures(temperature: Any) -> None:
    with pytest.raises(ConfigError, match=r"temperature .*: give a finite number above 0"):
        probe(tiny(), temperature=temperature)


def test_a_prompt_that_leaves_no_room_loses_its_start() -> None:
    model, long = tiny(), tokens(1, 80)[0].tolist()
    cut = probe(model).decoding([prompt(long)], tiny(seed=1), 4).frame
    pd.testing.assert_frame_equal(cut, probe(model).decoding([prompt(long[-60:])], tiny(seed=1), 4).frame)
    asked = [
        probe(model).options([prompt(row)], ("5", "6"), tiny(seed=1)).frame for row in (long, long[-64:])
    ]
    pd.testing.assert_frame_equal(*asked)


def test_logits_that_are_not_finite_are_named() -> None:
    broken = tiny()
    with torch.no_grad():
        broken.lm_head.weight[3] = float("nan")
    with pytest.raises(NumericalError, match="the other model's logits hold NaN"):
        probe(tiny()).decoding(texts(), broken, 4)
