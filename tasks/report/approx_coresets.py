"""The study of `approx_coresets` as people read it: figures, verdicts, metrics, and one MLflow run a method."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from methods.approx_coresets.study import slope
from methods.approx_coresets.study_claims import claims, errors_of, inversions, thesis_table
from tasks.report.verdict import Verdict, claim_metrics, claim_verdicts
from tasks.tracking import RunContext, candidate_run, log_metrics, log_params

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, Rows]
Costs = Mapping[str, Mapping[str, float]]
WORDS = {"data": "digits", "colours": "colours of a photograph", "digits8": "small digits"}


def best_costs(parts: Parts, costs: Costs) -> dict[str, float]:
    """The best known cost of each data set, over all that the study ran."""
    best = {name: min(found.values()) for name, found in costs.items()}
    for part, rows in parts.items():
        for row in rows:
            name = row.get("data")
            for column in ("cost", "best"):
                if name in best and column in row and part in ("real", "audit", "stream", "thesis", "peers"):
                    best[name] = min(best[name], row[column])
    return best


def metrics_and_verdicts(parts: Parts, costs: Costs) -> tuple[dict[str, Any], list[Verdict]]:
    """Each claim's numbers for metrics.json, and those with a bar as verdicts."""
    best = best_costs(parts, costs)
    found = claims(parts, best, costs)
    return {"claims": claim_metrics(found), "best_known_cost": best}, claim_verdicts(found)


def _real(parts: Parts, costs: Costs) -> pd.DataFrame:
    """Excess of every summary of real data, and of the peers'."""
    best = best_costs(parts, costs)
    rows = [
        {
            "data": row["data"],
            "method": row["method"],
            "size": row["size"],
            "seed": row["seed"],
            "excess": row["cost"] / best[row["data"]] - 1,
            "optimism": row["cost"] / row["cost_on_summary"],
        }
        for part in ("real", "peers")
        for row in parts.get(part, ())
    ]
    return pd.DataFrame(rows)


def _errors(parts: Parts, costs: Costs) -> pd.DataFrame:
    """Largest error on the bank's good, k-means++ and bad solutions, four-term sampling."""
    best = best_costs(parts, costs)
    rows = []
    for row in parts.get("real", ()):
        if row["method"] != "four_term":
            continue
        for kind, errors in errors_of(row, costs[row["data"]], best[row["data"]]).items():
            if errors:
                place = {"data": row["data"], "solutions": kind, "size": row["size"], "seed": row["seed"]}
                rows.append({**place, "largest_error": max(errors), "count": len(errors)})
    return pd.DataFrame(rows)


def tables(parts: Parts, costs: Costs) -> dict[str, pd.DataFrame]:
    """The data behind the plots, by the same names."""
    found: dict[str, pd.DataFrame] = {}
    if "real" in parts:
        found["excess"], found["errors"] = _real(parts, costs), _errors(parts, costs)
    if "thesis" in parts:
        best = best_costs(parts, costs)["thesis"]
        found["thesis"] = pd.DataFrame(thesis_table(parts["thesis"], best))
    if "skewed" in parts:
        found["skewed"] = pd.DataFrame(parts["skewed"]).drop(columns="part")
    if "line" in parts:
        rows = [
            {
                "kind": row["kind"],
                "method": row["method"],
                "z": row["z"],
                "seed": row["seed"],
                "size": int(size),
                "factor": factor,
            }
            for row in parts["line"]
            for size, factor in row["factors"].items()
        ]
        found["line"] = pd.DataFrame(rows)
    if "hard" in parts:
        found["hard"] = pd.DataFrame(parts["hard"]).drop(columns="part")
    if "solvers" in parts:
        found["solvers"] = pd.DataFrame(parts["solvers"]).drop(columns="part")
    if "audit" in parts:
        rows = [
            {"size": row["size"], "seed": row["seed"], "factor": name, **band}
            for row in parts["audit"]
            for name, band in row["bands"].items()
        ]
        found["audit"] = pd.DataFrame(rows)
    return found


def shown_table(parts: Parts, costs: Costs) -> pd.DataFrame:
    """Excess by method and size on the main data, mean ± standard deviation over seeds."""
    if "real" not in parts:
        return pd.DataFrame([{"curves on real data": "none in this run"}])
    frame = _real(parts, costs)
    frame = frame[frame.data == "data"]
    rows = []
    for method, group in frame.groupby("method", sort=False):
        row = {"method": str(method)}
        for size in sorted(frame["size"].unique()):
            values = group[group["size"] == size].excess
            row[f"{size} points"] = f"{values.mean():.4f} ± {values.std(ddof=1):.4f}" if len(values) else "-"
        rows.append(row)
    return pd.DataFrame(rows)


def figures(parts: Parts, costs: Costs) -> dict[str, Figure]:
    """The study's plots, by name."""
    data = tables(parts, costs)
    drawers = {
        "excess": plot_excess,
        "errors": plot_errors,
        "thesis": plot_thesis,
        "skewed": plot_skewed,
        "line": plot_line,
    }
    return {name: draw(data[name]) for name, draw in drawers.items() if name in data}


def _bars(axes: Any, group: pd.DataFrame, column: str, **style: Any) -> None:
    """Mean over seeds with its range, by size."""
    by_size = group.groupby("size")[column]
    mean, low, high = by_size.mean(), by_size.min(), by_size.max()
    low = low.clip(lower=mean * 0.05)  # a value of 0 or below has no place on a logarithmic axis
    axes.errorbar(mean.index, mean, yerr=[mean - low, high - mean], capsize=2, markersize=4, **style)


