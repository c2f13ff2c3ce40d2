"""Bounds of cluster sizes: from the unit that a person gives to anchors and samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from methods.common.errors import ConfigError
from methods.sc_fagc.bound_values import bound_values
from methods.sc_fagc.rounding import whole_bounds

DEFAULT_SHARES = (0.8, 1.2)


@dataclass(frozen=True)
class SizeBounds:
    """Bounds in samples, `[c]` each; `given` says whether a person gave any, or all are the default."""

    lower: np.ndarray
    upper: np.ndarray
    given: bool

    @classmethod
    def of(
        cls, size_min: Any, size_max: Any, unit: str, clusters: int, samples: int, anchors: int
    ) -> SizeBounds:
        """From `size_min` and `size_max` in `unit`; None takes 0.8 and 1.2 of an equal share.

        Raises:
            ConfigError: an unknown unit, what `bound_values` refuses, a lower bound above its upper one, or sums
                that the number of samples does not lie between.
        """
        scales = {"samples": 1.0, "anchors": samples / anchors, "share": samples / clusters}
        if unit not in scales:
            raise ConfigError(f"size_unit={unit!r}: give one of {', '.join(scales)}")
        found = []
        for name, value, share in zip(
            ("size_min", "size_max"), (size_min, size_max), DEFAULT_SHARES, strict=True
        ):
            if value is None:
                found.append(np.full(clusters, share * samples / clusters))
                continue
            found.append(bound_values(name, value, clusters) * scales[unit])
        lower, upper = found
        # A default gives way to the bound that a person set.
        if size_min is None:
            lower = np.minimum(lower, upper)
        if size_max is None:
            upper = np.maximum(upper, lower)
        if (lower > upper).any():
            k = int(np.argmax(lower - upper))
            raise ConfigError(
                f"size_min of cluster {k} is {lower[k]:g} and size_max {upper[k]:g} samples; lower it"
            )
        if lower.sum() > samples * (1 + 1e-9) or upper.sum() < samples * (1 - 1e-9):
            raise ConfigError(
                f"size_min adds up to {lower.sum():g} and size_max to {upper.sum():g} samples over {clusters} "
                f"clusters, and {samples} samples must lie between them; size_min of at most {samples / clusters:g} "
                "and size_max of at least that can be met"
            )
        return cls(lower, upper, size_min is not None or size_max is not None)

    def on_samples(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """In whole samples. Raises ConfigError when no whole numbers fit."""
        if not self.given:
            return np.floor(self.lower).astype(np.int64), np.ceil(self.upper).astype(np.int64)
        return whole_bounds(self.lower, self.upper, samples, len(self.lower), "samples")

    def on_anchors(self, samples: int, anchors: int, strict: bool) -> tuple[np.ndarray, np.ndarray]:
        """In whole anchors, an anchor standing for samples / anchors samples.

        Args:
            samples, anchors: their numbers.
            strict: refuse bounds that a person gave when they do not fit; else they are widened to whole anchors, as
                the default ones always are.

        Raises:
            ConfigError: no whole numbers of anchors fit between the bounds.
        """
        lower, upper = self.lower * anchors / samples, self.upper * anchors / samples
        try:
            return whole_bounds(lower, upper, anchors, len(lower), "anchors")
        except ConfigError as error:
            if not (strict and self.given):
                return np.floor(lower).astype(np.int64), np.ceil(upper).astype(np.int64)
            raise ConfigError(
                f"size_min, size_max: an anchor stands for {samples / anchors:g} samples ({anchors} anchors). {error} "
                "(in anchors); widen the bounds, give more n_anchors, or set transmission='bounded', which holds them "
                "sample by sample"
            ) from None
