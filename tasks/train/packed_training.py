"""What trainings on packed rows share: what they tell transformers' Trainer, and the end of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from methods.common.dtype import compute_device, resolve_dtype
from methods.common.schedules import warm_flat_decay
from tasks.quiet import quiet_progress
from tasks.train.checkpoints import rows_a_device
from tasks.train.packed_config import PackedTrainingSettings

LOGGED = 2_000  # rows of the training curve at most


def computes_in_half(dtype: str) -> bool:
    """Whether a training computes in bfloat16; `auto` does on a GPU that has it, never on a processor."""
    device = compute_device()
    return dtype == "bfloat16" or (
        dtype == "auto" and device.type != "cpu" and resolve_dtype("auto", device) == torch.bfloat16
    )


def trainer_arguments(settings: PackedTrainingSettings, checkpoints: Path) -> dict[str, Any]:
    """Arguments of `TrainingArguments`: rows in the order of the data set, checkpoints, a loss a step, no reports.

    Raises:
        ConfigError: the batch cannot be split over the devices.
    """
    return {
        "output_dir": str(checkpoints),
        "max_steps": settings.max_steps,
        "per_device_train_batch_size": rows_a_device(settings.batch_size),
        "max_grad_norm": settings.clip,
        "activation_checkpointing": settings.gradient_checkpointing,
        "bf16": computes_in_half(settings.dtype),
        "use_cpu": compute_device().type == "cpu",
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "logging_strategy": "steps",
        "logging_steps": max(1, settings.max_steps // LOGGED),
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": settings.checkpoint_every,
        "save_total_limit": 2,
        "report_to": "none",
        "disable_tqdm": not sys.stderr.isatty(),
        "seed": settings.seed,
        "data_seed": settings.seed,
    }


def scheduled(optimiser: torch.optim.Optimizer, settings: PackedTrainingSettings) -> Any:
    """The optimiser with its rates: up, flat, and down to nothing, as a pair for the Trainer."""
    steps = settings.max_steps
    factor = warm_flat_decay(steps, round(settings.warmup_share * steps), round(settings.decay_share * steps))
    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


def save_trained(model: Any, out: Path) -> None:
    """Write the trained model's configuration and weights, readable like any file and quick to generate with."""
    model.config.use_cache = True  # the Trainer turned it off; without it generation is slow
    with quiet_progress():
        model.save_pretrained(out)
    for weights in out.glob("*.safetensors"):
        weights.chmod(0o644)


def timings(
    settings: PackedTrainingSettings, steps_here: int, context: int, load_seconds: float, train_seconds: float
) -> dict[str, float]:
    """Seconds, and the speed of the steps that this process made, on rows of `context` tokens."""
    tokens = steps_here * settings.batch_size * context
    return {
        "load_seconds": load_seconds,
        "train_seconds": train_seconds,
        "steps_here": steps_here,
        "tokens_per_second": tokens / train_seconds if train_seconds else 0.0,
    }
