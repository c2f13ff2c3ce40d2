"""The entropy gate: which sentences the model is unsure of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from methods.common.errors import ConfigError, DataError
from methods.dynasteer.sampling import EntropyMode, GenConfig

if TYPE_CHECKING:
    from methods.dynasteer.trajectories import Trajectory


@dataclass(frozen=True)
class EntropyGate:
    """Triggers at sentences whose mean token entropy is above gamma.

    Attributes:
        gamma: threshold in nats; infinity never triggers, minus infinity always.
        entropy: how the entropies were measured; a threshold of one kind is of no use with the other.
        entropy_k: tokens of the kind "topk".
        quantile: of the training sentences that gamma was set to; None when gamma was given.
    """

    gamma: float
    entropy: EntropyMode = "full"
    entropy_k: int = 20
    quantile: float | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.gamma):
            raise ConfigError(
                "gamma is not a number; fit the gate on trajectories, or give a threshold in nats"
            )

    @classmethod
    def fit(
        cls,
        trajectories: Iterable[Trajectory],
        quantile: float = 0.8,
        entropy: EntropyMode = "full",
        entropy_k: int = 20,
    ) -> EntropyGate:
        """Gamma as a quantile over all sentences of all trajectories.

        Raises:
            ConfigError: the quantile is not inside (0, 1), or the entropies are of another kind.
            DataError: no sentence.
        """
        if not 0 < quantile < 1:
            raise ConfigError(f"quantile={quantile} is not inside (0, 1); the paper takes 0.8")
        found: list[float] = []
        for trajectory in trajectories:
            if trajectory.entropy != entropy:
                raise ConfigError(
                    f"entropy={entropy!r}: the trajectories' entropies are {trajectory.entropy!r}; name that kind"
                )
            if entropy == "topk" and trajectory.entropy_k != entropy_k:
                raise ConfigError(
                    f"entropy_k={entropy_k}: the trajectories' entropies are over {trajectory.entropy_k} tokens; name "
                    "that number"
                )
            found.extend(sentence.entropy for sentence in trajectory.sentences)
        if not found:
            raise DataError("trajectories: hold no sentence; the gate needs at least one")
        return cls(float(np.quantile(found, quantile)), entropy, entropy_k, quantile)

    def triggers(self, entropy: float) -> bool:
        """Whether a sentence of this mean entropy is one to steer at."""
        return entropy > self.gamma

    def check(self, config: GenConfig) -> None:
        """ConfigError when the text is drawn with entropies of another kind than gamma's."""
        same_k = self.entropy == "full" or self.entropy_k == config.entropy_k
        if math.isfinite(self.gamma) and (self.entropy != config.entropy or not same_k):
            raise ConfigError(
                f"entropy={config.entropy!r} (k {config.entropy_k}): the gate's gamma was fitted on "
                f"{self.entropy!r} (k {self.entropy_k}); use the same kind in both"
            )


NEVER = EntropyGate(math.inf)
ALWAYS = EntropyGate(-math.inf)
