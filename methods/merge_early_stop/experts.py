"""Training experts from one base, with checkpoints on the way (section 2.2), and the bank that holds them."""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.merge_early_stop.stopper import (
    MergeEarlyStopping,
    evaluation_mode,
    load_trainable,
    trainable_state,
)

Split = tuple[Tensor, Tensor] | Dataset[Any]
Schedule = Literal["constant", "per_length"]
STEPS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # the lengths of section 2.2
EARLY_STOP = "early_stop"  # the schedule's name in a bank for experts that the stopper ended


@dataclass(frozen=True)
class TaskSplits:
    """One task's parts: `train` trains, `stop` drives the stopper, `select` chooses lambda, `test` is only
    reported.

    Each is a pair of tensors (inputs, labels) or a map-style data set of such pairs or of dictionaries.
    """

    train: Split
    stop: Split | None = None
    select: Split | None = None
    test: Split | None = None

    def get(self, name: str, task: str) -> Split:
        """`DataError` when the part is missing or empty."""
        split: Split | None = getattr(self, name)
        if split is None or split_size(split) == 0:
            raise DataError(
                f"task {task} has no {name} split; give one that shares no example with the others"
            )
        return split


def split_size(split: Split) -> int:
    return len(split[0]) if isinstance(split, tuple) else len(split)  # type: ignore[arg-type]


def take_batch(split: Split, index: Tensor) -> Any:
    """The examples of `index`: `(inputs, labels)` or a dictionary of tensors."""
    if isinstance(split, tuple):
        return split[0][index], split[1][index]
    return default_collate([split[int(i)] for i in index])


def _number(text: str) -> int:
    """A seed for torch from any text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def minibatches(size: int, batch_size: int, seed: int | str) -> Iterator[Tensor]:
    """Endless index batches, a new permutation for each epoch; the last one of an epoch may be smaller."""
    draw = torch.Generator().manual_seed(_number(str(seed)))
    while True:
        yield from torch.randperm(size, generator=draw).split(min(batch_size, size))


def default_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of `model(inputs)`, or the model's own loss for dictionaries (transformers)."""
    if isinstance(batch, Mapping):
        loss: Tensor = model(**batch).loss
        return loss
    return F.cross_entropy(model(batch[0]), batch[1])


