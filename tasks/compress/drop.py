"""Dropping sublayers as a compressor: an ordinary smaller model, or one of the type `dropped_<type>`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError
from tasks.compress.recipes import DropRecipe


def check_layers(config: dict[str, Any], recipe: DropRecipe) -> None:
    """Refuse by config.json an unknown architecture or too many layers. DataError, ConfigError."""
    from methods.common.sublayers import require_layout
    from methods.pruning_representations.dropped_models import ATTENTION, MLP

    require_layout(str(config.get("model_type")).removeprefix("dropped_"))
    count = config.get("num_hidden_layers") or config.get("n_layer")
    if count is None:
        return
    # A block without either half is no block any more, so the lists share no index.
    # A block that lost both halves is not counted any more.
    gone = config.get({"attn": ATTENTION, "mlp": MLP}.get(recipe.sublayer, ""), ())
    left = count - len(gone)
    if recipe.layers >= left:
        raise ConfigError(
            f"layers {recipe.layers}: the model has {left} with {recipe.sublayer}; drop fewer than that"
        )


def drop_model(
    out: Path, *, recipe: DropRecipe, model: Path, calibration: Path | None, seed: int
) -> dict[str, Any]:
    """Rank the layers on calibration text and drop the first; see `tasks.compress.recipes.Compressor`."""
    import torch

    from methods.common.dtype import fast_dtype
    from methods.pruning_representations import drop_sublayers, rank_layers
    from methods.pruning_representations.dropped_models import ATTENTION, KEPT_BLOCKS, MLP
    from tasks.compress.prune import SHARD_SIZE, calibration_tokens
    from tasks.load_model import load_causal_lm
    from tasks.quiet import quiet_progress

    started = time.perf_counter()
    tokens = calibration_tokens(recipe, model, calibration, seed)
    loaded = load_causal_lm(model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stored, dtype = loaded.dtype, fast_dtype(device)
    before = sum(p.numel() for p in loaded.parameters())
    loaded_at = time.perf_counter()
    ranking = rank_layers(
        loaded.to(device, dtype),
        tokens,
        criterion=recipe.criterion,
        n=recipe.layers,
        sublayer=recipe.sublayer,
        iterative=recipe.iterative,
    )
    if dtype != stored:  # the ranking's number format may have rounded the weights
        loaded = load_causal_lm(model)
    parts: dict[str, Any] = {"blocks" if recipe.sublayer == "block" else recipe.sublayer: ranking.order}
    smaller = drop_sublayers(loaded.cpu(), **parts, in_place=True)
    ranked_at = time.perf_counter()
    with quiet_progress():
        smaller.save_pretrained(str(out), max_shard_size=SHARD_SIZE)
    saved: dict[str, Any] = json.loads((out / "config.json").read_text(encoding="utf-8"))
    after = sum(p.numel() for p in smaller.parameters())
    return {
        "format": "dense",
        "dropped_layers": list(ranking.order),
        "dropped_sublayer": recipe.sublayer,
        "damage": {str(layer): score for layer, score in ranking.scores.items()},
        "model_type": saved["model_type"],
        **{name: saved[name] for name in (ATTENTION, MLP, KEPT_BLOCKS) if name in saved},
        "calibration_sequences_used": len(tokens),
        "parameters_removed": before - after,
        "parameters_kept_share": after / before,
        "size/nominal_bytes": sum(p.numel() * p.element_size() for p in smaller.parameters()),
        "timings": {
            "load_seconds": loaded_at - started,
            "prune_seconds": ranked_at - loaded_at,
            "save_seconds": time.perf_counter() - ranked_at,
        },
    }
