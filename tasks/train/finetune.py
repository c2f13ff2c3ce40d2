"""Train one expert with transformers' Trainer and peft, and stop it for merging.

The three rules differ only in when they stop and what they keep:

    merge_aware  the paper's stopper: reduce the rate at a plateau of the stop part, stop at the next; keep the best
    own_optimum  train max_steps, keep the checkpoint with the best stop score: what people do today
    fixed        train max_steps, keep the last weights

Checkpoints lie below `out/.checkpoints` until the expert is written. A run that was killed goes on from the last
one and ends with the same bytes.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from methods.common.choice_scoring import ChoiceScorer, encode_rows
from methods.common.dtype import compute_device, resolve_dtype
from methods.common.errors import NumericalError
from methods.merge_early_stop import MergeEarlyStopping, MergeEarlyStoppingCallback
from tasks.load_model import load_causal_lm
from tasks.one_model import one_model_at_a_time
from tasks.prepare.models import check_model_folder
from tasks.reference import Reference
from tasks.train.checkpoints import open_checkpoints, rows_a_device, train_onward
from tasks.train.config import FinetuneSettings, Stopping
from tasks.train.examples import (
    Example,
    OrderedExamples,
    answer_loss,
    batch_order,
    collate,
    training_examples,
)
from tasks.train.expert_folder import check_writable, write_adapter, write_full_model, write_json
from tasks.train.loading import load_split, load_tokenizer, weights_digest
from tasks.train.quiet_trainer import no_chatter, quieten
from tasks.train.trace import Row, write_trace

STOP = "stop.json"
RECORD = "expert.json"  # what the expert was made from; the merge step checks the base by it

# On processors the fused attention's backward pass costs more than the attention itself: measured on SmolLM2-135M in
# bfloat16, a step of 512 tokens takes 1.1 s instead of 1.45 s with the plain one, at 30 to 256 tokens a row.
EAGER_TOKENS = 512


def finetune(
    out: Path,
    *,
    settings: FinetuneSettings,
    base: Reference,
    task: Reference,
    stopping: Stopping,
    seed: int | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> dict[str, Any]:
    """Train the expert of one task into `out`: an adapter folder, or a model folder for `adapter="full"`.

    Args:
        out: an empty folder, or what a killed run of the same settings left (its files are written over).
        settings: how to train; its `stoppings` is not looked at.
        base: the base model's folder.
        task: the folder of one task set; `train` and `stop` are read.
        stopping: the rule.
        seed: overrides `settings.seed`.
        on_row: called with each row of the trace as it comes (`step` and named values).

    Returns:
        task, stopping, seed, steps (optimiser steps made), kept_step (of the weights written), reason, stop scores
        before training and of the kept weights, the evaluations as `trace`; seconds under `timings`.

    Raises:
        DataError: the base or the task set cannot be used.
        NumericalError: the loss left the finite numbers; names the task and the step.
    """
    begin = time.perf_counter()
    seed = settings.seed if seed is None else seed
    name = task.expect("tasks", "data").name
    folder = base.expect("model")
    check_model_folder(folder, "causal-lm")
    train_rows, stop_rows = load_split(task.path, "train"), load_split(task.path, "stop")
    fields = set(FinetuneSettings.model_fields) - {"stoppings", "seed"}  # a flow's model has paths besides
    facts = {
        "task": name,
        "base_digest": weights_digest(folder),
        "task_digest": task.digest,
        "settings": settings.model_dump(mode="json", include=fields) | {"seed": seed, "stopping": stopping},
    }
    checkpoints = open_checkpoints(out, facts)
    tokenizer = load_tokenizer(folder)
    examples = training_examples(
        tokenizer, train_rows, max_length=settings.max_length, learn_end=settings.learn_end
    )
    scorer = ChoiceScorer(
        encode_rows(
            tokenizer,
            stop_rows[: settings.stop_examples],
            max_length=settings.max_length,
            gold_only=settings.stop_metric == "loss",
        )
    )
    stopper = make_stopper(settings, stopping)
    curves = _Curves(name, stopper, settings.learning_rate, on_row)
    with one_model_at_a_time:
        started = time.perf_counter()
        trainer, mixed, resumed_at = _train(
            settings, folder, examples, scorer, stopper, curves, checkpoints, stopping, seed
        )
    trained = time.perf_counter()

    steps = int(stopper.trace[-1]["step"])  # the last step is always judged
    kept = stopper.chosen_step if stopper.restore == "best" else steps
    summary = {
        "task": name,
        "stopping": stopping,
        "adapter": settings.adapter,
        "seed": seed,
        "steps": steps,
        "kept_step": kept,
        "reason": stopper.reason,
        "stop_score": next(row["score"] for row in stopper.trace if row["step"] == kept),
        "examples": len(examples),
        "dtype": "bfloat16" if mixed else "float32",
        "trace": [
            {
                "step": row["step"],
                "stop_score": row["score"],
                "learning_rate": settings.learning_rate * row["lr_scale"],
            }
            for row in stopper.trace
        ],
    }
    if trainer.is_world_process_zero():
        if settings.adapter == "lora":
            write_adapter(trainer.model, out)
        else:
            write_full_model(trainer.model, folder, out)
        write_trace(out, curves.rows(trainer.state.log_history, steps))
        outcome = {key: value for key, value in summary.items() if key != "trace"}
        write_json(out / STOP, {**outcome, "stopper": stopper.settings(), "trace": stopper.trace})
        write_json(out / RECORD, {**facts, "step": kept})
        shutil.rmtree(checkpoints)
    summary["timings"] = {
        "load_seconds": started - begin,
        "train_seconds": trained - started,
        "stop_score_seconds": stopper.eval_seconds,
        "steps_here": steps - resumed_at,
    }
    return summary


def _train(
    settings: FinetuneSettings,
    folder: Path,
    examples: Sequence[Example],
    scorer: ChoiceScorer,
    stopper: MergeEarlyStopping,
    curves: _Curves,
    checkpoints: Path,
    stopping: Stopping,
    seed: int,
) -> tuple[Trainer, bool, int]:
    """Train, or go on training; the trainer with the kept weights, whether in bfloat16, and the step resumed at."""
    order = batch_order([len(e.tokens) for e in examples], settings.batch_size, settings.max_steps, seed)
    callback = MergeEarlyStoppingCallback(
        stopper,
        lambda live: stop_score(scorer, live, settings.stop_metric),
        on_evaluation=curves.evaluated,
    )
    with no_chatter():
        set_seed(seed)
        model, mixed = _trainable_model(folder, settings, max(len(e.tokens) for e in examples))
        trainer = _AnswerTrainer(
            model=model,
            args=_arguments(settings, stopping, checkpoints, seed, mixed),
            train_dataset=OrderedExamples(examples, order),
            data_collator=collate,
            callbacks=[callback, curves],
        )
        trainer.model_accepts_loss_kwargs = True
        quieten(trainer)
        resumed_at = train_onward(trainer, checkpoints)
    return trainer, mixed, resumed_at


def make_stopper(settings: FinetuneSettings, stopping: Stopping) -> MergeEarlyStopping:
    """The rule as a stopper: the habits are the paper's loop with plateaus that never come."""
    never = settings.max_steps + 1
    aware = stopping == "merge_aware"
    return MergeEarlyStopping(
        warmup=settings.warmup,
        every=settings.stop_every if stopping != "fixed" else never,
        patience=settings.stop_patience if aware else never,
        factor=settings.stop_factor,
        max_reductions=settings.stop_reductions,
        max_steps=settings.max_steps,
        restore="last" if stopping == "fixed" else "best",
    )


