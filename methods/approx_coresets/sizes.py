"""How many points: the sizes of the paper's statements, and the one that measurements support."""

from __future__ import annotations

import math

from methods.common.errors import ConfigError

RULES = ("practice", "theory")


def coreset_size(n_clusters: int, eps: float = 0.1, rule: str = "practice", metric: str = "euclidean") -> int:
    """Points that a coreset for `n_clusters` centres should have.

    Args:
        n_clusters: k, at least 1.
        eps: how far the approximation factor may move, in (0, 1).
        rule: "theory": ceil(k eps^-3 ln 2k) in Euclidean space, ceil(k eps^-2 ln 2k) in a metric (where the factor is
            4 + eps), the statements' sizes with every hidden constant set to 1; "practice": max(10 k, ceil(3 k /
            eps)), empirical: what a solver loses on sampled coresets falls like 1 / m.
        metric: "euclidean" or "precomputed".

    Raises:
        ConfigError: a value out of its range.
    """
    if n_clusters < 1:
        raise ConfigError(f"n_clusters={n_clusters}: give at least 1")
    if not 0 < eps < 1:
        raise ConfigError(f"eps={eps}: give a number between 0 and 1, both excluded")
    if rule == "practice":
        return max(10 * n_clusters, math.ceil(3 * n_clusters / eps))
    if rule != "theory":
        raise ConfigError(f"size_rule={rule!r}: choose one of {', '.join(RULES)}")
    exponent = 2 if metric == "precomputed" else 3
    return max(1, math.ceil(n_clusters * eps**-exponent * math.log(2 * n_clusters)))
