"""Adapt a RoPE model to longer text with transformers' Trainer; the output is an ordinary model folder.

Checkpoints lie below `out/.checkpoints` until the model is written. A run that was killed goes on from the last one
and ends with the same bytes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.optim import AdamW
from torch.utils.data import Dataset
from transformers import set_seed

from methods.common.errors import DataError, NumericalError
from methods.rope_psd import RopePSDConfig, RopePSDTrainer, check_rope, pose_rows, set_rope
from tasks.adapt.config import AdaptSettings, LongText
from tasks.load_model import load_causal_lm
from tasks.one_model import one_model_at_a_time
from tasks.pretrain.config import CorpusSettings
from tasks.pretrain.corpus import build_corpus, load_record, load_rows
from tasks.pretrain.pretrain import Curves, HeldOut, PackedRows
from tasks.reference import Reference
from tasks.train.checkpoints import open_checkpoints, train_onward
from tasks.train.expert_folder import write_json
from tasks.train.loading import load_tokenizer
from tasks.train.packed_training import computes_in_half, save_trained, scheduled, timings, trainer_arguments
from tasks.train.quiet_trainer import no_chatter, quieten
from tasks.train.trace import Row, write_trace

RECORD = "adapt.json"
VIEWS: dict[str, dict[str, Any]] = {
    "psd-skip": {"perturbation": "skip"},
    "psd-cyclic": {"perturbation": "cyclic"},
    "psd-longce": {"perturbation": "skip", "loss_variant": "longce"},
    "clm": {"perturbation": "none"},
    "longce": {"perturbation": "none", "loss_variant": "longce"},
    "pose": {"perturbation": "skip", "clm_view": "perturbed"},
    "pose-rows": {"perturbation": "none"},
}


def corpus_settings(text: LongText) -> CorpusSettings:
    """The text as the packing knows it."""
    return CorpusSettings.model_validate(text.model_dump())


def build_long_text(out: Path, *, text: LongText, model: Reference) -> dict[str, Any]:
    """Rows of `text.context` tokens of the model's tokenizer, the end of the text held out.

    Raises:
        DataError: the text cannot be read or is too short, or the model has no tokenizer with an end token.
    """
    tokenizer = load_tokenizer(model.expect("model"))
    if tokenizer.eos_token_id is None:
        raise DataError(
            f"model {model.path}: its tokenizer has no end token to put between documents; set eos_token"
        )
    return build_corpus(corpus_settings(text), out, tokenizer)


class PoseRows(Dataset[dict[str, torch.Tensor]]):
    """PoSE's rows: two chunks from two neighbouring rows, the second with moved indices."""

    def __init__(self, rows: PackedRows, length: int, target: int, seed: int) -> None:
        self.rows, self.length, self.target, self.seed = rows, length, target, seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        first = self.rows[index]["input_ids"]
        second = self.rows[(index + 1) % len(self.rows)]["input_ids"]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        ids, places = pose_rows(torch.cat((first, second)), self.length, self.target, generator)
        return {"input_ids": ids, "labels": ids, "position_ids": places}


class _Curves(Curves):
    """With the method's two parts."""

    NAMES: ClassVar[Mapping[str, str]] = {
        **Curves.NAMES,
        "clm": "train/clm",
        "kl": "train/view_kl",
        "perturbed_ce": "train/perturbed_ce",
    }


