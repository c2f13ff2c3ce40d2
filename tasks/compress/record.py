"""What a compressed folder tells about its origin: the model it was made from, and the text it was calibrated on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from methods.common.errors import DataError
from tasks.reference import CALIBRATION_DOCUMENTS

REPORT = "compression.json"
# A document is known by its beginning: the same one may be cut at different lengths.
OPENING_CHARACTERS = 1_000


def parent_digest(folder: Path) -> str:
    """The digest of the model that a folder was compressed from; empty for any other folder."""
    file = folder / REPORT
    if not file.is_file():
        return ""
    try:
        return str(json.loads(file.read_text(encoding="utf-8")).get("model_digest", ""))
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{file}: is damaged ({str(error).splitlines()[0]}); compress the model again"
        ) from error


def note_calibration(out: Path, source: Path, documents: Iterable[str]) -> None:
    """Write which documents a compressed model has seen: these, and those that its source had seen."""
    marks = _seen(source) | {_mark(text) for text in documents}
    if marks:
        (out / CALIBRATION_DOCUMENTS).write_text("\n".join(sorted(marks)) + "\n", encoding="utf-8")


def refuse_seen_text(model: Path, name: str, documents: Iterable[str]) -> None:
    """Refuse to judge a model on text that its compression has read.

    Raises:
        DataError: naming the model and the number of such documents.
    """
    marks = _seen(model)
    if not marks:
        return
    found = [_mark(text) in marks for text in documents]
    if any(found):
        raise DataError(
            f"text: {sum(found)} of its {len(found)} documents were calibration text of {name}; give other text, or "
            "compress the model on other text"
        )


def _seen(folder: Path) -> set[str]:
    file = folder / CALIBRATION_DOCUMENTS
    return set(file.read_text(encoding="utf-8").split()) if file.is_file() else set()


def _mark(text: str) -> str:
    return hashlib.sha256(text.strip()[:OPENING_CHARACTERS].encode()).hexdigest()[:16]
