"""Data cleaning on tables, three levels: trust in sources, pretrained weights, fine-tuned weights.

    x_1  logits of one weight a source;
    x_2  multinomial logistic regression on all sources' rows, weighted by sigmoid(x_1), with mu / 2 |x_2|^2;
    x_3  the same model fine-tuned on the few trusted rows, with gamma / 2 |x_3 - x_2|^2;
    f_1  loss of x_3 on held-out trusted rows, with rho / 2 |x_1|^2.

Each agent holds its own part of all of them. Every lower level is strongly convex, so the centralised optimum is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from methods.common.checks import check_number, check_whole
from methods.common.errors import ConfigError, DataError
from methods.klevel_decentralized.problem import KLevelProblem, Level


@dataclass(frozen=True)
class DataCleaning:
    """The three-level problem with its data.

    Attributes:
        problem: of 3 levels.
        full: all data, one batch a level (validation, sources, trusted), with a leading axis of agents.
        batch: rows of each part that a sample draws.
    """

    problem: KLevelProblem
    full: list[Any]
    batch: int

    def sample(self, agent: int, generator: torch.Generator) -> list[Any]:
        """Rows of the agent, drawn with replacement, for each level."""
        found = []
        for part in self.full:
            rows = part["labels"].shape[1]
            chosen = torch.randint(rows, (min(self.batch, rows),), generator=generator)
            found.append({name: value[agent][chosen] for name, value in part.items()})
        return found

    def weights(self, x1: Tensor) -> Tensor:
        """(sources) the weight in 0 .. 1 that x_1 gives each source."""
        return torch.sigmoid(x1)


def data_cleaning(
    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    agents: int,
    classes: int,
    sources: int,
    *,
    mu: float = 0.05,
    gamma: float = 0.5,
    rho: float = 0.01,
    batch: int = 32,
    seed: int = 0,
) -> DataCleaning:
    """Share the rows out to agents at random and set the problem up.

    Args:
        parts: validation, sources' rows and trusted rows, each (rows [n, d] scaled, labels [n], source [n]); source
            counts for the sources' rows alone.
        agents: among whom the rows of each part are shared out evenly; up to agents - 1 rows are left over.
        classes: labels are 0 .. classes - 1.
        sources: source is 0 .. sources - 1.
        mu, gamma: strong convexity of pretraining, pull of fine-tuning to it.
        rho: keeps the logits finite.
        batch: rows that a sample draws of each part.
        seed: of the sharing.

    Raises:
        ConfigError: a number out of its bounds.
        DataError: rows, labels or sources that do not fit, are not finite, or fewer rows than agents.
    """
    for name, value, least in (("agents", agents, 1), ("classes", classes, 2), ("sources", sources, 1)):
        check_whole(name, value, least)
    check_whole("batch", batch, 1)
    for name, number in (("mu", mu), ("gamma", gamma)):
        check_number(name, number, above=0)
    check_number("rho", rho, least=0)
    if len(parts) != 3:
        raise ConfigError(f"parts: {len(parts)} of them; give validation, sources' rows and trusted rows")
    generator = np.random.default_rng(seed)
    names = ("validation", "sources", "trusted")
    full = [
        _shares(name, part, agents, classes, sources, generator)
        for name, part in zip(names, parts, strict=True)
    ]
    columns = {part["rows"].shape[-1] for part in full}
    if len(columns) != 1:
        raise DataError(
            f"rows have {sorted(columns)} columns; validation, sources and trusted rows need the same"
        )
    shape = {"weight": torch.zeros(columns.pop() - 1, classes), "bias": torch.zeros(1, classes)}

    def loss_of(x: dict[str, Tensor], part: Any) -> Tensor:
        logits = part["rows"][:, :-1] @ x["weight"] + part["rows"][:, -1:] * x["bias"]
        return cross_entropy(logits, part["labels"], reduction="none")

    def upper(x1: Tensor, rest: Any, part: Any) -> Tensor:
        return loss_of(rest[-1], part).mean() + 0.5 * rho * x1.square().sum()

    def pretrain(x1: Tensor, x2: dict[str, Tensor], part: Any) -> Tensor:
        # One-hot product: indexing by data does not vectorise over agents in second derivatives.
        trust = part["source_one_hot"] @ torch.sigmoid(x1)
        return (trust * loss_of(x2, part)).mean()

    def finetune(x2: dict[str, Tensor], x3: dict[str, Tensor], part: Any) -> Tensor:
        pull = sum((x3[name] - x2[name]).square().sum() for name in x3)
        return loss_of(x3, part).mean() + 0.5 * gamma * pull

    problem = KLevelProblem(sources, upper, [Level(shape, pretrain, mu=mu), Level(shape, finetune)])
    return DataCleaning(problem, full, batch)


def _shares(
    name: str,
    part: tuple[np.ndarray, np.ndarray, np.ndarray],
    agents: int,
    classes: int,
    sources: int,
    generator: np.random.Generator,
) -> dict[str, Tensor]:
    """One part as tensors with a leading axis of agents; a column of ones for the bias comes last."""
    rows, labels, source = (np.asarray(values) for values in part)
    if rows.ndim != 2 or not (len(rows) == len(labels) == len(source)):
        raise DataError(
            f"{name}: rows {rows.shape}, {len(labels)} labels, {len(source)} sources; give a label and a source a row"
        )
    if not np.isfinite(rows).all():
        raise DataError(f"{name}: rows hold values that are not finite; fill or drop them")
    for what, values, count in (("labels", labels, classes), ("source", source, sources)):
        if len(values) and not (
            np.issubdtype(values.dtype, np.integer) and 0 <= values.min() <= values.max() < count
        ):
            raise DataError(f"{name}: {what} must be whole numbers of 0 .. {count - 1}")
    share = len(rows) // agents
    if not share:
        raise DataError(f"{name}: {len(rows)} rows for {agents} agents; give each agent one at least")
    order = generator.permutation(len(rows))[: share * agents].reshape(agents, share)
    with_bias = np.concatenate([rows, np.ones((len(rows), 1))], 1).astype(np.float64)
    return {
        "rows": torch.from_numpy(with_bias[order]),
        "labels": torch.from_numpy(labels[order].astype(np.int64)),
        "source_one_hot": torch.from_numpy(np.eye(sources)[source[order]]),
    }
