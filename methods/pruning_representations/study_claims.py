"""What the study's frames say about the paper's claims: numbers, spreads and bars, without any plotting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from methods.pruning_representations.tables import agreement_without_habit

BOOTSTRAPS = 2000
KEEPS, LOSES = 0.9, 0.5
# A task counts only where the dense model is at least this far above chance.
ABOVE_CHANCE = 0.2
CHOICE_TASKS = ("cloze", "piqa", "hellaswag")
WRITTEN_TASKS = ("arithmetic", "arithmetic_words", "recall", "squad")


@dataclass(frozen=True)
class Claim:
    """A claim with its numbers.

    Attributes:
        name: key of metrics.json.
        text: the claim with its bar.
        values: one a seed, or one.
        spread: standard deviation over seeds, or half the 95 % interval of a bootstrap over items.
        held: whether every value clears the bar.
        note: what else a reader should know.
    """

    name: str
    text: str
    values: tuple[float, ...]
    spread: float
    held: bool
    note: str = ""

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))


def without_calibration(label: str) -> str:
    """A recipe's label without what it adds for a calibration of unusual size."""
    return re.sub(r"-c\d+x\d+$", "", label)


def over_seeds(name: str, text: str, values: Sequence[float], bar: float, note: str = "") -> Claim:
    """A claim that holds when every seed is at least at the bar."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Claim(name, text, tuple(values), spread, all(v >= bar for v in values), note)


def layer_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a layer: medians, 5 % and 95 % quantiles, and the rank correlation of estimate and truth over tokens."""
    groups = frame.groupby("layer")
    columns = ["cos_h", "cos_z", "cos_p", "kl", "kl_estimate", "cos_p_estimate", "third_order"]
    parts = [groups[columns].quantile(q).add_suffix(f"_q{round(100 * q):02d}") for q in (0.05, 0.5, 0.95)]
    found = pd.concat(parts, axis=1)
    found["spearman"] = [group.kl.corr(group.kl_estimate, method="spearman") for _, group in groups]
    return found.reset_index()


def inner(summary: pd.DataFrame) -> pd.DataFrame:
    """Without the first and the last layer, which are genuine exceptions and are shown on their own."""
    return summary[(summary.layer > summary.layer.min()) & (summary.layer < summary.layer.max())]


def hierarchy_share(summary: pd.DataFrame) -> float:
    """Share of inner layers whose worst 5 % of tokens stay above 0.98 in logits and fall below 0.92 in probability."""
    part = inner(summary)
    return float(((part.cos_z_q05 >= 0.98) & (part.cos_p_q05 <= 0.92)).mean())


def hierarchy_interval(frame: pd.DataFrame, seed: int = 0, rounds: int = 200) -> tuple[float, float]:
    """95 % interval of `hierarchy_share`, tokens resampled."""
    z, p = (
        frame.pivot_table(index="token", columns="layer", values=v).to_numpy()[:, 1:-1]
        for v in ("cos_z", "cos_p")
    )
    rng = np.random.default_rng(seed)
    shares = []
    for _ in range(rounds):
        rows = rng.integers(0, len(z), len(z))
        low_z, low_p = np.quantile(z[rows], 0.05, axis=0), np.quantile(p[rows], 0.05, axis=0)
        shares.append(float(((low_z >= 0.98) & (low_p <= 0.92)).mean()))
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def layer_claims(frames: Sequence[pd.DataFrame]) -> list[Claim]:
    """Bars on the layer-wise probe, a frame a seed."""
    summaries = [layer_summary(frame) for frame in frames]
    within = [
        float(((inner(s).kl_estimate_q50 / inner(s).kl_q50 - 1).abs() <= 0.25).mean()) for s in summaries
    ]
    ranks = [float(inner(s).spearman.median()) for s in summaries]
    shares = [hierarchy_share(s) for s in summaries]
    low, high = hierarchy_interval(frames[0])
    return [
        over_seeds(
            "estimate_within_25pct",
            "One forward pass predicts the KL of dropping an attention: estimated and measured medians differ by at "
            "most 25 % in at least 80 % of the layers",
            within,
            0.8,
        ),
        over_seeds(
            "estimate_rank",
            "The prediction orders tokens: Spearman correlation at least 0.95 in the median layer",
            ranks,
            0.95,
        ),
        over_seeds(
            "hierarchy",
            "Logits stay close where probabilities do not: for the worst 5 % of tokens cosine at least 0.98 in logit "
            "space and at most 0.92 in probability space, in at least 80 % of the layers",
            shares,
            0.8,
            f"bootstrap over tokens {low:.2f} to {high:.2f}",
        ),
    ]


