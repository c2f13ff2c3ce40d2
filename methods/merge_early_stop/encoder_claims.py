"""The encoder study's frames against what was laid down before it ran (see `encoder_study`).

Differences of scores are in points (hundredths), read on the test split; lengths and lambda were chosen on
the select split. A bar was given by the brief only as "the same curves": the bars here are the smallest
differences that the test sets (1,250 texts) can show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from methods.common.claims import Claim, Rule
from methods.merge_early_stop.encoder_study import HABIT
from methods.merge_early_stop.experts import EARLY_STOP

KIND_NAMES = {"full": "full fine-tuning", "lora": "LoRA"}


def encoder_claims(frames: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """All claims, for each kind of training."""
    found: list[Claim] = []
    for kind in dict.fromkeys(frames["sweep"]["kind"]):
        part = {name: frame[frame["kind"] == kind] for name, frame in frames.items()}
        found += _length_claims(part["sweep"], str(kind))
        found += _stopping_claims(part["stopping"], str(kind))
    return found


def _per_seed(frame: pd.DataFrame, value: Callable[[pd.DataFrame], float]) -> tuple[float, ...]:
    return tuple(float(value(group)) for _, group in frame.groupby("seed"))


def _between(stopping: pd.DataFrame, column: str, first: str, other: str, method: str) -> tuple[float, ...]:
    def difference(group: pd.DataFrame) -> float:
        by = group[group["method"] == method].set_index("strategy")[column]
        return 100 * float(by[first] - by[other])

    return _per_seed(stopping, difference)


def _best_cell(curve: pd.DataFrame) -> float:
    merged = curve.sort_values("step")["merged"].to_numpy()
    return 100 * float(merged.max() - merged[-1])


def _length_claims(sweep: pd.DataFrame, kind: str) -> list[Claim]:
    longest = int(sweep["step"].max())
    name = KIND_NAMES[kind]
    found = []
    for method, curve in sweep.groupby("method", sort=False):

        def chosen(group: pd.DataFrame) -> int:
            best = group.sort_values("step").reset_index(drop=True)
            return int(best["step"].iloc[int(best["select"].to_numpy().argmax())])

        def at(group: pd.DataFrame, column: str, step: int) -> float:
            return float(group.loc[group["step"] == step, column].iloc[0])

        def gain(group: pd.DataFrame, column: str) -> float:
            return 100 * (at(group, column, chosen(group)) - at(group, column, longest))

        judged: Rule = "report" if method == "average" else "each"
        found += [
            Claim(f"{kind}/{method}/effect", f"{name}: points of merged {method} at the length of the best select "
                  f"score over {longest} steps", _per_seed(curve, lambda g: gain(g, "merged")), 1.0, ">=", judged),
            Claim(f"{kind}/{method}/best_length", f"{name}: that length", _per_seed(curve, chosen), longest / 2, "<=",
                  "report"),
            Claim(f"{kind}/{method}/own_gain", f"{name}: points of own score from that length to {longest} steps",
                  _per_seed(curve, lambda g: 0.0 - gain(g, "own")), 0.0, ">=",
                  "each" if method == "task_arithmetic" else "report"),
        ]  # fmt: skip
        # Added after the first job had been seen, to say how little could be missed; it judges nothing.
        found.append(Claim(
            f"{kind}/{method}/best_cell", f"{name}: points of the best length on the test split over {longest} steps, "
            "which is at least 0 by construction", _per_seed(curve, _best_cell), 0.0, ">=", "report",
        ))  # fmt: skip
        if curve["norm_matched"].notna().all():
            found.append(Claim(
                f"{kind}/{method}/norm_matched",
                f"{name}: the effect with every task vector at its norm at that length",
                _per_seed(curve, lambda g: gain(g, "norm_matched")), 0.0, ">=", "report",
            ))  # fmt: skip
    one = sweep[sweep["method"] == "task_arithmetic"]
    early = min(one["step"], key=lambda s: abs(s - 16))

    def rise(group: pd.DataFrame) -> float:
        by = group.set_index("step")["sign_conflict"]
        return float(by[longest] - by[early])

    found.append(Claim(
        f"{kind}/sign_conflict_rise", f"{name}: sign conflict at {longest} steps minus that at {early}",
        _per_seed(one, rise), 0.03, ">=", "each",
    ))  # fmt: skip
    return found


def _stopping_claims(stopping: pd.DataFrame, kind: str) -> list[Claim]:
    name = KIND_NAMES[kind]
    found = []
    for method in dict.fromkeys(stopping[stopping["strategy"] == EARLY_STOP]["method"]):
        judged: Rule = "report" if method == "average" else "mean"
        place = f"{kind}/early_stop/{method}"
        found += [
            Claim(f"{place}/over_habit", f"{name}: points of merged {method}, the stopper over a patience of 3 epochs",
                  _between(stopping, "merged", EARLY_STOP, HABIT, method), 0.0, ">=", judged),
            Claim(f"{place}/over_full", f"{name}: points of merged {method}, the stopper over the longest length",
                  _between(stopping, "merged", EARLY_STOP, "full", method), 0.0, ">=", judged),
        ]  # fmt: skip
    found += [
        Claim(f"{kind}/early_stop/mergekit_gap", f"{name}: points of task arithmetic on the stopper's checkpoints over "
              "mergekit's TIES on those of the habit", _gap(stopping), 0.0, ">=", "mean"),
        Claim(f"{kind}/early_stop/own", f"{name}: points of own score, the stopper against the longest length",
              _between(stopping, "own", EARLY_STOP, "full", "task_arithmetic"), -3.0, ">=", "each"),
        Claim(f"{kind}/early_stop/steps_over_habit", f"{name}: optimiser steps of the stopper over those of the habit",
              _steps(stopping), 1.0, "<=", "each"),
        Claim(f"{kind}/early_stop_aggressive/over_habit", f"{name}: points of merged task arithmetic, a patience of "
              "one look over a patience of 3 epochs",
              _between(stopping, "merged", "early_stop_aggressive", HABIT, "task_arithmetic"), 0.0, ">=", "report"),
    ]  # fmt: skip
    return found


def _gap(stopping: pd.DataFrame) -> tuple[float, ...]:
    def difference(group: pd.DataFrame) -> float:
        by = group.set_index(["strategy", "method"])["merged"]
        return 100 * float(by[EARLY_STOP, "task_arithmetic"] - by[HABIT, "ties_mergekit"])

    return _per_seed(stopping, difference)


def _steps(stopping: pd.DataFrame) -> tuple[float, ...]:
    def share(group: pd.DataFrame) -> float:
        by = group.groupby("strategy")["optimiser_steps"].first()
        return float(by[EARLY_STOP] / by[HABIT])

    return _per_seed(stopping, share)
