"""Rows of a study that are kept one by one: a study that was killed does only what is missing."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tasks.settings import settings as machine

logger = logging.getLogger("seedloom")
Item = TypeVar("Item")


def banked(
    name: str,
    items: Sequence[Item],
    key: Callable[[Item], Mapping[str, Any]],
    work: Callable[[Item], dict[str, Any]],
) -> list[dict[str, Any]]:
    """The row of every item, from the work folder or done now, in the order of `items`.

    Args:
        name: of the bank's folder below the work folder.
        items: what to do.
        key: everything that an item's row depends on, JSON values; a version among them.
        work: makes the row, JSON values.
    """
    folder = machine().work / name
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for done, item in enumerate(items, 1):
        record = json.dumps(key(item), sort_keys=True)
        file = folder / f"{hashlib.sha256(record.encode()).hexdigest()[:32]}.json"
        if not file.is_file():
            part = file.with_suffix(".part")
            part.write_text(json.dumps(work(item), sort_keys=True), encoding="utf-8")
            part.replace(file)
            logger.info("%s: %d of %d", name, done, len(items))
        rows.append(json.loads(file.read_text(encoding="utf-8")))
    return rows