def retention(
    scores: npt.ArrayLike, dense: npt.ArrayLike, seed: int = 0, chance: float = 0.0
) -> tuple[float, float, float]:
    """Share of the dense score that is kept, with its 95 % interval; items are resampled in pairs."""
    a, b = np.asarray(scores, float), np.asarray(dense, float)
    rows = np.random.default_rng(seed).integers(0, len(a), (BOOTSTRAPS, len(a)))
    drawn = (a[rows].mean(1) - chance) / np.maximum(b[rows].mean(1) - chance, 1e-9)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float((a.mean() - chance) / max(b.mean() - chance, 1e-9)), float(low), float(high)


def task_frame(
    scores: Mapping[str, Mapping[str, Sequence[float]]], chance: Mapping[str, float]
) -> pd.DataFrame:
    """A row a variant and task: score, what of the dense score it keeps, and that above chance alone."""
    rows = []
    for variant, tasks in scores.items():
        for task, values in tasks.items():
            kept, low, high = retention(values, scores["dense"][task])
            above = retention(values, scores["dense"][task], chance=chance.get(task, 0.0))
            rows.append(
                {
                    "variant": variant,
                    "task": task,
                    "kind": "choice" if task in CHOICE_TASKS else "written",
                    "score": float(np.mean(values)),
                    "kept": kept,
                    "kept_low": low,
                    "kept_high": high,
                    "kept_above_chance": above[0],
                    "dense_above_chance": float(np.mean(scores["dense"][task])) - chance.get(task, 0.0),
                    "items": len(values),
                }
            )
    return pd.DataFrame(rows)


def gap_claim(tasks: pd.DataFrame, variants: Sequence[str], name: str, what: str) -> Claim | None:
    """Whether one of these variants keeps a choice task and loses a written one.

    Tasks on which the dense model is near chance say nothing and are left out; None when a kind has no other.
    """
    best: tuple[float, str] | None = None
    note = ""
    for variant in variants:
        part = tasks[(tasks.variant == variant) & (tasks.dense_above_chance >= ABOVE_CHANCE)]
        choice, written = part[part.kind == "choice"], part[part.kind == "written"]
        if not len(choice) or not len(written):
            continue
        top: Any = choice.sort_values("kept").iloc[-1]
        bottom: Any = written.sort_values("kept").iloc[0]
        key = (bottom.kept if top.kept >= KEEPS else 1 + bottom.kept, variant)
        if best is None or key < best:
            best = key
            note = (
                f"{variant}: {top.task} keeps {100 * top.kept:.0f} % ({100 * top.kept_low:.0f} to "
                f"{100 * top.kept_high:.0f}), {bottom.task} {100 * bottom.kept:.0f} % "
                f"({100 * bottom.kept_low:.0f} to {100 * bottom.kept_high:.0f})"
            )
            value, half = float(bottom.kept), float(bottom.kept_high - bottom.kept_low) / 2
    if best is None:
        return None
    text = (
        f"{what}: somewhere a choice task keeps at least 90 % of the dense score while a written one keeps at most "
        "50 %"
    )
    return Claim(f"gap/{name}", text, (value,), half, bool(best[0] <= LOSES), note)


