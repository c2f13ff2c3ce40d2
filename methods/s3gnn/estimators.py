"""S3GNN as scikit-learn's kind of estimator, on lists of torch-geometric graphs."""

from __future__ import annotations

import copy
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, average_precision_score, r2_score
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch

from methods.common.checks import check_choice, check_number, check_whole
from methods.common.errors import ConfigError, DataError, NumericalError
from methods.s3gnn.baselines import Kind, build_model
from methods.s3gnn.network import Activation, GraphNetwork, Pool, Task
from methods.s3gnn.operator import P0, Components, OperatorCache
from methods.s3gnn.spectral import AddSpectralProjector
from methods.s3gnn.targets import (
    check_graphs,
    expected_rows,
    split_targets,
    target_rows,
    task_of,
)
from methods.s3gnn.weights import Constraint

Array = np.ndarray[Any, Any]
Self = TypeVar("Self", bound="GraphEstimator")
FORMAT = 1
SETTINGS, WEIGHTS = "estimator.json", "model.safetensors"


class GraphEstimator(BaseEstimator, ABC):
    """What regressor and classifier share: the settings, training, saving. Use those two.

    Batches are drawn once and their order anew each epoch, so that each batch's matrices are made once. Training stops
    when the validation loss has not fallen for `patience` epochs; the best epoch's weights stay.

    Args:
        kind: s3gnn, or one of its baselines, trained in the same way.
        task: node, graph or edge; auto tells from y and edge_label_index.
        hidden, num_layers, act, pool: see `S3GNN`.
        step_size, dissipation, use_p1, p0, tie, weight_param, components: see `S3GNNConv`. With use_p1 graphs without
            a spectral projector get one.
        epochs, patience: at most, and without progress.
        batch_size: graphs.
        learning_rate, weight_decay: of Adam; the alphas and biases are exempt from weight decay.
        validation: share of the training targets that decides when to stop, when no validation graphs are given.
        random_state: seed of weights, batches and split.
    """

    def __init__(
        self,
        *,
        kind: Kind = "s3gnn",
        task: Task | Literal["auto"] = "auto",
        hidden: int = 64,
        num_layers: int = 4,
        act: Activation = "relu",
        pool: Pool = "sum_max_mean",
        step_size: float = 0.2,
        dissipation: float = 0.05,
        use_p1: bool = False,
        p0: P0 = "mean",
        tie: bool = False,
        weight_param: Constraint = "antisymmetric",
        components: Components = "merge",
        epochs: int = 200,
        patience: int = 30,
        batch_size: int = 32,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-6,
        validation: float = 0.15,
        random_state: int = 0,
    ) -> None:
        self.kind = kind
        self.task = task
        self.hidden = hidden
        self.num_layers = num_layers
        self.act = act
        self.pool = pool
        self.step_size = step_size
        self.dissipation = dissipation
        self.use_p1 = use_p1
        self.p0 = p0
        self.tie = tie
        self.weight_param = weight_param
        self.components = components
        self.epochs = epochs
        self.patience = patience
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation = validation
        self.random_state = random_state

    model_: GraphNetwork
    task_: Task

    # What differs between the two.
    @abstractmethod
    def _learn_targets(self, rows: list[Tensor]) -> int:
        """Remembers the targets' form; the number of outputs."""

    @abstractmethod
    def _known(self, rows: Tensor) -> Tensor:
        """True for rows whose target is known."""

    @abstractmethod
    def _encode(self, rows: Tensor) -> Tensor:
        """Targets as the loss takes them."""

    @abstractmethod
    def _loss(self, outputs: Tensor, encoded: Tensor) -> Tensor:
        """Of outputs against encoded targets."""

    @abstractmethod
    def _decode(self, outputs: Tensor) -> Array:
        """Predictions out of outputs."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """What `save` keeps of the targets' form."""

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None:
        """The opposite of `_state`."""

    def fit(self: Self, graphs: Any, validation_graphs: Any = None) -> Self:
        """Train on graphs with targets y; NaN (regressor) and -1 (classifier) are targets that are not known.

        Args:
            graphs: `Data` objects, or one; float x `[N, F]`, edge_index, y, and edge_label_index for edge targets.
            validation_graphs: others that decide when to stop; None takes `validation` of the given targets.

        Raises:
            ConfigError: a setting out of bounds.
            DataError: graphs that do not fit, or too few targets.
            NumericalError: the loss left the finite numbers.
        """
        self._check_settings()
        listed = check_graphs(graphs, need_targets=True)
        self.channels_ = int(listed[0].x.shape[1])
        self.task_ = task_of(listed) if self.task == "auto" else self.task
        rows = target_rows(listed, self.task_)
        outputs = self._learn_targets(rows)
        known = [self._known(one) for one in rows]
        generator = np.random.default_rng(self.random_state)
        if validation_graphs is None:
            train, held = split_targets(listed, known, self.validation, generator)
            batches = self._batches(listed, rows, train, generator)
            tests = self._batches(listed, rows, held, generator)
        else:
            others = check_graphs(validation_graphs, need_targets=True, channels=self.channels_)
            other_rows = target_rows(others, self.task_)
            batches = self._batches(listed, rows, known, generator)
            tests = self._batches(others, other_rows, [self._known(one) for one in other_rows], generator)
        torch.manual_seed(self.random_state)
        self.outputs_ = outputs
        self.model_ = self._new_model()
        self._train(batches, tests, generator)
        return self

    def _check_settings(self) -> None:
        for name, least in (("epochs", 1), ("patience", 1), ("batch_size", 1), ("random_state", 0)):
            check_whole(name, getattr(self, name), least)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("weight_decay", self.weight_decay, least=0)
        check_number("validation", self.validation, above=0, below=1)
        check_choice("task", self.task, Literal["auto", "node", "graph", "edge"])
        if self.use_p1 and self.kind != "s3gnn":
            raise ConfigError(f"use_p1=True with kind {self.kind!r}: only s3gnn has a spectral branch")

    def _new_model(self) -> GraphNetwork:
        settings: dict[str, Any] = {"step_size": self.step_size, "dissipation": self.dissipation}
        if self.kind in ("s3gnn", "no_p0"):
            settings |= {"use_p1": self.use_p1, "p0": self.p0, "tie": self.tie}
            settings |= {"weight_param": self.weight_param, "components": self.components}
        shape = (self.channels_, self.hidden, self.outputs_, self.num_layers, self.task_, self.pool, self.act)
        return build_model(self.kind, *shape, **settings)

    def _prepared(self, data: Any) -> Any:
        """The graph with what the model reads and nothing else, in single precision."""
        kept = type(data)(x=data.x.float(), edge_index=data.edge_index, num_nodes=data.num_nodes)
        for name in ("edge_weight", "edge_label_index"):
            if name in data:
                kept[name] = data[name]
        if not self.use_p1:
            return kept
        if "spectral_index" not in data:
            return AddSpectralProjector(components=self.components)(kept)
        kept.spectral, kept.spectral_index = data.spectral.float(), data.spectral_index
        return kept

    def _batches(
        self, graphs: Sequence[Any], rows: list[Tensor], masks: list[Tensor], generator: np.random.Generator
    ) -> list[tuple[Any, Tensor, Tensor]]:
        """(batch, encoded targets, places of the known ones), graphs without any left out."""
        used = [place for place in range(len(graphs)) if bool(masks[place].any())]
        order = [used[i] for i in generator.permutation(len(used))]
        found = []
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            batch = Batch.from_data_list([self._prepared(graphs[place]) for place in part])
            mask = torch.cat([masks[place] for place in part])
            targets = self._encode(torch.cat([rows[place] for place in part])[mask])
            found.append((batch, targets, mask.nonzero().flatten()))
        return found

    def _train(
        self,
        batches: list[tuple[Any, Tensor, Tensor]],
        tests: list[tuple[Any, Tensor, Tensor]],
        generator: np.random.Generator,
    ) -> None:
        model = self.model_
        model.cache = OperatorCache(len(batches) + len(tests))
        optimiser = _optimiser(model, self.learning_rate, self.weight_decay)
        best, best_epoch, weights = math.inf, 0, copy.deepcopy(model.state_dict())
        self.history_: list[dict[str, float]] = []
        for epoch in range(self.epochs):
            model.train()
            total = 0.0
            for place in generator.permutation(len(batches)):
                batch, targets, places = batches[place]
                loss = self._loss(model.on(batch)[places], targets)
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
                total += float(loss.detach())
            held = self._held_loss(tests)
            self.history_.append({"train": total / len(batches), "validation": held})
            if not math.isfinite(total):
                break
            if held < best:
                best, best_epoch, weights = held, epoch, copy.deepcopy(model.state_dict())
            elif epoch - best_epoch >= self.patience:
                break
        if not math.isfinite(best):
            raise NumericalError(
                f"{self.kind}: the loss left the finite numbers; lower learning_rate {self.learning_rate:g} or "
                "step_size"
            )
        model.load_state_dict(weights)
        model.eval()
        model.cache = OperatorCache()
        self.validation_loss_, self.best_epoch_ = best, best_epoch

    def _held_loss(self, tests: list[tuple[Any, Tensor, Tensor]]) -> float:
        self.model_.eval()
        with torch.no_grad():
            sums = [float(self._loss(self.model_.on(b)[p], t)) * len(p) for b, t, p in tests]
        mean = sum(sums) / sum(len(p) for _, _, p in tests)
        return mean if math.isfinite(mean) else math.inf

    def outputs(self, graphs: Any) -> Tensor:
        """The model's numbers for every target, graph after graph, `[rows, outputs]`.

        Raises:
            NotFittedError: before `fit`.
            DataError: graphs that do not fit the training ones.
        """
        if not hasattr(self, "model_"):
            raise NotFittedError(f"{type(self).__name__} is not fitted; call fit first")
        listed = check_graphs(graphs, need_targets=False, channels=self.channels_)
        if self.task_ == "edge" and not all("edge_label_index" in data for data in listed):
            raise DataError("edge_label_index is missing; give the pairs of nodes to predict for")
        parts = []
        self.model_.eval()
        with torch.no_grad():
            for start in range(0, len(listed), self.batch_size):
                chosen = [self._prepared(data) for data in listed[start : start + self.batch_size]]
                parts.append(self.model_.on(Batch.from_data_list(chosen)))
        found = torch.cat(parts)
        assert len(found) == sum(expected_rows(data, self.task_) for data in listed)
        return found

    def predict(self, graphs: Any) -> Array:
        """Predictions for every target, graph after graph."""
        return self._decode(self.outputs(graphs))

    def _scored(self, graphs: Any) -> tuple[Tensor, Tensor]:
        """(true rows, outputs) where the truth is known. Raises DataError when it is nowhere."""
        found = self.outputs(graphs)
        rows = torch.cat(target_rows(check_graphs(graphs, need_targets=True), self.task_))
        mask = self._known(rows)
        if not bool(mask.any()):
            raise DataError("y: no target is known; nothing to score")
        return rows[mask], found[mask]

    def save(self, folder: str | Path) -> Path:
        """Writes estimator.json and model.safetensors; `load` reads them."""
        if not hasattr(self, "model_"):
            raise NotFittedError(f"{type(self).__name__} is not fitted; call fit first")
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        record = {
            "format": FORMAT,
            "estimator": type(self).__name__,
            "settings": self.get_params(),
            "channels": self.channels_,
            "outputs": self.outputs_,
            "task": self.task_,
            "validation_loss": self.validation_loss_,
            "state": self._state(),
        }
        (place / SETTINGS).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        save_file({k: v.contiguous() for k, v in self.model_.state_dict().items()}, place / WEIGHTS)
        return place

    @classmethod
    def load(cls: type[Self], folder: str | Path) -> Self:
        """A saved estimator.

        Raises:
            DataError: the folder holds none, or another kind.
        """
        place = Path(folder)
        try:
            record = json.loads((place / SETTINGS).read_text(encoding="utf-8"))
            weights = load_file(place / WEIGHTS)
            if record["format"] != FORMAT or record["estimator"] != cls.__name__:
                raise DataError(f"{place}: holds a {record['estimator']}, not a {cls.__name__}")
            found = cls(**record["settings"])
            found.channels_, found.outputs_, found.task_ = (
                record["channels"],
                record["outputs"],
                record["task"],
            )
            found.validation_loss_ = record["validation_loss"]
            found._restore(record["state"])
            found.model_ = found._new_model()
            found.model_.load_state_dict(weights)
        except DataError:
            raise
        except Exception as error:  # whatever a damaged file brings
            raise DataError(f"{place}: no saved {cls.__name__} ({type(error).__name__}: {error})") from error
        found.model_.eval()
        return found