def stop_score(scorer: ChoiceScorer, model: nn.Module, metric: str) -> tuple[float, float]:
    """(score, loss) for the stopper; a higher score is better."""
    scores = scorer(model)
    loss = scores.gold_bits_per_byte
    return (-loss if metric == "loss" else scores.accuracy_norm), loss


class _AnswerTrainer(Trainer):
    """The loss over the answers' tokens, their average over the whole step (also with several devices)."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        loss = answer_loss(model, inputs, num_items_in_batch)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # the gradients are averaged over the devices
        return (loss, None) if return_outputs else loss


class _Curves(TrainerCallback):
    """Collects loss, rate and stop score by step; refuses a loss that is not a number."""

    def __init__(
        self, task: str, stopper: MergeEarlyStopping, rate: float, on_row: Callable[[Row], None] | None
    ) -> None:
        self.task, self.stopper, self.rate, self.on_row = task, stopper, rate, on_row

    def evaluated(self, row: Mapping[str, Any]) -> None:
        if self.on_row is not None:
            self.on_row({"step": row["step"], "stop/score": row["score"]})

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise NumericalError(
                f"task {self.task}: the training loss is {logs['loss']} at step {state.global_step}; "
                "lower learning_rate, or use dtype float32"
            )
        if self.on_row is not None:
            self.on_row(self._row(state.global_step, logs))

    def _row(self, step: int, logs: Mapping[str, float]) -> Row:
        # The trainer logs the rate of the next step, without the stopper's scale.
        reductions = max((r["reductions"] for r in self.stopper.trace if r["step"] < step), default=0)
        warm = min(1.0, step / self.stopper.warmup) if self.stopper.warmup else 1.0
        return {
            "step": step,
            "train/loss": logs["loss"],
            "train/learning_rate": logs["learning_rate"] * warm * self.stopper.factor**reductions,
        }

    def rows(self, history: list[dict[str, Any]], steps: int) -> list[Row]:
        """All rows, in the order of steps; the same whether the run was resumed or not."""
        found = {
            int(e["step"]): self._row(int(e["step"]), e)
            for e in history
            if "loss" in e and e["step"] <= steps
        }
        for row in self.stopper.trace:
            found.setdefault(row["step"], {"step": row["step"]})["stop/score"] = row["score"]
        return [found[step] for step in sorted(found)]


def _trainable_model(folder: Path, settings: FinetuneSettings, longest: int) -> tuple[Any, bool]:
    """The model to train on rows of up to `longest` tokens, and whether it computes in bfloat16."""
    dtype = resolve_dtype(settings.dtype, compute_device())
    full = settings.adapter == "full"
    model = load_causal_lm(folder, torch.float32 if full else dtype)
    if compute_device().type == "cpu" and longest <= EAGER_TOKENS:
        model.set_attn_implementation("eager")
    if full:
        check_writable(model, folder)
        return model, dtype == torch.bfloat16
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules="all-linear",
        task_type=TaskType.CAUSAL_LM,
    )
    return get_peft_model(model, config), dtype == torch.bfloat16


def _arguments(
    settings: FinetuneSettings, stopping: Stopping, folder: Path, seed: int, mixed: bool
) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=settings.max_steps,
        per_device_train_batch_size=rows_a_device(settings.batch_size),
        ddp_find_unused_parameters=False,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant" if stopping == "merge_aware" else settings.schedule,
        weight_decay=settings.weight_decay,
        bf16=mixed,
        use_cpu=compute_device().type == "cpu",
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=settings.checkpoint_every,
        save_total_limit=2 if settings.adapter == "lora" else 1,
        report_to="none",
        disable_tqdm=not sys.stderr.isatty(),
        seed=seed,
        data_seed=seed,
    )