def default_logits(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Logits `[n, classes]` and labels `[n]`."""
    if isinstance(batch, Mapping):
        return model(**{k: v for k, v in batch.items() if k != "labels"}).logits, batch["labels"]
    return model(batch[0]), batch[1]


LogitsFn = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]


@torch.no_grad()
def predictions(
    model: nn.Module, split: Split, *, logits_fn: LogitsFn = default_logits, batch_size: int = 1024
) -> tuple[Tensor, Tensor]:
    """Logits `[n, classes]` (float32) and labels `[n]` of a whole split, in its order."""
    with evaluation_mode(model):
        parts = torch.arange(split_size(split)).split(batch_size)
        rows = [logits_fn(model, take_batch(split, index)) for index in parts]
    return torch.cat([r[0].float() for r in rows]), torch.cat([r[1] for r in rows])


def accuracy(
    model: nn.Module, split: Split, *, logits_fn: LogitsFn = default_logits, batch_size: int = 1024
) -> float:
    """Share of examples whose largest logit is the label's."""
    logits, labels = predictions(model, split, logits_fn=logits_fn, batch_size=batch_size)
    return float((logits.argmax(1) == labels).double().mean())


@dataclass(frozen=True)
class Key:
    """What names an expert: everything that made it, so that no two runs overwrite each other."""

    task: str
    seed: int
    schedule: str
    step: int

    def path(self, folder: Path) -> Path:
        return folder / self.task / str(self.seed) / self.schedule / f"step_{self.step}.safetensors"


@dataclass
class Run:
    """One training run: where it ended and what it cost.

    `seconds` and `eval_seconds` differ between equal runs. `reason` is `length` for a run of fixed length.
    """

    task: str
    seed: int
    schedule: str
    optimiser_steps: int
    kept_step: int
    reason: str
    trace: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    eval_seconds: float = 0.0


class ExpertBank:
    """Trainable weights of every expert by `Key`.

    They are held in memory, or as `folder/{task}/{seed}/{schedule}/step_{s}.safetensors`.
    """

    def __init__(self, base: nn.Module, folder: str | Path | None = None) -> None:
        self.base = base
        self.base_state = trainable_state(base)
        self.folder = None if folder is None else Path(folder)
        self.weights: dict[Key, dict[str, Tensor]] = {}
        self.runs: list[Run] = []

    def put(self, key: Key, state: dict[str, Tensor]) -> None:
        if self.folder is None:
            self.weights[key] = state
            return
        from safetensors.torch import save_file

        path = key.path(self.folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        save_file({n: t.contiguous() for n, t in state.items()}, part)
        part.replace(path)
        self.weights[key] = {}

    def state(self, key: Key) -> dict[str, Tensor]:
        """Trainable weights theta_t(s). `DataError` if the bank has none of that key."""
        if key not in self.weights:
            raise DataError(f"the bank has no expert {key}; train it first")
        if self.folder is None:
            return self.weights[key]
        from safetensors.torch import load_file

        return load_file(key.path(self.folder))

    def tau(self, key: Key) -> dict[str, Tensor]:
        """theta_t(s) - theta_0 over the trainable weights."""
        return {n: v - self.base_state[n] for n, v in self.state(key).items()}

    def model(self, key: Key) -> nn.Module:
        """A copy of the base with the expert's weights."""
        model = copy.deepcopy(self.base)
        load_trainable(model, self.state(key))
        return model

    def run(self, task: str, seed: int, schedule: str, step: int | None = None) -> Run:
        """The run of a task and seed; for `per_length` also the length."""
        for run in self.runs:
            same_length = step is None or schedule != "per_length" or run.optimiser_steps == step
            if (run.task, run.seed, run.schedule) == (task, seed, schedule) and same_length:
                return run
        raise DataError(f"the bank has no run of task {task}, seed {seed}, schedule {schedule}")


def train_experts(
    base: nn.Module,
    tasks: Mapping[str, TaskSplits],
    *,
    steps: Sequence[int] = STEPS,
    lora: Any = None,
    schedule: Schedule = "constant",
    stopper: Mapping[str, Any] | MergeEarlyStopping | None = None,
    watchers: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: Sequence[int] = (0,),
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    warmup: int = 0,
    batch_size: int = 64,
    loss_fn: Callable[[nn.Module, Any], Tensor] = default_loss,
    score_fn: Callable[[nn.Module, Split], float] = accuracy,
    bank: ExpertBank | str | Path | None = None,
) -> ExpertBank:
    """One expert per task and seed, from `base`, with AdamW; weights are kept after each of `steps`.

    Args:
        base: theta_0. Only parameters with `requires_grad` are trained: freeze a shared head before.
        steps: lengths s to keep; the largest is the length of the run.
        lora: a `peft.LoraConfig`; experts are then adapters, and the bank holds their dense weights.
        schedule: `constant` (linear warm-up, then constant; one run with checkpoints on the way), or
            `per_length` (a whole warm-up and cosine run for each s, which is what a user who trains for s
            steps does).
        stopper: settings of `MergeEarlyStopping`, or one as template. Each task is then ended by its own
            stopper on its `stop` split within `max(steps)`; kept under the schedule `early_stop` with its
            chosen step.
        watchers: settings of further stoppers by name. They judge the same run on the `stop` split without
            changing its rate or its end; what each would have kept lies under the schedule of its name. That
            is what a run of its own would have kept, as long as its own warm-up and rate are the run's.
        seeds: order of the training data, dropout, and LoRA's initial weights.
        warmup: steps of linear warm-up; the stopper has its own.
        bank: a bank to add to, or a folder for a new one. Finished runs of a folder are not trained again.

    Returns: the bank.

    Errors: `ConfigError` (no steps, nothing trainable, a watcher that never looked), `DataError` (no or empty
    split; the stopper without a stop split), `NumericalError` (the loss became NaN).
    """
    if not steps or min(steps) < 1:
        raise ConfigError(f"steps={list(steps)} must be a list of positive lengths")
    if schedule not in ("constant", "per_length"):
        raise ConfigError(f"schedule={schedule!r} must be 'constant' or 'per_length'")
    if not any(p.requires_grad for p in base.parameters()):
        raise ConfigError("the base has no trainable parameter (requires_grad)")
    if not isinstance(bank, ExpertBank):
        bank = ExpertBank(base, bank)
    for task, splits in tasks.items():
        splits.get("train", task)
        if stopper is not None or watchers:
            splits.get("stop", task)
    common = {
        "lr": lr, "weight_decay": weight_decay, "batch_size": batch_size, "loss_fn": loss_fn,
    }  # fmt: skip
    for (task, splits), seed in itertools.product(tasks.items(), seeds):
        if stopper is not None:
            plans = [(EARLY_STOP, [max(steps)])]
        elif schedule == "constant":
            plans = [(schedule, sorted(set(steps)))]
        else:
            plans = [(schedule, [s]) for s in sorted(set(steps))]
        for name, lengths in plans:
            if _restore(bank, task, seed, [name, *(watchers or {})], lengths):
                continue
            look = None
            if stopper is not None or watchers:
                look = _OnceAStep(functools.partial(_score, score_fn, splits.get("stop", task)))
            rule = None if stopper is None or look is None else _new_stopper(stopper, look)
            model, trained = _prepare(base, lora, seed)
            # Dropout draws from the global generator: a run must not depend on what ran before it.
            with torch.random.fork_rng():
                torch.manual_seed(_number(f"dropout|{seed}|{task}"))
                made = _train(
                    model,
                    trained,
                    splits.get("train", task),
                    f"{seed}|{task}",
                    lengths,
                    name,
                    warmup,
                    rule,
                    {n: _new_stopper(w, look).watch(model) for n, w in (watchers or {}).items() if look},
                    look,
                    common,
                )
            for kept, run in made[::-1]:
                run.task, run.seed = task, seed
                for step, state in kept.items():
                    bank.put(Key(task, seed, run.schedule, step), state)
                _record(bank, run, lengths)
    return bank


def _score(score_fn: Callable[[nn.Module, Split], float], split: Split, model: nn.Module) -> float:
    return score_fn(model, split)


class _OnceAStep:
    """Several stoppers look at the same weights: they are scored once. `step` is set by the loop."""

    def __init__(self, score_fn: Callable[[nn.Module], float]) -> None:
        self.score_fn = score_fn
        self.step, self._scored, self._value = 0, -1, 0.0

    def __call__(self, model: nn.Module) -> float:
        if self._scored != self.step:
            self._scored, self._value = self.step, self.score_fn(model)
        return self._value


def _new_stopper(
    template: Mapping[str, Any] | MergeEarlyStopping, eval_fn: Callable[..., float]
) -> MergeEarlyStopping:
    settings = template.settings() if isinstance(template, MergeEarlyStopping) else dict(template)
    return MergeEarlyStopping(eval_fn, **settings)


def _prepare(base: nn.Module, lora: Any, seed: int) -> tuple[nn.Module, Callable[[], dict[str, Tensor]]]:
    """The model to train and a function that gives its weights under the base's names."""
    model = copy.deepcopy(base)
    if lora is None:
        return model, lambda: trainable_state(model)
    from peft import get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = get_peft_model(model, copy.deepcopy(lora))
    originals = trainable_state(base)

    def dense() -> dict[str, Tensor]:
        from methods.merge_early_stop.merge import task_vector

        tau = task_vector(base, adapted)
        return {n: v + tau[n] if n in tau else v.clone() for n, v in originals.items()}

    return adapted, dense


def _cosine(step: int, length: int, warmup: int) -> float:
    if step <= warmup:
        return step / max(1, warmup)
    done = (step - warmup) / max(1, length - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _train(
    model: nn.Module,
    weights: Callable[[], dict[str, Tensor]],
    split: Split,
    order: str,
    lengths: Sequence[int],
    name: str,
    warmup: int,
    rule: MergeEarlyStopping | None,
    watchers: Mapping[str, MergeEarlyStopping],
    look: _OnceAStep | None,
    common: Mapping[str, Any],
) -> list[tuple[dict[int, dict[str, Tensor]], Run]]:
    """The run itself, then what each watcher kept of it."""
    begin = time.perf_counter()
    trainable = [p for p in model.parameters() if p.requires_grad]
    fused = all(p.is_floating_point() for p in trainable)
    optimizer = torch.optim.AdamW(
        trainable, lr=common["lr"], weight_decay=common["weight_decay"], fused=fused
    )
    model.train()
    if rule is not None:
        rule.attach(optimizer, model)
    kept: dict[int, dict[str, Tensor]] = {}
    batches = minibatches(split_size(split), common["batch_size"], order)
    step, loss = 0, torch.zeros(())
    for step in range(1, max(lengths) + 1):
        if rule is None:
            scale = _cosine(step, max(lengths), min(warmup, max(lengths) // 4)) if name == "per_length" else (
                min(1.0, step / warmup) if warmup else 1.0)  # fmt: skip
            for group in optimizer.param_groups:
                group["lr"] = common["lr"] * scale
        optimizer.zero_grad(set_to_none=True)
        loss = common["loss_fn"](model, take_batch(split, next(batches)))
        loss.backward()
        optimizer.step()
        if rule is None and step in lengths:
            if not bool(torch.isfinite(loss)):
                raise NumericalError(
                    f"the training loss of {order} is {loss.item()} at step {step}; lower lr"
                )
            kept[step] = weights()
        if look is not None:
            look.step = step
        if rule is not None:
            rule.step(step)  # first, so that validation is counted as its own
        for watcher in watchers.values():
            watcher.step(step)
        if rule is not None and rule.stopped:
            break
    seconds = time.perf_counter() - begin
    made = []
    if rule is None:
        made.append((kept, Run("", 0, name, step, step, "length", seconds=seconds)))
    judges = {**({} if rule is None else {name: rule}), **watchers}
    for label, judge in judges.items():
        if label != name and not judge.candidates:
            raise ConfigError(
                f"watchers: {label} never looked within {step} steps; lower its warmup or every"
            )
        chosen = judge.finish()
        reason = judge.reason or "max_steps"
        run = Run("", 0, label, judge.last_step, chosen, reason, judge.trace, seconds, judge.eval_seconds)
        made.append(({chosen: weights()}, run))
    return made


def _run_file(bank: ExpertBank, task: str, seed: int, name: str, lengths: Sequence[int]) -> Path | None:
    if bank.folder is None:
        return None
    return bank.folder / task / str(seed) / name / f"run_{max(lengths)}.json"


def _record(bank: ExpertBank, run: Run, lengths: Sequence[int]) -> None:
    """Written last: a run without its record was cut off and is trained again."""
    bank.runs.append(run)
    path = _run_file(bank, run.task, run.seed, run.schedule, lengths)
    if path is not None:
        content = {k: v for k, v in vars(run).items() if k not in ("seconds", "eval_seconds")}
        path.with_suffix(".part").write_text(json.dumps(content, sort_keys=True), encoding="utf-8")
        path.with_suffix(".part").replace(path)


def _restore(bank: ExpertBank, task: str, seed: int, names: Sequence[str], lengths: Sequence[int]) -> bool:
    """Take a finished run and its watchers' choices from the bank's folder; all of them or nothing."""
    runs: list[tuple[Run, list[Key]]] = []
    for name in names:
        path = _run_file(bank, task, seed, name, lengths)
        if path is None or not path.is_file():
            return False
        run = Run(**json.loads(path.read_text(encoding="utf-8")))
        steps: Iterable[int] = lengths if run.reason == "length" else [run.kept_step]
        runs.append((run, [Key(task, seed, name, s) for s in steps]))
        if bank.folder is None or not all(k.path(bank.folder).is_file() for k in runs[-1][1]):
            return False
    for run, keys in runs:
        bank.runs.append(run)
        bank.weights |= {k: {} for k in keys}
    return True
