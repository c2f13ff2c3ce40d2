"""Tokenizers and parts of task sets into memory, and the digest of a model's weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from tasks.load_model import first_line
from tasks.reference import file_digest


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer. Raises DataError when there is none that can be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"tokenizer of {folder.name}: cannot be loaded ({first_line(error)})") from error


def weights_digest(folder: Path) -> str:
    """sha256 over a model's safetensors files: the same for a copy with another card or tokenizer."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name}:{file_digest(path)}\n".encode())
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
        raise DataError(f"task {folder.name}: the part {part!r} is damaged ({first_line(error)})") from error
    if not isinstance(data, Dataset) or not {"context", "choices", "gold"} <= set(data.column_names):
        raise DataError(f"task {folder.name}: the part {part!r} lacks the columns context, choices, gold")
    rows: list[dict[str, Any]] = data.to_list()
    if not rows:
        raise DataError(f"task {folder.name}: the part {part!r} is empty; prepare more examples")
    return rows