def _optimiser(model: nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
    """Adam without decay on scalars and biases: alphas that decay would switch the global branch off."""
    plain = [p for name, p in model.named_parameters() if p.dim() == 0 or name.endswith("bias")]
    rest = [p for name, p in model.named_parameters() if not (p.dim() == 0 or name.endswith("bias"))]
    return torch.optim.Adam(
        [{"params": rest, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}], lr=rate
    )


class S3GNNRegressor(RegressorMixin, GraphEstimator):
    """Numbers of nodes, graphs or edges by S3GNN; several columns of y are learnt together, standardised.

    See `GraphEstimator` for the settings and `fit`.
    """

    def _learn_targets(self, rows: list[Tensor]) -> int:
        every = torch.cat([one.reshape(len(one), -1).double() for one in rows])
        finite = every.isfinite()
        if not bool(finite.any(0).all()):
            raise DataError("y: a column without any finite number; leave it out")
        count = finite.sum(0)
        mean = torch.where(finite, every, 0.0).sum(0) / count
        scale = (torch.where(finite, every - mean, 0.0) ** 2).sum(0).div(count).sqrt()
        self.mean_, self.scale_ = mean.float(), torch.where(scale > 0, scale, 1.0).float()
        self.flat_ = rows[0].dim() == 1
        return every.shape[1]

    def _known(self, rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), -1).isfinite().all(1)

    def _encode(self, rows: Tensor) -> Tensor:
        return (rows.reshape(len(rows), -1).float() - self.mean_) / self.scale_

    def _loss(self, outputs: Tensor, encoded: Tensor) -> Tensor:
        return F.mse_loss(outputs, encoded)

    def _decode(self, outputs: Tensor) -> Array:
        values: Array = (outputs * self.scale_ + self.mean_).numpy()
        return values[:, 0] if self.flat_ else values

    def score(self, graphs: Any, y: None = None, sample_weight: None = None) -> float:
        """R^2 over the known targets, columns averaged."""
        rows, outputs = self._scored(graphs)
        return float(
            r2_score(rows.reshape(len(rows), -1).numpy(), self._decode(outputs).reshape(len(rows), -1))
        )

    def _state(self) -> dict[str, Any]:
        return {"mean": self.mean_.tolist(), "scale": self.scale_.tolist(), "flat": self.flat_}

    def _restore(self, state: dict[str, Any]) -> None:
        self.mean_, self.scale_ = torch.tensor(state["mean"]), torch.tensor(state["scale"])
        self.flat_ = state["flat"]