def ranking_claims(tasks: pd.DataFrame, perplexity: Mapping[str, float]) -> list[Claim]:
    """Whether dropping by predicted KL (an extension) harms less than by cosine, at each number of attentions."""
    pairs = {}
    for name in perplexity:
        other = re.sub(r"^(drop-attn-\d+)", r"\1-by-kl", name)
        if other != name and "-by-kl" not in name and other in perplexity:
            pairs[name] = other
    if not pairs:
        return []
    ratios = [perplexity[other] / perplexity[name] for name, other in pairs.items()]
    told = []
    for name, other in pairs.items():
        kept = [
            tasks[(tasks.variant == variant) & tasks.task.isin(("arithmetic", "recall"))].kept.mean()
            for variant in (name, other)
        ]
        told.append(
            f"{name}: perplexity {perplexity[name]:.1f} by cosine, {perplexity[other]:.1f} by KL, sums and recall keep "
            f"{100 * kept[0]:.0f} and {100 * kept[1]:.0f} %"
        )
    text = "Extension: attentions dropped by predicted KL cost less perplexity than by cosine, at every number of them"
    spread = float(np.std(ratios, ddof=1)) if len(ratios) > 1 else 0.0
    return [Claim("ranking", text, tuple(ratios), spread, max(ratios) < 1, "; ".join(told))]


def decoding_claims(frames: Mapping[str, pd.DataFrame], name: str) -> list[Claim]:
    """History against softmax for one variant; and that heavier drops part earlier."""
    frame = frames[name]
    last = frame[frame.step >= frame.step.max() - 7]  # eight steps: a single one is noisy
    by = last.groupby(["prompt", "mode"]).kl.median().unstack()
    ratios = (by["free"] / by["forced"]).dropna().to_numpy()
    rng = np.random.default_rng(0)
    drawn = np.median(ratios[rng.integers(0, len(ratios), (BOOTSTRAPS, len(ratios)))], axis=1)
    half = float(np.quantile(drawn, 0.975) - np.quantile(drawn, 0.025)) / 2
    found = [
        Claim(
            "history",
            f"Generation is the echo: at the end of the text the KL of {name} on its own text is at least 5 times that "
            "on the dense model's text, in the median prompt",
            (float(np.median(ratios)),),
            half,
            float(np.median(ratios)) >= 5,
            f"interval {np.quantile(drawn, 0.025):.1f} to {np.quantile(drawn, 0.975):.1f}, {len(ratios)} prompts",
        )
    ]
    drops = sorted(
        (int(match[1]), label)
        for label in frames
        if (match := re.fullmatch(r"drop-attn-(\d+)", without_calibration(label)))
    )
    if len(drops) > 1:
        means = [float(first_divergence(frames[label]).mean()) for _, label in drops]
        steps = ", ".join(f"{n}: {mean:.1f}" for (n, _), mean in zip(drops, means, strict=True))
        found.append(
            Claim(
                "divergence",
                "The more attentions are dropped, the earlier the texts part (mean step of the first other token)",
                (means[-1] - means[0],),
                float(first_divergence(frames[drops[0][1]]).to_numpy(float).std(ddof=1)),
                all(b <= a for a, b in pairwise(means)) and means[-1] < means[0],
                steps,
            )
        )
    return found


def first_divergence(frame: pd.DataFrame) -> pd.Series:
    """Step of each prompt's first other token, free-running."""
    free = frame[frame["mode"] == "free"]
    steps = free.groupby("prompt").step.max() + 1
    return free[~free.agree].groupby("prompt").step.min().reindex(steps.index).fillna(steps)


