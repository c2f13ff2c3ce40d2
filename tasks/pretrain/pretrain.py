"""Train a base model from scratch with transformers' Trainer; the output is an ordinary model folder.

Checkpoints lie below `out/.checkpoints` until the model is written. A run that was killed goes on from the last one
and ends with the same bytes. A loss that leaves the finite numbers is a result, not a crash: training stops there,
the last weights that were still whole are written, and the summary says `diverged`.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.optim import AdamW
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed

from methods.common.errors import DataError
from methods.span_norm import SpanNormConfig, SpanNormForCausalLM, parameter_groups
from tasks.one_model import one_model_at_a_time
from tasks.pretrain.config import ModelShape, PretrainSettings
from tasks.pretrain.corpus import load_record, load_rows
from tasks.pretrain.model_card import model_card
from tasks.reference import Reference
from tasks.train.checkpoints import open_checkpoints, train_onward
from tasks.train.expert_folder import write_json
from tasks.train.packed_config import PackedTrainingSettings
from tasks.train.packed_training import computes_in_half, save_trained, scheduled, timings, trainer_arguments
from tasks.train.quiet_trainer import no_chatter, quieten
from tasks.train.trace import Row, write_trace

RECORD = "pretrain.json"
VALIDATION_BATCH = 16


def pretrain(
    out: Path,
    *,
    settings: PretrainSettings,
    corpus: Reference,
    on_row: Callable[[Row], None] | None = None,
) -> dict[str, Any]:
    """Train a model on the rows of `corpus` into `out`: config.json, model.safetensors, tokenizer, trace, README.md.

    Args:
        out: an empty folder, or what a killed run of the same settings left.
        settings: the model and how to train it; `settings.corpus` is not looked at.
        corpus: what `build_corpus` wrote.
        on_row: called with each row of the trace as it comes.

    Returns:
        parameters, steps made, the step of the kept weights, validation loss in nats a token and in bits per byte at
        the start and at the end, whether it improved, perplexity, the largest gradient norm before clipping, `diverged`
        and its step (-1 for none); seconds and tokens a second under `timings`.

    Raises:
        DataError: the corpus is damaged.
        ConfigError: the shape does not fit, or the batch cannot be split over the devices.
    """
    begin = time.perf_counter()
    folder = corpus.expect("data")
    record = load_record(folder)
    config = model_config(settings.shape, record)
    train, validation = load_rows(folder, "train"), load_rows(folder, "validation")
    facts = {
        "corpus_digest": corpus.digest,
        "settings": settings.model_dump(mode="json", include=set(PretrainSettings.model_fields) - {"corpus"}),
    }
    checkpoints = open_checkpoints(out, facts)
    with one_model_at_a_time, no_chatter():
        set_seed(settings.seed)
        model = SpanNormForCausalLM(config)
        held_out = HeldOut(validation, settings.validation_rows, record)
        curves = Curves(held_out, settings, on_row)
        trainer = _trainer(model, settings, train, curves, checkpoints)
        started = time.perf_counter()
        resumed_at = train_onward(trainer, checkpoints)
        trained = time.perf_counter()
        kept, kept_step = _whole_weights(trainer, config, settings.seed, checkpoints, curves.diverged_at)
    rows = curves.rows(trainer.state.log_history)
    summary = _summary(kept, kept_step, settings, rows, curves.diverged_at, trainer.state.global_step)
    if trainer.is_world_process_zero():
        save_trained(kept, out)
        shutil.copytree(folder / "tokenizer", out, dirs_exist_ok=True)
        write_trace(out, rows)
        (out / "README.md").write_text(model_card(settings.shape, summary, record), encoding="utf-8")
        write_json(out / RECORD, {**facts, "source": record["source"], **summary})
        shutil.rmtree(checkpoints)
    here = trainer.state.global_step - resumed_at
    summary["timings"] = timings(settings, here, record["context"], started - begin, trained - started)
    return summary


def model_config(shape: ModelShape, record: Mapping[str, Any]) -> SpanNormConfig:
    """The configuration of a model of that shape for a corpus's tokenizer and context."""
    return SpanNormConfig(
        norm_scheme=shape.norm_scheme,
        residual_init=None if shape.residual_init == "scheme" else shape.residual_init,
        vocab_size=record["vocabulary"],
        hidden_size=shape.width,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=record["context"],
        num_experts=shape.experts,
        num_experts_per_tok=shape.experts_per_token,
        mup_base_width=shape.mup_base_width or None,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


class PackedRows(Dataset[dict[str, torch.Tensor]]):
    """The rows in the order in which they are trained: every epoch shuffled anew, from front to back."""

    def __init__(self, rows: Any, count: int, seed: int) -> None:
        self.rows, self.count, self.seed = rows.with_format("numpy"), count, seed
        self.epoch, self.order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        epoch, place = divmod(index, len(self.rows))
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = np.random.default_rng((self.seed, epoch)).permutation(len(self.rows))
        ids = torch.from_numpy(self.rows[int(self.order[place])]["input_ids"].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


class HeldOut:
    """The loss on rows spread evenly over the held-out text."""

    def __init__(self, rows: Any, count: int, record: Mapping[str, Any]) -> None:
        places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)
        table = np.stack([np.asarray(rows[int(place)]["input_ids"]) for place in places])
        self.ids = torch.from_numpy(table.astype(np.int64))
        self.bytes_per_token = record["validation"]["bytes"] / record["validation"]["tokens"]

    @torch.no_grad()
    def loss(self, model: nn.Module, autocast: bool) -> float:
        """Mean negative log-likelihood in nats a token, of all tokens but each row's first."""
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        total = 0.0
        for batch in self.ids.to(device).split(VALIDATION_BATCH):
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                logits = model(input_ids=batch, use_cache=False).logits
            wanted = batch[:, 1:]
            scores = logits[:, :-1].float().log_softmax(-1).gather(-1, wanted[..., None])
            total -= float(scores.double().sum())
        model.train(was_training)
        return total / (self.ids.shape[0] * (self.ids.shape[1] - 1))

    def bits_per_byte(self, loss: float) -> float:
        return loss / math.log(2) / self.bytes_per_token


class Curves(TrainerCallback):
    """Losses, gradient norms and the rate by step; stops when the loss is no number any more.

    `NAMES` says what the trainer's numbers are called in the trace.
    """

    NAMES: ClassVar[Mapping[str, str]] = {
        "loss": "train/loss",
        "grad_norm": "train/grad_norm",
        "learning_rate": "train/learning_rate",
    }

    def __init__(
        self, held_out: HeldOut, settings: PackedTrainingSettings, on_row: Callable[[Row], None] | None
    ) -> None:
        self.held_out, self.settings, self.on_row = held_out, settings, on_row
        self.diverged_at: int | None = None
        self.log: Callable[[dict[str, float]], None] = lambda logs: None
        self.autocast = False

    def evaluate(self, model: nn.Module) -> None:
        loss = self.held_out.loss(model, self.autocast)
        self.log({"validation/loss": loss, "validation/bits_per_byte": self.held_out.bits_per_byte(loss)})

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        if state.global_step == 0:
            self.evaluate(model)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        if (
            state.global_step % self.settings.evaluate_every == 0
            or state.global_step == self.settings.max_steps
        ):
            wanted = control.should_log
            self.evaluate(model)
            control.should_log = wanted  # logging here counts as this step's logging

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        found = self._row(state.global_step, logs or {})
        if not all(math.isfinite(value) for name, value in found.items() if name.endswith("loss")):
            self.diverged_at = self.diverged_at or state.global_step
            control.should_training_stop = True
            control.should_save = False
        if self.on_row is not None and len(found) > 1:
            # MLflow's database takes no NaN.
            self.on_row({name: value for name, value in found.items() if math.isfinite(value)})

    def _row(self, step: int, logs: Mapping[str, float]) -> Row:
        row: Row = {"step": step}
        for name, value in logs.items():
            if name in self.NAMES or name.startswith("validation/"):
                row[self.NAMES.get(name, name)] = float(value)
        return row

    def rows(self, history: list[dict[str, Any]]) -> list[Row]:
        """All rows by step; the same whether the run was resumed or not."""
        found: dict[int, Row] = {}
        for entry in history:
            row = self._row(int(entry["step"]), entry)
            if len(row) > 1:
                found.setdefault(int(entry["step"]), {}).update(row)
        # A resumed run reads its former rows from JSON with sorted names.
        return [dict(sorted(found[step].items())) for step in sorted(found)]


def _trainer(
    model: SpanNormForCausalLM, settings: PretrainSettings, rows: Any, curves: Curves, checkpoints: Path
) -> Trainer:
    curves.autocast = computes_in_half(settings.dtype)
    optimiser = AdamW(
        parameter_groups(model, settings.learning_rate, settings.weight_decay), betas=(0.9, 0.95)
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**trainer_arguments(settings, checkpoints)),
        train_dataset=PackedRows(rows, settings.max_steps * settings.batch_size, settings.seed),
        optimizers=scheduled(optimiser, settings),
        callbacks=[curves],
    )
    quieten(trainer)
    curves.log = trainer.log
    return trainer