class S3GNNClassifier(ClassifierMixin, GraphEstimator):
    """Classes of nodes, graphs or edges by S3GNN.

    y holds whole numbers, -1 where the class is not known; or 0 and 1 in several columns, each learnt by itself
    (multi-label). See `GraphEstimator` for the settings and `fit`.
    """

    def _learn_targets(self, rows: list[Tensor]) -> int:
        every = torch.cat(rows)
        self.multilabel_ = every.dim() == 2 and every.shape[1] > 1
        plain = every.double()
        if not bool(plain.isfinite().all()) or not bool((plain == plain.round()).all()):
            raise DataError("y: classes must be whole numbers, -1 where not known")
        if self.multilabel_:
            if not bool(((plain == 0) | (plain == 1) | (plain == -1)).all()):
                raise DataError("y of several columns: give 0 and 1 in each")
            self.classes_ = np.array([0, 1])
            return int(every.shape[1])
        found = every.reshape(-1).long()
        self.classes_ = torch.unique(found[found >= 0]).numpy()
        if len(self.classes_) < 2:
            raise DataError("y: fewer than two classes; nothing to tell apart")
        return len(self.classes_)

    def _known(self, rows: Tensor) -> Tensor:
        return (rows.reshape(len(rows), -1) >= 0).all(1)

    def _encode(self, rows: Tensor) -> Tensor:
        if self.multilabel_:
            return rows.float()
        values = rows.reshape(-1).long()
        classes = torch.as_tensor(self.classes_)
        places = torch.searchsorted(classes, values).clamp(max=len(classes) - 1)
        if not bool((classes[places] == values).all()):
            strange = values[classes[places] != values][0]
            raise DataError(f"y: class {int(strange)} of the validation graphs is in no training graph")
        return places

    def _loss(self, outputs: Tensor, encoded: Tensor) -> Tensor:
        if self.multilabel_:
            return F.binary_cross_entropy_with_logits(outputs, encoded)
        return F.cross_entropy(outputs, encoded)

    def _decode(self, outputs: Tensor) -> Array:
        if self.multilabel_:
            return (outputs > 0).long().numpy()
        found: Array = self.classes_[outputs.argmax(1).numpy()]
        return found

    def predict_proba(self, graphs: Any) -> Array:
        """Probability of each class `[rows, classes]`, or of each label."""
        outputs = self.outputs(graphs)
        found: Array = (outputs.sigmoid() if self.multilabel_ else outputs.softmax(1)).numpy()
        return found

    def score(self, graphs: Any, y: None = None, sample_weight: None = None) -> float:
        """Accuracy over the known targets; mean average precision over the labels of a multi-label task."""
        rows, outputs = self._scored(graphs)
        if self.multilabel_:
            return float(average_precision_score(rows.numpy(), outputs.sigmoid().numpy(), average="macro"))
        return float(accuracy_score(rows.reshape(-1).long().numpy(), self._decode(outputs)))

    def _state(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "multilabel": self.multilabel_}

    def _restore(self, state: dict[str, Any]) -> None:
        self.classes_, self.multilabel_ = np.array(state["classes"]), state["multilabel"]
