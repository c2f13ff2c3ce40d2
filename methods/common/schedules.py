"""Learning-rate schedules as plain functions of the step."""

from __future__ import annotations

from collections.abc import Callable


def warm_flat_decay(steps: int, warmup: int, decay: int) -> Callable[[int], float]:
    """Factor of the peak rate at the optimiser step 0 ... steps - 1: linear up, flat, linear down to (nearly) 0.

    Args:
        steps: of the whole training. warmup: first steps; the first of them has the factor 1 / warmup.
        decay: last steps; the last of them has the factor 1 / decay.
    """

    def factor(step: int) -> float:
        rising = (step + 1) / warmup if warmup else 1.0
        falling = (steps - step) / decay if decay else 1.0
        return max(0.0, min(1.0, rising, falling))

    return factor
