"""The study's rows against the claims: one number a seed, the bar, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from methods.approx_coresets.study import slope
from methods.common.claims import Claim

Rows = Sequence[Mapping[str, Any]]
GOOD, BAD = 1.02, 1.2  # factors up to which a solution counts as good, and from which as bad
LINE_BARS = {2: {"100": 1.06, "200": 1.03, "400": 1.02}, 1: {"200": 1.05}}


def at_most(name: str, text: str, values: Sequence[float], bar: float, rule: Any = "mean") -> Claim:
    return Claim(name, text, tuple(values), bar, "<=", rule)


def at_least(name: str, text: str, values: Sequence[float], bar: float, rule: Any = "mean") -> Claim:
    return Claim(name, text, tuple(values), bar, ">=", rule)


def told(name: str, text: str, values: Sequence[float]) -> Claim:
    return Claim(name, text, tuple(values), rule="report")


def claims(
    parts: Mapping[str, Rows], best: Mapping[str, float], costs: Mapping[str, Mapping[str, float]]
) -> list[Claim]:
    """All claims for which the parts have rows.

    Args:
        parts: rows by part.
        best: best known cost of each real data set, over everything that the study ran.
        costs: cost of each solution of the bank on all points, by data set.
    """
    makers = {
        "line": _line,
        "skewed": _skewed,
        "hard": _hard,
        "metric": _metric,
        "audit": _audit,
    }
    found = [claim for part, make in makers.items() if part in parts for claim in make(parts[part])]
    if "solvers" in parts:
        found += _solvers(parts["solvers"], best)
    if "real" in parts:
        found += _real(parts["real"], best, costs)
    if "stream" in parts:
        found += _stream(parts["stream"], parts.get("real", ()), best)
    if "thesis" in parts:
        found += _thesis(parts["thesis"], best["thesis"])
    if "peers" in parts:
        found += _peers(parts["peers"], parts.get("real", ()), best["data"])
    return found


def _line(rows: Rows) -> Iterator[Claim]:
    for kind, z, method in sorted({(r["kind"], r["z"], r["method"]) for r in rows}):
        mine = [r["factors"] for r in rows if (r["kind"], r["z"], r["method"]) == (kind, z, method)]
        name = f"line/{kind}/z{z}/{method}"
        own = method == "four_term"
        for size in mine[0]:
            values = [f[size] for f in mine]
            text = f"exact optimum on {size} points of a line ({kind}, z={z}, {method}), relative to the optimum of all"
            bar = LINE_BARS[z].get(size) if own else None
            yield (
                told(f"{name}/{size}", text, values)
                if bar is None
                else at_most(f"{name}/{size}", text, values, bar)
            )
        sizes = [float(size) for size in mine[0]]
        steep = [slope(sizes, [float(np.mean([f[size] for f in mine])) - 1 for size in mine[0]])]
        text = f"slope of log excess against log size ({kind}, z={z}, {method})"
        yield (
            at_most(f"{name}/slope", text, steep, -0.8)
            if own and z == 2
            else told(f"{name}/slope", text, steep)
        )


def _skewed(rows: Rows) -> Iterator[Claim]:
    for method, size in sorted({(r["method"], r["size"]) for r in rows}):
        values = [r["factor"] for r in rows if (r["method"], r["size"]) == (method, size)]
        name = f"skewed/{method}/{size}"
        text = f"skewed mixture, {method} at {size} points: median cost relative to the planted clustering"
        median = [float(np.median(values))]
        if size == 210 and method == "four_term":
            yield at_most(name, text, median, 1.25)
        elif size == 210 and method in ("lightweight", "uniform"):
            yield at_least(name, text, median, 2.0 if method == "lightweight" else 50.0)
        else:
            yield told(name, text, median)
        yield told(f"{name}/seeds", "the same, each seed", values)
    late = [r["factor"] for r in rows if r["method"] == "four_term" and r["size"] >= 420]
    yield at_most("skewed/four_term/worst", "no run from 20 k points on is above 1.5", [max(late)], 1.5)


def _hard(rows: Rows) -> Iterator[Claim]:
    for alpha in sorted({r["alpha"] for r in rows}):
        mine = [r for r in rows if r["alpha"] == alpha]
        yield at_most(
            f"hard/alpha{alpha}/formula",
            "block clusterings cost what the closed form says (relative)",
            [max(r["off_formula"] for r in mine)],
            1e-9,
        )
        full = {r["seed"]: r["full_factor"] for r in mine}
        yield told(
            f"hard/alpha{alpha}/full", "KMeans on all points, relative to the optimum", list(full.values())
        )
        for method, size in sorted({(r["method"], r["size"]) for r in mine}):
            those = [r for r in mine if (r["method"], r["size"]) == (method, size)]
            name = f"hard/alpha{alpha}/{method}/{size}"
            errors, factors = (
                [r["good_error"] for r in those],
                [r["factor"] - r["full_factor"] for r in those],
            )
            words = f"hard instance alpha={alpha}, {method} at {size}: "
            error_text = words + "error on the optimal clusterings"
            factor_text = words + "factor of the solution above that of KMeans on all points"
            own = method == "four_term"
            yield (
                at_most(f"{name}/good_error", error_text, errors, 0.03)
                if own and size == 200
                else told(f"{name}/good_error", error_text, errors)
            )
            yield (
                at_most(f"{name}/above_full", factor_text, factors, 0.05)
                if own and size == 500
                else told(f"{name}/above_full", factor_text, factors)
            )


def _solvers(rows: Rows, best: Mapping[str, float]) -> Iterator[Claim]:
    for data in sorted({r["data"] for r in rows}):
        scale = best.get(data, 1.0)
        for solver in ("k_means", "mini_batch", "four_term"):
            values = [r[solver] / scale - 1 for r in rows if r["data"] == data]
            words = "on 100 k points of a coreset" if solver == "four_term" else "on all points"
            yield told(f"solvers/{data}/{solver}", f"excess of {solver} {words}, {data}", values)
            median = [float(np.median(values))]
            yield told(
                f"solvers/{data}/{solver}/median", f"median excess of {solver} {words}, {data}", median
            )


def _metric(rows: Rows) -> Iterator[Claim]:
    for size in rows[0]["factors"]:
        values = [r["factors"][size] for r in rows]
        text = f"medoids of 1,000 digits from {size} points and distances alone, relative to swaps on all"
        yield (
            at_most(f"metric/{size}", text, values, 1.08)
            if size == "200"
            else told(f"metric/{size}", text, values)
        )


def excess(rows: Rows, best: float, method: str, size: int) -> dict[int, float]:
    """By seed."""
    return {r["seed"]: r["cost"] / best - 1 for r in rows if (r["method"], r["size"]) == (method, size)}


def errors_of(row: Mapping[str, Any], costs: Mapping[str, float], best: float) -> dict[str, list[float]]:
    """A row's errors on the bank's good, k-means++ and bad solutions."""
    found: dict[str, list[float]] = {"good": [], "seeds": [], "bad": []}
    for name, error in row["errors"].items():
        factor = costs[name] / best
        if factor <= GOOD:
            found["good"].append(error)
        elif name.startswith("seeds/"):
            found["seeds"].append(error)
        elif factor >= BAD:
            found["bad"].append(error)
    return found


def _real(rows: Rows, best: Mapping[str, float], costs: Mapping[str, Mapping[str, float]]) -> Iterator[Claim]:
    for data in sorted({r["data"] for r in rows}):
        mine = [r for r in rows if r["data"] == data]
        optimum, k_sizes = best[data], sorted({r["size"] for r in mine if r["method"] == "four_term"})
        bars = {1000: 0.055, 2000: 0.03} if data == "data" else {}
        for method, size in sorted({(r["method"], r["size"]) for r in mine}):
            values = list(excess(mine, optimum, method, size).values())
            name, text = f"real/{data}/excess/{method}/{size}", f"excess on {data}, {method} at {size} points"
            bar = bars.get(size) if method == "four_term" else None
            yield told(name, text, values) if bar is None else at_most(name, text, values, bar)
        means = [float(np.mean(list(excess(mine, optimum, "four_term", m).values()))) for m in k_sizes]
        steep = slope(k_sizes, means)
        text = f"slope of log excess against log size on {data}"
        yield (
            at_most(f"real/{data}/slope/excess", text, [steep], -0.7)
            if data == "data"
            else told(f"real/{data}/slope/excess", text, [steep])
        )
        yield from _bank_claims(data, mine, costs[data], optimum, k_sizes)


def _bank_claims(
    data: str, rows: Rows, costs: Mapping[str, float], best: float, sizes: Sequence[int]
) -> Iterator[Claim]:
    own = [r for r in rows if r["method"] == "four_term"]
    largest: dict[str, dict[int, list[float]]] = {kind: {} for kind in ("good", "seeds", "bad")}
    for kind in largest:
        for size in sizes:
            found = [errors_of(r, costs, best)[kind] for r in own if r["size"] == size]
            largest[kind][size] = [max(errors) for errors in found if errors]
            if largest[kind][size]:
                name = f"real/{data}/error/{kind}/{size}"
                yield told(
                    name, f"largest error on the bank's {kind} solutions, {data}, {size}", largest[kind][size]
                )
    yield from (
        told(
            f"real/{data}/optimism/{size}",
            f"cost on all points over cost on the coreset of its own solution, {data}, {size}",
            [r["cost"] / r["cost_on_summary"] for r in own if r["size"] == size],
        )
        for size in sizes
    )
    there = [size for size in sizes if largest["good"][size]]
    if len(there) < 2:
        return  # the bank holds no good solution: nothing to compare
    steep = slope(there, [float(np.mean(largest["good"][size])) for size in there])
    text = f"slope of log error on good solutions against log size on {data}"
    late = [size for size in there if size >= 400 and largest["bad"][size]]
    ratios = [float(np.mean(largest["good"][s]) / np.mean(largest["bad"][s])) for s in late]
    ratio_text = f"error on good solutions relative to bad ones on {data}, sizes from 400 on"
    if data == "data":
        yield at_most(f"real/{data}/slope/good_error", text, [steep], -0.4)
        yield at_least(f"real/{data}/slope/good_error_low", text, [steep], -0.75)
        if ratios:
            yield at_most(f"real/{data}/good_to_bad", ratio_text, ratios, 0.75, "each")
    else:
        yield told(f"real/{data}/slope/good_error", text, [steep])
        if ratios:
            yield told(f"real/{data}/good_to_bad", ratio_text, ratios)


def _audit(rows: Rows) -> Iterator[Claim]:
    for size in sorted({r["size"] for r in rows}):
        mine = [r for r in rows if r["size"] == size]
        for column, text in {
            "rho_good": "largest rho of solutions within twice the coreset's best",
            "rho_all": "largest rho of all solutions",
            "rho_fitted": "largest rho of the solutions fitted on the coreset",
            "optimism": "cost on all points over cost on the coreset, solutions fitted on it",
        }.items():
            yield told(f"audit/{size}/{column}", f"{text}, {size} points", [r[column] for r in mine])
        for name in mine[0]["bands"]:
            errors = [r["bands"][name]["error_max"] for r in mine if name in r["bands"]]
            yield told(f"audit/{size}/error/{name}", f"largest error, factor {name}, {size} points", errors)


def _stream(rows: Rows, real: Rows, best: Mapping[str, float]) -> Iterator[Claim]:
    size = rows[0]["size"]
    optimum = best["data"]
    by_order = {
        order: {r["seed"]: r["cost"] / optimum - 1 for r in rows if r["order"] == order}
        for order in sorted({r["order"] for r in rows})
    }
    each = [value for values in by_order.values() for value in values.values()]
    yield told("stream/excess", f"excess of a stream of 8 parts, {size} points", each)
    one = excess([r for r in real if r["data"] == "data"], optimum, "four_term", size)
    if one:
        ratio = float(np.mean(each) / np.mean(list(one.values())))
        yield at_most("stream/to_one_shot", "mean excess of the stream over that of one pass", [ratio], 1.5)
    first, second = by_order[0], by_order[1]
    gaps = tuple(first[s] - second[s] for s in sorted(first.keys() & second.keys()))
    yield told("stream/order", "difference between two orders of the parts, by seed", gaps)


def thesis_table(rows: Rows, best: float) -> list[dict[str, Any]]:
    """Each method with its distortion (on its own solution) and rho, mean and deviation over seeds; best rho first."""
    table = []
    for method in dict.fromkeys(r["method"] for r in rows):
        mine = [r for r in rows if r["method"] == method]
        ratio = np.asarray([r["cost"] / r["cost_on_summary"] for r in mine])
        distortion = np.maximum(ratio, 1 / ratio)
        # The solver's best on the summary stands in for its optimum there, as everywhere in the study.
        rho = np.asarray([(r["cost"] / best) / (r["cost_on_summary"] / r["best_on_summary"]) for r in mine])
        table.append(
            {
                "method": method,
                "distortion": float(distortion.mean()),
                "distortion_spread": float(distortion.std(ddof=1)),
                "rho": float(rho.mean()),
                "rho_spread": float(rho.std(ddof=1)),
                "kept": float(np.mean([r["kept"] for r in mine])),
            }
        )
    return sorted(table, key=lambda row: row["rho"])


def inversions(table: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Pairs (less distortion, better rho) that the two rank against each other, both beyond their spreads."""
    found = []
    for one, other in combinations(table, 2):
        a, b = (one, other) if one["distortion"] < other["distortion"] else (other, one)
        apart = all(
            abs(a[name] - b[name]) > a[f"{name}_spread"] + b[f"{name}_spread"]
            for name in ("distortion", "rho")
        )
        if apart and a["rho"] > b["rho"]:
            found.append((str(a["method"]), str(b["method"])))
    return found


