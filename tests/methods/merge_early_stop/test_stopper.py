"""The stopping rule against a second writing of the pseudo-code, in loops, in the Trainer, and after a kill."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.merge_early_stop import (
    MergeEarlyStopping,
    MergeEarlyStoppingCallback,
    latest_resumable_checkpoint,
)

HERE = Path(__file__).parent


def pseudo_code(
    scores: list[float], w: int, m: int, P: int, f: float, R: int, delta: float, eta: float, lr_min: float
) -> tuple[int, int, list[float]]:
    """Section 2.5 line by line: the step of the stop, of the best weights, and the rates used."""
    lr, best, wait, red, best_step, rates = eta, -math.inf, 0, 0, 0, []
    values = iter(scores)
    for s in range(1, 10_000):
        rates.append(lr * min(1.0, s / w) if w else lr)
        if s > w and s % m == 0:
            a = next(values, None)
            if a is None:
                return s - 1, best_step, rates[:-1]
            if a > best + delta:
                best, wait, best_step = a, 0, s
            else:
                wait += 1
            if wait >= P:
                lr, red, wait = lr * f, red + 1, 0
            if red > R or lr < lr_min:
                return s, best_step, rates
    raise AssertionError


@settings(max_examples=100, deadline=None)
@given(
    scores=st.lists(st.integers(0, 6).map(lambda v: v / 6), min_size=1, max_size=40),
    w=st.integers(0, 9), m=st.integers(1, 4), P=st.integers(1, 4), R=st.integers(0, 3),
    delta=st.sampled_from([0.0, 0.2]), lr_min=st.sampled_from([0.0, 0.03]),
)  # fmt: skip
def test_equals_the_pseudo_code(
    scores: list[float], w: int, m: int, P: int, R: int, delta: float, lr_min: float
) -> None:
    stop, best, rates = pseudo_code(scores, w, m, P, 0.5, R, delta, 0.1, lr_min)
    stopper = MergeEarlyStopping(
        warmup=w, every=m, patience=P, max_reductions=R, min_delta=delta, lr_min=lr_min
    )
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stopper.attach(optimizer, model)
    values = iter(scores)
    used = []
    for step in range(1, stop + 1):
        used.append(optimizer.param_groups[0]["lr"])
        with torch.no_grad():
            model.weight.fill_(step)
        stopped = stopper.step(step, score=next(values) if stopper.should_evaluate(step) else None)
        assert stopped == (step == stop and stopper.stopped)
    assert used == pytest.approx(rates)
    assert stopper.chosen_step == best
    if best:
        assert stopper.finish() == best
        assert model.weight.item() == best
    assert len(stopper.snapshots) <= 1


def run_loop(stopper: MergeEarlyStopping, scores: dict[int, float], start: int = 1) -> int:
    for step in range(start, 500):
        if stopper.step(step, score=scores.get(step, 0.0)):
            return step
    raise AssertionError


@settings(max_examples=30, deadline=None)
@given(data=st.lists(st.integers(0, 5), min_size=60, max_size=60), cut=st.integers(1, 50))
def test_state_survives_json_at_any_step(data: list[int], cut: int) -> None:
    scores = {i + 1: float(v) for i, v in enumerate(data)}
    whole = MergeEarlyStopping(warmup=2, every=2, patience=2, max_reductions=2)
    end = run_loop(whole, scores)
    first = MergeEarlyStopping(warmup=2, every=2, patience=2, max_reductions=2)
    for step in range(1, min(cut, end) + 1):
        first.step(step, score=scores.get(step, 0.0))
    second = MergeEarlyStopping(warmup=2, every=2, patience=2, max_reductions=2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert (run_loop(second, scores, first.last_step + 1) if not second.stopped else end) == end
    assert second.trace == whole.trace
    assert second.state_dict() == whole.state_dict()


def test_a_flat_metric_lets_the_loss_decide() -> None:
    stopper = MergeEarlyStopping(warmup=0, every=1, patience=2, max_reductions=0)
    for step, loss in enumerate([3.0, 2.0, 1.0, 1.5], start=1):
        stopper.step(step, score=(0.5, loss))
    assert stopper.chosen_step == 3
    stopper.step(5, score=(0.6, 9.0))  # no longer flat: the score decides
    assert stopper.chosen_step == 5
    stopper.step(6, score=(0.6, 0.1))
    assert stopper.chosen_step == 5


def test_target_fraction_keeps_the_earliest_good_enough_weights() -> None:
    model = nn.Linear(1, 1)
    scores = iter([0.2, 0.5, 0.55, 0.6, 0.58, 0.59, 0.0, 0.0])  # the first is the zero-shot score
    stopper = MergeEarlyStopping(
        lambda m: next(scores), warmup=0, every=1, patience=3, max_reductions=0, target_fraction=0.8
    )
    stopper.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(1, 8):
        with torch.no_grad():
            model.weight.fill_(step)
        if stopper.step(step):
            break
    # 0.2 + 0.8 * 0.4 = 0.52: step 2 with 0.55 is enough
    assert (stopper.chosen_step, stopper.best_step) == (2, 3)
    assert stopper.finish() == 2
    assert float(model.weight) == 2


def test_loss_share_and_max_steps_stop() -> None:
    shares = iter([0.2, 0.4, 0.6])
    stopper = MergeEarlyStopping(
        lambda: 0.1, warmup=0, every=1, max_loss_share=0.5, loss_share_fn=lambda: next(shares), patience=99
    )
    assert [stopper.step(s) for s in (1, 2, 3)] == [False, False, True]
    assert stopper.reason == "loss_share"
    stopper = MergeEarlyStopping(lambda: 0.1, warmup=50, every=5, max_steps=7)
    assert [stopper.step(s) for s in range(1, 8)] == [False] * 6 + [True]
    assert stopper.reason == "max_steps"
    assert len(stopper.trace) == 1  # the last weights are judged even within the warm-up


def test_evaluating_changes_neither_mode_nor_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def noisy(m: nn.Module) -> float:
        assert not m.training
        assert not torch.is_grad_enabled()
        return float(torch.rand(()))

    stopper = MergeEarlyStopping(noisy, warmup=0, every=1)
    stopper.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    model.train()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    stopper.step(1)
    assert model.training
    assert torch.equal(torch.rand(3), expected)


def test_restore_last_leaves_the_model() -> None:
    model = nn.Linear(1, 1)
    stopper = MergeEarlyStopping(warmup=0, every=1, patience=1, max_reductions=0, restore="last")
    stopper.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    stopper.step(1, score=1.0)
    with torch.no_grad():
        model.weight.fill_(7)
    assert stopper.step(2, score=0.0)
    assert stopper.finish() == 2
    assert float(model.weight) == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("warmup", -1), ("every", 0), ("patience", 0), ("factor", 1.0), ("factor", 0.0), ("max_reductions", -1),
        ("lr_min", -1.0), ("min_delta", -0.1), ("max_steps", 0), ("restore", "first"), ("target_fraction", 1.5),
        ("max_loss_share", 0.0),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{field}={value!r} is out of bounds"):
        MergeEarlyStopping(**{field: value})  # type: ignore[arg-type]


def test_other_refusals() -> None:
    with pytest.raises(ConfigError, match="preset='wild'"):
        MergeEarlyStopping.preset("wild")
    assert MergeEarlyStopping.preset("aggressive", every=2).settings()["every"] == 2
    with pytest.raises(ConfigError, match="held-out"):
        MergeEarlyStopping(warmup=0, every=1).step(1)
    with pytest.raises(ConfigError, match="held-out"):
        MergeEarlyStoppingCallback(MergeEarlyStopping())
    with pytest.raises(NumericalError, match="step 4 is NaN"):
        MergeEarlyStopping(warmup=0).observe(4, float("nan"))
    with pytest.raises(ConfigError, match="attach"):
        MergeEarlyStopping(warmup=0, lr_min=0.1).observe(4, 1.0)
    with pytest.raises(ConfigError, match="before training"):
        MergeEarlyStopping(warmup=0, target_fraction=0.5).observe(4, 1.0)
    with pytest.raises(ConfigError, match="patience=3 differs from 9"):
        MergeEarlyStopping().load_state_dict(MergeEarlyStopping(patience=9).state_dict())
    unattached = MergeEarlyStopping(warmup=0, every=1)
    unattached.step(1, score=1.0)
    with pytest.raises(ConfigError, match="no weights were kept"):
        unattached.finish(nn.Linear(1, 1))


# ---- in the Trainer ------------------------------------------------------------------------------------------------


def trainer_run(
    out: Path, kill_at: int = 0, kind: str = "lora", restore: str = "best", flag: str = "0"
) -> dict:
    """In a process of its own, where it can be killed; without a kill in this one."""
    if kill_at:
        environment = os.environ | {"PYTHONPATH": str(HERE.parents[2])}
        command = [sys.executable, str(HERE / "trainer_run.py"), str(out), str(kill_at), kind, restore, flag]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=240)
        assert done.returncode == -9, done.stderr[-2000:]
        return {}
    from tests.methods.merge_early_stop.trainer_run import train

    return train(out, 0, kind == "lora", restore, flag == "1")


def test_a_killed_training_resumes_to_the_same_stop_and_the_same_weights(tmp_path: Path) -> None:
    plain = trainer_run(tmp_path / "plain")
    assert plain["reason"] == "plateau"
    assert plain["chosen"] % 7  # not a step at which the trainer saves
    trainer_run(tmp_path / "cut", kill_at=plain["stopped_at"] - 2)
    # what a kill in the middle of a save leaves behind
    half = tmp_path / "cut" / "checkpoint-900"
    half.mkdir()
    (half / "trainer_state.json").write_text('{"epoch": 1.0, "glob')
    resumed = trainer_run(tmp_path / "cut", flag="1")
    assert resumed.pop("resumed").startswith("checkpoint-")
    assert not half.exists()
    assert plain.pop("resumed") is None
    assert resumed == plain
    # a finished run: the trainer takes one more step before it looks at the flag, and that step is undone
    again = trainer_run(tmp_path / "cut")
    assert again["digest"] == plain["digest"]
    # one snapshot for each state that a checkpoint on disk may be resumed to, no more
    kept = {f.name for f in (tmp_path / "cut" / "merge_early_stop").iterdir()}
    assert f"step_{plain['chosen']}.safetensors" in kept
    assert len(kept) <= len(list((tmp_path / "cut").glob("checkpoint-*")))


def test_last_weights_of_a_full_training_and_a_lost_snapshot(tmp_path: Path) -> None:
    plain = trainer_run(tmp_path / "r", kind="full", restore="last")
    again = trainer_run(tmp_path / "r", kind="full", restore="last")
    # resumed from the last save before the stop, and once more from the stop itself
    assert again["digest"] == plain["digest"]
    assert again["stopped_at"] == plain["stopped_at"]
    for file in (tmp_path / "r" / "merge_early_stop").iterdir():
        file.unlink()
    with pytest.raises(DataError, match="is missing"):
        trainer_run(tmp_path / "r", kind="full", restore="last")
    assert latest_resumable_checkpoint(tmp_path / "nowhere") is None
