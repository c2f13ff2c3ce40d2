"""LittleBit-2 as a compressor: layers as products of two sign matrices, distilled on calibration text, packed."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from methods.common.errors import DataError
from tasks.compress.prune import progress_bar, text_documents
from tasks.compress.recipes import HISTORY, LittleBitRecipe

if TYPE_CHECKING:
    from methods.littlebit2 import LittleBitConfig

# What a killed attempt goes on from: finished layers and the training's checkpoint.
PARTS = ".parts"
CHECKPOINT_EVERY = 50  # steps


def check_layers(config: dict[str, Any], recipe: LittleBitRecipe) -> None:
    """Refuse by config.json, before any weight is read: a packed model, and with `strict` a target out of reach.

    Raises:
        DataError, ConfigError: one line with the remedy.
    """
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise DataError(f"the model is compressed already ({method}); give the original model")
    if recipe.strict:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from methods.littlebit2.factorize import choose_rank
        from methods.littlebit2.model import target_layers

        known = AutoConfig.for_model(**config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(known, trust_remote_code=False)
        model.tie_weights()
        settings = factorisation(recipe, 0)
        for target in target_layers(model, settings):
            choose_rank(*target.weight.shape, settings, target.name)


def factorisation(recipe: LittleBitRecipe, seed: int) -> LittleBitConfig:
    """The recipe's part that `methods.littlebit2` knows as its settings."""
    from methods.littlebit2 import LittleBitConfig

    return LittleBitConfig(
        bpp=recipe.bpp,
        residual=recipe.residual,
        init=recipe.init,
        n_iter=recipe.iterations,
        kv_factor=recipe.kv_factor,
        strict=recipe.strict,
        seed=seed,
    )


def littlebit2_model(
    out: Path, *, recipe: LittleBitRecipe, model: Path, calibration: Path | None, seed: int
) -> dict[str, Any]:
    """Factorise all linear layers, distil, pack; see `tasks.compress.recipes.Compressor`.

    Goes on from what a killed attempt left in `out`: finished layers, and the last checkpoint of the distillation.
    """
    import torch
    from transformers import AutoTokenizer

    from methods.common.dtype import resolve_dtype
    from methods.littlebit2 import compress_model, densify, distill, save_compressed, token_blocks
    from tasks.load_model import load_causal_lm
    from tasks.quiet import quiet_progress

    parts = out / PARTS
    parts.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    config = factorisation(recipe, seed)
    student = load_causal_lm(model)
    stored = student.dtype
    student = student.float()
    with progress_bar(f"{recipe.label} layers", "layer") as on_layer:
        student, rows = compress_model(
            student, config, gradient=recipe.gradient, on_layer=on_layer, cache=parts / "layers"
        )
    factorised = time.perf_counter()
    facts: dict[str, Any] = {}
    if recipe.distill_tokens:
        assert calibration is not None
        tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=False, local_files_only=True)
        tokens = token_blocks(tokenizer, text_documents(calibration), recipe.distill_length)
        steps = max(1, recipe.distill_tokens // (recipe.distill_batch * recipe.distill_length))
        teacher = load_causal_lm(model, torch.float32).requires_grad_(False)
        with progress_bar(f"{recipe.label} distillation", "step") as on_step:
            history = distill(
                student,
                teacher,
                tokens,
                steps=steps,
                batch_size=recipe.distill_batch,
                lr=recipe.distill_rate,
                hidden_weight=recipe.hidden_weight,
                reduction="token",
                seed=seed,
                dtype=resolve_dtype(recipe.distill_dtype),
                checkpoint=parts / "checkpoint",
                checkpoint_every=CHECKPOINT_EVERY,
                on_step=lambda done, total, _: on_step(done, total),
            )
        del teacher
        lines = [json.dumps(row) for row in history if "loss" in row]
        (out / HISTORY).write_text("\n".join(lines) + "\n", encoding="utf-8")
        facts |= {
            "distill_steps": steps,
            "distill_tokens_used": steps * recipe.distill_batch * recipe.distill_length,
            "distill_text_tokens": tokens.numel(),
            "distill_loss_first": history[1]["loss"],
            "distill_loss_last": history[-1]["loss"],
        }
    distilled = time.perf_counter()
    with quiet_progress():
        sizes = save_compressed(student, out, config, dtype=stored)
        if recipe.storage == "dense":
            for file in out.glob("model*.safetensors*"):
                file.unlink()
            densify(student.to(stored)).save_pretrained(str(out))
    shutil.rmtree(parts)
    return (
        facts
        | _describe(rows, sizes)
        | {
            "format": "littlebit2" if recipe.storage == "packed" else "dense",
            "timings": {
                "factorise_seconds": factorised - started,
                "distill_seconds": distilled - factorised,
                "save_seconds": time.perf_counter() - distilled,
            },
        }
    )


def _describe(rows: list[dict[str, Any]], sizes: dict[str, float]) -> dict[str, Any]:
    """The three sizes apart: nominal (the paper's formula), stored (bytes of the layers), the whole model's."""
    layers = [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
    weights = sum(row["outputs"] * row["inputs"] for row in rows)
    bits = sum(row["nominal_bpp"] * row["outputs"] * row["inputs"] for row in rows)
    errors = sorted(row["error"] for row in rows)
    return {
        "layers": layers,
        "layers_compressed": len(rows),
        "layers_above_target": sum(row["clamped"] for row in rows),
        "error/mean": sum(errors) / len(errors),
        "error/median": errors[len(errors) // 2],
        "error/max": errors[-1],
        "size/nominal_bytes": sizes["unpacked_bytes"] + bits / 8,
        "size/nominal_bits_per_weight": bits / weights,
        "size/stored_bits_per_weight": sizes["stored_bpp"],
        "size/whole_model_bits": sizes["whole_model_bits"],
        "size/embedding_share": sizes["embedding_share"],
    }
