"""The study's rows against the claims: one number a seed, the bar, and whether it holds.

Losses are nats a byte on held-out text; differences are paired by seed (same rows in the same order, same draw of
weights). A run whose loss left the finite numbers counts with its loss at the start: it learned nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import methods.common.claims as claims_of_papers
from methods.common.claims import Rule
from methods.span_norm.schemes import shown

Rows = Sequence[Mapping[str, Any]]

SPAN, SPAN_PLAIN = "span/inv_sqrt_depth", "span/none"
PRE, PRE_PLAIN, POST = "prenorm/inv_sqrt_depth", "prenorm/none", "postnorm/inv_sqrt_depth"
SPAN_SMALL, PRE_SMALL = "span/inv_depth", "prenorm/inv_depth"
BROKEN = 0.5  # nats above the study's best run: such a run failed


@dataclass(frozen=True)
class Claim(claims_of_papers.Claim):
    """Losses: lower is better, and the mean over paired seeds decides unless a claim says otherwise."""

    sense: str = "<="
    rule: Rule = "mean"


def final_loss(run: Mapping[str, Any]) -> float:
    """The held-out loss of a run; of one that diverged, the loss at its start."""
    return float(run["start"] if run["diverged"] is not None else run["loss"])


def claims(parts: Mapping[str, Rows]) -> list[Claim]:
    """All claims for which the parts have rows."""
    found: list[Claim] = []
    if "start" in parts:
        found += _start(parts["start"])
    if "moderate" in parts:
        found += _moderate(parts["moderate"])
    grid = [run for part in ("moderate", "rates") for run in parts.get(part, ())]
    if "rates" in parts and "moderate" in parts:
        found += _best_rates(grid)
    if "range" in parts:
        found += _range(parts["range"])
    if "smaller" in parts:
        found += _smaller(parts["smaller"], grid if "rates" in parts else ())
    if "depth" in parts:
        found += _depth(parts["depth"])
    if "experts" in parts:
        found += _experts(parts["experts"])
    return found


# -- the start ------------------------------------------------------------------------------------------------------


def _start(rows: Rows) -> list[Claim]:
    seeds = sorted({row["seed"] for row in rows})
    depths = sorted({row["layers"] for row in rows})

    def values(candidate: str, name: str, seed: int) -> np.ndarray:
        by_depth = {r["layers"]: r[name] for r in rows if (r["candidate"], r["seed"]) == (candidate, seed)}
        return np.asarray([by_depth[depth] for depth in depths], dtype=float)

    ratio = tuple(float(np.abs(values(SPAN, "log_gradient_ratio", s)).max()) for s in seeds)
    lines = [_line(depths, values(SPAN_PLAIN, "log_gradient_ratio", s)) for s in seeds]
    sizes = tuple(
        max(
            float(values(SPAN, "largest_rms", s).max() - 1),
            float(1 - values(SPAN, "smallest_rms", s).min()),
        )
        for s in seeds
    )
    growth = tuple(
        float(np.polyfit(np.log(depths), np.log(values(PRE_PLAIN, "hidden_rms", s)), 1)[0]) for s in seeds
    )
    found = [
        Claim(
            "start/span/log_gradient_ratio",
            "with the scaling the gradient is as large at the first block as at the last, at every depth "
            "(largest |ln ratio| over the depths)",
            ratio,
            0.35,
            rule="each",
        ),
        Claim(
            "start/span_unscaled/slope",
            "without the scaling the gradient grows exponentially: slope of ln ratio a block",
            tuple(slope for slope, _ in lines),
            0.08,
            ">=",
            "each",
        ),
        Claim(
            "start/span_unscaled/r_squared",
            "that growth is a straight line in depth (R squared)",
            tuple(fit for _, fit in lines),
            0.98,
            ">=",
            "each",
        ),
        Claim(
            "start/span/rms_deviation",
            "the hidden size of every block stays at 1 (largest deviation)",
            sizes,
            0.1,
            rule="each",
        ),
        Claim(
            "start/prenorm/growth_exponent_off_half",
            "PreNorm's hidden size grows with the root of depth (|exponent - 0.5|)",
            tuple(abs(g - 0.5) for g in growth),
            0.1,
            rule="mean",
        ),
    ]
    return [*found, *_likeness(rows, 96 if 96 in depths else depths[-1])]


def _likeness(rows: Rows, deep: int) -> list[Claim]:
    """Whether tokens become alike, by candidate, after `deep` blocks."""
    found = []
    bars: list[tuple[str, str, float, str]] = [
        ("span", SPAN, 0.10, "<="),
        ("prenorm_unscaled", PRE_PLAIN, 0.5, ">="),
        ("postnorm_unscaled", "postnorm/none", 0.95, ">="),
        ("hybrid_unscaled", "hybrid/none", 0.95, ">="),
        ("prenorm_scaled", PRE, 0.0, ""),
        ("postnorm_scaled", POST, 0.0, ""),
    ]
    for name, candidate, bar, sense in bars:
        cosines = tuple(
            float(r["token_cosine"])
            for r in sorted(rows, key=lambda r: int(r["seed"]))
            if (r["candidate"], r["layers"]) == (candidate, deep)
        )
        found.append(
            Claim(
                f"start/{name}/token_cosine",
                f"mean cosine between tokens after {deep} blocks, {name.replace('_', ' ')}",
                cosines,
                bar,
                sense or "<=",
                "mean" if sense else "report",
            )
        )
    return found


def _line(depths: Sequence[int], values: np.ndarray) -> tuple[float, float]:
    slope, start = np.polyfit(depths, values, 1)
    rest = values - (slope * np.asarray(depths) + start)
    return float(slope), float(1 - rest.var() / values.var())


# -- trainings ------------------------------------------------------------------------------------------------------


def _losses(rows: Rows, candidate: str, rate: float | None = None) -> dict[int, float]:
    """Loss by seed."""
    return {
        int(r["seed"]): final_loss(r)
        for r in rows
        if r["candidate"] == candidate and (rate is None or r["rate"] == rate)
    }


def _paired(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, ...]:
    return tuple(one[seed] - other[seed] for seed in sorted(one.keys() & other.keys()))


def _moderate(rows: Rows) -> list[Claim]:
    rate = rows[0]["rate"]
    span = _losses(rows, SPAN)
    found = [
        Claim(
            f"moderate/loss/{name}",
            f"held-out loss at {rate:g}, {shown(name)}",
            tuple(_losses(rows, name).values()),
            rule="report",
        )
        for name in dict.fromkeys(row["candidate"] for row in rows)
    ]
    bars = {PRE: 0.015, PRE_PLAIN: 0.05, POST: 0.015, SPAN_PLAIN: 0.2}
    for other, bar in bars.items():
        gains = _paired(_losses(rows, other), span)
        found += [
            Claim(
                f"moderate/gain_over/{other}",
                f"at {rate:g} SpanNorm's loss is below that of {shown(other)}",
                gains,
                bar,
                ">=",
            ),
            Claim(
                f"moderate/gain_over/{other}/interval",
                f"the same, by a paired 95 % interval above 0 ({shown(other)})",
                gains,
                0.0,
                ">=",
                "interval",
            ),
        ]
    return found + _layer_use(rows)


def _layer_use(rows: Rows) -> list[Claim]:
    """What leaving one block out costs, where the runs measured it."""
    drops = {
        name: {
            int(r["seed"]): float(np.mean(r["drop"]))
            for r in rows
            if r["candidate"] == name and r.get("drop")
        }
        for name in (SPAN, PRE)
    }
    if not (drops[SPAN] and drops[PRE]):
        return []
    return [
        Claim(
            "moderate/layer_use",
            "leaving one block out costs more in SpanNorm than in equally scaled PreNorm (difference of means)",
            _paired(drops[SPAN], drops[PRE]),
            0.0,
            ">=",
            "interval",
        ),
        *(
            Claim(
                f"moderate/layer_use/{name}",
                f"mean rise of the loss without one block, {shown(name)}",
                tuple(values.values()),
                rule="report",
            )
            for name, values in drops.items()
        ),
    ]


def best_rate(rows: Rows, candidate: str) -> tuple[float, dict[int, float]]:
    """The rate with the lowest mean loss over the seeds that all its rates share, and its losses by seed."""
    rates = sorted({r["rate"] for r in rows if r["candidate"] == candidate})
    by_rate = {rate: _losses(rows, candidate, rate) for rate in rates}
    shared = set.intersection(*(set(losses) for losses in by_rate.values()))
    best = min(rates, key=lambda rate: float(np.mean([by_rate[rate][seed] for seed in shared])))
    return best, {seed: by_rate[best][seed] for seed in sorted(shared)}


def _best_rates(rows: Rows) -> list[Claim]:
    tried = {
        name
        for name in {r["candidate"] for r in rows}
        if len({r["rate"] for r in rows if r["candidate"] == name}) > 1
    }
    best = {name: best_rate(rows, name) for name in sorted(tried)}
    found = []
    for name, (rate, losses) in best.items():
        found += [
            Claim(f"best_rate/rate/{name}", f"best rate of {shown(name)}", (rate,), rule="report"),
            Claim(
                f"best_rate/loss/{name}",
                f"held-out loss at its best rate, {shown(name)}",
                tuple(losses.values()),
                rule="report",
            ),
        ]
    contenders = [name for name in (PRE, PRE_PLAIN) if name in best]
    if SPAN in best and contenders:
        rival = min(contenders, key=lambda name: float(np.mean(list(best[name][1].values()))))
        worse = _paired(best[SPAN][1], best[rival][1])
        found += [
            Claim(
                "best_rate/span_minus_best_prenorm",
                f"each at its own best rate SpanNorm is not worse than the best PreNorm ({shown(rival)}) by more than "
                "0.02",
                worse,
                0.02,
            ),
            Claim(
                "best_rate/span_below_best_prenorm",
                f"each at its own best rate SpanNorm is better than the best PreNorm ({shown(rival)}), by a paired "
                "95 % interval",
                worse,
                0.0,
                "<=",
                "interval",
            ),
        ]
    return found + _stable(rows, sorted(tried))


def _stable(rows: Rows, names: Sequence[str]) -> list[Claim]:
    limit = _limit(rows)
    return [
        Claim(
            f"max_stable_rate/{name}",
            f"highest rate up to which no seed of {shown(name)} failed",
            (max_stable_rate(rows, name, limit),),
            rule="report",
        )
        for name in names
    ]


def _limit(rows: Rows) -> float:
    return min(final_loss(r) for r in rows) + BROKEN


def max_stable_rate(rows: Rows, candidate: str, limit: float) -> float:
    """The highest rate at and below which every seed ended below `limit`; 0 when the lowest one fails."""
    stable = 0.0
    for rate in sorted({r["rate"] for r in rows if r["candidate"] == candidate}):
        if max(_losses(rows, candidate, rate).values()) > limit:
            break
        stable = float(rate)
    return stable


def variant(run: Mapping[str, Any], warmup: int) -> str:
    """Name of a run of the part `range`."""
    return f"{run['candidate']}/warmup{run['warmup']}" if run["warmup"] != warmup else str(run["candidate"])


def _range(rows: Rows) -> list[Claim]:
    warmup = min(run["warmup"] for run in rows)
    named = [{**run, "candidate": variant(run, warmup)} for run in rows]
    limit = _limit(named)
    stable = {name: max_stable_rate(named, name, limit) for name in sorted({r["candidate"] for r in named})}
    base = stable.pop(SPAN)
    found = [
        Claim(
            f"range/max_stable_rate/{SPAN}",
            "highest rate of this part's grid up to which no seed of SpanNorm failed",
            (base,),
            rule="report",
        )
    ]
    for name, rate in stable.items():
        words = f"{shown(name)} is stable at a higher rate than SpanNorm ({base:g})"
        claim = Claim(f"range/max_stable_rate/{name}", words, (rate,), base * 1.001, ">=")
        found.append(claim)
    return found


def _at_depth(rows: Rows, candidate: str, depth: int) -> dict[int, float]:
    """Loss by seed."""
    return {
        int(r["seed"]): final_loss(r) for r in rows if (r["candidate"], r["layers"]) == (candidate, depth)
    }


def _smaller(rows: Rows, grid: Rows) -> list[Claim]:
    """The start 1 / L of both placements, each at its best rate here; with the grid also against the best PreNorm."""
    (rate, span), (pre_rate, pre) = best_rate(rows, SPAN_SMALL), best_rate(rows, PRE_SMALL)
    found = [
        Claim(
            f"smaller/loss/{name}",
            f"held-out loss at {chosen:g}, {shown(name)}",
            tuple(losses.values()),
            rule="report",
        )
        for name, chosen, losses in ((SPAN_SMALL, rate, span), (PRE_SMALL, pre_rate, pre))
    ]
    rivals = {PRE_SMALL: pre}
    if grid:
        best = {name: best_rate(grid, name)[1] for name in (PRE, PRE_PLAIN)}
        rivals |= {min(best, key=lambda name: float(np.mean(list(best[name].values())))): {}}
        rivals = {name: losses or best[name] for name, losses in rivals.items()}
    for name, losses in rivals.items():
        words = f"SpanNorm started with 1/L ({rate:g}) is better than {shown(name)} at its best rate, by a paired 95 % "
        gains = _paired(losses, span)
        found.append(
            Claim(f"smaller/gain_over/{name}", f"{words}interval above 0", gains, 0.0, ">=", "interval")
        )
    return found


def _depth(rows: Rows) -> list[Claim]:
    def means(candidate: str) -> dict[int, float]:
        depths = sorted({r["layers"] for r in rows if r["candidate"] == candidate})
        return {depth: float(np.mean(list(_at_depth(rows, candidate, depth).values()))) for depth in depths}

    span, pre = means(SPAN), means(PRE)
    found = [
        Claim(
            f"depth/loss/{name}/{depth}",
            f"held-out loss of {shown(name)} with {depth} blocks",
            (loss,),
            rule="report",
        )
        for name, by_depth in ((SPAN, span), (PRE, pre))
        for depth, loss in by_depth.items()
    ]
    for depth in sorted(span.keys() & pre.keys()):
        gains = _paired(_at_depth(rows, PRE, depth), _at_depth(rows, SPAN, depth))
        words = f"with {depth} blocks of equal size SpanNorm is better than PreNorm, by a paired 95 % interval above 0"
        found.append(Claim(f"depth/gain/{depth}", words, gains, 0.0, ">=", "interval"))
    best = [min(by_depth, key=lambda depth: by_depth[depth]) for by_depth in (span, pre)]
    found.append(
        Claim(
            "depth/best_depth_minus_prenorms",
            f"SpanNorm's best depth ({best[0]}) is at least PreNorm's ({best[1]})",
            (float(best[0] - best[1]),),
            0.0,
            ">=",
        )
    )
    if 48 in span and 12 in span:
        deep, shallow = (_at_depth(rows, SPAN, depth) for depth in (48, 12))
        found.append(
            Claim(
                "depth/span_48_minus_12",
                "SpanNorm with 48 blocks is not worse than with 12 by more than 0.01",
                _paired(deep, shallow),
                0.01,
            )
        )
    return found


def _experts(rows: Rows) -> list[Claim]:
    (_, span), (_, pre) = best_rate(rows, SPAN), best_rate(rows, PRE)
    loads = [r["load_variation"] for r in rows if r["candidate"] == SPAN and "load_variation" in r]
    found = [
        Claim(
            "experts/span_minus_prenorm",
            "with experts, each at its better rate, SpanNorm is not worse than PreNorm",
            _paired(span, pre),
            0.0,
        ),
        Claim(
            "experts/diverged",
            "runs that left the finite numbers",
            (float(sum(r["diverged"] is not None for r in rows)),),
            0.0,
        ),
    ]
    if loads:
        found.append(
            Claim(
                "experts/load_variation",
                "the experts' loads vary by less than half",
                tuple(loads),
                0.5,
                rule="each",
            )
        )
    return found
