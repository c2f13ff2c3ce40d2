"""The study's samples: digits of two kinds, and shapes whose clusters differ in size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from methods.common.errors import DataError

COMPONENTS = 50
FEW = 10_000
MOONS = (3_000, 1_000)
BLOBS = (2_800, 800, 400)
WIDTH = 0.15


@dataclass(frozen=True)
class Samples:
    """Features `[n, d]`, true classes `[n]`, and by how much a cluster may miss its share, for each cluster."""

    features: np.ndarray
    truth: np.ndarray
    clusters: int
    anchors: int
    size_min: np.ndarray
    size_max: np.ndarray


def equal_shares(features: np.ndarray, truth: np.ndarray, clusters: int, anchors: int) -> Samples:
    """Bounds of 0.8 and 1.2 of an equal share; the truth has no say."""
    share = np.full(clusters, len(features) / clusters)
    return Samples(features, truth, clusters, anchors, 0.8 * share, 1.2 * share)


def bundled_digits() -> Samples:
    """scikit-learn's 1,797 digits of 8 x 8."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return equal_shares(digits.data, digits.target, 10, 256)


def handwriting(folder: Path, kind: str) -> Samples:
    """`mnist10k`: the pixels of the first 10,000 digits; `mnist60k`: all, as 50 principal components.

    Args:
        folder: holds `digits.npz` with `images` and `labels`.

    Raises:
        DataError: no such file, or not those arrays.
    """
    file = folder / "digits.npz"
    try:
        with np.load(file, allow_pickle=False) as stored:
            images, truth = stored["images"], stored["labels"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"data={folder}: {file.name} cannot be read ({error}); `dvc repro data@mnist60k` makes it"
        ) from None
    pixels = images.reshape(len(images), -1) / np.float32(255)
    if kind == "mnist10k":
        return equal_shares(pixels[:FEW], truth[:FEW], 10, 256)
    from sklearn.decomposition import PCA

    placed = PCA(COMPONENTS, svd_solver="covariance_eigh").fit_transform(pixels)
    return equal_shares(np.asarray(placed, dtype=np.float32), truth, 10, 512)


def shapes(kind: str, seed: int) -> Samples:
    """`moons`: two of 3,000 and 1,000; `blobs`: three Gaussian ones of 2,800, 800 and 400; bounds 15 % around those.

    The sizes are what a person would have to know here; the order in which they are given carries nothing.
    """
    from sklearn.datasets import make_blobs, make_moons

    if kind == "moons":
        sizes: tuple[int, ...] = MOONS
        features, truth = make_moons(sizes, noise=0.06, random_state=seed)
    else:
        sizes = BLOBS
        centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
        features, truth = make_blobs(sizes, centers=centres, random_state=seed)
    given = np.asarray(sizes, dtype=np.float64)
    return Samples(features, truth, len(sizes), 256, (1 - WIDTH) * given, (1 + WIDTH) * given)
