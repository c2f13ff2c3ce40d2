"""The study's claims on frames whose answer is known."""

import numpy as np
import pandas as pd
import pytest

from methods.pruning_representations.study_claims import (
    decoding_claims,
    gap_claim,
    hierarchy_interval,
    layer_claims,
    layer_summary,
    option_claims,
    perplexity_claims,
    ranking_claims,
    retention,
    retrieval_claims,
    task_frame,
)


def layers(kl_error: float = 0.0, cos_p: float = 0.8, seed: int = 0) -> pd.DataFrame:
    """Ten layers of 40 tokens; the outer two are far off and must not count."""
    rng = np.random.default_rng(seed)
    rows = []
    for layer in range(10):
        outer = layer in (0, 9)
        kl = rng.uniform(0.01, 0.1, 40)
        rows.append(
            pd.DataFrame(
                {
                    "layer": layer,
                    "token": range(40),
                    "cos_h": 0.95,
                    "cos_z": 0.1 if outer else 0.99,
                    "cos_p": 1.0 if outer else rng.uniform(cos_p, 1, 40),
                    "kl": kl,
                    "kl_estimate": kl * (9 if outer else 1 + kl_error),
                    "cos_p_estimate": 0.1,
                    "third_order": 0.0,
                }
            )
        )
    return pd.concat(rows, ignore_index=True)


def test_layer_claims_leave_the_outer_layers_out() -> None:
    claims = {c.name: c for c in layer_claims([layers(seed=s) for s in range(3)])}
    assert all(claim.held for claim in claims.values())
    assert claims["hierarchy"].values == (1.0, 1.0, 1.0)
    assert claims["estimate_rank"].mean == pytest.approx(1)
    worse = {c.name: c for c in layer_claims([layers(), layers(kl_error=0.3)])}
    assert worse["estimate_within_25pct"].values == (1.0, 0.0)
    assert not worse["estimate_within_25pct"].held
    flat = {c.name: c for c in layer_claims([layers(cos_p=0.95)])}
    assert not flat["hierarchy"].held
    assert hierarchy_interval(layers()) == (1.0, 1.0)
    assert layer_summary(layers()).shape[0] == 10


def test_retention_resamples_items_in_pairs() -> None:
    dense = np.array([1.0, 0.0] * 50)
    assert retention(dense, dense) == (1.0, 1.0, 1.0)
    half, low, high = retention(np.where(np.arange(100) < 50, dense, 0), dense)
    assert half == 0.5
    assert 0.3 < low < 0.5 < high < 0.7
    assert retention(dense, dense, chance=0.25)[0] == 1


def scores(choice: float, written: float) -> dict[str, dict[str, list[float]]]:
    def row(share: float) -> list[float]:
        return [float(i < round(100 * share)) for i in range(100)]

    return {
        "dense": {"cloze": row(0.8), "recall": row(0.9)},
        "drop-attn-8": {"cloze": row(choice), "recall": row(written)},
    }


@pytest.mark.parametrize(
    ("choice", "written", "held"), [(0.78, 0.3, True), (0.5, 0.3, False), (0.8, 0.8, False)]
)
def test_a_gap_needs_both_sides(choice: float, written: float, held: bool) -> None:
    frame = task_frame(scores(choice, written), {"cloze": 0.25})
    claim = gap_claim(frame, ["drop-attn-8"], "attn", "Dropping attentions")
    assert claim is not None
    assert claim.held is held
    assert claim.mean == pytest.approx(written / 0.9)
    assert gap_claim(frame, [], "mlp", "Dropping MLPs") is None
    near_chance = task_frame(scores(choice, written), {"cloze": 0.7})
    assert gap_claim(near_chance, ["drop-attn-8"], "attn", "Dropping attentions") is None
    above = frame[(frame.variant == "drop-attn-8") & (frame.task == "cloze")].kept_above_chance.iloc[0]
    assert above == pytest.approx((choice - 0.25) / 0.55)


