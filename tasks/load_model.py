"""Causal language models from a folder into memory: the one place where it is done.

Without a word on the terminal, without foreign code, from safetensors only, and never with a weight that the
checkpoint does not have: transformers fills such a weight with random numbers and goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from tasks.one_model import one_model_at_a_time
from tasks.quiet import quiet_progress

# What transformers reports of a checkpoint that does not fit, and what to call it.
FAULTS = {
    "missing_keys": "lacks the tensor",
    "mismatched_keys": "has another shape than config.json says for the tensor",
}
logger = logging.getLogger("seedloom")


def load_causal_lm(folder: Path, dtype: Any = "auto") -> Any:
    """The model in eval mode on the CPU.

    Args:
        folder: checked by `tasks.prepare.models.check_model_folder`, which also makes this project's own model types
            known to transformers.
        dtype: number format; "auto" keeps the checkpoint's.

    Raises:
        DataError: it cannot be loaded, or the checkpoint lacks a tensor of the architecture. One that the architecture
            has no place for (published checkpoints hold such ones) is only told.
    """
    from transformers import AutoModelForCausalLM

    try:
        with one_model_at_a_time, quiet_progress():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise DataError(f"model {folder}: cannot be loaded ({first_line(error)})") from error
    model, found = loaded
    for kind, words in FAULTS.items():
        if found.get(kind):
            raise DataError(
                f"model {folder}: the checkpoint {words} {_named(found[kind])}; use an intact checkpoint"
            )
    if found.get("unexpected_keys"):
        logger.warning(
            "model %s: the architecture has no place for %s, left out",
            folder,
            _named(found["unexpected_keys"]),
        )
    return model.eval()


def _named(keys: Iterable[Any]) -> str:
    names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in keys)
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
