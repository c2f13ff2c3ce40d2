"""Fit a potential to energies, forces, stress and tensors, with resumption after a kill."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from methods.common.checks import check_choice, check_number, check_whole
from methods.common.errors import ConfigError, DataError, NumericalError
from methods.tace.config import TENSOR_RANKS, PotentialConfig
from methods.tace.frames import KEYS, element_shares, labelled_graphs
from methods.tace.graphs import batch_of
from methods.tace.models import build_potential
from methods.tace.potential import Potential

Graph = dict[str, Tensor]
Loss = Literal["mse", "huber"]
HUBER = 0.01


@dataclass(frozen=True)
class TrainingConfig:
    """How a potential is fitted.

    Attributes:
        epochs: over the training set.
        batch_size: structures a step.
        learning_rate: of Adam, falling to zero along a cosine.
        energy_weight, forces_weight, stress_weight, tensor_weight: of the terms of the loss; energies are taken per
            atom, energies and forces in units of the RMS force, stress and tensors in units of their own RMS.
        loss: "mse", or "huber" with a bend at 0.01.
        ema: share of the running mean of the weights that is kept each step; 0 for none.
        clip: largest norm of a step's gradient.
        validate_every: epochs between validations, each with a checkpoint.
        seed: of weights and batches.
    """

    epochs: int = 100
    batch_size: int = 8
    learning_rate: float = 5e-3
    energy_weight: float = 1.0
    forces_weight: float = 10.0
    stress_weight: float = 1.0
    tensor_weight: float = 1.0
    loss: Loss = "mse"
    ema: float = 0.99
    clip: float = 1.0
    validate_every: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError: names the field that is none."""
        for name in ("epochs", "batch_size", "validate_every"):
            check_whole(name, getattr(self, name), 1)
        check_whole("seed", self.seed, 0)
        for name in ("learning_rate", "clip"):
            check_number(name, getattr(self, name), above=0)
        for name in ("energy_weight", "forces_weight", "stress_weight", "tensor_weight"):
            check_number(name, getattr(self, name), least=0)
        check_number("ema", self.ema, least=0, below=1)
        check_choice("loss", self.loss, Loss)