def decoding(first: int, free: float, forced: float) -> pd.DataFrame:
    rows = [
        {
            "prompt": prompt,
            "step": step,
            "mode": mode,
            "kl": free if mode == "free" and step >= first else forced,
            "agree": mode == "forced" or step < first,
        }
        for prompt in range(4)
        for step in range(16)
        for mode in ("free", "forced")
    ]
    return pd.DataFrame(rows)


def test_history_and_divergence() -> None:
    frames = {"drop-attn-4": decoding(9, 6.0, 0.5), "drop-attn-8": decoding(2, 6.0, 0.5)}
    history, divergence = decoding_claims(frames, "drop-attn-4")
    assert history.mean == pytest.approx(12)
    assert history.held
    assert divergence.mean == -7
    assert divergence.held
    frames["drop-attn-8"] = decoding(12, 1.0, 0.5)
    history, divergence = decoding_claims(frames, "drop-attn-8")
    assert not history.held
    assert not divergence.held


def test_options_by_cue() -> None:
    rows = pd.DataFrame(
        {
            "cue": ["plain"] * 50 + ["cued"] * 50,
            "option_kl": [0.1] * 50 + [0.9] * 50,
            "kl": 1.0,
            "agree": [True] * 45 + [False] * 5 + [True] * 30 + [False] * 20,
            "best_rank": 3,
            "option_mass": 0.1,
            "choice": 1,
            "choice_other": 1,
            "gold": 1,
        }
    )
    # Each question moves one option up; the changed model follows it in 45 and in 30 of 50, under another habit.
    asked = np.arange(100) % 2
    other = np.where(rows.agree, asked, 1 - asked)
    for i, option in enumerate("AB"):
        rows[f"logp_{option}"] = -3.0 + (asked == i) + 9 * i
        rows[f"logp_other_{option}"] = -3.0 + (other == i) + 5 * (1 - i)
    held = {c.name: c.held for c in option_claims(rows, "x")}
    assert held == {
        "options/cued/kl_ratio": False,
        "options/cued/agreement": False,
        "options/plain/kl_ratio": True,
        "options/plain/agreement": True,
    }


def test_perplexity_order_reads_labels_with_a_calibration() -> None:
    values = {
        "dense": 10.0,
        "sparsegpt-50pct-c32x256": 12.0,
        "wanda-50pct-c32x256": 13.0,
        "magnitude-50pct": 40.0,
        "magnitude-2of4": 90.0,
    }
    order, pattern = perplexity_claims(values)
    assert order.held
    assert order.mean == pytest.approx(40 / 13)
    assert pattern.mean == 2.25
    assert not perplexity_claims(values | {"sparsegpt-50pct-c32x256": 14.0})[0].held


def test_retrieval_keeps() -> None:
    frame = pd.DataFrame(
        [
            {"variant": v, "question": i, "found": float(i < n), "cos_h": 0.9}
            for v, n in (("dense", 80), ("drop-attn-1", 76), ("wanda-30pct", 60))
            for i in range(100)
        ]
    )
    assert [c.held for c in retrieval_claims(frame)] == [True, False]


def test_rankings_are_compared_at_equal_numbers_of_layers() -> None:
    perplexity = {
        "dense": 10.0,
        "drop-attn-4-c2x16": 20.0,
        "drop-attn-4-by-kl-c2x16": 18.0,
        "drop-attn-6": 30.0,
    }
    tasks = pd.DataFrame(
        [
            {"variant": name, "task": task, "kept": kept}
            for name, kept in (("drop-attn-4-c2x16", 0.5), ("drop-attn-4-by-kl-c2x16", 0.7))
            for task in ("arithmetic", "recall")
        ]
    )
    (claim,) = ranking_claims(tasks, perplexity)
    assert claim.values == (0.9,)
    assert claim.held
    assert "sums and recall keep 50 and 70 %" in claim.note
    worse = perplexity | {"drop-attn-6-by-kl": 31.0}
    assert not ranking_claims(tasks, worse)[0].held
    assert ranking_claims(tasks, {"drop-attn-6": 30.0}) == []
