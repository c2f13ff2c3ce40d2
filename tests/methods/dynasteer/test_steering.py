"""The estimator: the planted truth must be gained, what is saved is loaded, mistakes are told."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from methods.common.errors import ConfigError, DataError
from methods.dynasteer import (
    DynaSteer,
    EntropyGate,
    ForkSet,
    GenConfig,
    NoContrastError,
    Problem,
    build_forks,
    capture_heads,
    collect_trajectories,
    fit_caa,
    fit_control_vector,
    fit_iti,
    self_consistency,
)
from methods.dynasteer.baselines import majority
from methods.dynasteer.forks import contrastive
from methods.dynasteer.heads import HeadActivations, fingerprint_of
from methods.dynasteer.planted import make_planted, planted_problems
from methods.dynasteer.trajectories import number_is_right, words_are_right
from tests.methods.dynasteer.tiny import TOKENIZER, activations, tiny_model

CONFIG = GenConfig(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=8, batch_size=512)


@pytest.fixture(scope="module")
def planted() -> Any:
    """The planted model with everything that was fitted on it."""
    made = make_planted(0, head_dim=16)
    problems = planted_problems(160, 0)
    chains = collect_trajectories(made.model, made.tokenizer, problems, config=CONFIG)
    gate = EntropyGate.fit(chains)
    forks = build_forks(
        made.model, made.tokenizer, chains, gate, problems, n_forks=6, n_label=2, config=CONFIG
    )
    acts = capture_heads(made.model, made.tokenizer, forks, batch_size=256, hidden=True)
    steering = DynaSteer(n_clusters=1, n_heads=1, alpha=3.0, alpha_unit="sigma").fit(acts)
    return made, chains, gate, forks, acts, steering


def accuracy(planted: Any, policy: str, count: int = 600, **options: Any) -> float:
    made, _, gate, *_, steering = planted
    asked = [problem.prompt for problem in planted_problems(count, 99)]
    found = steering.generate(
        made.model, made.tokenizer, asked, gate, policy=policy, config=CONFIG, **options
    )
    return float(np.mean([text.split()[-1] == "1" for text in found.texts]))


def test_a_planted_truth_is_found_and_gained_and_the_controls_gain_nothing(planted: Any) -> None:
    made, *_, steering = planted
    assert (int(steering.directions_.layers[0]), int(steering.directions_.heads[0])) == (
        made.layer,
        made.head,
    )
    assert float(steering.directions_.w[0, 0].numpy() @ made.direction) >= 0.9
    plain, resample, steer = (accuracy(planted, policy) for policy in ("plain", "resample", "steer"))
    assert plain <= 0.6
    assert steer >= plain + 0.15
    assert steer >= resample + 0.15
    pairs = []
    kept = steering.random_
    for sign in (1.0, -1.0):
        steering.random_ = steering.random_directions(7, sign)
        pairs.append(accuracy(planted, "random"))
    steering.random_ = kept
    assert np.mean(pairs) == pytest.approx(resample, abs=0.05)


def test_the_heads_that_carry_no_truth_read_none(planted: Any) -> None:
    *_, steering = planted
    assert steering.accuracy_[0, 0] > 0.95
    assert abs(steering.accuracy_[0, 1] - 0.5) < 0.15


def test_the_gate_is_the_quantile_and_triggers_as_often_on_other_problems(planted: Any) -> None:
    made, chains, *_ = planted
    entropies = [s.entropy for chain in chains for s in chain.sentences]
    gate = EntropyGate.fit(chains, 0.9)
    assert gate.gamma == np.quantile(entropies, 0.9)
    other = collect_trajectories(made.model, made.tokenizer, planted_problems(300, 5), config=CONFIG)
    rate = np.mean([gate.triggers(s.entropy) for chain in other for s in chain.sentences])
    assert rate == pytest.approx(0.1, abs=0.03)


def test_forks_are_distinct_labelled_by_unanimity_and_reproduced_in_parts(planted: Any) -> None:
    made, chains, gate, forks, *_ = planted
    problems = planted_problems(160, 0)
    for fork_set in forks:
        assert len({tuple(fork) for fork in fork_set.forks}) == len(fork_set.forks)
        good = [made.tokenizer.decode(fork).startswith("good") for fork in fork_set.forks]
        labels = fork_set.labels
        assert all((label == 1) == g for label, g in zip(labels, good, strict=True) if label >= 0)
        assert fork_set.prefix == chains[fork_set.problem].prefix(fork_set.sentence)
    part = build_forks(
        made.model, made.tokenizer, chains[40:60], gate, problems, n_forks=6, n_label=2, config=CONFIG
    )
    assert part == [fork_set for fork_set in forks if 40 <= fork_set.problem < 60]


def test_fitting_is_repeatable_and_what_is_saved_is_loaded(planted: Any, tmp_path: Path) -> None:
    made, _, gate, _, acts, steering = planted
    again = clone(steering).fit(acts)
    for folder, fitted in (("a", steering), ("b", again)):
        fitted.save(tmp_path / folder, gate)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == ["steering.json", "steering.safetensors"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    loaded = DynaSteer.load(tmp_path / "a")
    assert loaded.get_params() == steering.get_params()
    assert loaded.gate_ == gate
    asked = [problem.prompt for problem in planted_problems(20, 3)]
    for policy in ("steer", "random"):
        one = steering.generate(made.model, made.tokenizer, asked, gate, policy=policy, config=CONFIG)
        two = loaded.generate(made.model, made.tokenizer, asked, policy=policy, config=CONFIG)
        assert one.texts == two.texts
        assert one.discarded_tokens == two.discarded_tokens
    loaded.check_model(made.model)
    with pytest.raises(
        DataError, match="fitted on 1 blocks of 2 heads of width 16, the model has 2 of 4 of 8"
    ):
        loaded.check_model(tiny_model("llama"))


def test_a_damaged_file_is_told(planted: Any, tmp_path: Path) -> None:
    *_, gate, _, _, steering = planted
    steering.save(tmp_path, gate)
    (tmp_path / "steering.safetensors").write_bytes(b"short")
    with pytest.raises(DataError, match="holds no whole steering"):
        DynaSteer.load(tmp_path)
    with pytest.raises(DataError, match="holds no whole steering"):
        DynaSteer.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["layers", "heads", "w", "mu", "sigma", "kept", "random"])
def test_tensors_that_do_not_fit_are_told(planted: Any, tmp_path: Path, name: str) -> None:
    """A steering that loads all the same would change texts without an error."""
    *_, steering = planted
    place = steering.save(tmp_path / "saved")
    whole = load_file(place / "steering.safetensors")
    value = whole[name]
    damaged = {"longer": torch.cat([value, value])}
    if value.is_floating_point():
        damaged["nan"] = torch.full_like(value, float("nan"))
    if name in ("layers", "heads"):
        damaged |= {"negative": value * 0 - 1, "beyond": value * 0 + 99}
    for tensor in damaged.values():
        save_file(whole | {name: tensor.contiguous()}, place / "steering.safetensors")
        with pytest.raises(
            DataError, match=r"holds no whole steering \((layers|heads|w|mu|sigma|kept|push) "
        ):
            DynaSteer.load(place)
    save_file(whole, place / "steering.safetensors")
    DynaSteer.load(place)


def test_the_steering_works_inside_transformers_own_generate(planted: Any) -> None:
    made, *_, steering = planted
    rows = torch.tensor([p.prompt for p in planted_problems(200, 4)])

    def good(**options: Any) -> float:
        torch.manual_seed(0)
        out = made.model.generate(
            rows, attention_mask=torch.ones_like(rows), do_sample=True, top_k=0, max_new_tokens=1, **options
        )
        return float(np.mean([t.startswith("good") for t in made.tokenizer.batch_decode(out[:, -1:])]))

    plain = good()
    with steering.attached(made.model):
        assert good() > plain + 0.2
    assert good() == plain


def test_ablations_change_what_they_name(planted: Any) -> None:
    _, _, _, _, acts, steering = planted
    assert torch.equal(
        DynaSteer(n_clusters=1, n_heads=1, direction="mean").fit(acts).directions_.layers, torch.tensor([0])
    )
    mean = DynaSteer(n_clusters=1, n_heads=1, direction="mean").fit(acts).directions_.w[0, 0]
    z, labels = acts.z[:, 0, 0], torch.from_numpy(acts.labels)
    difference = z[labels == 1].mean(0) - z[labels == 0].mean(0)
    torch.testing.assert_close(mean, difference / difference.norm(), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(mean, steering.directions_.w[0, 0])
    assert len(DynaSteer(n_clusters=2, n_heads=2, cluster="nearest", rank="fdr").fit(acts).directions_) == 2
    # The doubt is about the first word; the steps after it are never rolled back.
    assert accuracy(planted, "steer", 300, tau_decay=1) == accuracy(planted, "steer", 300)
    # Without rollback the fork itself is never steered here: the words were written already.
    assert abs(accuracy(planted, "steer", 300, rollback=False) - accuracy(planted, "plain", 300)) < 0.05


def test_baselines_are_what_they_are_called(planted: Any) -> None:
    made, *_, acts, _ = planted
    labels = acts.labels == 1
    caa = fit_caa(acts, 0)
    torch.testing.assert_close(
        caa.vectors[0], acts.hidden[labels, 0].mean(0) - acts.hidden[~labels, 0].mean(0)
    )
    vector = fit_control_vector(acts, 0)
    assert torch.cosine_similarity(vector.vectors, caa.vectors).item() > 0.9
    iti = fit_iti(acts, n_heads=1, alpha=2.0)
    d = iti.directions
    z = acts.z[:5, 0, :1]
    spread = (acts.z[:, 0, 0] @ d.w[0, 0]).std(unbiased=False)
    torch.testing.assert_close(
        iti.edited(z) - z, (2.0 * spread * d.w[0, 0]).expand(5, 1, -1), atol=1e-5, rtol=1e-4
    )
    assert float(d.w[0, 0].numpy() @ made.direction) > 0.9
    with pytest.raises(ConfigError, match="layer=3: the model has 1 blocks"):
        fit_caa(acts, 3)
    with pytest.raises(DataError, match="capture them with hidden=True"):
        fit_caa(replace(acts, hidden=None), 0)


def test_votes_at_a_given_cost() -> None:
    answers = [["1", "2", "2"], ["3", "3", "4"], [None, "5", "5"], ["6", "7", "8"]]
    rights = ["2", "3", "5", "7"]
    expected, share = self_consistency(answers, rights, 3, extra_cost=0.5)
    assert share == 0.25
    np.testing.assert_allclose(expected, [0.25, 1.0, 0.25, 0.0])
    assert majority(["6", "7", "8"]) == "6"
    assert majority([None]) is None
    with pytest.raises(ConfigError, match="no majority"):
        self_consistency(answers, rights, 2, 0.5)
    with pytest.raises(ConfigError, match="extra_cost=3"):
        self_consistency(answers, rights, 3, 3)


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("so 3 + 4 = 7.\nAnswer: \\boxed{7}", "7", True),
        ("the total is 1,234.", "1234", True),
        ("\\boxed{5} and then 6", "5", True),
        ("it is -2.50", "-2.5", True),
        ("no idea", "7", False),
        ("7 apples, no 8", "7", False),
        ("", "7", False),
        (r"\boxed{\frac{3}{4}}", r"\frac{3}{4}", True),
        (r"\boxed{\frac{7}{4}}", r"\frac{3}{4}", False),
        (r"it is \boxed{-\dfrac{6}{8}}", "-0.75", True),
        (r"\boxed{2\frac{1}{2}}", "2.5", True),
        (r"\boxed{x = 5 \text{ apples}}", "5", True),
        (r"\boxed{x^2+5}", "5", False),
        (r"\boxed{y-5}", "5", False),
        (r"first \boxed{1}, no, \boxed{2", "1", False),
        ("so 1/2", "3/2", False),
        ("so 3/2.", "1.5", True),
        ("it is 20-10", "-10", False),
        ("it is \u221242", "-42", True),
        ("1.5e3 metres", "1500", True),
        ("it costs $18.", "$18", True),
        ("9" * 400, "8" * 400, False),
        ("9" * 400, "9" * 400, True),
        ("9" * 5000, "7", False),
        ("a third: 0.333", "1/3", False),
        ("1/0", "7", False),
        (r"\boxed{90^\circ}.", "90", True),
        (r"\boxed{90^{\circ}}", "90", True),
        (r"\boxed{\frac43}", "4/3", True),
        (r"it is \boxed{-\frac 5{10}}", r"-\frac{1}{2}", True),
        (r"\boxed{1\frac12}", "1.5", True),
        (r"\boxed{864 \mbox{ inches}^2}", "864", True),
        (r"\boxed{2^3}", "23", False),
    ],
)
def test_numbers_are_read_from_answers(text: str, answer: str, right: bool) -> None:
    assert number_is_right(text, Problem("?", answer)) == right


def test_words_are_read_from_the_last_line() -> None:
    assert words_are_right("First.\nThe answer is (B).\n", Problem("?", "B"))
    assert not words_are_right("B.\nNo, C", Problem("?", "B"))
    assert not words_are_right("", Problem("?", "B"))
    for answer in ("B", "y-5", "x^2+5", "3 or 4", "1/0", ""):
        with pytest.raises(DataError, match=re.escape(f"answer {answer!r} is no number")):
            number_is_right("1", Problem("?", answer))


def test_mistakes_are_told(planted: Any) -> None:
    made, chains, gate, forks, acts, steering = planted
    for wrong, says in (
        ({"alpha": -1.0}, "alpha -1.0: give a number of at least 0"),
        ({"alpha": float("nan")}, "alpha nan"),
        ({"alpha": "3"}, "alpha '3'"),
        ({"ridge": -1.0}, "ridge -1.0"),
        ({"ridge": float("nan")}, "ridge nan"),
        ({"n_clusters": 1.5}, "n_clusters 1.5: give a whole number of at least 1"),
        ({"random_state": -1}, "random_state -1"),
        ({"alpha_unit": "metres"}, "alpha_unit='metres' is not known"),
        ({"rank": "size"}, "rank='size' is not known"),
        ({"n_heads": 0}, "n_heads 0: give a whole number of at least 1"),
        ({"test_size": 1.0}, "test_size 1.0: give a number above 0 and below 1"),
    ):
        with pytest.raises(ConfigError, match=says):
            DynaSteer(**wrong).fit(acts)  # type: ignore[arg-type]
    with pytest.raises(NotFittedError, match="call fit"):
        DynaSteer().generate(made.model, made.tokenizer, ["?"], gate)
    with pytest.raises(ConfigError, match="gate: none is given"):
        clone(steering).fit(acts).generate(made.model, made.tokenizer, [(3,)])
    with pytest.raises(ConfigError, match="policy='push' is not known"):
        steering.generate(made.model, made.tokenizer, [(3,)], gate, policy="push")
    few = [replace(chain, entropy="topk", entropy_k=3) for chain in chains]
    with pytest.raises(ConfigError, match="entropy_k=20: the trajectories' entropies are over 3 tokens"):
        EntropyGate.fit(few, entropy="topk")
    assert EntropyGate.fit(few, entropy="topk", entropy_k=3).entropy_k == 3
    with pytest.raises(ConfigError, match=r"quantile=1.0 is not inside"):
        EntropyGate.fit(chains, 1.0)
    with pytest.raises(ConfigError, match="the trajectories' entropies are 'full'"):
        EntropyGate.fit(chains, 0.8, entropy="topk")
    with pytest.raises(DataError, match="hold no sentence"):
        EntropyGate.fit([])
    with pytest.raises(
        ConfigError, match=r"problems: 10 are given, a trajectory answers number 159 \(from 0\)"
    ):
        build_forks(made.model, made.tokenizer, chains, gate, planted_problems(10, 0))
    with pytest.raises(ConfigError, match=r"problems hold '12'; give a list of Problem"):
        collect_trajectories(made.model, made.tokenizer, ["12"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="n_forks=1"):
        build_forks(made.model, made.tokenizer, chains, gate, planted_problems(160, 0), n_forks=1)
    with pytest.raises(ConfigError, match="problems: none is given"):
        collect_trajectories(made.model, made.tokenizer, [])
    with pytest.raises(NoContrastError, match="labels are of one kind"):
        DynaSteer().fit(activations(np.ones((4, 1, 1, 3)), np.ones(4, int), np.arange(4)))
    few = activations(
        np.random.default_rng(0).standard_normal((16, 1, 1, 3)),
        np.tile([0, 1], 8),
        np.repeat(np.arange(4), 4),
    )
    with pytest.warns(UserWarning, match="n_clusters=5 is above the 3 training contexts"):
        DynaSteer(n_heads=1, cluster="nearest").fit(few)
    with pytest.raises(DataError, match="z holds NaN"):
        activations(np.full((4, 1, 1, 3), np.nan), np.ones(4, int), np.arange(4))
    rights = [ForkSet(0, 1, 0.0, [3], [[4], [5]], [2, 2], 2), ForkSet(1, 1, 0.0, [3], [[4], [5]], [2, 1], 2)]
    with pytest.raises(NoContrastError, match="2 contexts; forks: 3 right, 0 wrong, 1 not unanimous"):
        contrastive(rights)
    assert len(contrastive(forks, most=10)) == 10
    assert isinstance(NoContrastError("x"), RuntimeError)


def test_what_is_asked_wrongly_is_told_before_any_work(planted: Any) -> None:
    made, _, gate, _, _, steering = planted

    def told(says: str, prompts: Any = ((3,),), **options: Any) -> None:
        with pytest.raises(ConfigError, match=says):
            steering.generate(
                made.model, made.tokenizer, prompts, **{"gate": gate, "config": CONFIG, **options}
            )

    told(r"prompts='p001 p002 \?' is one text; give a list of prompts", "p001 p002 ?")
    told("prompt 0 is 3; give a text, or a list of token ids", [3, 4])
    told("prompt 1 is b'x'; give a text", [(3,), b"x"])
    told(r"prompt 0 is \[1.5\]", [[1.5]])
    told("prompt 1 has no token", [(3,), ()])
    told("prompt 0 holds token 9999, the model knows 0 to 205", [(3, 9999)])
    told("prompt 0 holds token -1, the model knows 0 to 205", [(-1, 3)])
    told("keys: 1 for 2 prompts; give one a prompt", [(3,), (4,)], keys=[0])
    told("key -1: give a whole number of at least 0", keys=[-1])
    told("key 0.5: give a whole number", keys=[0.5])
    told("max_new_tokens=2048: with a prompt of 1 tokens the model has room for 63", config=GenConfig())
    for tau in (0, -1, 1.5, True):
        told(rf"tau_decay \(last\) {tau}: give a whole number of at least 1", tau_decay=tau)
    always = {"scope": "always", "gate": None}
    told("scope='always' without an edit is plain generation", policy="resample", **always)
    told("scope='always' edits every token; leave first, tau_decay", tau_decay=2, **always)
    told("scope='always' edits every token", rollback=False, **always)
    told("scope='always' has no gate", scope="always")
    told("restore needs scope='fork'", restore=True, **always)


def test_a_steering_knows_its_model_by_the_weights(planted: Any, tmp_path: Path) -> None:
    _, _, gate, _, acts, steering = planted
    made = make_planted(0, head_dim=16)
    steering.check_model(made.model)
    assert fingerprint_of(made.model.to(torch.bfloat16)) == acts.fingerprint
    loaded = DynaSteer.load(steering.save(tmp_path, gate))
    acts.save(tmp_path)
    assert HeadActivations.load(tmp_path).fingerprint == loaded.fingerprint_ == acts.fingerprint
    other = make_planted(1, head_dim=16)
    for use in (
        lambda: loaded.check_model(other.model),
        lambda: loaded.attached(other.model),
        lambda: loaded.generate(other.model, other.tokenizer, [(3,)], config=CONFIG),
    ):
        with pytest.raises(DataError, match="fitted on a model of the same shape with other weights: fit it"):
            use()
    loaded.fingerprint_ = ""
    loaded.check_model(other.model)
    trained = make_planted(0, head_dim=16).model
    trained.model.layers[0].mlp.down_proj.weight[0, 0] = 0.5  # the values at both ends are read
    assert fingerprint_of(trained) != acts.fingerprint


def test_heads_are_not_ranked_on_what_they_were_fitted_on() -> None:
    rng = np.random.default_rng(0)
    z, labels, groups = rng.standard_normal((16, 1, 2, 3)), np.tile([0, 1], 8), np.repeat(np.arange(4), 4)
    with pytest.raises(DataError, match="the forks are all of one problem"):
        DynaSteer(n_clusters=1).fit(replace(activations(z, labels, groups), problems=np.zeros(16, int)))
    few = activations(z[:4], labels[:4], np.repeat(np.arange(2), 2))
    with pytest.warns(UserWarning, match="no head could be tested on other problems"):
        DynaSteer(n_clusters=1).fit(few)


def test_text_prompts_are_tokenised_and_ids_pass_through() -> None:
    model = tiny_model("llama")
    config = GenConfig(max_new_tokens=5)
    text = collect_trajectories(model, TOKENIZER, [Problem("7 add twice :", "11")], config=config)[0]
    same = collect_trajectories(model, TOKENIZER, [Problem(tuple(text.prompt), "11")], config=config)[0]
    assert text == same
    assert TOKENIZER.decode(text.prompt) == "7 add twice :"
