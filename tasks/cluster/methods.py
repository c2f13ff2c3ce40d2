"""Clustering methods: what a user chooses, and the registry that leads from a choice to the work.

A method is a settings model with a `kind` of its own and the place of its clusterer. A paper of this project adds its
method to `BUILT_IN`. Imports nothing heavy: the clusterer is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import Field, model_validator

from tasks.config import Config

if TYPE_CHECKING:
    import numpy as np


class Clusterer(Protocol):
    """The work behind a method: label every sample."""

    def __call__(
        self, out: Path, *, method: Any, features: np.ndarray, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Label the samples.

        Args:
            out: an empty folder, for what the method has to show beside labels (anchors, centres, a coreset).
            method: the settings, of the class that names this clusterer.
            features: `[n, d]`, float32, finite; a memory map.
            seed: of every random choice; the same inputs give the same labels.

        Returns:
            labels `[n]` from 0 to c - 1, and facts: JSON values, no times, no paths.

        Raises:
            ConfigError, DataError: what does not fit, in one line.
        """


class ClusterMethod(Config):
    """Base of all methods. A subclass sets `kind` (a Literal with that default) and `clusterer`."""

    clusterer: ClassVar[str]

    kind: str
    n_clusters: int

    @property
    def label(self) -> str:
        """Kind, clusters and every setting that is not the default; safe in file names."""
        parts = [self.kind, str(self.n_clusters)]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name not in ("kind", "n_clusters") and value != field.default:
                parts.append(f"{name}_{value:g}" if isinstance(value, float) else f"{name}_{value}")
        return "-".join(parts)

    def bounds(self, samples: int) -> tuple[float, float]:
        """Least and most samples of a cluster; 0 and infinity for a method without bounds."""
        return 0.0, float("inf")


POINTS: Any = Field(
    default=0,
    ge=0,
    le=100_000_000,
    description="Samples that a coreset keeps; 0 takes the larger of 10 a cluster and 3 a cluster over eps",
)
EPS: Any = Field(
    default=0.05, gt=0, lt=1, description="How much worse the result may be; sets the coreset's size"
)
POWER: Any = Field(
    default=2, description="2: squared distances (k-means); 1: distances (k-median, robust to outliers)"
)
CLUSTERS: Any = Field(default=10, ge=1, le=1_000_000, description="Number of clusters")
SIZE_MIN: Any = Field(
    default=0.8,
    ge=0,
    le=1,
    description="Least size of a cluster, as a multiple of an equal share of the samples",
)
SIZE_MAX: Any = Field(
    default=1.2, ge=1, le=1_000_000, description="Largest size of a cluster, as a multiple of an equal share"
)


class _Bounded(ClusterMethod):
    n_clusters: int = CLUSTERS
    size_min: float = SIZE_MIN
    size_max: float = SIZE_MAX

    def bounds(self, samples: int) -> tuple[float, float]:
        share = samples / self.n_clusters
        return self.size_min * share, self.size_max * share


class ScFagc(_Bounded):
    """SC-FAGC: through a graph of anchors, in time linear in the samples, with bounds on every cluster's size."""

    clusterer: ClassVar[str] = "tasks.cluster.sc_fagc:cluster"

    kind: Literal["sc_fagc"] = Field(
        default="sc_fagc", description="SC-FAGC: a graph of anchors, sizes between bounds"
    )
    hold: Literal["anchors", "samples"] = Field(
        default="samples",
        description="Whether the bounds hold exactly for the samples, or, as in the paper, for the anchors, with the "
        "samples close to them",
    )
    n_anchors: int = Field(
        default=0,
        ge=0,
        le=65_536,
        description="Anchors, a power of two; 0 takes about 20 a cluster, at least 128",
    )
    anchors: Literal["balanced", "kmeans"] = Field(
        default="balanced",
        description="balanced: each anchor stands for about an equal share of the samples; kmeans: centres of k-means, "
        "with which only hold='samples' keeps sizes",
    )
    n_neighbors: int = Field(default=5, ge=1, le=1_000, description="Anchors that a sample is tied to")
    entropy: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="Weight of the entropy, as a share of the critical value above which clusters dissolve",
    )
    n_init: int = Field(default=10, ge=1, le=10_000, description="Starts, of which the best is taken")

    @model_validator(mode="after")
    def _power(self) -> Self:
        if self.anchors == "balanced" and self.n_anchors & (self.n_anchors - 1):
            raise ValueError(
                f"n_anchors {self.n_anchors} is no power of two; give {1 << self.n_anchors.bit_length()} or 0"
            )
        return self


class Coreset(ClusterMethod):
    """A solver on a small weighted part of the samples: k-means or k-median of far more rows than a solver takes."""

    clusterer: ClassVar[str] = "tasks.cluster.approx_coresets:cluster"

    kind: Literal["coreset"] = Field(
        default="coreset",
        description="k-means or k-median on a coreset, for very many samples; without bounds",
    )
    n_clusters: int = CLUSTERS
    points: int = POINTS
    eps: float = EPS
    power: Literal[1, 2] = POWER
    polish: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="Further steps on all samples; 0 keeps the coreset's own solution",
    )

    @property
    def label(self) -> str:
        size = str(self.points) if self.points else f"eps{self.eps:g}"
        power = "-median" if self.power == 1 else ""
        polish = f"-polish{self.polish}" if self.polish else ""
        return f"{self.kind}{power}-{self.n_clusters}-{size}{polish}"


class KMeansPeer(ClusterMethod):
    """scikit-learn's k-means, for comparison: no bounds."""

    clusterer: ClassVar[str] = "tasks.cluster.peers:k_means"

    kind: Literal["k_means"] = Field(default="k_means", description="scikit-learn's k-means, without bounds")
    n_clusters: int = CLUSTERS
    batch_size: int = Field(
        default=0, ge=0, le=10_000_000, description="Above 0: MiniBatchKMeans with batches of this size"
    )


class KMeansConstrainedPeer(_Bounded):
    """k-means-constrained, for comparison: exact bounds by minimum-cost flow, slow on many samples."""

    clusterer: ClassVar[str] = "tasks.cluster.peers:k_means_constrained"

    kind: Literal["k_means_constrained"] = Field(
        default="k_means_constrained", description="k-means with sizes between bounds, by minimum-cost flow"
    )
    restarts: int = Field(default=3, ge=1, le=10_000, description="Starts, of which the best is taken")


BUILT_IN = (ScFagc, Coreset, KMeansPeer, KMeansConstrainedPeer)
Method = Annotated[ScFagc | Coreset | KMeansPeer | KMeansConstrainedPeer, Field(discriminator="kind")]


def clusterer_of(method: ClusterMethod) -> Clusterer:
    """The function behind a method."""
    module, _, name = method.clusterer.partition(":")
    found: Clusterer = getattr(import_module(module), name)
    return found
