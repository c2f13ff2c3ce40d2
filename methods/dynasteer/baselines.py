"""What DynaSteer is held against: CAA, ITI, constant steering, a control vector, self-consistency.

Each is an edit for `Policy(edit=..., scope="always")`; self-consistency counts votes of plain answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from methods.common.errors import ConfigError, DataError
from methods.dynasteer.directions import context_differences, unit
from methods.dynasteer.edits import HeadEdit, ResidualEdit
from methods.dynasteer.heads import HeadActivations
from methods.dynasteer.steering import DynaSteer


def fit_caa(activations: HeadActivations, layer: int, multiplier: float = 1.0) -> ResidualEdit:
    """Contrastive activation addition: v_l = mean(h_l | Truth) - mean(h_l | Fallacy), added to every generated token.

    Args:
        activations: captured with `hidden=True`.
        layer: block after which the vector is added.
        multiplier: times the difference of means.

    Raises:
        DataError: no residual stream was captured. ConfigError: the layer does not exist.
    """
    hidden = _hidden(activations, layer)
    labels = torch.from_numpy(np.asarray(activations.labels))
    v = hidden[labels == 1].mean(0) - hidden[labels == 0].mean(0)
    return ResidualEdit(torch.tensor([layer]), v[None], multiplier)


def fit_control_vector(activations: HeadActivations, layer: int, multiplier: float = 1.0) -> ResidualEdit:
    """Control vector (RepE): first principal component of the contexts' differences, towards Truth, of CAA's length."""
    hidden = _hidden(activations, layer).numpy()
    labels, groups = np.asarray(activations.labels), np.asarray(activations.groups)
    _, differences = context_differences(hidden, labels, groups)
    v = np.linalg.svd(differences, full_matrices=False)[2][0]
    mean = hidden[labels == 1].mean(0) - hidden[labels == 0].mean(0)
    v = unit(v) * np.linalg.norm(mean) * (1.0 if v @ mean >= 0 else -1.0)
    return ResidualEdit(torch.tensor([layer]), torch.from_numpy(v[None]).float(), multiplier)


def _hidden(activations: HeadActivations, layer: int) -> torch.Tensor:
    if activations.hidden is None:
        raise DataError("activations: hold no residual stream; capture them with hidden=True")
    if not 0 <= layer < activations.hidden.shape[1]:
        raise ConfigError(f"layer={layer}: the model has {activations.hidden.shape[1]} blocks; count from 0")
    return activations.hidden[:, layer]


def fit_iti(
    activations: HeadActivations,
    n_heads: int = 48,
    alpha: float = 15.0,
    direction: Literal["mean", "probe"] = "mean",
    seed: int = 42,
) -> HeadEdit:
    """Inference-time intervention: z <- z + alpha sigma theta in the best heads by probe accuracy, at every token.

    Args:
        activations: of labelled forks.
        n_heads, alpha: the reference's are 48 and 15.
        direction: theta, "mean" (difference of means) or "probe" (the probe's weights); sigma is the spread of all
            samples along it.
        seed: of the split that heads are ranked on.
    """
    if direction not in ("mean", "probe"):
        raise ConfigError(f"direction={direction!r} is not known; give 'mean' or 'probe'")
    fitted = DynaSteer(
        n_clusters=1, n_heads=n_heads, alpha=alpha, alpha_unit="sigma", direction=direction, random_state=seed
    )
    d = fitted.fit(activations).directions_
    states = activations.z[:, d.layers, d.heads].float()
    sigma = torch.einsum("nkd,kmd->nkm", states, d.w).std(0, unbiased=False)
    return HeadEdit(replace(d, sigma=sigma), alpha, "sigma", "sum", constant=True)


def majority(answers: Sequence[str | None]) -> str | None:
    """The most frequent answer; of equally frequent ones the first. Answers that are None have no vote."""
    votes = Counter(answer for answer in answers if answer is not None)
    return votes.most_common(1)[0][0] if votes else None


def self_consistency(
    answers: Sequence[Sequence[str | None]], rights: Sequence[str], samples: int, extra_cost: float
) -> tuple[np.ndarray, float]:
    """Votes of plain answers at a given mean cost.

    A share of the questions gets `samples` votes and the rest one answer, so that the mean number of answers is
    `1 + extra_cost`; the share is of the questions in expectation, so no question is singled out.

    Args:
        answers: for each question its answers, at least `samples`.
        rights: the right answers.
        samples: votes of a question that is asked again, 3 or more.
        extra_cost: further answers a question, on average, from 0 to `samples` - 1.

    Returns:
        expected correctness of each question [n], and the share that votes.
    """
    if samples < 3:
        raise ConfigError(f"samples={samples}: fewer than 3 answers have no majority")
    if not 0 <= extra_cost <= samples - 1:
        raise ConfigError(f"extra_cost={extra_cost} is not in [0, {samples - 1}]; raise samples")
    share = extra_cost / (samples - 1)
    one = np.array([float(given[0] == right) for given, right in zip(answers, rights, strict=True)])
    voted = np.array(
        [float(majority(given[:samples]) == right) for given, right in zip(answers, rights, strict=True)]
    )
    return (1 - share) * one + share * voted, share
