"""One run of the study: a model on a task with a seed and a learning rate, scored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data

from methods.s3gnn.baselines import build_model
from methods.s3gnn.estimators import GraphEstimator, S3GNNClassifier, S3GNNRegressor
from methods.s3gnn.model import S3GNN
from methods.s3gnn.sensitivity import cancellation, jacobian_sensitivity, sensitivity_by_distance
from methods.s3gnn.study_data import PLANS, TaskData, rollout_error, task_data
from methods.s3gnn.weights import Constraint

RATES = (3e-3, 1e-2)
HIDDEN = {"small": 32, "full": 64}
MODELS = (
    "s3gnn",
    "s3gnn_p1",
    "no_p0",
    "gcn",
    "gcn_vn",
    "gin",
    "gat",
    "cheb",
    "gps",
    "adgn",
    "swan",
)
EXTRA = ("stable_cheb", "mlp")  # beside those on the barbell, and everywhere in the full profile
# Two tasks that ask one question each: in the default profile with the models that it is about.
FEW = {
    "routing": ("s3gnn", "s3gnn_p1", "no_p0", "gcn", "gcn_vn", "gps"),
    "payload_far": ("s3gnn", "no_p0", "gcn", "gcn_vn", "cheb", "gps"),
}
LAW_SIZES = (16, 32, 64, 128, 256)
LAW_CHANNELS = 32


@dataclass(frozen=True)
class Run:
    """A model on a task with a seed and a learning rate; `full` takes the larger sizes."""

    task: str
    model: str
    seed: int
    rate: float
    full: bool = False


def models_of(task: str, full: bool, chosen: Sequence[str]) -> list[str]:
    """The models that a task compares."""
    every = (*MODELS, *EXTRA) if full or task == "barbell" else MODELS
    return [name for name in (every if full else FEW.get(task, every)) if name in chosen]


def estimator(run: Run, task: TaskData) -> GraphEstimator:
    """What is trained for a run: every model with the same width, depth, steps and batches."""
    plan = PLANS[run.task]
    epochs = plan.full_epochs if run.full else plan.epochs
    kind: Any = "s3gnn" if run.model == "s3gnn_p1" else run.model
    make = S3GNNClassifier if task.classes else S3GNNRegressor
    return make(
        kind=kind,
        use_p1=run.model == "s3gnn_p1",
        hidden=HIDDEN["full" if run.full else "small"],
        num_layers=plan.layers,
        epochs=epochs,
        patience=epochs,
        batch_size=plan.batch,
        learning_rate=run.rate,
        random_state=run.seed,
    )


def score_run(run: Run, folder: Path) -> dict[str, Any]:
    """Do one run.

    Args:
        run: what to do.
        folder: of the stored flows, for the task mesh.

    Returns:
        the run, `value` of its metric, the validation loss, parameters, `seconds` of processor time, and what the task
        gives besides: the sensitivity at each distance, the rollout's error.
    """
    task = task_data(run.task, run.seed, run.full, folder)
    started = time.process_time()
    model = estimator(run, task).fit(task.train, task.valid)
    seconds = time.process_time() - started
    row = {
        **asdict(run),
        **_values(run.task, model, task),
        "valid": model.validation_loss_,
        "best_epoch": model.best_epoch_,
        "parameters": model.model_.parameter_count(),
        "seconds": seconds,
    }
    if run.task == "payload":
        row |= _far(model, task)
    if run.task == "mesh":
        trajectories = slice(-(PLANS["mesh"].full if run.full else PLANS["mesh"].sizes)[2], None)
        row["rollout"] = rollout_error(model.predict, folder, trajectories)
    return row


def _values(task: str, model: Any, data: TaskData) -> dict[str, float]:
    """`value`, the task's metric on its test part; log10_mse is that of raw hop counts, hops also gives each."""
    metric = PLANS[task].metric
    if metric == "accuracy":
        return {"value": model.score(data.test)}
    if metric == "hits":
        return {"value": _hits(model, data.test)}
    truth = torch.cat([d.y for d in data.test]).numpy()
    squares = (model.predict(data.test) - truth) ** 2
    if task == "hops":
        each = np.log10(squares.mean(0))
        return {"value": float(each.mean()), "eccentricity": float(each[0]), "sssp": float(each[1])}
    error = float(squares.mean())
    return {
        "value": {"mse": error, "log10_mse": float(np.log10(error)), "rmse": float(np.sqrt(error))}[metric]
    }


