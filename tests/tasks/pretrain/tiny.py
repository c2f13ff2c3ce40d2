"""A small pre-training."""

from pathlib import Path
from typing import Any

from tasks.pretrain.config import ModelShape, PretrainSettings
from tasks.reference import Reference, reference_to


def settings(**changes: Any) -> PretrainSettings:
    shape = {"layers": 2, "width": 32, "ffn": 64, "heads": 2} | changes.pop("shape", {})
    values: dict[str, Any] = {
        "shape": ModelShape.model_validate(shape),
        "learning_rate": 1e-2,
        "batch_size": 4,
        "max_steps": 12,
        "evaluate_every": 4,
        "checkpoint_every": 4,
        "validation_rows": 16,
        "dtype": "float32",
    }
    return PretrainSettings.model_validate(values | changes)


def reference(corpus: Path) -> Reference:
    return reference_to(corpus, "data")
