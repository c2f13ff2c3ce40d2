"""Size bounds held sample by sample, after the anchors' membership reached the samples."""

from __future__ import annotations

import numpy as np

from methods.sc_fagc.rounding import round_bounded
from methods.sc_fagc.transport import double_bounded_sinkhorn

SAMPLE = 20_000
SHARPNESS = 0.02


def bounded_labels(
    scores: np.ndarray, low: np.ndarray, high: np.ndarray, rng: np.random.RandomState
) -> np.ndarray:
    """The labels of the largest total score within the bounds, exactly.

    Prices from the transport problem on a part of the rows let the exact assignment start close to its end; the
    result does not depend on them.

    Args:
        scores: B F, `[n, c]`.
        low, high: bounds in whole samples, `[c]`.
        rng: which rows the prices come from.
    """
    n = len(scores)
    spread = float(scores.max() - scores.min())
    if spread == 0:
        return round_bounded(scores, low, high)
    part = scores if n <= SAMPLE else scores[np.sort(rng.choice(n, SAMPLE, replace=False))]
    share = len(part) / n
    eps = SHARPNESS * spread
    _, g, _ = double_bounded_sinkhorn(part, low * share, high * share, eps=eps, max_iter=50, tol=1e-4)
    prices = np.where(np.isfinite(g), g * eps, 0.0)
    return round_bounded(scores, low, high, prices=prices)