class PotentialTrainer:
    """Fits the sizes of a potential to labelled structures.

    Args:
        model: sizes; elements, energies of atoms, scale and neighbours are set from the training set where
            `elements` is empty in the given dict form or `fit_statistics` is on.
        training: how.
        keys: label -> name in the structures, see `labels_of`.
        folder: for checkpoints; a fit that was cut off goes on from there. None for none.
        progress: called with each validation's row.

    Attributes, after `fit`:
        model_: the potential with the best validation loss, in evaluation mode.
        history_: a row a validation: epoch, loss, energy_mae (eV/atom), forces_mae (eV/angstrom), seconds.
    """

    def __init__(
        self,
        model: Mapping[str, Any] | None = None,
        training: TrainingConfig | None = None,
        *,
        keys: Mapping[str, str] = KEYS,
        folder: str | Path | None = None,
        progress: Callable[[Mapping[str, float]], None] | None = None,
    ) -> None:
        self.sizes = dict(model or {})
        self.training = training or TrainingConfig()
        self.keys = {**KEYS, **keys}
        self.folder = None if folder is None else Path(folder)
        self.progress = progress
        self.model_: Potential
        self.history_: list[dict[str, float]] = []
        # Refuses sizes before any data is read.
        PotentialConfig(**{"elements": (1,), **{k: v for k, v in self.sizes.items() if k != "energies"}})

    def fit(self, train: Sequence[Any], validation: Sequence[Any]) -> PotentialTrainer:
        """Fit to `ase.Atoms` with labels; elements, their energies, scale and neighbours come from `train` alone.

        Raises:
            DataError: see `labelled_graphs`; or an element that only `validation` has.
            NumericalError: the loss is no longer a number.
        """
        cutoff = float(self.sizes.get("cutoff", PotentialConfig.cutoff))
        graphs = labelled_graphs(train, cutoff, self.keys, "train")
        checks = labelled_graphs(validation, cutoff, self.keys, "validation")
        config = self._config(graphs)
        strange = {int(z) for graph in checks for z in graph["atomic_numbers"]} - set(config.elements)
        if strange:
            raise DataError(
                f"validation: has the elements {sorted(strange)}, which are not in train; move frames with "
                "them there"
            )
        torch.manual_seed(self.training.seed)
        state = _State(build_potential(config), self.training, -(-len(graphs) // self.training.batch_size))
        units = _units(graphs, config)
        _start_shares(state.model, graphs)
        said = self._identity(state.model, graphs, checks)
        begun = self._resume(state, said)
        started = time.monotonic()
        for epoch in range(begun, self.training.epochs):
            self._epoch(state, graphs, units, epoch)
            if (epoch + 1) % self.training.validate_every == 0 or epoch + 1 == self.training.epochs:
                self._validate(state, checks, units, epoch + 1, time.monotonic() - started)
                self._store(state, epoch + 1, said)
        self.history_ = state.history
        self.model_ = state.finished()
        return self

    def _config(self, graphs: list[Graph]) -> PotentialConfig:
        elements = tuple(sorted({int(z) for graph in graphs for z in graph["atomic_numbers"]}))
        forces = torch.cat([graph["target_forces"] for graph in graphs])
        edges = sum(graph["edge_index"].shape[1] for graph in graphs)
        energies = element_shares(
            [graph["atomic_numbers"] for graph in graphs],
            elements,
            torch.cat([graph["target_energy"] for graph in graphs]),
        )
        known: dict[str, Any] = {
            "elements": elements,
            "energies": energies,
            "scale": float(forces.square().mean().sqrt()) or 1.0,
            "neighbors": edges / len(forces) or 1.0,
        }
        return PotentialConfig(**{**known, **self.sizes})

    def _epoch(self, state: _State, graphs: list[Graph], units: dict[str, float], epoch: int) -> None:
        order = torch.randperm(
            len(graphs), generator=torch.Generator().manual_seed(self.training.seed * 100003 + epoch)
        )
        state.model.train()
        for rows in order.split(self.training.batch_size):
            batch = _batch([graphs[int(row)] for row in rows])
            loss = self._loss(errors_of(state.model, batch), units)
            if not bool(loss.isfinite()):
                raise NumericalError(
                    f"learning_rate {self.training.learning_rate}: the loss left the finite numbers in epoch "
                    f"{epoch + 1}; take a smaller one"
                )
            state.step(loss)

    def _loss(self, errors: dict[str, Tensor], units: dict[str, float]) -> Tensor:
        terms = []
        for name, error in errors.items():
            weight = self._weight(name)
            value = (error / units[name]).flatten()
            if self.training.loss == "mse":
                terms.append(weight * value.square().mean())
            else:
                zeros = torch.zeros_like(value)
                terms.append(weight * torch.nn.functional.huber_loss(value, zeros, delta=HUBER))
        return torch.stack(terms).sum()

    def _weight(self, name: str) -> float:
        return float(getattr(self.training, f"{'tensor' if name in TENSOR_RANKS else name}_weight"))

    def _validate(
        self, state: _State, checks: list[Graph], units: dict[str, float], epoch: int, seconds: float
    ) -> None:
        with state.averaged():
            scores, loss = score(state.model, checks, self.training.batch_size), 0.0
            for name in (key.removesuffix("_rmse") for key in scores if key.endswith("_rmse")):
                loss += self._weight(name) * (scores[f"{name}_rmse"] / units[name]) ** 2
            row = {"epoch": float(epoch), "loss": loss, "seconds": seconds, **scores}
            state.history.append(row)
            if loss < state.best_loss:
                state.best_loss, state.best = loss, _copy(state.model)
        if self.progress is not None:
            self.progress(row)

    def _identity(self, model: Potential, graphs: list[Graph], checks: list[Graph]) -> dict[str, Any]:
        """What a checkpoint must share with a fit that goes on from it, as JSON reads it back."""
        about = {
            "model": model.config.as_dict(),
            "training": asdict(self.training),
            "data": [digest_of(graphs), digest_of(checks)],
        }
        found: dict[str, Any] = json.loads(json.dumps(about))
        return found

    def _store(self, state: _State, epoch: int, identity: dict[str, Any]) -> None:
        if self.folder is None:
            return
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "checkpoint.safetensors"
        said = {"epoch": epoch, "history": state.history, "best_loss": state.best_loss, **identity}
        # Written aside and moved: a kill leaves the former checkpoint whole.
        aside = file.with_suffix(".part")
        save_file(state.tensors(), aside, metadata={"state": json.dumps(said)})
        aside.replace(file)

    def _resume(self, state: _State, identity: dict[str, Any]) -> int:
        """The epochs that a checkpoint of the same settings and data already holds."""
        file = None if self.folder is None else self.folder / "checkpoint.safetensors"
        if file is None or not file.is_file():
            return 0
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "pt") as opened:
                said = json.loads(opened.metadata()["state"])
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{file}: is no whole checkpoint; remove it") from error
        if {name: said.get(name) for name in identity} != identity:
            raise ConfigError(
                f"folder {self.folder}: holds a fit with other settings or data; give another folder"
            )
        state.load(tensors, said["history"], said["best_loss"])
        return int(said["epoch"])


class _State:
    """Weights, their running mean, the best ones, and the optimiser."""

    def __init__(self, model: Potential, training: TrainingConfig, steps: int) -> None:
        self.model, self.training = model, training
        self.optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate)
        self.total = steps * training.epochs
        self.steps = 0
        self.mean = _copy(model)
        self.best, self.best_loss = _copy(model), math.inf
        self.history: list[dict[str, float]] = []

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
        rate = self.training.learning_rate * (1 + math.cos(math.pi * self.steps / self.total)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.steps += 1
        # A young mean follows faster, so that it does not remember the first weights.
        kept = min(self.training.ema, self.steps / (self.steps + 9))
        for name, value in self.model.named_parameters():
            self.mean[name].lerp_(value.detach(), 1 - kept)

    def averaged(self) -> _Averaged:
        return _Averaged(self.model, self.mean)

    def finished(self) -> Potential:
        self.model.load_state_dict(self.best, strict=False)
        return self.model.eval()

    def tensors(self) -> dict[str, Tensor]:
        found = {"steps": torch.tensor(self.steps)}
        for prefix, values in (("now", _copy(self.model)), ("mean", self.mean), ("best", self.best)):
            found |= {f"{prefix}/{name}": value.contiguous() for name, value in values.items()}
        for name, value in self.model.named_parameters():
            for kind, tensor in self.optimizer.state.get(value, {}).items():
                found[f"{kind}/{name}"] = tensor.clone()
        return found

    def load(self, tensors: dict[str, Tensor], history: list[dict[str, float]], best_loss: float) -> None:
        groups: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            groups.setdefault(kind, {})[name] = value
        self.steps = int(tensors["steps"])
        self.model.load_state_dict(groups["now"], strict=False)
        self.mean, self.best = groups["mean"], groups["best"]
        self.history, self.best_loss = history, best_loss
        for name, value in self.model.named_parameters():
            kinds = ("step", "exp_avg", "exp_avg_sq")
            # A weight that no term of the loss reaches has no state.
            if name in groups.get("exp_avg", {}):
                self.optimizer.state[value] = {kind: groups[kind][name] for kind in kinds}


class _Averaged:
    """The model with the running means as weights, for a while."""

    def __init__(self, model: Potential, mean: dict[str, Tensor]) -> None:
        self.model, self.mean = model, mean

    def __enter__(self) -> None:
        self.kept = _copy(self.model)
        self.model.load_state_dict(self.mean, strict=False)

    def __exit__(self, *_: object) -> None:
        self.model.load_state_dict(self.kept, strict=False)


def _copy(model: Potential) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def _batch(graphs: list[Graph]) -> Graph:
    found = batch_of(graphs)
    for name in graphs[0]:
        if name.startswith("target_"):
            found[name] = torch.cat([graph[name] for graph in graphs])
    return found


def errors_of(model: Potential, batch: Graph) -> dict[str, Tensor]:
    """Predictions minus labels: energy (graphs,) in eV/atom, forces, and stress and tensors where they are known."""
    wanted = [name for name in model.config.tensors if f"target_{name}" in batch]
    stress = "target_stress" in batch
    found = model(batch, stress=stress)
    sizes = torch.bincount(batch["batch"])
    errors = {
        "energy": (found["energy"] - batch["target_energy"]).to(found["energy"].dtype) / sizes,
        "forces": found["forces"] - batch["target_forces"],
    }
    for name in (*(["stress"] if stress else []), *wanted):
        errors[name] = found[name] - batch[f"target_{name}"]
    return errors


def score(model: Potential, graphs: Sequence[Graph], batch_size: int = 16) -> dict[str, float]:
    """Mean absolute and root mean square errors: energy_mae (eV/atom), forces_mae (eV/angstrom), ..., and `_rmse`."""
    model.eval()
    parts: dict[str, list[Tensor]] = {}
    for start in range(0, len(graphs), batch_size):
        for name, error in errors_of(model, _batch(list(graphs[start : start + batch_size]))).items():
            parts.setdefault(name, []).append(error.detach().flatten().double())
    found = {}
    for name, values in parts.items():
        whole = torch.cat(values)
        found[f"{name}_mae"] = float(whole.abs().mean())
        found[f"{name}_rmse"] = float(whole.square().mean().sqrt())
    return found


def digest_of(graphs: Sequence[Graph]) -> str:
    """sha256 over every tensor of every structure, in order."""
    digest = hashlib.sha256()
    for graph in graphs:
        for name in sorted(graph):
            digest.update(f"{name} {tuple(graph[name].shape)} {graph[name].dtype}".encode())
            digest.update(graph[name].detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _units(graphs: list[Graph], config: PotentialConfig) -> dict[str, float]:
    """What an error of 1 in the loss stands for."""
    found = {"energy": config.scale, "forces": config.scale}
    for name in ("stress", *config.tensors):
        if f"target_{name}" in graphs[0]:
            values = torch.cat([graph[f"target_{name}"] for graph in graphs])
            spread = values - values.mean(0)
            found[name] = float(spread.square().mean().sqrt()) or 1.0
        elif name in config.tensors:
            raise DataError(f"train: no frame has a {name}, which the model shall learn; label them with it")
    return found


def _start_shares(model: Potential, graphs: list[Graph]) -> None:
    """An element's part of the polarizability's trace, by least squares."""
    if "polarizability" in model.config.tensors:
        traces = torch.cat([graph["target_polarizability"] for graph in graphs]).diagonal(0, 1, 2).mean(1)
        shares = element_shares([graph["atomic_numbers"] for graph in graphs], model.config.elements, traces)
        head: Any = model.heads["polarizability"]
        head.shares.data.copy_(torch.tensor(shares))


def save_potential(model: Potential, folder: str | Path) -> Path:
    """`config.json` and `model.safetensors`. Returns the folder."""
    from safetensors.torch import save_file

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({"potential": model.config.as_dict()}, indent=1) + "\n")
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    return place


def load_potential(folder: str | Path) -> Potential:
    """What `save_potential` wrote, in evaluation mode.

    Raises:
        DataError: no such folder, or files of it that are damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (place / name).is_file():
            raise DataError(f"model {place}: has no {name}; give a folder that save_potential wrote")
    try:
        stored = json.loads((place / "config.json").read_text())["potential"]
        values: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
        config = PotentialConfig(**values)
        weights = load_file(place / "model.safetensors")
        model = build_potential(config)
        model.to(next(v.dtype for v in weights.values() if v.is_floating_point()))
        model.load_state_dict(weights)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"model {place}: is damaged or of another kind ({error}); save it again") from error
    return model.eval()
