"""What the probes return: a pandas frame with one row a token, step or question, and its summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class LayerTable:
    """The layer-wise probe.

    Attributes:
        frame: a row for each layer, sublayer and token; columns `layer`, `sublayer`, `token` and those of
            `compare.STATE_COLUMNS` and `compare.LOGIT_COLUMNS`.
        mode: `dropped` (the sublayer is absent) or `pruned` (another model's, on the same dense input).
        temperature: of the probabilities.
        final_norm: whether states pass the model's last norm before the head.
    """

    frame: pd.DataFrame
    mode: str
    temperature: float
    final_norm: bool

    def to_pandas(self) -> pd.DataFrame:
        """The frame."""
        return self.frame

    def summary(self) -> pd.DataFrame:
        """Quantiles over tokens, a row for each sublayer and layer; `kl_q50` is the median KL.

        `parallel_*`: size of the change along the state against across it, in h: mean and median of the ratio, and
        ratio of the means.
        """
        groups = self.frame.groupby(["sublayer", "layer"], sort=True)
        columns = [name for name in self.frame if name not in ("layer", "sublayer", "token", "text")]
        parts = []
        for level in QUANTILES:
            part: pd.DataFrame = groups[columns].quantile(level)
            parts.append(part.add_suffix(f"_q{round(100 * level):02d}"))
        found = pd.concat(parts, axis=1)
        along, across = self.frame.alpha_h.abs(), self.frame.beta_h
        keys = [self.frame.sublayer, self.frame.layer]
        ratio = (along / across.clip(lower=1e-12)).groupby(keys)
        found["parallel_mean"], found["parallel_median"] = ratio.mean(), ratio.median()
        found["parallel_of_means"] = along.groupby(keys).mean() / across.groupby(keys).mean()
        return found.reset_index()


@dataclass(frozen=True)
class StepTable:
    """The decoding-time probe.

    Attributes:
        frame: a row for each prompt, step and mode (`free`: each model follows its own tokens; `forced`: both
            follow the dense model's); `agree` says whether both choose the same next token, `same_history` whether
            all tokens before were the same.
        temperature: of the probabilities, and of sampling where tokens are sampled.
        texts: per prompt, what the dense and the other model wrote.
    """

    frame: pd.DataFrame
    temperature: float
    texts: tuple[tuple[str, str], ...] = ()

    def to_pandas(self) -> pd.DataFrame:
        """The frame."""
        return self.frame

    def first_divergence(self) -> pd.Series:
        """Step of each prompt's first different token, free-running; the number of steps where none differs."""
        free = self.frame[self.frame["mode"] == "free"]
        steps = free.groupby("prompt").step.max() + 1
        apart = free[~free.agree].groupby("prompt").step.min()
        return apart.reindex(steps.index).fillna(steps).astype(int)

    def curves(self) -> pd.DataFrame:
        """Median over prompts and share of agreement, by mode and step."""
        groups = self.frame.groupby(["mode", "step"])
        columns = [name for name in ("cos_h", "cos_z", "cos_p", "kl", "kl_estimate") if name in self.frame]
        found = groups[columns].median()
        found["agree"] = groups.agree.mean()
        return found.reset_index()

    def summary(self) -> dict[str, float]:
        """Medians over all steps, by mode, and where the texts part."""
        result: dict[str, float] = {"first_divergence": float(np.median(self.first_divergence()))}
        for mode, part in self.frame.groupby("mode"):
            result |= {f"{mode}/agreement": float(part.agree.mean())}
            result |= {
                f"{mode}/{name}": float(part[name].median())
                for name in ("cos_h", "cos_z", "cos_p", "kl")
                if name in part
            }
        return result


@dataclass(frozen=True)
class OptionTable:
    """The option subspace at the answer's position.

    Attributes:
        frame: a row a question: global columns of `compare.LOGIT_COLUMNS`; the same restricted to the options and
            renormalised as `option_kl`, `option_kl_estimate`, `option_cos_p`, `option_cos_z`; `agree` (both
            models choose the same option), `choice`, `choice_other`, `option_mass` and `best_rank` (of the
            options in the dense model's p, 0 is the most probable token), and `logp_<option>`,
            `logp_other_<option>`.
        options: the strings.
        temperature: of the probabilities.
    """

    frame: pd.DataFrame
    options: tuple[str, ...]
    temperature: float

    def to_pandas(self) -> pd.DataFrame:
        """The frame."""
        return self.frame

    def summary(self) -> dict[str, float]:
        """Medians over questions, and shares of equal choices.

        `favourite_share`: of the questions in which the dense model chooses its most frequent option. Near 1, equal
        choices say nothing; `agreement_without_habit` still does.
        """
        f = self.frame
        return {
            "agreement": float(f.agree.mean()),
            "agreement_without_habit": agreement_without_habit(f, self.options),
            "favourite_share": float(f.choice.value_counts(normalize=True).max()),
            "kl": float(f.kl.median()),
            "option_kl": float(f.option_kl.median()),
            "option_kl_estimate": float(f.option_kl_estimate.median()),
            "cos_p": float(f.cos_p.median()),
            "option_cos_p": float(f.option_cos_p.median()),
            "option_mass": float(f.option_mass.median()),
            "best_rank": float(f.best_rank.median()),
        }


def agreement_without_habit(frame: pd.DataFrame, options: Sequence[str]) -> float:
    """Share of questions with equal choices when each model's mean preference for each option is taken off first.

    A small model may answer `A` to everything; what the question changes in its preferences is then compared.

    Args:
        frame: of an `OptionTable`.
        options: its strings.
    """
    chosen = []
    for prefix in ("logp_", "logp_other_"):
        values = frame[[f"{prefix}{option.strip()}" for option in options]].to_numpy()
        values = values - values.mean(axis=1, keepdims=True)
        chosen.append((values - values.mean(axis=0)).argmax(axis=1))
    return float((chosen[0] == chosen[1]).mean())
