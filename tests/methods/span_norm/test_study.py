"""The study: deterministic runs, a plan that compares like with like, and claims that can fail."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from methods.span_norm.study import Run, drop_curve, held_out_loss, make_model, start_laws, train_run
from methods.span_norm.study_claims import Claim, best_rate, claims, final_loss, max_stable_rate, variant
from methods.span_norm.study_plan import DEPTHS, EVERY, GRID, NAMED, Plan, runs_of
from tests.tiny_models import sentences

TINY = Run("span", "inv_sqrt_depth", 5e-3, 0, layers=2, width=32, ffn=64, steps=20, warmup=2, context=16)


@pytest.fixture(scope="module")
def text() -> np.ndarray:
    data = np.frombuffer(" ".join(sentences(400)).encode(), dtype=np.uint8)
    return data[: len(data) // 17 * 17].reshape(-1, 17)


def test_a_run_learns_and_is_the_same_each_time(text: np.ndarray) -> None:
    one, two = (train_run(TINY, text[:-40], text[-40:], 256) for _ in range(2))
    assert one == two
    assert one["loss"] < one["start"] - 1
    assert one["diverged"] is None
    assert one["loss"] == final_loss(one)
    assert [row["step"] for row in one["curve"]] == [1, 11, 20]
    assert one["largest_grad_norm"] >= max(row["grad_norm"] for row in one["curve"])
    other = train_run(replace(TINY, seed=1), text[:-40], text[-40:], 256)
    assert other["loss"] != one["loss"]


def test_a_run_with_experts_also_tells_their_load(text: np.ndarray) -> None:
    found = train_run(replace(TINY, experts=4, steps=4), text[:-40], text[-40:], 256)
    assert 0 <= found["load_variation"] < 2


def test_a_run_that_leaves_the_finite_numbers_stays_in_the_results(
    text: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    from methods.span_norm import study

    losses, calls = study._losses, []

    def broken(model: Any, batch: torch.Tensor) -> Any:
        calls.append(1)
        plain, objective = losses(model, batch)
        return (plain * math.nan, objective) if len(calls) == 3 else (plain, objective)

    monkeypatch.setattr(study, "_losses", broken)
    found = train_run(TINY, text[:-40], text[-40:], 256)
    assert found["diverged"] == 3
    assert math.isnan(found["loss"])
    assert final_loss(found) == found["start"]


def test_every_scheme_of_a_seed_reads_the_same_rows(
    text: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    from methods.span_norm import study

    losses, seen = study._losses, []

    def watched(model: Any, batch: torch.Tensor) -> Any:
        seen.append(batch.clone())
        return losses(model, batch)

    monkeypatch.setattr(study, "_losses", watched)
    for scheme, init in (("span", "inv_sqrt_depth"), ("prenorm", "none")):
        train_run(replace(TINY, scheme=scheme, init=init, steps=3), text[:-40], text[-40:], 256)
    for one, other in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(one, other)


def test_dropping_a_block_is_undone(text: np.ndarray) -> None:
    model, rows = make_model(TINY, 256), torch.from_numpy(text[:8].astype(np.int64))
    before = held_out_loss(model, rows)
    found = drop_curve(model, rows)
    assert len(found) == 2
    assert all(abs(rise) > 1e-6 for rise in found)
    assert held_out_loss(model, rows) == before


def test_start_laws() -> None:
    found = start_laws("span", "none", 12, seed=0)
    assert found["candidate"] == "span/none"
    assert found["log_gradient_ratio"] == pytest.approx(
        math.log(found["grad_norm"][1] / found["grad_norm"][-1])
    )
    assert found["log_gradient_ratio"] > 0.5


# -- the plan -------------------------------------------------------------------------------------------------------

PLAN = Plan(rates=(2e-3, 4e-3, 8e-3), seeds=range(5), grid_seeds=range(3), base=Run("span", "none", 0.0, 0))


def test_the_default_plan() -> None:
    moderate, rates = runs_of("moderate", PLAN), runs_of("rates", PLAN)
    assert len(moderate) == 25
    assert len(rates) == 18
    assert {run.rate for run in moderate} == {2e-3}
    assert {run.rate for run in rates} == {4e-3, 8e-3}
    both = {(run.scheme, run.init) for run in moderate}
    assert {
        ("span", "inv_sqrt_depth"),
        ("span", "none"),
        ("prenorm", "inv_sqrt_depth"),
        ("prenorm", "none"),
    } < both
    assert set(NAMED) == both


def test_every_placement_can_be_added_without_training_twice() -> None:
    runs = runs_of("rates", replace(PLAN, every=True))
    moderate = runs_of("moderate", PLAN)
    assert len({(r.scheme, r.init, r.rate, r.seed) for r in runs + moderate}) == len(runs) + len(moderate)
    for scheme, init in EVERY:
        found = {r.rate for r in runs + moderate if (r.scheme, r.init) == (scheme, init)}
        assert found == {2e-3, 4e-3, 8e-3}


def test_the_full_plan_tunes_the_rate_of_every_candidate_alike() -> None:
    runs = runs_of("rates", replace(PLAN, full=True))
    for scheme, init in EVERY:
        assert {r.rate for r in runs if (r.scheme, r.init) == (scheme, init)} == set(GRID)
    ratios = np.asarray(GRID[1:]) / np.asarray(GRID[:-1])
    assert np.allclose(ratios, 2**0.5, rtol=0.01)


def test_the_depths_have_equally_many_parameters_in_their_blocks() -> None:
    counts = []
    for layers, (width, ffn) in DEPTHS.items():
        made = make_model(replace(PLAN.base, layers=layers, width=width, ffn=ffn), 257)
        counts.append(sum(p.numel() for p in made.model.layers.parameters()))
    assert max(counts) / min(counts) < 1.02
    assert {run.layers for run in runs_of("depth", PLAN)} == set(DEPTHS)


def test_the_range_part_widens_one_thing_at_a_time() -> None:
    found = {(r.scheme, r.init, r.warmup) for r in runs_of("range", PLAN)}
    assert found == {
        ("span", "inv_sqrt_depth", 20),
        ("span", "inv_sqrt_depth", 100),
        ("span", "inv_depth", 20),
        ("prenorm", "none", 20),
    }
    assert set(runs_of("rates", PLAN)) & set(runs_of("range", PLAN))  # trained once
    with pytest.raises(ValueError, match="trains nothing"):
        runs_of("start", PLAN)


# -- the claims -----------------------------------------------------------------------------------------------------


def row(candidate: str, seed: int, loss: float, rate: float = 2e-3, **more: Any) -> dict[str, Any]:
    return {
        "candidate": candidate,
        "seed": seed,
        "rate": rate,
        "loss": loss,
        "start": 6.0,
        "diverged": None,
        "warmup": 20,
        "layers": 24,
    } | more


def moderate(gain: float) -> list[dict[str, Any]]:
    rows = []
    for seed in range(5):
        base = 2.0 + 0.02 * seed  # a spread over seeds that pairing removes
        rows.append(row("span/inv_sqrt_depth", seed, base, drop=[0.2, 0.4]))
        rows.append(row("prenorm/inv_sqrt_depth", seed, base + gain + 0.001 * seed, drop=[0.1, 0.1]))
        rows += [
            row(other, seed, base + 0.3) for other in ("prenorm/none", "postnorm/inv_sqrt_depth", "span/none")
        ]
    return rows


def by_name(found: list[Claim]) -> dict[str, Claim]:
    assert len({claim.name for claim in found}) == len(found)
    return {claim.name: claim for claim in found}


@pytest.mark.parametrize(
    ("gain", "held", "sure"), [(0.03, True, True), (0.01, False, True), (-0.01, False, False)]
)
def test_gains_are_paired_by_seed(gain: float, held: bool, sure: bool) -> None:
    found = by_name(claims({"moderate": moderate(gain)}))
    claim = found["moderate/gain_over/prenorm/inv_sqrt_depth"]
    assert claim.values == pytest.approx([gain + 0.001 * seed for seed in range(5)])
    assert claim.held is held
    assert found["moderate/gain_over/prenorm/inv_sqrt_depth/interval"].held is sure
    assert found["moderate/layer_use"].mean == pytest.approx(0.2)
    assert found["moderate/loss/span/inv_sqrt_depth"].held is None


def test_the_interval_is_students() -> None:
    claim = Claim("a", "b", (1.0, 2.0, 3.0), 0.0, ">=", "interval")
    assert claim.interval == pytest.approx(
        (2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-4
    )
    assert claim.held is False
    assert Claim("a", "b", (1.0,), 0.0, ">=", "interval").held is False


def grid() -> list[dict[str, Any]]:
    rows = moderate(0.03)
    for seed in range(3):
        rows.append(row("span/inv_sqrt_depth", seed, 1.99 + 0.02 * seed, 4e-3))
        rows.append(row("span/inv_sqrt_depth", seed, math.nan, 8e-3, diverged=90))
        rows.append(row("prenorm/inv_sqrt_depth", seed, 2.01 + 0.02 * seed, 4e-3))
        rows.append(row("prenorm/inv_sqrt_depth", seed, 2.02 + 0.02 * seed, 8e-3))
        rows.append(row("prenorm/none", seed, 1.98 + 0.02 * seed + 0.001 * seed, 8e-3))
    return rows


def test_each_scheme_is_judged_at_its_own_best_rate_and_against_the_better_prenorm() -> None:
    rows = grid()
    assert best_rate(rows, "span/inv_sqrt_depth")[0] == 4e-3
    assert best_rate(rows, "prenorm/none")[0] == 8e-3
    found = by_name(claims({"moderate": rows[:25], "rates": rows[25:]}))
    claim = found["best_rate/span_minus_best_prenorm"]
    assert "PreNorm, unscaled" in claim.text
    assert claim.values == pytest.approx([0.01, 0.009, 0.008])
    assert claim.held is True
    assert found["best_rate/span_below_best_prenorm"].held is False
    assert found["max_stable_rate/span/inv_sqrt_depth"].values == (4e-3,)
    assert found["max_stable_rate/prenorm/none"].values == (8e-3,)


def test_one_failed_seed_ends_the_stable_range() -> None:
    rows = [row("a", seed, 2.0, rate) for seed in range(3) for rate in (1.0, 2.0, 4.0)]
    rows[4]["loss"] = 3.2  # seed 1 at rate 2
    assert max_stable_rate(rows, "a", 2.5) == 1.0
    rows[3]["diverged"] = 5  # seed 1 at rate 1
    assert max_stable_rate(rows, "a", 2.5) == 0.0


def test_range_depth_and_experts() -> None:
    rows = grid()
    wider = [row("span/inv_sqrt_depth", s, 2.0 + 2 * (r > 5e-3), r) for s in range(3) for r in (4e-3, 8e-3)]
    wider += [row("span/inv_depth", seed, 2.0, rate) for seed in range(3) for rate in (4e-3, 8e-3)]
    wider += [row("span/inv_sqrt_depth", s, 4.0, r, warmup=100) for s in range(3) for r in (4e-3, 8e-3)]
    assert variant(wider[-1], 20) == "span/inv_sqrt_depth/warmup100"
    deep = [
        row(f"{scheme}/inv_sqrt_depth", seed, 2.2 - 0.001 * layers * slope, layers=layers)
        for scheme, slope in (("span", 1), ("prenorm", -1))
        for layers in (12, 24, 48)
        for seed in range(3)
    ]
    routed = [
        row(f"{scheme}/inv_sqrt_depth", seed, loss, rate, load_variation=0.2)
        for scheme, loss in (("span", 2.0), ("prenorm", 2.1))
        for rate in (2e-3, 4e-3)
        for seed in range(3)
    ]
    found = by_name(
        claims({"moderate": rows[:25], "rates": rows[25:], "range": wider, "depth": deep, "experts": routed})
    )
    assert found["range/max_stable_rate/span/inv_sqrt_depth"].values == (4e-3,)
    assert found["range/max_stable_rate/span/inv_depth"].held is True
    assert found["range/max_stable_rate/span/inv_sqrt_depth/warmup100"].held is False
    assert found["depth/best_depth_minus_prenorms"].values == (36.0,)
    assert found["depth/span_48_minus_12"].held is True
    assert found["depth/gain/48"].values == pytest.approx([0.096] * 3)
    assert found["depth/gain/12"].held is True
    assert found["experts/span_minus_prenorm"].mean == pytest.approx(-0.1)
    assert found["experts/load_variation"].held is True


def test_the_smaller_start_is_compared_with_the_same_start_and_with_the_best_prenorm() -> None:
    rows = grid()
    small = [
        row(f"{scheme}/inv_depth", seed, loss + 0.02 * seed, rate)
        for scheme, loss in (("span", 1.9), ("prenorm", 1.95))
        for rate in (4e-3, 5.66e-3)
        for seed in range(3)
    ]
    found = by_name(claims({"moderate": rows[:25], "rates": rows[25:], "smaller": small}))
    assert found["smaller/gain_over/prenorm/inv_depth"].values == pytest.approx([0.05] * 3)
    assert found["smaller/gain_over/prenorm/none"].values == pytest.approx([0.08, 0.081, 0.082])
    assert found["smaller/gain_over/prenorm/none"].held is True
    alone = by_name(claims({"smaller": small}))
    assert [name for name in alone if "gain_over" in name] == ["smaller/gain_over/prenorm/inv_depth"]
    runs = runs_of("smaller", PLAN)
    assert {(r.scheme, r.init) for r in runs} == {("span", "inv_depth"), ("prenorm", "inv_depth")}
    assert {r.rate for r in runs} == {4e-3}
    assert set(runs) & set(runs_of("range", PLAN))  # trained once