def _thesis(rows: Rows, best: float) -> Iterator[Claim]:
    table = thesis_table(rows, best)
    for row in table:
        mine = [r for r in rows if r["method"] == row["method"]]
        ratio = [r["cost"] / r["cost_on_summary"] for r in mine]
        name = f"thesis/{row['method']}"
        yield told(f"{name}/distortion", f"distortion of {row['method']}", [max(x, 1 / x) for x in ratio])
        yield told(f"{name}/excess", f"excess of {row['method']}", [r["cost"] / best - 1 for r in mine])
    tau = float(stats.kendalltau([r["distortion"] for r in table], [r["rho"] for r in table]).statistic)
    yield told("thesis/kendall_tau", "agreement of the ranks by distortion and by rho", [tau])
    count = float(len(inversions(table)))
    yield at_least("thesis/inversions", "pairs that distortion and rho rank against each other", [count], 1.0)


def _peers(rows: Rows, real: Rows, best: float) -> Iterator[Claim]:
    own = [r for r in real if r["data"] == "data"]
    for size in sorted({r["size"] for r in rows}):
        for peer in sorted({r["method"] for r in rows}):
            theirs = list(excess(rows, best, peer, size).values())
            yield told(f"peers/{peer}/{size}", f"excess of {peer} at {size} points", theirs)
            for method in ("four_term", "voronoi", "sampled_means"):
                mine = list(excess(own, best, method, size).values())
                if not mine:
                    continue
                ratio = [float(np.mean(mine) / np.mean(theirs))]
                name = f"peers/{method}_to_{peer}/{size}"
                text = f"mean excess of {method} over that of {peer} at {size} points"
                barred = peer == "coresets" and method == "four_term"
                yield at_most(name, text, ratio, 1.1) if barred else told(name, text, ratio)
