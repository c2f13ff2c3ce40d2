"""One model on a person's graphs: learning rates tried on the first seed, every seed scored on held-out targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score, r2_score
from torch_geometric.data import Data

from methods.common.errors import DataError
from methods.s3gnn.estimators import GraphEstimator, S3GNNClassifier, S3GNNRegressor
from methods.s3gnn.sensitivity import sensitivity_by_distance
from tasks.graphs.build import load_graphs
from tasks.graphs.config import Kind, TrainGraphSettings
from tasks.reference import Reference

MODEL, PREDICTIONS, FACTS = "model", "predictions.csv", "facts.json"
WHOLE_GRAPHS = 10
SENSITIVITY_NODES = 400
SPLIT_SEED = 0


def train_model(out: Path, *, kind: Kind, settings: TrainGraphSettings, graphs: Reference) -> dict[str, Any]:
    """Train, score, predict every row; writes the model of the best seed, predictions and facts.

    Raises:
        DataError: too few known targets for a test part.
    """
    torch.set_num_threads(1)
    held, record, names = load_graphs(graphs.expect("data"))
    masks = test_masks(held, settings.test)
    is_class = bool(record["classes"])
    train = [_hidden(one, mask, is_class) for one, mask in zip(held, masks, strict=True)]
    tried = [_fit(kind, rate, settings.seeds[0], settings, train, record) for rate in settings.learning_rates]
    first = min(tried, key=lambda model: model.validation_loss_)
    rate = first.learning_rate
    fitted = [first, *(_fit(kind, rate, seed, settings, train, record) for seed in settings.seeds[1:])]
    scores = [_score(model, held, masks, is_class) for model in fitted]
    best = min(fitted, key=lambda model: model.validation_loss_)
    best.save(out / MODEL)
    _predictions(best, held, masks, names, record["classes"]).to_csv(out / PREDICTIONS, index=False)
    facts = {
        "kind": kind,
        "rate": rate,
        "parameters": best.model_.parameter_count(),
        "scores": scores,
        "validation": [model.validation_loss_ for model in fitted],
        "sensitivity": _sensitivity(best, held),
        "test": int(sum(int(mask.sum()) for mask in masks)),
    }
    (out / FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return facts


def test_masks(graphs: list[Data], share: float) -> list[torch.Tensor]:
    """Which known targets only score: those of whole graphs where there are ten or more, single ones else.

    The same for every model and seed.

    Raises:
        DataError: too few known targets.
    """
    generator = np.random.default_rng(SPLIT_SEED)
    known = [one.y.reshape(len(one.y), -1).isfinite().all(1) for one in graphs]
    usable = [place for place, mask in enumerate(known) if bool(mask.any())]
    if len(usable) >= WHOLE_GRAPHS:
        chosen = set(generator.permutation(usable)[: max(1, round(share * len(usable)))].tolist())
        return [mask & (place in chosen) for place, mask in enumerate(known)]
    flat = torch.cat(known)
    places = generator.permutation(flat.nonzero().flatten().numpy())
    taken = places[: max(1, round(share * len(places)))]
    if len(places) - len(taken) < 4:
        raise DataError(f"y: {len(places)} known targets are too few to train, stop and test on; give more")
    held = torch.zeros_like(flat)
    held[torch.as_tensor(taken)] = True
    return list(held.split([len(mask) for mask in known]))


def _hidden(data: Data, mask: torch.Tensor, is_class: bool) -> Data:
    """The graph with the test targets unknown to whoever trains."""
    shown = data.clone()
    y = data.y.clone()
    y[mask] = torch.nan
    shown.y = torch.where(y.isfinite(), y, -1).long() if is_class else y
    return shown


def _fit(
    kind: Kind,
    rate: float,
    seed: int,
    settings: TrainGraphSettings,
    train: list[Data],
    record: dict[str, Any],
) -> GraphEstimator:
    make = S3GNNClassifier if record["classes"] else S3GNNRegressor
    model = make(
        kind=kind,
        task=record["level"],
        use_p1=settings.use_p1 and kind == "s3gnn",
        hidden=settings.hidden,
        num_layers=settings.layers,
        act=settings.act,
        epochs=settings.epochs,
        patience=settings.patience,
        batch_size=settings.batch_size,
        learning_rate=rate,
        random_state=seed,
    )
    return model.fit(train)


def _score(model: Any, graphs: list[Data], masks: list[torch.Tensor], is_class: bool) -> dict[str, float]:
    mask = torch.cat(masks).numpy()
    truth = torch.cat([one.y for one in graphs]).numpy()[mask]
    found = model.predict(graphs)[mask]
    if is_class:
        truth = truth.reshape(-1).astype(int)
        return {
            "accuracy": float(accuracy_score(truth, found)),
            "macro_f1": float(f1_score(truth, found, average="macro")),
        }
    error = float(np.sqrt(np.mean((found - truth) ** 2)))
    scores = {"rmse": error, "mae": float(np.mean(np.abs(found - truth)))}
    return scores | ({"r2": float(r2_score(truth, found))} if len(truth) > 1 else {})


def _predictions(
    model: Any, graphs: list[Data], masks: list[torch.Tensor], names: Any, classes: list[str]
) -> Any:
    """Every row with its name, part (train, test, or unknown), target and prediction."""
    truth = torch.cat([one.y for one in graphs]).numpy()
    known = np.isfinite(truth.reshape(len(truth), -1)).all(1)
    found = model.predict(graphs)
    table = names.copy()
    table["part"] = np.where(torch.cat(masks).numpy(), "test", np.where(known, "train", "unknown"))
    if classes:
        labels = np.array([*classes, ""], dtype=object)
        table["target_value"] = labels[np.where(known, np.nan_to_num(truth.reshape(-1)), -1).astype(int)]
        table["prediction"] = labels[found]
        table["probability"] = model.predict_proba(graphs).max(1).round(6)
        return table
    columns = found.reshape(len(found), -1)
    for i in range(columns.shape[1]):
        end = f"_{i}" if columns.shape[1] > 1 else ""
        table[f"target_value{end}"] = truth.reshape(len(truth), -1)[:, i]
        table[f"prediction{end}"] = columns[:, i]
    return table


def _sensitivity(model: Any, graphs: list[Data]) -> dict[str, float]:
    """How strongly nodes at each distance act on one another, on the first graph that is small enough; else empty."""
    for data in graphs:
        if 2 <= int(data.num_nodes) <= SENSITIVITY_NODES and data.num_edges:
            curve = sensitivity_by_distance(model.model_, model._prepared(data), [0])
            return {str(hop): value for hop, value in curve.items()}
    return {}
