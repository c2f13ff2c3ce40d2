"""How many tokens a language model reads at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def longest_input(config: Mapping[str, Any]) -> int | None:
    """The most tokens, by the model's config.json or `config.to_dict()`; None when that does not say."""
    found = config.get("max_position_embeddings") or config.get("n_positions")
    return None if not found else int(found)
