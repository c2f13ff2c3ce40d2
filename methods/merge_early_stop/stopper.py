"""Early stopping that yields experts which merge well.

Horoi, Wolf, Belilovsky, Dziugaite, "From Memorization to Parameter Interference: How Overtraining Experts
Harms Model Merging" (ICML 2026): past a task-dependent, often early step, further training raises an expert's
own score a little and lowers the merged model's score. The stopper is warm-up, reduce-on-plateau and early
stop, driven by a held-out score of the expert's own task, evaluated every few steps, so that each task stops
by itself:

    1  lr = eta; best = -inf; wait = 0; red = 0
    2  for s = 1..max_steps:
    3     one optimiser step with lr * min(1, s/w)
    4     if s > w and s % m == 0:
    5        a = validation metric
    6        if a > best + min_delta: best = a; wait = 0; keep theta_best, s_best
    7        else: wait += 1
    8        if wait >= P: lr *= f; red += 1; wait = 0
    9        if red > R or lr < lr_min: stop
    10 return theta_best and theta_last, with the trace

`MergeEarlyStopping` is that algorithm alone: it knows nothing of a trainer. Its state is a small JSON-able
dictionary, so a run that was killed goes on with the same decisions.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, NumericalError

if TYPE_CHECKING:
    from methods.merge_early_stop.trainer_callback import MergeEarlyStoppingCallback

Score = float | tuple[float, float]
EvalFn = Callable[..., Score]
Restore = Literal["best", "last"]

PRESETS: dict[str, dict[str, Any]] = {
    # The constants of the paper's protocol as far as they are known; the trainer's usual patience would
    # be far longer.
    "default": {"warmup": 50, "every": 5, "patience": 3, "factor": 0.5, "max_reductions": 2},
    # Stops at the first short plateau. For sparsifying merges (TIES, DARE): they like shorter training still.
    "aggressive": {"warmup": 20, "every": 5, "patience": 1, "factor": 0.5, "max_reductions": 0},
}
_RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class MergeEarlyStopping:
    """Warm-up, reduce on plateau, stop; per task, on a held-out score of which more is better.

    Args:
        eval_fn: called without arguments, or with the model when one was attached; returns the score (higher
            is better) or `(score, loss)`. The loss decides only while the score is flat, that is, has had a
            single value in all evaluations so far. Leave it out when you call `observe` yourself.
        warmup: optimiser steps `w` of linear warm-up; there is no evaluation until it is over.
        every: optimiser steps `m` between evaluations.
        patience: evaluations `P` without improvement that make a plateau.
        factor: `f` in (0, 1): what the learning rate is multiplied with at a plateau.
        max_reductions: `R`: plateau number R + 1 stops the training. 0 stops at the first.
        lr_min: stop when the reduced learning rate falls below this (same unit as the optimiser's rate).
        min_delta: an improvement must be larger than this (same unit as the score).
        max_steps: upper limit on optimiser steps; None leaves it to the loop outside.
        restore: which weights `finish` leaves in the model, the best or the last ones.
        target_fraction: extension, off by default. In (0, 1]: keep the *earliest* evaluated weights that
            reach this share of the way from the zero-shot score to the best score; needs `zero_shot` or an
            evaluation at step 0.
        zero_shot: the score before training; measured by `attach` when it is needed and left out.
        max_loss_share: extension, off by default. In (0, 1]: stop as soon as the hardest tenth of the
            training set carries more than this share of its loss (`loss_share_fn`, or
            `observe(..., loss_share=)`).
        loss_share_fn: called like `eval_fn`.

    Errors: `ConfigError` for a value outside its bounds or a missing eval_fn; `NumericalError` for a NaN
        score.

    Example:
        >>> stopper = MergeEarlyStopping(eval_fn=lambda: accuracy(model, stop_split))
        >>> stopper.attach(optimizer, model)                      # sets the warm-up rate of step 1
        >>> for step in range(1, 2049):
        ...     optimise_one_batch()
        ...     if stopper.step(step):
        ...         break
        >>> stopper.finish(model)                                 # the best weights, unless restore="last"
    """

    def __init__(
        self,
        eval_fn: EvalFn | None = None,
        *,
        warmup: int = 50,
        every: int = 5,
        patience: int = 3,
        factor: float = 0.5,
        max_reductions: int = 2,
        lr_min: float = 0.0,
        min_delta: float = 0.0,
        max_steps: int | None = None,
        restore: Restore = "best",
        target_fraction: float | None = None,
        zero_shot: float | None = None,
        max_loss_share: float | None = None,
        loss_share_fn: Callable[..., float] | None = None,
    ) -> None:
        self.eval_fn = eval_fn
        self.loss_share_fn = loss_share_fn
        self.warmup, self.every, self.patience = int(warmup), int(every), int(patience)
        self.factor, self.max_reductions = float(factor), int(max_reductions)
        self.lr_min, self.min_delta, self.max_steps = float(lr_min), float(min_delta), max_steps
        self.restore: Restore = restore
        self.target_fraction, self.max_loss_share = target_fraction, max_loss_share
        self._check()

        self.zero_shot = zero_shot
        self.zero_shot_loss: float | None = None
        self.base_lrs: list[float] | None = None
        self.best, self.best_loss, self.best_step = -math.inf, math.inf, 0
        self.wait, self.reductions, self.last_step = 0, 0, 0
        self.stopped, self.reason = False, ""
        self.trace: list[dict[str, Any]] = []
        # (step, score) of the weights that are still worth keeping
        self.candidates: list[tuple[int, float]] = []
        self.eval_seconds = 0.0  # kept out of state and trace: not the same in two equal runs

        self._optimizer: torch.optim.Optimizer | None = None
        self._model: nn.Module | None = None
        self.snapshots: dict[int, dict[str, Tensor]] = {}

    @classmethod
    def preset(cls, name: str, eval_fn: EvalFn | None = None, **overrides: Any) -> Self:
        """A stopper with the constants of `PRESETS[name]`.

        `default`, or `aggressive` for sparsifying merges.
        """
        if name not in PRESETS:
            raise ConfigError(f"preset={name!r} is unknown; choose one of {', '.join(PRESETS)}")
        return cls(eval_fn, **{**PRESETS[name], **overrides})

    def _check(self) -> None:
        bounds = {
            "warmup": (self.warmup >= 0, "an integer >= 0"),
            "every": (self.every >= 1, "an integer >= 1"),
            "patience": (self.patience >= 1, "an integer >= 1"),
            "factor": (0.0 < self.factor < 1.0, "a number in (0, 1)"),
            "max_reductions": (self.max_reductions >= 0, "an integer >= 0"),
            "lr_min": (self.lr_min >= 0.0, "a rate >= 0"),
            "min_delta": (self.min_delta >= 0.0, "a score difference >= 0"),
            "max_steps": (self.max_steps is None or self.max_steps >= 1, "None or an integer >= 1"),
            "restore": (self.restore in ("best", "last"), "'best' or 'last'"),
            "target_fraction": (
                self.target_fraction is None or 0 < self.target_fraction <= 1,
                "None or in (0, 1]",
            ),
            "max_loss_share": (
                self.max_loss_share is None or 0 < self.max_loss_share <= 1,
                "None or in (0, 1]",
            ),
        }
        for field, (ok, need) in bounds.items():
            if not ok:
                raise ConfigError(f"{field}={getattr(self, field)!r} is out of bounds; it must be {need}")

    # ---- what a loop asks for

    def lr_scale(self, step: int) -> float:
        """What the base learning rate is multiplied with in optimiser step `step` (1-based), line 3."""
        warm = min(1.0, step / self.warmup) if self.warmup else 1.0
        return warm * self.factor**self.reductions

    def should_evaluate(self, step: int) -> bool:
        """Line 4. Also true at `max_steps`, so that the last weights are always judged."""
        if step == self.max_steps:
            return True
        return step > self.warmup and step % self.every == 0

    def observe(
        self, step: int, score: float, loss: float | None = None, *, loss_share: float | None = None
    ) -> bool:
        """Take the score of the weights after optimiser step `step` (lines 6 to 9); True if it is an
        improvement.

        Step 0 only sets the zero-shot score. Afterwards `stopped`, `reason`, `lr_scale` and `kept_steps` are
        up to date.
        """
        score = float(score)
        loss = None if loss is None else float(loss)
        if math.isnan(score):
            raise NumericalError(
                f"the validation score at step {step} is NaN; lower the learning rate or check the data"
            )
        if step == 0:
            self.zero_shot, self.zero_shot_loss = score, loss
            return False
        flat = self.best_step > 0 and all(row["score"] == score for row in self.trace)
        by_loss = flat and loss is not None and loss < self.best_loss
        improved = by_loss or score > self.best + self.min_delta
        if improved:
            self.best, self.best_step, self.wait = score, step, 0
            self.best_loss = math.inf if loss is None else loss
            self.candidates.append((step, score))
        else:
            self.wait += 1
        if self.target_fraction is None:
            self.candidates = self.candidates[-1:]
        else:
            if self.zero_shot is None:
                raise ConfigError(
                    "target_fraction needs the score before training; pass zero_shot or observe step 0"
                )
            need = self.zero_shot + self.target_fraction * (self.best - self.zero_shot)
            self.candidates = [c for c in self.candidates if c[1] >= need or c[0] == self.best_step]
        scale = self.lr_scale(step)
        if self.wait >= self.patience:
            self.reductions += 1
            self.wait = 0
        self._decide(step, loss_share)
        row: dict[str, Any] = {
            "step": step, "score": score, "loss": loss, "lr_scale": scale, "improved": improved,
            "best": self.best, "best_step": self.best_step, "wait": self.wait, "reductions": self.reductions,
            "stopped": self.stopped,
        }  # fmt: skip
        if loss_share is not None:
            row["loss_share"] = float(loss_share)
        self.trace.append(row)
        self.last_step = step
        return improved

    def _decide(self, step: int, loss_share: float | None) -> None:
        if self.lr_min > 0 and self.base_lrs is None:
            raise ConfigError(
                f"lr_min={self.lr_min} needs the base learning rate; call attach(optimizer) before step 1"
            )
        if self.reductions > self.max_reductions:
            self.stopped, self.reason = True, "plateau"
        elif self.base_lrs and max(self.base_lrs) * self.factor**self.reductions < self.lr_min:
            self.stopped, self.reason = True, "lr_min"
        elif self.max_loss_share is not None and loss_share is not None and loss_share > self.max_loss_share:
            self.stopped, self.reason = True, "loss_share"
        elif self.max_steps is not None and step >= self.max_steps:
            self.stopped, self.reason = True, "max_steps"

    @property
    def kept_steps(self) -> list[int]:
        """Steps of which the weights are worth keeping; the first one is `chosen_step`.

        Never more than one without `target_fraction`.
        """
        return [step for step, _ in self.candidates]

    @property
    def chosen_step(self) -> int:
        """The step of the weights that `finish` restores with `restore="best"`.

        0 before the first evaluation.
        """
        return self.candidates[0][0] if self.candidates else 0

    # ---- inside one's own loop

    def attach(self, optimizer: torch.optim.Optimizer, model: nn.Module | None = None) -> Self:
        """Remember the optimiser's base rates and set the rate of the next step. With a model, keep its best
        weights.

        After a resume call `load_state_dict` first, so that the base rates are those of the start and not
        reduced ones.
        """
        self._optimizer, self._model = optimizer, model
        if self.base_lrs is None:
            self.base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        if len(self.base_lrs) != len(optimizer.param_groups):
            raise ConfigError(
                f"the optimiser has {len(optimizer.param_groups)} parameter groups, the saved state "
                f"{len(self.base_lrs)}; resume with the optimiser of the first run"
            )
        if self.target_fraction is not None and self.zero_shot is None:
            self.observe(0, *self._call(self.eval_fn, "eval_fn"))
        self._set_rates(self.last_step + 1)
        return self

    def watch(self, model: nn.Module) -> Self:
        """Judge a run that something else drives: keep the model's best weights, change no rate."""
        self._optimizer, self._model = None, model
        if self.target_fraction is not None and self.zero_shot is None:
            self.observe(0, *self._call(self.eval_fn, "eval_fn"))
        return self

    def step(
        self, step: int, optimizer: torch.optim.Optimizer | None = None, *, score: Score | None = None
    ) -> bool:
        """To be called after optimiser step `step` (1-based).

        Evaluates if it is time, sets the next rate, keeps the best weights of an attached model. Returns True
        when training must stop.
        """
        if self.stopped:
            return True
        if optimizer is not None and optimizer is not self._optimizer:
            self.attach(optimizer, self._model)
        if self.should_evaluate(step):
            values = self._call(self.eval_fn, "eval_fn") if score is None else _as_tuple(score)
            share = None
            if self.max_loss_share is not None:
                share = self._call(self.loss_share_fn, "loss_share_fn")[0]
            self.observe(step, *values, loss_share=share)
            self._keep(step)
        self.last_step = step
        self._set_rates(step + 1)
        return self.stopped

    def finish(self, model: nn.Module | None = None) -> int:
        """Put the chosen weights into the model; returns their step.

        `restore="last"` leaves the model as it is.
        """
        model = model if model is not None else self._model
        if self.restore == "last" or not self.candidates:
            return self.last_step
        if model is None or self.chosen_step not in self.snapshots:
            raise ConfigError("no weights were kept; call attach(optimizer, model) before training")
        load_trainable(model, self.snapshots[self.chosen_step])
        return self.chosen_step

    def _call(self, function: Callable[..., Score] | None, name: str) -> tuple[float, ...]:
        if function is None:
            raise ConfigError(f"{name} is missing; the stopper needs a held-out set to judge the expert on")
        begin = time.perf_counter()
        with evaluation_mode(self._model):
            result = function() if self._model is None else function(self._model)
        self.eval_seconds += time.perf_counter() - begin
        return _as_tuple(result)

    def _set_rates(self, next_step: int) -> None:
        if self._optimizer is not None and self.base_lrs is not None:
            scale = self.lr_scale(next_step)
            for group, base in zip(self._optimizer.param_groups, self.base_lrs, strict=True):
                group["lr"] = base * scale

    def _keep(self, step: int) -> None:
        model = self._model
        if model is not None:
            self.keep_snapshot(step, lambda: trainable_state(model))

    def keep_snapshot(self, step: int, take: Callable[[], dict[str, Tensor]]) -> None:
        """Hold `take()` if the weights after `step` are worth keeping, and drop what no longer is."""
        if step in self.kept_steps and step not in self.snapshots:
            self.snapshots[step] = take()
        self.snapshots = {s: w for s, w in self.snapshots.items() if s in self.kept_steps}

    def as_callback(self, eval_fn: EvalFn | None = None, **options: Any) -> MergeEarlyStoppingCallback:
        """This stopper as a `transformers.TrainerCallback`.

        See `MergeEarlyStoppingCallback` for the options.
        """
        from methods.merge_early_stop.trainer_callback import MergeEarlyStoppingCallback

        return MergeEarlyStoppingCallback(self, eval_fn, **options)

    # ---- state

    def settings(self) -> dict[str, Any]:
        """The constants, JSON-able, for a log or a card."""
        names = (
            "warmup", "every", "patience", "factor", "max_reductions", "lr_min", "min_delta",
            "max_steps", "restore", "target_fraction", "max_loss_share",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """All that decides about the rest of the run, JSON-able.

        The kept weights are in `snapshots`, apart from it.
        """
        names = (
            "zero_shot", "zero_shot_loss", "base_lrs", "best", "best_loss", "best_step", "wait", "reductions",
            "last_step", "stopped", "reason",
        )  # fmt: skip
        state = {name: getattr(self, name) for name in names}
        # JSON has no infinities
        state["best"] = None if math.isinf(self.best) else self.best
        state["best_loss"] = None if math.isinf(self.best_loss) else self.best_loss
        state["candidates"] = [list(c) for c in self.candidates]
        state["trace"] = [dict(row) for row in self.trace]
        state["settings"] = self.settings()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken. `ConfigError` if the stopper was built with other constants."""
        other = {
            k: v for k, v in state["settings"].items() if k in self.settings() and v != self.settings()[k]
        }
        if other:
            field, value = next(iter(other.items()))
            raise ConfigError(
                f"{field}={getattr(self, field)!r} differs from {value!r} in the saved run; resume with the "
                "same settings"
            )
        for name in (
            "zero_shot",
            "zero_shot_loss",
            "best_step",
            "wait",
            "reductions",
            "last_step",
            "stopped",
            "reason",
        ):
            setattr(self, name, state[name])
        self.base_lrs = None if state["base_lrs"] is None else [float(v) for v in state["base_lrs"]]
        self.best = -math.inf if state["best"] is None else float(state["best"])
        self.best_loss = math.inf if state["best_loss"] is None else float(state["best_loss"])
        self.candidates = [(int(s), float(v)) for s, v in state["candidates"]]
        self.trace = [dict(row) for row in state["trace"]]


def _as_tuple(score: Score) -> tuple[float, ...]:
    return tuple(float(v) for v in score) if isinstance(score, tuple) else (float(score),)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module | None) -> Iterator[None]:
    """No gradients, no dropout, and the random state as it was: evaluating must not change the run."""
    training = model is not None and model.training
    with torch.random.fork_rng(enabled=True), torch.no_grad():
        if model is not None:
            model.eval()
        try:
            yield
        finally:
            if model is not None:
                model.train(training)


def trainable_state(model: nn.Module) -> dict[str, Tensor]:
    """Copies on the CPU of what training changes.

    These are the parameters that require gradients, and running statistics.
    """
    state = {name: p.detach().to("cpu", copy=True) for name, p in model.named_parameters() if p.requires_grad}
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] in _RUNNING_STATISTICS:
            state[name] = buffer.detach().to("cpu", copy=True)
    return state


@torch.no_grad()
def load_trainable(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """The inverse of `trainable_state`.

    Errors: `ConfigError` for a name that the model lacks or a shape that differs.
    """
    targets = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, value in state.items():
        if name not in targets or targets[name].shape != value.shape:
            raise ConfigError(
                f"the kept weights have {name} {tuple(value.shape)}, which does not fit the model"
            )
        targets[name].copy_(value)
