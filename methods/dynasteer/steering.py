"""DynaSteer: fitted once on labelled forks, then used at each doubtful sentence while a model generates."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from methods.common.checks import check_number, check_whole
from methods.common.errors import ConfigError, DataError
from methods.dynasteer.decoding import Decoded, Policy, Scope, decode
from methods.dynasteer.directions import (
    Direction,
    PatternDirections,
    Shrinkage,
    fit_patterns,
    held_out_problems,
    unit,
)
from methods.dynasteer.edits import AlphaUnit, ClusterRule, Control, HeadDirections, HeadEdit
from methods.dynasteer.forks import NoContrastError
from methods.dynasteer.gate import EntropyGate
from methods.dynasteer.heads import HeadActivations, fingerprint_of, head_layout
from methods.dynasteer.sampling import GenConfig, encode
from methods.dynasteer.trajectories import answer_text

WEIGHTS, RECORD = "steering.safetensors", "steering.json"
FORMAT = 2
OPPOSED = -0.5
PolicyName = Literal["steer", "resample", "random", "plain"]
POLICIES: tuple[PolicyName, ...] = ("plain", "resample", "random", "steer")


@dataclass(frozen=True)
class Generation:
    """Answers and what they cost.

    Attributes:
        texts: one a prompt.
        triggers: sentences that the gate opened at, one number a prompt.
        accepted_tokens, discarded_tokens: one number a prompt.
        seconds: of all prompts together.
        trace: sentences with their entropies.
    """

    texts: list[str]
    triggers: list[int]
    accepted_tokens: list[int]
    discarded_tokens: list[int]
    seconds: float
    trace: list[Decoded]


class DynaSteer(BaseEstimator):
    """Directions of truth in attention heads, and generation that follows them where the model is in doubt.

    Args:
        n_clusters: patterns M a head; fewer contexts reduce it with a warning.
        n_heads: heads K that are steered, the best by `rank`.
        alpha: largest step along a direction; 0 edits nothing.
        alpha_unit: "raw" in units of the activations, which do not transfer between models, or "sigma" in standard
            deviations of the Truth samples' projections.
        cluster: "sum" adds the steps of every pattern, "nearest" takes the one that asks for most.
        rank: "probe" accuracy of a logistic probe, or "fdr" the Fisher ratio, both on held-out problems.
        direction: "lda", or "mean" and "probe" for ablations.
        shrinkage: of the class covariances, "ledoit_wolf" or "none".
        ridge: added to the scatter, as a share of its mean eigenvalue.
        test_size: share of the problems that heads are ranked on.
        random_state: of the split, of K-means and of the random control.

    Attributes:
        directions_: the K heads.
        random_: the same heads with random unit directions, for the control.
        scores_: [L, H] what the heads were ranked by; `accuracy_` and `ratio_` [L, H] both measures.
        sizes_: [L, H, M] contexts of each pattern.
        shape_: blocks, heads a block, head width.
        gate_: the gate that was saved with it, or None.
        fingerprint_: of the model it was fitted on; empty accepts any model of the same shape.
    """

    def __init__(
        self,
        n_clusters: int = 5,
        n_heads: int = 32,
        alpha: float = 3.0,
        alpha_unit: AlphaUnit = "raw",
        cluster: ClusterRule = "sum",
        rank: Literal["probe", "fdr"] = "probe",
        direction: Direction = "lda",
        shrinkage: Shrinkage = "ledoit_wolf",
        ridge: float = 1e-4,
        test_size: float = 0.2,
        random_state: int = 42,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_heads = n_heads
        self.alpha = alpha
        self.alpha_unit = alpha_unit
        self.cluster = cluster
        self.rank = rank
        self.direction = direction
        self.shrinkage = shrinkage
        self.ridge = ridge
        self.test_size = test_size
        self.random_state = random_state

    def _check(self) -> None:
        choices = {
            "alpha_unit": ("raw", "sigma"),
            "cluster": ("sum", "nearest"),
            "rank": ("probe", "fdr"),
            "direction": ("lda", "mean", "probe"),
            "shrinkage": ("ledoit_wolf", "none"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is not known; give {' or '.join(map(repr, allowed))}"
                )
        check_number("alpha", self.alpha, least=0)
        check_number("ridge", self.ridge, least=0)
        check_number("test_size", self.test_size, above=0, below=1)
        for name, least in (("n_clusters", 1), ("n_heads", 1), ("random_state", 0)):
            check_whole(name, getattr(self, name), least)

    def fit(
        self, activations: HeadActivations, y: None = None, on_done: Callable[[int, int], None] | None = None
    ) -> DynaSteer:
        """Cluster, find directions, rank the heads and keep the best.

        Args:
            activations: of unanimous forks, from `capture_heads`.
            y: of no use; the labels are in `activations`.
            on_done: called with (heads done, all).

        Raises:
            ConfigError: a setting out of range.
            NoContrastError: labels of one kind only. DataError: forks of one problem only.
        """
        self._check()
        labels = np.asarray(activations.labels)
        if set(np.unique(labels)) != {0, 1}:
            counts = {word: int((labels == k).sum()) for word, k in (("Truth", 1), ("Fallacy", 0))}
            raise NoContrastError(f"labels are of one kind ({counts}); give forks of both kinds")
        if len(np.unique(np.asarray(activations.problems))) < 2:
            raise DataError(
                "the forks are all of one problem, and heads are ranked on problems that they were not fitted on; give "
                "forks of at least two"
            )
        test = held_out_problems(np.asarray(activations.problems), self.test_size, self.random_state)
        patterns = self._patterns(activations, test)
        z = activations.z.numpy()
        _, blocks, heads, width = z.shape
        found: dict[tuple[int, int], PatternDirections] = {}
        for layer in range(blocks):
            for head in range(heads):
                found[layer, head] = fit_patterns(
                    z[:, layer, head].astype(np.float64),
                    labels,
                    np.asarray(activations.groups),
                    test,
                    patterns,
                    self.direction,
                    self.shrinkage,
                    self.ridge,
                    self.random_state,
                    probe=True,
                )
                if on_done is not None:
                    on_done(len(found), blocks * heads)
        self.shape_ = (blocks, heads, width)
        self.accuracy_ = np.array([[found[b, h].accuracy for h in range(heads)] for b in range(blocks)])
        self.ratio_ = np.array([[found[b, h].ratio for h in range(heads)] for b in range(blocks)])
        self.sizes_ = np.array([[found[b, h].sizes for h in range(heads)] for b in range(blocks)])
        self.scores_ = self.accuracy_ if self.rank == "probe" else self.ratio_
        usable = np.array([[found[b, h].kept.any() for h in range(heads)] for b in range(blocks)])
        if not usable.any():
            raise NoContrastError(
                "no pattern has two samples of each kind; give more forks, or a smaller n_clusters"
            )
        order = np.argsort(
            -np.where(usable, np.nan_to_num(self.scores_, nan=-np.inf), -np.inf), axis=None, kind="stable"
        )
        chosen = [(int(i) // heads, int(i) % heads) for i in order[: self.n_heads] if usable.flat[i]]
        self.directions_ = self._directions([found[place] for place in chosen], chosen)
        self.random_ = self.random_directions(self.random_state)
        self.gate_: EntropyGate | None = None
        self.fingerprint_ = activations.fingerprint
        if np.isnan(self.scores_).all():
            warnings.warn(
                "no head could be tested on other problems: the first ones are taken; give forks of more problems, or "
                "fewer n_clusters",
                stacklevel=2,
            )
        self._warn_opposed()
        return self

    def _patterns(self, activations: HeadActivations, test: np.ndarray) -> int:
        contexts = len(np.unique(np.asarray(activations.groups)[~test]))
        if self.n_clusters > contexts:
            warnings.warn(
                f"n_clusters={self.n_clusters} is above the {contexts} training contexts; {contexts} are used",
                stacklevel=3,
            )
            return max(1, contexts)
        return self.n_clusters

    @staticmethod
    def _directions(found: Sequence[PatternDirections], places: Sequence[tuple[int, int]]) -> HeadDirections:
        def tensor(name: str) -> torch.Tensor:
            return torch.from_numpy(np.stack([getattr(f, name) for f in found]))

        return HeadDirections(
            layers=torch.tensor([layer for layer, _ in places]),
            heads=torch.tensor([head for _, head in places]),
            w=tensor("w").float(),
            mu=tensor("mu").float(),
            sigma=tensor("sigma").float(),
            kept=tensor("kept"),
            push=tensor("w").float(),
        )

    def random_directions(self, seed: int, sign: float = 1.0) -> HeadDirections:
        """The control: the same heads and the same steps at the same states, along random unit directions.

        Reading along random directions too would be no control: their Truth means point to the truth as well.
        `sign=-1` gives the same draw turned round, whose first-order effect is the opposite.
        """
        self._fitted()
        d = self.directions_
        drawn = unit(np.random.default_rng(seed).standard_normal(tuple(d.w.shape)))
        return replace(d, push=torch.from_numpy(sign * drawn).float() * d.kept[..., None])

    def _warn_opposed(self) -> None:
        """Two summed patterns that point against each other chase the state to and fro."""
        w, kept = self.directions_.w, self.directions_.kept
        cosines = torch.einsum("kmd,knd->kmn", w, w).masked_fill(~(kept[:, :, None] & kept[:, None]), 0.0)
        opposed = int((cosines.amin((1, 2)) < OPPOSED).sum())
        if opposed and self.cluster == "sum":
            warnings.warn(
                f"{opposed} of {len(w)} heads have two patterns with directions of cosine below {OPPOSED}: summed, "
                "they work against each other; cluster='nearest' or n_clusters=1 avoids it",
                stacklevel=3,
            )

    def _fitted(self) -> None:
        if not hasattr(self, "directions_"):
            raise NotFittedError(
                "this DynaSteer is not fitted; call fit with the activations of labelled forks"
            )

    def edit(self, random: bool = False, constant: bool = False) -> HeadEdit:
        """The edit with the present alpha, unit and cluster rule; they may be changed after fitting."""
        self._fitted()
        self._check()
        directions = self.random_ if random else self.directions_
        return HeadEdit(directions, self.alpha, self.alpha_unit, self.cluster, constant)

    def attached(self, model: Any) -> AbstractContextManager[Control]:
        """Steering that is always on, also under `model.generate`: `with steering.attached(model): ...`."""
        self.check_model(model)
        return self.edit().attached(model, every=True)

    def policy(
        self,
        gate: EntropyGate | None = None,
        policy: PolicyName = "steer",
        tau_decay: int | None = None,
        scope: Scope = "fork",
        rollback: bool = True,
        restore: bool = False,
    ) -> Policy:
        """How an answer is steered. "resample" has gate and rollback and no edit, "random" random directions."""
        if policy not in POLICIES:
            raise ConfigError(f"policy={policy!r} is not known; give one of {', '.join(POLICIES)}")
        if policy == "plain":
            return Policy()
        edit = None if policy == "resample" else self.edit(random=policy == "random")
        if scope == "always":
            return Policy(gate, edit, scope, rollback, 1, tau_decay, restore)
        gate = gate or self.gate_
        if gate is None:
            raise ConfigError("gate: none is given or saved with the steering; fit one with EntropyGate.fit")
        return Policy(gate, edit, scope, rollback, 1, tau_decay, restore and edit is not None)

    def generate(
        self,
        model: Any,
        tokenizer: Any,
        prompts: Sequence[str | Sequence[int]],
        gate: EntropyGate | None = None,
        tau_decay: int | None = None,
        scope: Scope = "fork",
        policy: PolicyName = "steer",
        rollback: bool = True,
        restore: bool = False,
        config: GenConfig | None = None,
        keys: Sequence[int] | None = None,
        on_done: Callable[[int, int], None] | None = None,
    ) -> Generation:
        """Answer each prompt under a policy; prompts are text or token ids.

        Args:
            model, tokenizer: the model that the steering was fitted on.
            prompts: text or token ids.
            gate: the saved one by default.
            tau_decay: number of the last sentence that may be steered; None steers to the end.
            scope, policy, rollback, restore: see `policy`.
            config: how text is drawn.
            keys: names of the prompts' random numbers; equal keys give equal numbers under every policy.
            on_done: called with (answers done, all).

        Raises:
            NotFittedError: before `fit`.
            ConfigError: settings that do not fit; DataError: another model's steering.
        """
        self.check_model(model)
        how = self.policy(gate, policy, tau_decay, scope, rollback, restore)
        started = time.perf_counter()
        found = decode(
            model,
            tokenizer,
            encode(tokenizer, prompts),
            config or GenConfig(),
            how,
            keys=keys,
            on_done=on_done,
        )
        return Generation(
            texts=[answer_text(tokenizer, decoded) for decoded in found],
            triggers=[decoded.triggers for decoded in found],
            accepted_tokens=[len(decoded.ids) for decoded in found],
            discarded_tokens=[decoded.discarded for decoded in found],
            seconds=time.perf_counter() - started,
            trace=found,
        )

    def check_model(self, model: Any) -> None:
        """DataError when the model has another shape, or other weights, than the one it was fitted on."""
        self._fitted()
        layout = head_layout(model)
        shape = (len(layout.projections), layout.n_heads, layout.head_dim)
        if shape != tuple(self.shape_):
            raise DataError(
                f"the steering was fitted on {self.shape_[0]} blocks of {self.shape_[1]} heads of "
                f"width {self.shape_[2]}, the model has {shape[0]} of {shape[1]} of {shape[2]}: use that of the fit"
            )
        if self.fingerprint_ and self.fingerprint_ != fingerprint_of(model):
            raise DataError(
                "the steering was fitted on a model of the same shape with other weights: fit it on this one; for the "
                "same model in another number format set fingerprint_ to ''"
            )

    def save(self, folder: str | Path, gate: EntropyGate | None = None) -> Path:
        """steering.safetensors and steering.json in `folder`; the gate is kept with them."""
        from safetensors.torch import save_file

        self._fitted()
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: value.contiguous() for name, value in vars(self.directions_).items() if name != "push"
        }
        tensors["random"] = self.random_.push.contiguous()
        for name in ("accuracy_", "ratio_", "sizes_"):
            tensors[name] = torch.from_numpy(np.ascontiguousarray(getattr(self, name)))
        save_file(tensors, place / WEIGHTS, metadata={"format": "pt"})
        gate = gate or self.gate_
        record = {
            "format": FORMAT,
            "parameters": self.get_params(),
            "shape": list(self.shape_),
            "fingerprint": self.fingerprint_,
            "gate": None if gate is None else asdict(gate),
        }
        (place / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return place

    @classmethod
    def load(cls, folder: str | Path) -> DynaSteer:
        """What `save` wrote; nothing but numbers and JSON is read.

        Raises:
            DataError: files are missing, damaged or of another format, naming the folder.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        place = Path(folder)
        try:
            record = json.loads((place / RECORD).read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ValueError(f"format {record['format']}, this version reads {FORMAT}")
            tensors = load_file(place / WEIGHTS)
            made = cls(**record["parameters"])
            found = {name: tensors[name] for name in ("layers", "heads", "w", "mu", "sigma", "kept")}
            made.directions_ = HeadDirections(**found, push=found["w"])
            made.random_ = HeadDirections(**found, push=tensors["random"])
            for name in ("accuracy_", "ratio_", "sizes_"):
                setattr(made, name, tensors[name].numpy())
            made.scores_ = made.accuracy_ if made.rank == "probe" else made.ratio_
            blocks, heads, width = (int(size) for size in record["shape"])
            made.shape_ = (blocks, heads, width)
            made.fingerprint_ = str(record["fingerprint"])
            for directions in (made.directions_, made.random_):
                directions.check(made.shape_)
            made.gate_ = None if record["gate"] is None else EntropyGate(**record["gate"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise DataError(f"{place}: holds no whole steering ({error}); give what `save` wrote") from error
        return made
