"""Model folders into memory, without a word on the terminal and without foreign code."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from methods.common.errors import DataError
from tasks.one_model import one_model_at_a_time
from tasks.quiet import quiet_progress


def load_model(folder: Path, dtype: torch.dtype) -> Any:
    """A causal language model in eval mode on the CPU; safetensors only.

    Raises:
        DataError: it cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    try:
        with one_model_at_a_time, quiet_progress():
            return AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, local_files_only=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"model {folder.name}: cannot be loaded ({_first_line(error)})") from error


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer. Raises DataError when there is none that can be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"tokenizer of {folder.name}: cannot be loaded ({_first_line(error)})") from error


def weights_digest(folder: Path) -> str:
    """sha256 over a model's safetensors files: the same for a copy with another card or tokenizer."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            digest.update(f"{path.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def load_split(folder: Path, part: str) -> list[dict[str, Any]]:
    """Rows (`context`, `choices`, `gold`, `id`) of one part of a task set.

    Raises:
        DataError: the part is missing, empty, damaged, or lacks a column.
    """
    from datasets import Dataset, load_from_disk

    place = folder / part
    if not place.is_dir():
        raise DataError(f"task {folder.name}: has no part {part!r}; prepare the task set again")
    try:
        data = load_from_disk(str(place))
    except Exception as error:
        raise DataError(f"task {folder.name}: the part {part!r} is damaged ({_first_line(error)})") from error
    if not isinstance(data, Dataset) or not {"context", "choices", "gold"} <= set(data.column_names):
        raise DataError(f"task {folder.name}: the part {part!r} lacks the columns context, choices, gold")
    rows: list[dict[str, Any]] = data.to_list()
    if not rows:
        raise DataError(f"task {folder.name}: the part {part!r} is empty; prepare more examples")
    return rows


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
