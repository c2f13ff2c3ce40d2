"""The study's frames against the claims: one number per seed, the bar, and whether it holds.

Differences of scores are in points (hundredths). Curves are read on the test split; lambda was chosen on the
select split for each point of them, so reading a curve's peak there is description, not selection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd

from methods.common.claims import Claim, Rule
from methods.merge_early_stop.study import Frames


def claims(frames: Frames, stopper: str | None = None) -> list[Claim]:
    """All claims for which the frames have the data. `stopper`: the one judged, default the first."""
    found: list[Claim] = []
    levels = sorted(frames["sweep"]["noise"].unique())
    if stopper is None:
        known = {"full", "own_optimum", "epoch_patience_3"}
        stopper = next(s for s in frames["stopping"]["strategy"] if s not in known)
    for noise in levels:
        part = {name: frame[frame["noise"] == noise] for name, frame in frames.items()}
        label = "clean" if noise == 0 else f"noise{round(100 * noise)}"
        found += _sweep_claims(part["sweep"], label, noise > 0)
        found += _stopping_claims(part["stopping"], label, stopper)
        found += _difficulty_claims(part, label, noise > 0)
    found.append(_overhead(frames["costs"], stopper))
    return found


def _per_seed(frame: pd.DataFrame, value: Callable[[pd.DataFrame], float]) -> tuple[float, ...]:
    return tuple(float(value(group)) for _, group in frame.groupby("seed"))


def _at(curve: pd.DataFrame, column: str, step: int) -> float:
    return float(curve.loc[curve["step"] == step, column].iloc[0])


def _peak(curve: pd.DataFrame, column: str = "merged") -> int:
    """The step of the highest value; the earliest wins a draw."""
    ordered = curve.sort_values("step")
    return int(ordered["step"].to_numpy()[ordered[column].to_numpy().argmax()])


def _rise(curve: pd.DataFrame, column: str, start: int) -> float:
    return _at(curve, column, int(curve["step"].max())) - _at(curve, column, start)


def _drop(curve: pd.DataFrame, column: str = "merged", peak: int | None = None) -> float:
    peak = _peak(curve, column) if peak is None else peak
    return 100 * (_at(curve, column, peak) - _at(curve, column, int(curve["step"].max())))


def _sweep_claims(sweep: pd.DataFrame, label: str, noisy: bool) -> list[Claim]:
    found = []
    longest = int(sweep["step"].max())
    bars = {"task_arithmetic": 2.0 if noisy else 1.0, "ties": 4.0}
    for method, curve in sweep.groupby("method", sort=False):
        name = f"{label}/{method}"
        peaks = _per_seed(curve, _peak)
        found.append(Claim(
            f"{name}/peak_step", f"merged {method} peaks at or before an eighth of the {longest} steps", peaks,
            longest / 8, "<=", "each" if method == "task_arithmetic" else "report",
        ))  # fmt: skip
        found.append(Claim(
            f"{name}/drop", f"points that merged {method} loses from its peak to {longest} steps",
            _per_seed(curve, _drop), bars.get(str(method), 0.0), ">=", "each" if method in bars else "report",
        ))  # fmt: skip
        if curve["norm_matched"].notna().all():
            found.append(Claim(
                f"{name}/norm_matched_drop", f"the same with every task vector at its norm at the peak of "
                f"{method}",
                _per_seed(curve, lambda c: _drop(c, "norm_matched", _peak(c, "select"))), 0.0, ">=", "report",
            ))  # fmt: skip
        if method == "task_arithmetic":
            gain = _per_seed(curve, lambda c: 100 * (_at(c, "own", longest) - _at(c, "own", _peak(c))))
            found.append(Claim(
                f"{label}/own_gain_after_peak", "points that the own score gains from the merged peak to the end", gain,
                0.0, ">=", "report" if noisy else "each",
            ))  # fmt: skip
            found.append(Claim(
                f"{label}/own_peak_later", "the best length for the own score over the best for merging, "
                "minus one",
                _per_seed(curve, lambda c: _peak(c, "own") / _peak(c) - 1), 1e-9, ">=", "two_thirds",
            ))  # fmt: skip
            early = min(curve["step"], key=lambda s: abs(s - 16))
            found.append(Claim(
                f"{label}/sign_conflict_rise", f"sign conflict at {longest} steps minus that at {early}",
                _per_seed(curve, partial(_rise, column="sign_conflict", start=early)),
                0.03, ">=", "each" if noisy else "report",
            ))  # fmt: skip
    return found


def _stopping_claims(stopping: pd.DataFrame, label: str, stopper: str) -> list[Claim]:
    found = []
    strict: Rule = "each" if label == "clean" else "report"
    average: Rule = "mean" if label == "clean" else "report"
    for method, frame in stopping.groupby("method", sort=False):

        def over(other: str, first: str = stopper, frame: pd.DataFrame = frame) -> tuple[float, ...]:
            def difference(group: pd.DataFrame) -> float:
                by = group.set_index("strategy")["merged"]
                return 100 * float(by[first] - by[other])

            return _per_seed(frame, difference)

        bar = {"task_arithmetic": 0.8, "ties": 2.0}.get(str(method), 0.0)
        judged = method in ("task_arithmetic", "ties")
        name = f"{label}/{stopper}/{method}"
        found += [
            Claim(f"{name}/over_full", f"points of merged {method} over the fully trained experts", over("full"),
                  bar, ">=", strict if judged else "report"),
            Claim(f"{name}/over_own_optimum", "points over each expert's best own-validation checkpoint",
                  over("own_optimum"), 0.0, ">=", average if judged else "report"),
            Claim(f"{name}/over_epoch_patience_3", "points over a patience of three epochs",
                  over("epoch_patience_3"), 0.0, ">=", "report"),
            Claim(f"{name}/over_best_uniform", "points over the best uniform length of the sweep", over("best_uniform"),
                  -1.0, ">=", average if method == "task_arithmetic" else "report"),
            Claim(f"{name}/of_which_shorter", "points: fixed step against full", over("full", "fixed_step"), 0.0, ">=",
                  "report"),
            Claim(f"{name}/of_which_task_dependent", "points: own steps at constant rate against the fixed step",
                  over("fixed_step", "own_steps_constant"), 0.0, ">=", "report"),
            Claim(f"{name}/of_which_rate_decay", "points: the stopper against own steps at constant rate",
                  over("own_steps_constant"), 0.0, ">=", "report"),
        ]  # fmt: skip
    one = stopping[stopping["method"] == stopping["method"].iloc[0]]

    def value(column: str, strategy: str) -> tuple[float, ...]:
        return _per_seed(one[one["strategy"] == strategy], lambda g: g[column].iloc[0])

    own = tuple(100 * (a - b) for a, b in zip(value("own", stopper), value("own", "full"), strict=True))
    name = f"{label}/{stopper}"
    found.append(Claim(f"{name}/own", "points of own score against the full length", own, -3.0, ">=", strict))
    share = value("full_share", stopper)
    found.append(
        Claim(f"{name}/steps", "share of the optimiser steps of the full length", share, 0.15, "<=", strict)
    )
    return found


def _difficulty_claims(part: Frames, label: str, noisy: bool) -> list[Claim]:
    found = []
    by_task = part["difficulty"]
    found.append(Claim(
        f"{label}/el2n_agreement",
        "Spearman correlation of difficulty between two disjoint groups of seeds, mean of tasks",
        _per_seed(by_task, lambda g: g["spearman"].mean()), 0.8,
    ))  # fmt: skip
    if noisy:
        found.append(Claim(
            f"{label}/flipped_found", "share of flipped labels in the two hardest tenths",
            _per_seed(by_task, lambda g: g["flipped_in_top_fifth"].mean()), 0.7,
        ))  # fmt: skip
        found.append(Claim(
            f"{label}/flipped_precision", "share of the two hardest tenths that is flipped",
            _per_seed(by_task, lambda g: g["top_fifth_precision"].mean()), 0.0, ">=", "report",
        ))  # fmt: skip
    whole = part["forgetting"][part["forgetting"]["task"] == "all"]
    hardest = int(whole["bin"].max())
    for source, frame in whole.groupby("difficulty", sort=False):

        def ratio(group: pd.DataFrame) -> float:
            by = group.set_index("bin")
            easy = by.loc[: (hardest - 1) // 2]
            rate = easy["forgotten"].sum() / max(1, easy["memorised"].sum())
            return float(by["forgetting_rate"].loc[hardest] / max(rate, 1e-12))

        found.append(Claim(
            f"{label}/forgetting_ratio/{source}", "forgetting rate of the hardest bin over that of the "
            "easier half",
            _per_seed(frame, ratio), 3.0, ">=", "each" if source == "same_network" and not noisy else "report",
        ))  # fmt: skip
        if noisy:
            found.append(Claim(
                f"{label}/flipped_forgotten/{source}", "share of the memorised flipped examples that the "
                "merge forgets",
                _per_seed(frame, lambda g: g["flipped_forgotten"].sum() / max(1, g["flipped_memorised"].sum())), 0.6,
                ">=", "each" if source == "same_network" else "report",
            ))  # fmt: skip
    shares = part["shares"]
    last, early = int(shares["step"].max()), min(shares["step"], key=lambda s: abs(s - 32))

    def growth(group: pd.DataFrame, column: str) -> float:
        by = group[group["bin"] == hardest].set_index("step")[column]
        return float(by[last] / by[early])

    strict: Rule = "report" if noisy else "each"
    rules: dict[str, Rule] = {"loss_share": strict, "gradient_share": "report"}
    for column, rule in rules.items():
        found.append(Claim(
            f"{label}/{column}_growth", f"{column} of the hardest bin at {last} steps over that at {early}",
            _per_seed(shares, partial(growth, column=column)), 3.0, ">=", rule,
        ))  # fmt: skip
    return found


def _overhead(costs: pd.DataFrame, stopper: str) -> Claim:
    def share(group: pd.DataFrame) -> float:
        by = group.groupby("part")["seconds"].sum()
        return float(by[f"{stopper}/validation"] / by[f"{stopper}/training"])

    return Claim(
        f"{stopper}/overhead", "validation time over training time", _per_seed(costs, share), 0.3, "<=",
        "report",
    )  # fmt: skip