def adapt(
    out: Path,
    *,
    settings: AdaptSettings,
    model: Reference,
    corpus: Reference,
    on_row: Callable[[Row], None] | None = None,
) -> dict[str, Any]:
    """Train the model on the rows of `corpus` into `out`: config.json, model.safetensors, tokenizer, trace.

    Args:
        out: an empty folder, or what a killed run of the same settings left.
        settings: how to train; `text` and `positions` are not looked at.
        model: a folder of a causal language model with rotary positions.
        corpus: what `build_long_text` wrote with its tokenizer.
        on_row: called with each row of the trace as it comes.

    Returns:
        method, parameters, steps, context, held-out loss (nats a token) at the start and at the end, bits per byte, the
        last view KL (nats); seconds and tokens a second under `timings`.

    Raises:
        DataError: model or corpus damaged. ConfigError, TypeError: the model cannot be adapted, see `check_rope`.
        NumericalError: the loss left the finite numbers.
    """
    begin = time.perf_counter()
    folder = corpus.expect("data")
    record = load_record(folder)
    train, validation = load_rows(folder, "train"), load_rows(folder, "validation")
    facts = {
        "corpus_digest": corpus.digest,
        "model_digest": model.digest,
        "settings": settings.model_dump(
            mode="json", include=set(AdaptSettings.model_fields) - {"text", "positions"}
        ),
    }
    checkpoints = open_checkpoints(out, facts)
    loaded = load_causal_lm(model.expect("model"), dtype=torch.float32)
    check_rope(loaded)
    set_rope(
        loaded,
        theta=settings.rope_theta or None,
        window=max(record["context"], loaded.config.max_position_embeddings),
    )
    with one_model_at_a_time, no_chatter():
        set_seed(settings.seed)
        curves = _Curves(HeldOut(validation, settings.positions.rows, record), settings, on_row)
        trainer = _trainer(loaded, settings, train, record["context"], curves, checkpoints)
        started = time.perf_counter()
        resumed_at = train_onward(trainer, checkpoints)
        trained = time.perf_counter()
    if curves.diverged_at is not None:
        raise NumericalError(
            f"the loss left the finite numbers at step {curves.diverged_at}; lower "
            f"learning_rate={settings.learning_rate}"
        )
    rows = curves.rows(trainer.state.log_history)
    kept: Any = trainer.accelerator.unwrap_model(trainer.model)
    held = [row for row in rows if "validation/loss" in row]
    last = next((row for row in reversed(rows) if "train/view_kl" in row), {})
    summary: dict[str, Any] = {
        "method": settings.method,
        "parameters": sum(parameter.numel() for parameter in kept.parameters()),
        "steps": trainer.state.global_step,
        "context": record["context"],
        "validation_loss_start": held[0]["validation/loss"],
        "validation_loss": held[-1]["validation/loss"],
        "bits_per_byte": held[-1]["validation/bits_per_byte"],
        "view_kl": last.get("train/view_kl", 0.0),
        "seed": settings.seed,
    }
    if trainer.is_world_process_zero():
        save_trained(kept, out)
        load_tokenizer(model.path).save_pretrained(out)
        write_trace(out, rows)
        write_json(out / RECORD, {**facts, "source": record["source"], **summary})
        shutil.rmtree(checkpoints)
    here = trainer.state.global_step - resumed_at
    summary["timings"] = timings(settings, here, record["context"], started - begin, trained - started)
    return summary


def _trainer(
    model: Any, settings: AdaptSettings, rows: Any, context: int, curves: _Curves, checkpoints: Path
) -> RopePSDTrainer:
    curves.autocast = computes_in_half(settings.dtype)
    steps, psd = settings.max_steps, settings.method.startswith("psd")
    packed: Any = PackedRows(rows, steps * settings.batch_size, settings.seed)
    if settings.method == "pose-rows":
        packed = PoseRows(packed, context, round(context * (1 + settings.max_skip)), settings.seed)
    optimiser = AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay
    )
    trainer = RopePSDTrainer(
        model=model,
        args=RopePSDConfig(
            **trainer_arguments(settings, checkpoints),
            **VIEWS[settings.method],
            kl_weight=settings.kl_weight if psd else 0.0,
            max_skip=settings.max_skip,
            # LongCE's short context, 4,096 tokens with a stride of 1,024 at 64k, at any length.
            long_ce_context=min(4096, max(2, context // 4)),
            long_ce_stride=min(1024, max(1, context // 16)),
        ),
        train_dataset=packed,
        optimizers=scheduled(optimiser, settings),
        callbacks=[curves],
    )
    quieten(trainer)
    curves.log = trainer.log
    return trainer
