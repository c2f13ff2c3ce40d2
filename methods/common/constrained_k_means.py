"""The package k-means-constrained, for those who compare with it."""

from __future__ import annotations

from typing import Any

from methods.common.errors import ConfigError


def constrained_k_means() -> Any:
    """The class `KMeansConstrained`.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        from k_means_constrained import KMeansConstrained
    except ImportError:
        raise ConfigError(
            "k-means-constrained is not installed; pip install 'seedloom[clustering]'"
        ) from None
    return KMeansConstrained
