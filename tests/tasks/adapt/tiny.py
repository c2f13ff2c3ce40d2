"""A small adaptation."""

from pathlib import Path
from typing import Any

from tasks.adapt.adapt import build_long_text
from tasks.adapt.config import AdaptSettings, LongText
from tasks.reference import Reference, reference_to
from tests.tiny_models import tiny_llama, toy_text


def settings(**changes: Any) -> AdaptSettings:
    values: dict[str, Any] = {
        "text": {"source": "given.jsonl", "context": 32},
        "learning_rate": 1e-3,
        "batch_size": 2,
        "max_steps": 8,
        "evaluate_every": 4,
        "checkpoint_every": 4,
        "dtype": "float32",
        "positions": {"rows": 4},
    }
    return AdaptSettings.model_validate(values | changes)


def inputs(folder: Path, context: int = 32) -> tuple[Reference, Reference]:
    """A random Llama, and rows of its tokens."""
    model = reference_to(tiny_llama(folder / "llama"), "model")
    source = toy_text(folder / "toy.jsonl", documents=150)
    build_long_text(
        folder / "rows", text=LongText(source=str(source), context=context, validation_share=0.1), model=model
    )
    return model, reference_to(folder / "rows", "data")