def option_claims(frame: pd.DataFrame, name: str) -> list[Claim]:
    """The options' subspace, where the prompt does not ask for the letter and where it does."""
    found = []
    rng = np.random.default_rng(0)
    for cue, part in frame.groupby("cue"):
        own, whole = part.option_kl.to_numpy(), part.kl.to_numpy()
        rows = rng.integers(0, len(own), (BOOTSTRAPS, len(own)))
        drawn = np.median(own[rows], axis=1) / np.median(whole[rows], axis=1)
        half = float(np.quantile(drawn, 0.975) - np.quantile(drawn, 0.025)) / 2
        ratio = float(np.median(own) / np.median(whole))
        names = [c.removeprefix("logp_other_") for c in map(str, part) if c.startswith("logp_other_")]
        same = agreement_without_habit(part, names)
        where = "asks for the letter" if cue == "cued" else "does not ask for the letter"
        facts = (
            f"options' rank {part.best_rank.median():.0f}, mass {part.option_mass.median():.2g}, right dense "
            f"{(part.choice == part.gold).mean():.2f}, {name} {(part.choice_other == part.gold).mean():.2f}"
        )
        found += [
            Claim(
                f"options/{cue}/kl_ratio",
                f"Among the options {name} changes less, where the prompt {where}: median KL over the options at most "
                "half of that over all tokens",
                (ratio,),
                half,
                ratio <= 0.5,
                facts,
            ),
            Claim(
                f"options/{cue}/agreement",
                "Both models choose the same option in at least 80 % of the questions, their habits for a letter taken "
                f"off, where the prompt {where}",
                (same,),
                1.96 * float(np.sqrt(same * (1 - same) / len(part))),
                same >= 0.8,
                f"with the habits {100 * part.agree.mean():.0f} %, but the dense model prefers one letter in "
                f"{100 * part.choice.value_counts(normalize=True).max():.0f} %",
            ),
        ]
    return found


def perplexity_claims(values: Mapping[str, float]) -> list[Claim]:
    """SparseGPT <= Wanda < magnitude, and 2:4 worse than unstructured."""
    found = []
    values = {without_calibration(name): value for name, value in values.items()}
    for pattern, what in (("50pct", "50 % unstructured"), ("2of4", "2:4")):
        names = [f"{method}-{pattern}" for method in ("sparsegpt", "wanda", "magnitude")]
        if all(name in values for name in names):
            a, b, c = (values[name] for name in names)
            text = f"Perplexity at {what}: SparseGPT at most Wanda, Wanda below magnitude"
            note = f"dense {values['dense']:.1f}, SparseGPT {a:.1f}, Wanda {b:.1f}, magnitude {c:.1f}"
            found.append(Claim(f"perplexity/{pattern}", text, (c / b,), 0.0, a <= b < c, note))
    pairs = [
        (method, values[f"{method}-2of4"] / values[f"{method}-50pct"])
        for method in ("sparsegpt", "wanda", "magnitude")
        if f"{method}-2of4" in values and f"{method}-50pct" in values
    ]
    if pairs:
        text = "2:4 costs more perplexity than unstructured at the same sparsity, for each method"
        note = ", ".join(f"{method} {ratio:.2f} times" for method, ratio in pairs)
        smallest = min(ratio for _, ratio in pairs)
        found.append(Claim("perplexity/pattern", text, (smallest,), 0.0, smallest > 1, note))
    return found


def retrieval_claims(frame: pd.DataFrame) -> list[Claim]:
    """Recall that a lightly compressed encoder keeps."""
    found = []
    dense = frame[frame.variant == "dense"].sort_values("question").found.to_numpy()
    for name, what in (("drop-attn-1", "one attention less"), ("wanda-30pct", "30 % Wanda")):
        part = frame[frame.variant == name].sort_values("question")
        kept, low, high = retention(part.found.to_numpy(), dense)
        found.append(
            Claim(
                f"retrieval/{name}",
                f"Retrieval survives: with {what} a sentence encoder keeps at least 90 % of its recall among ten",
                (kept,),
                (high - low) / 2,
                kept >= 0.9,
                f"recall {dense.mean():.3f} to {part.found.mean():.3f} on {len(part)} questions; median cosine of the "
                f"vectors {part.cos_h.median():.3f}",
            )
        )
    return found