def _hits(model: Any, graphs: list[Data]) -> float:
    """Share of the questions whose highest-ranked entity is an answer."""
    outputs = model.outputs(graphs)
    margins = (outputs[:, 1] - outputs[:, 0]).numpy()
    parts = np.split(margins, np.cumsum([d.num_nodes for d in graphs])[:-1])
    best = [np.where(d.y.numpy() >= 0, part, -np.inf).argmax() for d, part in zip(graphs, parts, strict=True)]
    return float(np.mean([float(d.y[place] == 1) for d, place in zip(graphs, best, strict=True)]))


def _far(model: GraphEstimator, task: TaskData) -> dict[str, Any]:
    """The trained model's sensitivity at each distance, and how near its global responses come to cancelling."""
    curves = []
    for data in task.test[:1]:
        prepared = model._prepared(data)
        source = int(data.x[:, 0].argmax())
        curves.append(list(sensitivity_by_distance(model.model_, prepared, [source]).values()))
    found: dict[str, Any] = {"curve": np.mean(curves, 0).tolist()}
    if isinstance(model.model_, S3GNN):
        found["cancellation"] = cancellation(model.model_, None)
        found["abscissa"] = model.model_.spectral_abscissa()
        found["alphas"] = model.model_.alphas().tolist()
    return found


def law_rows(seed: int) -> list[dict[str, Any]]:
    """Sensitivity of antipodal nodes of rings at random initial weights, 4 layers and N/2 layers (up to N = 64)."""
    rows = []
    for size in LAW_SIZES:
        for model in ("s3gnn", "no_p0", "gcn", "gcn_vn"):
            for depth in ("four", "half"):
                if depth == "half" and size > 64:
                    continue
                layers = 4 if depth == "four" else size // 2
                value = _antipodal(model, size, layers, seed)
                rows.append(
                    {"model": model, "size": size, "depth": depth, "seed": seed, "sensitivity": value}
                )
    return rows


def _antipodal(kind: Any, size: int, layers: int, seed: int) -> float:
    torch.manual_seed(seed)
    data = Data(x=torch.randn(size, LAW_CHANNELS, dtype=torch.float64), edge_index=_ring(size))
    model: Any = build_model(kind, LAW_CHANNELS, LAW_CHANNELS, 1, layers, act="tanh").double()
    model.encoder = torch.nn.Identity()
    return float(jacobian_sensitivity(model, data, [0], [size // 2])[0, 0])


def _ring(size: int) -> torch.Tensor:
    pairs = np.array(nx.cycle_graph(size).edges).T
    return torch.as_tensor(np.concatenate([pairs, pairs[::-1]], 1))


def depth_row(weight: Constraint, tie: bool, seed: int) -> dict[str, Any]:
    """Growth of the nodes' vectors over 64 untrained ReLU layers on a ring of 32; None when not finite."""
    torch.manual_seed(seed)
    data = Data(x=torch.randn(32, LAW_CHANNELS), edge_index=_ring(32))
    model = S3GNN(LAW_CHANNELS, LAW_CHANNELS, 1, 64, act="relu", weight_param=weight, tie=tie)
    with torch.no_grad():
        start = model.encoder(data.x).norm()
        ratio = float(model.embed(data.x, data.edge_index).norm() / start)
    return {"weight": weight, "tie": tie, "seed": seed, "ratio": ratio if np.isfinite(ratio) else None}


def constraint_row(weight: Constraint, seed: int, rate: float, folder: Path) -> dict[str, Any]:
    """The barbell with another constraint of the weights: the paper's ablation."""
    task = task_data("barbell", seed, False, folder)
    model = estimator(Run("barbell", "s3gnn", seed, rate), task).set_params(weight_param=weight)
    model.fit(task.train, task.valid)
    found = _values("barbell", model, task)
    return {"weight": weight, "seed": seed, "rate": rate, **found, "valid": model.validation_loss_}
