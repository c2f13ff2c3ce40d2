"""Average, task arithmetic, TIES and DARE: the operators of `methods.merge_early_stop` under the merge settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.merge_early_stop import Operator, merge
from methods.merge_early_stop.operators import Merger
from methods.merge_early_stop.sources import ExpertStream
from tasks.merge.config import MergeSettings
from tasks.merge.methods import MergeJob


class BuiltIn:
    """One of the four methods. Besides `vector`, it writes the merged folder as a stream of pieces."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.tuned = method != "average"

    def vector(self, job: MergeJob, dtype: torch.dtype = torch.float32) -> Mapping[str, Tensor]:
        """The merged vector at coefficient 1 (for average: the mean), stored in `dtype`."""
        stream = ExpertStream(job.base, dict(job.experts))
        found: dict[str, Tensor] = {}

        def take(merger: Merger) -> None:
            for name in stream.names:
                flat = torch.empty(stream.numel(name), dtype=dtype)
                start = 0
                for piece in merger.delta(name):
                    flat[start : start + piece.numel()] = piece
                    start += piece.numel()
                found[name] = flat.reshape(stream.base.shapes[name])

        Merger(Operator(self.method, 1.0, **self._options(job.settings)), stream).run(take)
        return found

    def write(self, job: MergeJob, coefficient: float, out: Path, save_dtype: torch.dtype | None) -> None:
        """Write the merged model folder `out`, which must not exist; memory holds pieces only."""
        merge(
            job.base,
            dict(job.experts),
            self.method,
            out=out,
            lambda_=coefficient,
            save_dtype=save_dtype,
            **self._options(job.settings),
        )

    def _options(self, settings: MergeSettings) -> dict[str, Any]:
        if self.method == "ties":
            return {"density": settings.density, "trim": settings.granularity}
        if self.method == "dare":
            return {"drop": settings.drop_rate, "then": settings.dare_then, "seed": settings.seed}
        return {}
