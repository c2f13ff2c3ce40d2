"""`MergeEarlyStopping` inside `transformers.Trainer`.

The trainer keeps doing what it does; the callback scales the learning rate of each optimiser step, evaluates
on the stop split every `m` steps, keeps the best trainable weights (an adapter's or all), and ends the
training. All that it needs to go on after a kill is written with the trainer's own checkpoints: its decisions
into `trainer_state.json`, the best weights into `<output_dir>/merge_early_stop/step_<s>.safetensors` *before*
it.

Use a constant schedule without warm-up in `TrainingArguments` (`lr_scheduler_type="constant"`): the stopper
brings its own. Any other schedule is multiplied with the stopper's scale.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from methods.common.errors import ConfigError, DataError
from methods.merge_early_stop.stopper import (
    EvalFn,
    MergeEarlyStopping,
    _as_tuple,
    evaluation_mode,
    load_trainable,
    trainable_state,
)

BEST_FOLDER = "merge_early_stop"
STATE_FILE = "trainer_state.json"


class MergeEarlyStoppingCallback(TrainerCallback, ExportableState):
    """The stopper as a callback.

    Args:
        stopper: the algorithm with its constants; its trace and decisions can be read there after training.
        eval_fn: model -> score (higher is better), or -> (score, loss). Called in eval mode, without
            gradients, with the random state put back afterwards. Left out: `stopper.eval_fn`.
        loss_share_fn: model -> share of the training loss in its hardest tenth; only with `max_loss_share`.
        on_evaluation: called with each row of the trace, to log it.
        folder: where the best weights are kept for a resume. None: `<output_dir>/merge_early_stop`.
        name: tells several callbacks of one process apart (the trainer rebuilds callbacks by name on resume).

    After `trainer.train()` the model holds the chosen weights (`restore="best"`) or the last ones.
    Errors: `ConfigError` for a missing eval_fn or `load_best_model_at_end=True`; `DataError` when a resumed
    checkpoint's best weights are gone; `NumericalError` for a NaN score.
    """

    # `restore_callback_states_from_checkpoint=True` makes the trainer build a new object from JSON, which
    # cannot hold an eval_fn: the new object then takes over what the living one of the same name has.
    _living: ClassVar[weakref.WeakValueDictionary[str, MergeEarlyStoppingCallback]] = (
        weakref.WeakValueDictionary()
    )

    def __init__(
        self,
        stopper: MergeEarlyStopping | None = None,
        eval_fn: EvalFn | None = None,
        *,
        loss_share_fn: Callable[[nn.Module], float] | None = None,
        on_evaluation: Callable[[dict[str, Any]], None] | None = None,
        folder: str | os.PathLike[str] | None = None,
        name: str = "merge_early_stop",
    ) -> None:
        if stopper is None:
            if name not in self._living:
                raise ConfigError("stopper is missing; pass a MergeEarlyStopping")
            self.__dict__.update(self._living[name].__dict__)
        else:
            self.stopper = stopper
            self.eval_fn = eval_fn or stopper.eval_fn
            if self.eval_fn is None:
                raise ConfigError(
                    "eval_fn is missing; the stopper needs a held-out set to judge the expert on"
                )
            self.loss_share_fn = loss_share_fn or stopper.loss_share_fn
            self.on_evaluation = on_evaluation
            self.folder = None if folder is None else Path(folder)
            self.name = name
            self._written: set[int] = set()
            self._plain_rates: list[float] | None = None
            self._last: dict[str, torch.Tensor] | None = None
        self._living[self.name] = self

    # ---- the trainer's checkpoints

    def state(self) -> dict[str, Any]:
        """Called by the trainer just before it writes `trainer_state.json`.

        The best weights must be on disk by then.
        """
        self._write_snapshots()
        return {"args": {"name": self.name}, "attributes": {"stopper_state": self.stopper.state_dict()}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        instance = cls(**state["args"])
        instance.stopper_state = state["attributes"]["stopper_state"]
        return instance

    @property
    def stopper_state(self) -> dict[str, Any]:
        return self.stopper.state_dict()

    @stopper_state.setter
    def stopper_state(self, value: dict[str, Any]) -> None:
        self.stopper.load_state_dict(value)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.load_best_model_at_end:
            raise ConfigError(
                "load_best_model_at_end=True does not go with the stopper, which restores the best weights"
            )
        if self.folder is None:
            self.folder = Path(str(args.output_dir)) / BEST_FOLDER
        model: nn.Module = kwargs["model"]
        # the trainer turns the list of callbacks into a dictionary of their states
        states: dict[str, Any] = state.stateful_callbacks  # type: ignore[assignment]
        saved = states.get(type(self).__name__)
        for one in saved if isinstance(saved, list) else [saved]:
            if state.global_step > 0 and one and one["args"].get("name") == self.name:
                self.stopper.load_state_dict(one["attributes"]["stopper_state"])
                self._read_snapshots()
        # a checkpoint written without this callback has no entry for it, and the trainer would fail at
        # its next save
        states.setdefault(type(self).__name__, self.state())
        if self.stopper.zero_shot is None and self.stopper.target_fraction is not None:
            self.stopper.observe(0, *self._score(model))
        if self.stopper.stopped:
            # The trainer looks at the flag only after one more step; `on_train_end` throws its weights away.
            self._last = trainable_state(model)
            control.should_training_stop = True

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        groups = kwargs["optimizer"].param_groups
        self._plain_rates = [float(group["lr"]) for group in groups]
        if self.stopper.base_lrs is None:
            self.stopper.base_lrs = [float(group.get("initial_lr", group["lr"])) for group in groups]
        scale = self.stopper.lr_scale(state.global_step + 1)
        for group in groups:
            group["lr"] = group["lr"] * scale

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The trainer's schedule and its logged rate must not see the scale.
        for group, rate in zip(kwargs["optimizer"].param_groups, self._plain_rates or [], strict=True):
            group["lr"] = rate

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        step, model = state.global_step, kwargs["model"]
        if not self.stopper.stopped and (self.stopper.should_evaluate(step) or step == state.max_steps):
            share = None
            if self.stopper.max_loss_share is not None:
                if self.loss_share_fn is None:
                    raise ConfigError("loss_share_fn is missing; max_loss_share needs it")
                with evaluation_mode(model):
                    share = self.loss_share_fn(model)
            self.stopper.observe(step, *self._score(model), loss_share=share)
            self.stopper.keep_snapshot(step, lambda: trainable_state(model))
            if self.on_evaluation is not None:
                self.on_evaluation(self.stopper.trace[-1])
        self.stopper.last_step = step
        if self.stopper.stopped:
            control.should_training_stop = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            self._drop_unused(Path(str(args.output_dir)))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model = kwargs["model"]
        if self._last is not None:
            load_trainable(model, self._last)
        self.stopper.finish(model)

    # ---- the parts

    def _score(self, model: nn.Module) -> tuple[float, ...]:
        assert self.eval_fn is not None
        begin = time.perf_counter()
        with evaluation_mode(model):
            values = _as_tuple(self.eval_fn(model))
        self.stopper.eval_seconds += time.perf_counter() - begin
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # all processes must take the same decision
            box: list[Any] = [values]
            torch.distributed.broadcast_object_list(box, src=0)
            values = box[0]
        return values

    def _path(self, step: int) -> Path:
        assert self.folder is not None
        return self.folder / f"step_{step}.safetensors"

    def _write_snapshots(self) -> None:
        if self.folder is None or int(os.environ.get("RANK", "0")) != 0:
            return
        for step, weights in self.stopper.snapshots.items():
            if step not in self._written:
                self.folder.mkdir(parents=True, exist_ok=True)
                part = self._path(step).with_suffix(".part")
                save_file({k: v.contiguous() for k, v in weights.items()}, part)
                part.replace(self._path(step))
                self._written.add(step)

    def _read_snapshots(self) -> None:
        self.stopper.snapshots = {}
        self._written = set()
        for step in self.stopper.kept_steps:
            if not self._path(step).is_file():
                raise DataError(
                    f"{self._path(step)} is missing: the checkpoint's best weights; "
                    "train again from the start"
                )
            self.stopper.snapshots[step] = load_file(self._path(step))
            self._written.add(step)

    def _drop_unused(self, output_dir: Path) -> None:
        """Keep the best weights that some checkpoint on disk, or the running stopper, may still ask for."""
        needed = set(self.stopper.kept_steps)
        for state_file in output_dir.glob(f"checkpoint-*/{STATE_FILE}"):
            saved = (_read_json(state_file) or {}).get("stateful_callbacks", {}).get(type(self).__name__, [])
            for one in saved if isinstance(saved, list) else [saved]:
                needed |= {int(s) for s, _ in one["attributes"]["stopper_state"]["candidates"]}
        assert self.folder is not None
        for file in self.folder.glob("step_*.safetensors"):
            step = int(file.stem.removeprefix("step_"))
            if step not in needed:
                file.unlink(missing_ok=True)
                self._written.discard(step)


def latest_resumable_checkpoint(output_dir: str | os.PathLike[str]) -> Path | None:
    """The newest *complete* `checkpoint-<step>` folder, or None.

    Newer ones that a kill left half-written are removed: the trainer writes `trainer_state.json` last, so a
    folder in which it is absent or cut short is not complete.
    """
    found = [p for p in Path(output_dir).glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    for folder in sorted(found, key=lambda p: int(p.name.removeprefix("checkpoint-")), reverse=True):
        if _read_json(folder / STATE_FILE) is not None:
            return folder
        shutil.rmtree(folder)
    return None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
