"""Which examples are hard, when they dominate training, and which the merge forgets (section 2.3).

EL2N (Paul, Ganguli, Dziugaite 2021): d_i = mean over K seeds of || softmax(f(x_i)) - onehot(y_i) ||_2, in
[0, sqrt 2], with f trained for a few steps only. Scores from the end of training would be circular.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError
from methods.merge_early_stop.experts import (
    LogitsFn,
    Split,
    TaskSplits,
    default_logits,
    default_loss,
    predictions,
    split_size,
    take_batch,
    train_experts,
)
from methods.merge_early_stop.stopper import evaluation_mode


def el2n_scores(logits: Tensor, labels: Tensor, classes: Sequence[int] | None = None) -> Tensor:
    """|| softmax(logits) - onehot(label) ||_2 of each example.

    Args:
        logits: `[n, C]`, or `[n, tokens, C]` for teacher-forced text.
        labels: `[n]`, or `[n, tokens]` with -100 where there is no target; the result is then the mean over
            targets.
        classes: restrict the vocabulary to these columns (label words) before the softmax; labels are columns
            of the full vocabulary.

    Returns: `[n]` float64 in [0, sqrt 2].

    Errors: `DataError` for a label outside the classes or no target.
    """
    if classes is not None:
        place = torch.full((logits.shape[-1],), -1, dtype=torch.long)
        place[torch.as_tensor(classes)] = torch.arange(len(classes))
        logits = logits[..., torch.as_tensor(classes)]
        labels = torch.where(labels >= 0, place[labels.clamp_min(0)], labels)
        if bool((labels == -1).any()):
            raise DataError("a label is not among the given classes")
    target = labels != -100
    if bool(((labels < 0) | (labels >= logits.shape[-1]))[target].any()):
        raise DataError(f"labels must be in 0..{logits.shape[-1] - 1}")
    error = logits.double().softmax(-1)
    error = error - F.one_hot(labels.clamp_min(0), logits.shape[-1])
    norms = error.norm(dim=-1).clamp_max(math.sqrt(2.0))
    if labels.dim() == 1:
        return norms
    counts = target.sum(dim=1)
    if bool((counts == 0).any()):
        raise DataError("an example has no target token")
    return (norms * target).sum(dim=1) / counts


def el2n(
    model_factory: Callable[[int], nn.Module],
    dataset: Split,
    *,
    step: int = 32,
    seeds: int | Sequence[int] = 5,
    lr: float = 1e-3,
    batch_size: int = 64,
    train: Callable[[nn.Module, Split, int, int], nn.Module] | None = None,
    loss_fn: Callable[[nn.Module, Any], Tensor] = default_loss,
    logits_fn: LogitsFn = default_logits,
) -> Tensor:
    """Difficulty `[n]` of each training example: the mean score over seeds, each after `step` steps from the
    base.

    Args:
        model_factory: seed -> theta_0, with what is frozen marked by `requires_grad`.
        seeds: how many (0, 1, ...) or which. One seed is noise: the original uses ten.
        train: `(model, dataset, step, seed) -> model`; None trains with AdamW as `train_experts` does.
    """
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen or step < 1:
        raise ConfigError(f"seeds={seeds} and step={step} must be at least 1")
    total = torch.zeros(split_size(dataset), dtype=torch.float64)
    for seed in chosen:
        model = model_factory(seed)
        if train is not None:
            model = train(model, dataset, step, seed)
        else:
            bank = train_experts(
                model, {"difficulty": TaskSplits(dataset)}, steps=[step], seeds=[seed], lr=lr, batch_size=batch_size,
                loss_fn=loss_fn,
            )  # fmt: skip
            model = bank.model(next(iter(bank.weights)))
        total += el2n_scores(*predictions(model, dataset, logits_fn=logits_fn))
    return total / len(chosen)


def difficulty_bins(difficulty: Tensor, bins: int = 10) -> Tensor:
    """Bin `[n]` of each example, 0 (easiest) to bins - 1: equal sizes by rank, ties by index."""
    if not 1 <= bins <= len(difficulty):
        raise ConfigError(f"bins={bins} must be between 1 and the number of examples, {len(difficulty)}")
    if not bool(torch.isfinite(difficulty).all()):
        raise DataError("the difficulty has NaN or infinite entries")
    order = torch.argsort(difficulty, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return rank * bins // len(order)


def bin_statistics(
    model: nn.Module,
    dataset: Split,
    difficulty: Tensor,
    *,
    bins: int = 10,
    gradient: str = "none",
    features_fn: Callable[[nn.Module, Tensor], Tensor] | None = None,
    subset: int = 256,
    logits_fn: LogitsFn = default_logits,
) -> pd.DataFrame:
    """What each difficulty bin does to training at this checkpoint.

    Args:
        gradient: `none`; `last_layer`: exact squared gradient norm of the last linear layer with bias,
            ||p - y||^2 (||h||^2 + 1), with h from `features_fn(model, inputs)`; `full`: per-sample gradients
            of all trainable parameters on `subset` examples spread evenly over the data.

    Returns: one row a bin: `bin, n, accuracy, mean_loss, loss_share`, and `gradient_share` if asked for.
    Shares sum to 1.
    """
    logits, labels = predictions(model, dataset, logits_fn=logits_fn)
    loss = F.cross_entropy(logits.double(), labels, reduction="none")
    where = difficulty_bins(difficulty, bins)
    frame = pd.DataFrame({
        "bin": range(bins), "n": _count(where, bins),
        "accuracy": _mean((logits.argmax(1) == labels).double(), where, bins), "mean_loss": _mean(loss, where, bins),
        "loss_share": _share(loss, where, bins),
    })  # fmt: skip
    if gradient == "last_layer":
        if features_fn is None:
            raise ConfigError("gradient='last_layer' needs features_fn, the inputs of the last layer")
        with evaluation_mode(model):
            hidden = torch.cat([
                features_fn(model, take_batch(dataset, i)[0]) for i in torch.arange(len(labels)).split(1024)
            ])  # fmt: skip
        squares = el2n_scores(logits, labels).square() * (hidden.double().square().sum(1) + 1)
        frame["gradient_share"] = _share(squares, where, bins)
    elif gradient == "full":
        chosen = torch.linspace(0, len(labels) - 1, min(subset, len(labels))).long()
        frame["gradient_share"] = _share(
            per_sample_gradient_squares(model, dataset, chosen), where[chosen], bins
        )
    elif gradient != "none":
        raise ConfigError(f"gradient={gradient!r} must be 'none', 'last_layer' or 'full'")
    return frame


def per_sample_gradient_squares(model: nn.Module, dataset: Split, index: Tensor) -> Tensor:
    """||d loss_i / d theta||^2 `[len(index)]` over the trainable parameters, by torch.func.

    The data set must consist of (inputs, labels).
    """
    trainable = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    rest = {
        n: t.detach() for n, t in (*model.named_parameters(), *model.named_buffers()) if n not in trainable
    }

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = torch.func.functional_call(model, {**parameters, **rest}, (x[None],))
        return F.cross_entropy(out, y[None])

    gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    was_training = model.training
    model.eval()
    result = []
    for part in index.split(64):
        x, y = take_batch(dataset, part)
        grads = gradient(trainable, x, y)
        result.append(sum(g.double().flatten(1).square().sum(1) for g in grads.values()))
    model.train(was_training)
    return torch.cat([torch.as_tensor(r) for r in result])


def _count(where: Tensor, bins: int) -> np.ndarray:
    return torch.bincount(where, minlength=bins).numpy()


def _mean(values: Tensor, where: Tensor, bins: int) -> np.ndarray:
    total = torch.bincount(where, weights=values, minlength=bins)
    return (total / torch.bincount(where, minlength=bins).clamp_min(1)).numpy()


def _share(values: Tensor, where: Tensor, bins: int) -> np.ndarray:
    total = torch.bincount(where, weights=values.double(), minlength=bins)
    return (total / total.sum().clamp_min(torch.finfo(torch.float64).tiny)).numpy()


def forgetting_rates(
    expert_correct: Tensor,
    merged_correct: Tensor,
    difficulty: Tensor,
    bins: int = 10,
    flipped: Tensor | None = None,
) -> pd.DataFrame:
    """Forgetting by difficulty bin: |correct by the expert, wrong by the merge| / |correct by the expert|.

    All `[n]`; `flipped` marks examples with an injected wrong label. One row a bin: `bin, n, memorised,
    forgotten, forgetting_rate` (NaN where nothing was memorised), and `flipped, flipped_memorised,
    flipped_forgotten`.
    """
    where = difficulty_bins(difficulty, bins)
    lost = expert_correct & ~merged_correct

    def count(mask: Tensor) -> np.ndarray:
        return torch.bincount(where[mask], minlength=bins).numpy()

    memorised, forgotten = count(expert_correct), count(lost)
    frame = pd.DataFrame(
        {"bin": range(bins), "n": _count(where, bins), "memorised": memorised, "forgotten": forgotten}
    )
    frame["forgetting_rate"] = np.divide(forgotten, memorised, out=np.full(bins, np.nan), where=memorised > 0)
    if flipped is not None:
        frame["flipped"] = count(flipped)
        frame["flipped_memorised"] = count(flipped & expert_correct)
        frame["flipped_forgotten"] = count(flipped & lost)
    return frame


def forgetting_report(
    experts: Mapping[str, nn.Module],
    merged: nn.Module,
    data: Mapping[str, Split],
    difficulty: Mapping[str, Tensor],
    *,
    bins: int = 10,
    flipped: Mapping[str, Tensor] | None = None,
    logits_fn: LogitsFn = default_logits,
) -> pd.DataFrame:
    """`forgetting_rates` of every task on its training data, with a column `task`, and a block `task = "all"`
    with sums.

    `ConfigError` when the mappings do not have the same tasks.
    """
    if not (set(experts) == set(data) == set(difficulty)):
        raise ConfigError("experts, data and difficulty must have the same tasks")
    frames = []
    for task, expert in experts.items():
        own, labels = predictions(expert, data[task], logits_fn=logits_fn)
        joint, _ = predictions(merged, data[task], logits_fn=logits_fn)
        frame = forgetting_rates(
            own.argmax(1) == labels, joint.argmax(1) == labels, difficulty[task], bins,
            None if flipped is None else flipped[task],
        )  # fmt: skip
        frames.append(frame.assign(task=task))
    together = pd.concat(frames, ignore_index=True)
    summed = together.drop(columns=["task", "forgetting_rate"]).groupby("bin", as_index=False).sum()
    memorised = summed["memorised"].to_numpy()
    summed["forgetting_rate"] = np.divide(
        summed["forgotten"].to_numpy(), memorised, out=np.full(bins, np.nan), where=memorised > 0
    )
    return pd.concat([together, summed.assign(task="all")], ignore_index=True)