def _whole_weights(
    trainer: Trainer, config: SpanNormConfig, seed: int, checkpoints: Path, diverged_at: int | None
) -> tuple[SpanNormForCausalLM, int]:
    """The weights to keep: the last ones, or, of a run that diverged, those of its last whole checkpoint."""
    if diverged_at is None:
        model: Any = trainer.accelerator.unwrap_model(trainer.model)
        return model, int(trainer.state.global_step)
    for place in sorted(checkpoints.glob("checkpoint-*"), key=lambda p: -int(p.name.rpartition("-")[2])):
        try:
            model = SpanNormForCausalLM.from_pretrained(place)
        except (OSError, ValueError, DataError):
            continue
        if all(value.isfinite().all() for value in model.state_dict().values()):
            return model, int(place.name.rpartition("-")[2])
    set_seed(seed)
    return SpanNormForCausalLM(config), 0


def _summary(
    model: nn.Module,
    kept_step: int,
    settings: PretrainSettings,
    rows: list[Row],
    diverged_at: int | None,
    steps: int,
) -> dict[str, Any]:
    held = {int(r["step"]): r for r in rows if math.isfinite(r.get("validation/loss", math.nan))}
    last = held[max(step for step in held if step <= kept_step)]
    norms = [r["train/grad_norm"] for r in rows if math.isfinite(r.get("train/grad_norm", math.nan))]
    return {
        "norm_scheme": settings.shape.norm_scheme,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": steps,
        "kept_step": kept_step,
        "diverged": diverged_at is not None,
        "diverged_step": -1 if diverged_at is None else diverged_at,
        # Normed models seldom reach infinity: what a rate that is too high leaves is a model that learned nothing.
        "improved": last["validation/loss"] < held[min(held)]["validation/loss"],
        "validation_loss_start": held[min(held)]["validation/loss"],
        "validation_loss": last["validation/loss"],
        "perplexity": math.exp(min(700.0, last["validation/loss"])),
        "bits_per_byte": last["validation/bits_per_byte"],
        "largest_grad_norm": max(norms, default=0.0),
        "seed": settings.seed,
    }
