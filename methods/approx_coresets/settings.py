"""The settings of a coreset: each within its bounds, and all of them together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from methods.approx_coresets import sampling
from methods.approx_coresets.sizes import coreset_size
from methods.common.checks import check_flag, check_number
from methods.common.errors import ConfigError

if TYPE_CHECKING:
    from methods.approx_coresets.coreset import ApproxCoreset

METHODS = ("sensitivity", "group")
INITS = ("k-means++", "k-means||", "random")
METRICS = ("euclidean", "precomputed")


def checked_size(coreset: ApproxCoreset) -> int:
    """The size that was asked for, when every setting fits the others. Raises ConfigError."""
    for name, allowed in (
        ("method", METHODS),
        ("scores", sampling.SCORES),
        ("weights", sampling.WEIGHTS),
        ("metric", METRICS),
    ):
        if getattr(coreset, name) not in allowed:
            raise ConfigError(f"{name}={getattr(coreset, name)!r}: choose one of {', '.join(allowed)}")
    centres = 1 if coreset.metric == "precomputed" else 2  # row numbers, or points
    known = coreset.init in INITS if isinstance(coreset.init, str) else np.ndim(coreset.init) == centres
    if not known:
        raise ConfigError(f"init={coreset.init!r}: choose one of {', '.join(INITS)}, or give centres")
    for name, least in (
        ("n_clusters", 1),
        ("init_factor", 1),
        ("init_lloyd", 0),
        ("chunk_size", 1),
        ("reduce_factor", 1),
    ):
        value = getattr(coreset, name)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ConfigError(f"{name}={value!r}: give a whole number of at least {least}")
    check_number("eps", coreset.eps, above=0, below=1)
    check_flag("merge_duplicates", coreset.merge_duplicates)
    if not isinstance(coreset.z, int | float | np.number) or not (
        coreset.z >= 1 and math.isfinite(coreset.z)
    ):
        raise ConfigError(f"z={coreset.z!r}: give 2 (k-means), 1 (k-median), or another power of at least 1")
    if coreset.method == "group" and coreset.scores != "four_term":
        raise ConfigError(
            f"scores={coreset.scores!r}: group sampling has scores of its own; leave the default"
        )
    if coreset.method == "group" and coreset.weights == "residual":
        raise ConfigError("weights='residual': group sampling gives its centres their mass already")
    if coreset.metric == "precomputed" and coreset.init_lloyd:
        raise ConfigError(f"init_lloyd={coreset.init_lloyd}: a distance matrix has no means; give 0")
    if coreset.metric == "precomputed" and coreset.scores == "lightweight":
        raise ConfigError("scores='lightweight': a distance matrix has no mean; choose other scores")
    wanted = coreset_size(coreset.n_clusters, coreset.eps, coreset.size_rule, coreset.metric)
    if coreset.size is None:
        return wanted
    if not isinstance(coreset.size, int | np.integer) or coreset.size < 1:
        raise ConfigError(f"size={coreset.size!r}: give a whole number of at least 1, or None")
    return int(coreset.size)