def _panels(frame: pd.DataFrame, x_label: str, share: bool) -> tuple[Figure, dict[str, Any]]:
    """A panel a data set, both axes logarithmic."""
    names = [str(name) for name in frame.data.unique()]
    figure = Figure(figsize=(5.2 * len(names), 5.4), layout="constrained")
    drawn = np.atleast_1d(figure.subplots(1, len(names), sharey=share))
    for axes, name in zip(drawn, names, strict=True):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(x_label)
        axes.set_title(WORDS.get(name, name))
        axes.grid(alpha=0.3, which="both")
    return figure, dict(zip(names, drawn, strict=True))


def plot_excess(frame: pd.DataFrame) -> Figure:
    """Excess of the solution found on the summary, over its size, a panel a data set."""
    figure, panels = _panels(frame, "points of the summary", share=False)
    methods = list(frame.method.unique())
    for name, axes in panels.items():
        mine = frame[frame.data == name]
        for method, group in mine.groupby("method", sort=False):
            number = methods.index(method)
            label = str(method)
            means = group.groupby("size").excess.mean()
            if method == "four_term" and (means > 0).all():
                label += f" (slope {slope(list(means.index), list(means)):.2f})"
            wide = 2.0 if method == "four_term" else 1.0
            style: dict[str, Any] = {"linestyle": "--", "marker": "x"} if number >= 10 else {"marker": "o"}
            _bars(axes, group, "excess", label=label, color=f"C{number % 10}", linewidth=wide, **style)
        axes.legend(frameon=False, fontsize=8)
    next(iter(panels.values())).set_ylabel("excess: cost on all points over the best known cost, minus 1")
    figure.suptitle("What solving on the summary loses: mean and range over seeds")
    return figure


def plot_errors(frame: pd.DataFrame) -> Figure:
    """Largest relative error of a cost, on good and on bad solutions, over the size."""
    figure, panels = _panels(frame, "points of the coreset", share=True)
    words = {"good": "good (up to 1.02)", "seeds": "k-means++ seeds", "bad": "bad (1.2 and more)"}
    for name, axes in panels.items():
        for number, (kind, label) in enumerate(words.items()):
            group = frame[(frame.data == name) & (frame.solutions == kind)]
            if len(group):
                _bars(axes, group, "largest_error", label=label, color=f"C{number}", marker="o")
        axes.legend(frameon=False, fontsize=8)
    next(iter(panels.values())).set_ylabel("largest |cost on coreset / cost on all - 1|")
    figure.suptitle("Costs of fixed solutions on a coreset (four-term sampling): mean and range over seeds")
    return figure


def plot_thesis(frame: pd.DataFrame) -> Figure:
    """Distortion against rho, a point a method."""
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(frame.itertuples()):
        axes.errorbar(
            row.distortion,
            row.rho,
            xerr=row.distortion_spread,
            yerr=row.rho_spread,
            marker="o",
            capsize=2,
            color=f"C{number % 10}",
            markerfacecolor="white" if number >= 10 else None,
            label=row.method,
        )
    count = len(inversions(frame.to_dict("records")))  # type: ignore[arg-type]
    axes.set_xlabel("distortion of the solution's own cost (1 is exact), mean ± deviation over seeds")
    axes.set_ylabel("rho: factor on all points over factor on the summary")
    axes.set_title(f"Small distortion is not a good solution: {count} pairs are ranked against each other")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_skewed(frame: pd.DataFrame) -> Figure:
    """Cost relative to the planted clustering on the skewed mixture, a point a seed."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, (method, group) in enumerate(frame.groupby("method", sort=False)):
        median = group.groupby("size").factor.median()
        axes.plot(median.index, median, color=f"C{number}", label=str(method))
        axes.scatter(
            group["size"] * (1 + 0.02 * (number - 2)), group.factor, color=f"C{number}", s=12, alpha=0.6
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = sorted(frame["size"].unique())
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("points of the coreset (21 clusters, 50,000 points)")
    axes.set_ylabel("cost over the planted clustering's, one point a seed")
    axes.set_title("Tiny clusters and one far away: medians over seeds")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def plot_line(frame: pd.DataFrame) -> Figure:
    """Exact optimum of the coreset against that of all points, over the size."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    own = frame[frame.method == "four_term"]
    for number, ((kind, z), group) in enumerate(own.groupby(["kind", "z"], sort=False)):
        means = group.groupby("size").factor.mean() - 1
        label = f"{kind}, z={z} (slope {slope(list(means.index), list(means)):.2f})"
        axes.plot(means.index, means, marker="o", color=f"C{number}", label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = sorted(frame["size"].unique())
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("points of the coreset")
    axes.set_ylabel("excess of the coreset's exact optimum, mean over seeds")
    axes.set_title("On a line, where both optima are known (5 centres)")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    return figure


def log_candidates(ctx: RunContext, parts: Parts, costs: Costs) -> None:
    """One MLflow run a method and size on the main data, seeds as steps."""
    if "real" not in parts:
        return
    frame = _real(parts, costs)
    for (method, size), group in frame[frame.data == "data"].groupby(["method", "size"], sort=False):
        run_id = candidate_run(ctx, f"{method}/{size}")
        log_params(ctx, run_id, {"method": method, "size": int(size)})
        for row in group.itertuples():
            log_metrics(
                ctx, run_id, {"full/excess": row.excess, "full/optimism": row.optimism}, step=int(row.seed)
            )
        ctx.client.set_terminated(run_id)
