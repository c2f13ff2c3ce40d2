"""Pruning as a compressor: a normal model folder with zeros in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from methods.common.errors import DataError
from tasks.compress.recipes import (
    CalibratedRecipe,
    DropRecipe,
    MagnitudeRecipe,
    PatternRecipe,
    PruneRecipe,
    SparseGPTRecipe,
    WandaRecipe,
)
from tasks.progress import progress_bar

if TYPE_CHECKING:
    from torch import Tensor

SHARD_SIZE = "5GB"


def check_architecture(config: dict[str, Any]) -> None:
    """Refuse a model type without known linear layers. Raises UnknownArchitectureError (a DataError)."""
    from methods.common.linear_layers import require_architecture

    require_architecture(str(config.get("model_type")).removeprefix("dropped_"))


def prune_model(
    out: Path, *, recipe: PatternRecipe, model: Path, calibration: Path | None, seed: int
) -> dict[str, Any]:
    """Prune all linear layers of the blocks; see `tasks.compress.recipes.Compressor`.

    Embeddings, norms, biases and the output head stay as they are. Calibration runs on a GPU where there is one, a
    block at a time, in the number format that the device is fast in; statistics are float32, and the weights keep
    their own format.
    """
    import torch

    from methods.common.dtype import fast_dtype
    from methods.pruning_representations import magnitude, sparsegpt, wanda
    from tasks.load_model import load_causal_lm
    from tasks.quiet import quiet_progress

    started = time.perf_counter()
    facts: dict[str, Any] = {"format": "dense"}
    tokens: Tensor | None = None
    if isinstance(recipe, WandaRecipe | SparseGPTRecipe):
        tokens = calibration_tokens(recipe, model, calibration, seed)
        facts["calibration_sequences_used"] = len(tokens)
    loaded = load_causal_lm(model)
    loaded_at = time.perf_counter()
    common: dict[str, Any] = {"sparsity": recipe.sparsity, "pattern": recipe.pattern}
    if isinstance(recipe, PruneRecipe):
        common["compare"] = recipe.compare
    with progress_bar(recipe.label, "block") as on_block:
        if tokens is not None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            dtype = fast_dtype(device)
            facts |= {"compute_device": device, "compute_dtype": str(dtype).removeprefix("torch.")}
            if isinstance(recipe, SparseGPTRecipe):
                common["damping"] = recipe.damping
            method = sparsegpt if isinstance(recipe, SparseGPTRecipe) else wanda
            method(loaded, tokens, dtype=dtype, device=device, on_block=on_block, **common)
        elif isinstance(recipe, MagnitudeRecipe):
            magnitude(loaded, on_block=on_block, **common)
        else:
            raise TypeError(f"{type(recipe).__name__} is no recipe of this compressor")
    pruned_at = time.perf_counter()
    with quiet_progress():
        loaded.save_pretrained(str(out), max_shard_size=SHARD_SIZE)
    facts |= _describe(loaded)
    facts["timings"] = {
        "load_seconds": loaded_at - started,
        "prune_seconds": pruned_at - loaded_at,
        "save_seconds": time.perf_counter() - pruned_at,
    }
    return facts


def _describe(model: Any) -> dict[str, Any]:
    """Zeros layer by layer, and the nominal size: a bit per weight for its place, and the values that
    remain."""
    from methods.common.linear_layers import linear_layers

    layers, pruned, zeros, sparse, dense = [], 0, 0, 0, 0
    for layer in linear_layers(model):
        size, width = layer.weight.numel(), layer.weight.element_size()
        nonzero = int(layer.weight.count_nonzero())
        layers.append({"name": layer.name, "shape": list(layer.weight.shape), "sparsity": 1 - nonzero / size})
        pruned += size
        zeros += size - nonzero
        dense += size * width
        sparse += -(-size // 8) + nonzero * width
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    return {
        "layers": layers,
        "sparsity": zeros / pruned,
        "layers_pruned": len(layers),
        "weights_in_pruned_layers": pruned,
        "size/nominal_bytes": whole - dense + sparse,
        "size/nominal_bits_per_weight": 8 * sparse / pruned,
    }


def calibration_tokens(
    recipe: CalibratedRecipe | DropRecipe, model: Path, text: Path | None, seed: int
) -> Tensor:
    """Token ids [sequences, length] of calibration text, as the model's tokenizer cuts it. Raises DataError."""
    from transformers import AutoTokenizer

    from methods.pruning_representations import sample_sequences

    assert text is not None
    tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=False, local_files_only=True)
    return sample_sequences(
        text_documents(text),
        tokenizer,
        sequences=recipe.calibration_sequences,
        length=recipe.calibration_length,
        seed=seed,
    )


def text_documents(folder: Path) -> Iterator[str]:
    """The documents of a text data set. DataError when it is none, or has no column `text` of strings."""
    from datasets import load_from_disk

    try:
        data = load_from_disk(str(folder))
    except (FileNotFoundError, ValueError, OSError) as error:
        raise DataError(
            f"text {folder}: is no data set written by datasets.save_to_disk; give a folder such as the prepare step's "
            "text"
        ) from error
    columns = data.column_names
    if isinstance(columns, dict) or "text" not in columns:
        raise DataError(f"text {folder}: has no column 'text' (it has {', '.join(map(str, columns))})")
    for text in data["text"]:
        if not isinstance(text, str):
            raise DataError(f"text {folder}: column 'text' holds {type(text).__name__}, not strings")
        yield text
