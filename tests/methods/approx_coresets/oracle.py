"""The method's formulas written a second time, point by point, from their text alone."""

import numpy as np


def cost(points: np.ndarray, weights: np.ndarray, centres: np.ndarray, z: float) -> float:
    return float(
        sum(
            w * min(np.linalg.norm(p - c) ** z for c in centres) for p, w in zip(points, weights, strict=True)
        )
    )


def four_term(points: np.ndarray, weights: np.ndarray, centres: np.ndarray, z: float) -> np.ndarray:
    away = np.linalg.norm(points[:, None] - centres[None], axis=2)
    owner, near = away.argmin(axis=1), away.min(axis=1) ** z
    clusters = [i for i in range(len(centres)) if weights[owner == i].sum() > 0]
    mass = {i: weights[owner == i].sum() for i in clusters}
    spent = {i: (weights * near)[owner == i].sum() for i in clusters}
    total = sum(spent.values())
    q = np.zeros(len(points))
    for p in range(len(points)):
        i = owner[p]
        if weights[p] == 0:
            continue
        first = 1 / (len(clusters) * mass[i])
        second = near[p] / (len(clusters) * spent[i]) if spent[i] > 0 else first
        q[p] = weights[p] * (
            first if total == 0 else (first + second + near[p] / total + spent[i] / (mass[i] * total)) / 4
        )
    return q


def line_partitions(x: np.ndarray, w: np.ndarray, k: int, z: int) -> float:
    """The optimum over every labelling of the points of a line."""
    best = np.inf
    for code in range(k ** len(x)):
        labels = np.array([code // k**i % k for i in range(len(x))])
        total = 0.0
        for label in set(labels):
            mine = labels == label
            if z == 2:
                centre = np.average(x[mine], weights=w[mine])
                total += float(w[mine] @ (x[mine] - centre) ** 2)
            else:
                total += min(float(w[mine] @ abs(x[mine] - c)) for c in x[mine])
        best = min(best, total)
    return best
