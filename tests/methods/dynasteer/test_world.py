"""The small world, and what is computed from answers: paired gains, design effects, the two laws, loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import DataError
from methods.dynasteer.analysis import compare, gain_by_entropy, repetition
from methods.dynasteer.numbers import answered_number
from methods.dynasteer.world import (
    ID,
    MODULUS,
    NUMBER,
    OPERATIONS,
    PROMPT_TOKENS,
    STOP,
    make_problems,
    make_tokenizer,
    solutions,
    train_reasoner,
)


def test_solutions_follow_their_solvers() -> None:
    rows = solutions(np.random.default_rng(0), 20_000)
    start, operations = rows[:, 0] - NUMBER, rows[:, 1 : PROMPT_TOKENS - 1] - ID[OPERATIONS[0]]
    steps = rows[:, PROMPT_TOKENS + 2 : -1].reshape(len(rows), -1, 4)
    assert (steps[:, :, 1] - ID[OPERATIONS[0]] == operations).all()
    assert (steps[:, :, 3] == ID[STOP]).all()
    before, all_right = start, np.ones(len(rows), bool)
    for k in range(operations.shape[1]):
        value = steps[:, k, 2] - NUMBER
        right = np.choose(operations[:, k], [before + 5, before - 3, before * 2]) % MODULUS
        off = (value - right) % MODULUS
        wrong = off != 0
        plain = operations[:, k] < 2
        assert set(off[wrong & plain]) == {1, MODULUS - 1}
        assert (value[wrong & ~plain] == before[wrong & ~plain]).all()
        # 30 % of solvers slip in 55 % of sums; 30 % leave 75 % of the values that doubling changes.
        assert wrong[plain].mean() == pytest.approx(0.3 * 0.55, abs=0.02)
        assert wrong[~plain & (before > 0)].mean() == pytest.approx(0.3 * 0.75, abs=0.02)
        all_right &= ~wrong
        before = value
    checked = rows[:, PROMPT_TOKENS] == ID["check"]
    assert all_right[checked].mean() > all_right[~checked].mean() + 0.2  # the first sentence knows
    assert 0.45 < all_right.mean() < 0.6


def test_problems_have_the_right_answers_and_differ_by_seed() -> None:
    tokenizer = make_tokenizer()
    problem = make_problems(3, 5)[0]
    words = tokenizer.decode(problem.prompt).split()
    value = int(words[0])
    for word in words[1:-1]:
        value = {"add": value + 5, "less": value - 3, "twice": value * 2}[word] % MODULUS
    assert str(value) == problem.answer
    assert make_problems(3, 5) == make_problems(3, 5) != make_problems(3, 6)
    ids = [ID["so"], ID["add"], NUMBER + 12, ID[STOP]]
    assert answered_number(tokenizer.decode(ids)) == "12"
    assert tokenizer.decode([ID[STOP]]) == ".\n"
    assert tokenizer(tokenizer.decode(problem.prompt))["input_ids"] == list(problem.prompt)


def test_training_is_repeatable_and_leaves_the_generator_alone() -> None:
    state = torch.get_rng_state()
    losses: list[float] = []
    made = [
        train_reasoner(
            3, 12, batch=16, width=16, layers=1, heads=2, on_step=lambda _s, loss: losses.append(loss)
        )
        for _ in range(2)
    ]
    assert losses[:12] == losses[12:]
    assert losses[11] < losses[0]
    assert all(
        torch.equal(a, b)
        for a, b in zip(made[0].state_dict().values(), made[1].state_dict().values(), strict=True)
    )
    assert torch.equal(torch.get_rng_state(), state)


def test_intervals_cover_and_groups_widen_them() -> None:
    """100 templates, each right or wrong as a whole: the questions are not independent."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(100), 12)
    a, b = np.repeat(rng.random(100) < 0.5, 12), np.repeat(rng.random(100) < 0.5, 12)
    by_group, alone = compare(a, b, groups), compare(a, b)
    assert by_group.gain == alone.gain
    assert by_group.high - by_group.low > 2.5 * (alone.high - alone.low)
    assert by_group.design_effect == pytest.approx(12, rel=0.25)
    assert alone.design_effect == pytest.approx(1, rel=0.15)
    assert (alone.fixed, alone.harmed) == (int((a & ~b).sum()), int((b & ~a).sum()))
    missed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        c = compare(rng.random(300) < 0.5, rng.random(300) < 0.4, draws=300, seed=seed)
        missed += not c.low <= 0.1 <= c.high
    assert missed <= 12


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_a_policy_against_itself_gains_nothing(pairs: list[tuple[bool, bool]]) -> None:
    a, b = (np.array([pair[i] for pair in pairs], float) for i in (0, 1))
    same = compare(a, a)
    assert (same.gain, same.low, same.high, same.fixed, same.harmed) == (0, 0, 0, 0, 0)
    assert not same.decided
    one, other = compare(a, b), compare(b, a)
    assert one.gain == -other.gain
    assert (one.fixed, one.harmed) == (other.harmed, other.fixed)
    assert one.low <= one.gain + 1e-12
    assert one.high >= one.gain - 1e-12


def test_gain_by_entropy_sorts_into_even_bins() -> None:
    rng = np.random.default_rng(1)
    entropy = rng.random(1000)
    centres, gains, errors = gain_by_entropy((entropy > 0.8).astype(float), entropy, 10)
    np.testing.assert_allclose(centres, np.arange(0.05, 1, 0.1), atol=0.03)
    assert gains[:7].max() == 0
    assert gains[-1] == 1
    assert errors[0] == errors[-1] == 0
    with pytest.raises(DataError, match="3 steered sentences cannot fill 10 bins"):
        gain_by_entropy([0, 1, 0], [1, 2, 3])


def test_loops_are_seen() -> None:
    loop, text = "so it is so. " * 50, "every word here differs from its neighbours and nothing comes twice"
    assert repetition(loop)[0] < 0.15 < 0.5 < repetition(text)[0]
    assert repetition(loop)[1] > 0.9
    assert repetition(text)[1] == 0
    assert repetition("") == (1.0, 0.0)


def test_lengths_must_fit() -> None:
    with pytest.raises(DataError, match="2 and 3 answers"):
        compare([1, 0], [1, 0, 1])
    with pytest.raises(DataError, match="0 and 0 answers"):
        compare([], [])
