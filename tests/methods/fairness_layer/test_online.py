"""The stream: the bound, the two modes, the state, and the sampler and the audit that go with it."""

import numpy as np
import pytest

from methods.common.errors import ConfigError, DataError
from methods.fairness_layer import MeanParity, OnlineParityProjector, StratifiedGroupBatchSampler, audit
from methods.fairness_layer.online import _soft
from tests.methods.fairness_layer.oracle import cp


def stream(seed, samples, share=0.3, gap=0.19):
    draw = np.random.default_rng(seed)
    groups = (draw.random(samples) < share).astype(int)
    return np.clip(0.4 + gap * groups + 0.15 * draw.normal(size=samples), 0, 1), groups


def run(projector, scores, groups, size):
    parts = range(0, len(scores), size)
    return np.concatenate([projector.step(scores[i : i + size], groups[i : i + size]) for i in parts])


@pytest.mark.parametrize("mode", ["paper", "pooled"])
def test_the_bound_is_never_exceeded_on_fifty_random_streams(mode):
    for seed in range(50):
        draw = np.random.default_rng(seed)
        scores, groups = stream(seed, 400, draw.uniform(0.1, 0.9), draw.uniform(-0.3, 0.3))
        projector = OnlineParityProjector(MeanParity(levels=[[0, 1]]), 0.02, bounds=(0, 1), mode=mode)
        size = int(draw.choice([1, 2, 4, 16]))
        for i in range(0, 400, size):
            y = projector.step(scores[i : i + size], groups[i : i + size])
            assert y.min() >= 0
            assert y.max() <= 1
            assert projector.aggregate_gap() <= projector.bound() + 1e-12


def test_pooled_keeps_batches_of_one_within_a_hundredth_of_eps_on_ten_seeds():
    for seed in range(10):
        scores, groups = stream(seed, 20_000)
        projector = OnlineParityProjector(
            MeanParity(levels=[[0, 1]]), 0.02, bounds=(0, 1), mode="pooled", shares=[[7000, 3000]]
        )
        y = run(projector, scores, groups, 1)
        assert audit(y, groups).pooled_gap <= 0.03
        assert audit(scores, groups).pooled_gap > 0.15
        assert projector.aggregate_gap() <= projector.bound()


def test_the_papers_mode_satisfies_its_batches_and_leaves_the_pool_unfair():
    # What the paper bounds is the mean of the batches' gaps; nobody should "fix" this silently.
    scores, groups = stream(0, 16_000)
    projector = OnlineParityProjector(MeanParity(levels=[[0, 1]]), 0.02, bounds=(0, 1))
    y = run(projector, scores, groups, 4)
    assert projector.aggregate_gap() <= 0.021
    assert audit(y, groups).pooled_gap > 0.03
    ones = OnlineParityProjector(MeanParity(levels=[[0, 1]]), 0.02, bounds=(0, 1))
    assert np.array_equal(run(ones, scores[:50], groups[:50], 1), scores[:50])
    assert ones.report()["batches_without_rows"] == 50


@pytest.mark.parametrize("weight", [0.05, 0.5, 50.0])
@pytest.mark.parametrize("levels", [2, 3])
def test_a_step_minimises_the_papers_objective(weight, levels):
    draw = np.random.default_rng(levels)
    groups = np.arange(12) % levels
    z = draw.normal(size=12) + groups
    rows = MeanParity().rows(groups[:, None])
    y = cp.Variable(12)
    cost = 0.5 * cp.sum_squares(y - z) + weight * cp.max(cp.abs(rows.matrix @ y - rows.centre))
    cp.Problem(cp.Minimize(cost), [y >= -1, y <= 1.5]).solve(solver=cp.CLARABEL)
    assert np.abs(_soft(z, rows.matrix, rows.centre, weight, -1.0, 1.5) - y.value).max() <= 1e-5


@pytest.mark.parametrize("mode", ["paper", "pooled"])
def test_a_saved_stream_goes_on_with_the_same_numbers_and_reset_forgets(mode, tmp_path):
    scores, groups = stream(3, 400)

    def fresh():
        return OnlineParityProjector(MeanParity(levels=[[0, 1]]), 0.02, bounds=(0, 1), mode=mode)

    whole = fresh()
    expected = run(whole, scores, groups, 4)
    first = fresh()
    run(first, scores[:200], groups[:200], 4)
    first.save(tmp_path / "state.json")
    second = fresh()
    second.load(tmp_path / "state.json")
    assert np.array_equal(run(second, scores[200:], groups[200:], 4), expected[200:])
    assert second.report() == whole.report()
    whole.reset()
    assert np.array_equal(run(whole, scores, groups, 4), expected)


def test_mistakes_are_refused_and_leave_the_state_alone():
    parity = MeanParity(levels=[[0, 1]])
    with pytest.raises(ConfigError, match="mode 'other'"):
        OnlineParityProjector(parity, mode="other")
    with pytest.raises(ConfigError, match="mode 'pooled': give MeanParity"):
        OnlineParityProjector(MeanParity(), mode="pooled")
    with pytest.raises(ConfigError, match="shares"):
        OnlineParityProjector(parity, mode="pooled", shares=[[1.0]])
    for mode in ("paper", "pooled"):
        projector = OnlineParityProjector(parity, mode=mode)
        with pytest.raises(DataError, match="unseen code 5"):
            projector.step([0.1, 0.2], [0, 5])
        assert projector.report()["batches"] == 0
    with pytest.raises(DataError, match="state lacks"):
        OnlineParityProjector(parity).load_state_dict({})
    with pytest.raises(DataError, match="state of mode 'pooled'"):
        OnlineParityProjector(parity).load_state_dict(
            OnlineParityProjector(parity, mode="pooled").state_dict()
        )


def test_every_batch_has_every_group_and_each_epoch_its_own_order():
    draw = np.random.default_rng(0)
    groups = np.stack((draw.random(1000) < 0.1, draw.random(1000) < 0.5), axis=1).astype(int)
    with pytest.warns(UserWarning, match="dropped"):
        sampler = StratifiedGroupBatchSampler(groups, 50, seed=1)
    first, second = list(sampler), list(sampler)
    assert len(first) == len(sampler)
    assert first != second
    for batch in first:
        assert len(batch) == 50
        assert len(np.unique(groups[batch], axis=0)) == 4
    used = np.concatenate(first)
    assert len(set(used)) == len(used)
    everything = list(StratifiedGroupBatchSampler(groups, 50, seed=1, drop_last=False))
    assert sorted(np.concatenate(everything)) == list(range(1000))
    with pytest.raises(ConfigError, match="batch_size 3"):
        StratifiedGroupBatchSampler(groups, 3)


def test_the_audit_tells_scores_decisions_and_batches_apart():
    scores, groups = np.array([0.45, 0.45, 0.55, 0.55]), np.array([0, 0, 1, 1])
    found = audit(scores, groups, batch_size=2)
    assert found.pooled_gap == pytest.approx(0.1)
    assert found.decision_gap == 1.0
    assert found.batches_without_rows == 2
    assert found.n_per_group == {"attribute 0=0": 2, "attribute 0=1": 2}
    assert audit(
        scores[[0, 2, 1, 3]], groups[[0, 2, 1, 3]], batch_size=2
    ).weighted_batch_gap == pytest.approx(0.1)
