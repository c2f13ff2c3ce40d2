"""The study of `dynasteer` as steps: the planted truth, and a whole pipeline for each seed of the small world.

A seed's reasoner and its results are steps of their own, and the latter keeps each policy that it has measured: a
study that was killed does only what is missing.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods.dynasteer.study import WorldPlan, run_planted, run_world
from methods.dynasteer.world import make_tokenizer, train_reasoner
from tasks.load_model import load_causal_lm
from tasks.one_thread import one_thread
from tasks.prepare.config import ModelSettings
from tasks.quiet import quiet_progress
from tasks.reference import Reference
from tasks.steer.questions import check_questions
from tasks.step import step
from tasks.study.dynasteer_config import DynaSteerStudy

logger = logging.getLogger("seedloom")
VERSION = "1"
RESULT, PARTS = "result.json", ".parts"
ALL_PARTS = ("planted", "world", "model")


def check_study(config: DynaSteerStudy) -> None:
    """Refuse a model or questions that are not there.

    Raises:
        DataError: one line that names the field and the remedy.
    """
    from tasks.prepare.models import check_model_source

    if "model" in parts_of(config):
        check_model_source(ModelSettings(source=config.model, dtype="float32"))
        check_questions(config.steer.questions)


def parts_of(config: DynaSteerStudy) -> tuple[str, ...]:
    """The parts to do; the full profile does all."""
    return ALL_PARTS if config.profile == "full" else config.parts


@step("study-dynasteer-planted", kind="report", version=VERSION, timeout_seconds=24 * 3600)
def study_planted(out: Path, *, seed: int) -> dict[str, Any]:
    """The causal positive control."""
    with one_thread():
        row = run_planted(seed)
    _write(out / RESULT, row)
    return {"steer": row["steer"], "resample": row["resample"]}


@step("study-dynasteer-reasoner", kind="model", version=VERSION, timeout_seconds=24 * 3600)
def study_reasoner(out: Path, *, seed: int, steps: int) -> dict[str, Any]:
    """Train the small world's reasoner."""
    losses: list[float] = []
    with one_thread(), quiet_progress():
        model = train_reasoner(seed, steps, on_step=lambda _step, loss: losses.append(loss))
        model.save_pretrained(out)
        make_tokenizer().save_pretrained(out)
    last = losses[-50:]
    return {"loss": sum(last) / len(last), "parameters": sum(p.numel() for p in model.parameters())}


@step("study-dynasteer-world", kind="report", version=VERSION, timeout_seconds=24 * 3600)
def study_world(
    out: Path, *, seed: int, model: Reference, problems: int, select: int, test: int, laws: int
) -> dict[str, Any]:
    """Forks, fit, choice of the strength, every policy, and the two laws, for one reasoner."""
    with one_thread():
        loaded = load_causal_lm(model.expect("model")).requires_grad_(False)
        plan = WorldPlan(problems, select, test, laws)
        row = run_world(loaded, seed, plan, logger.info, out / PARTS)
    shutil.rmtree(out / PARTS)
    seconds = row.pop("seconds")
    _write(out / RESULT, row)
    policies = row["policies"]
    return {
        **{name: policies[name]["accuracy"] for name in ("plain", "resample", "steer")},
        "timings": {f"{name}_cpu_seconds": value for name, value in seconds.items()},
    }


def _write(path: Path, row: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")  # the policies keep their order


def read_result(folder: Path) -> dict[str, Any]:
    """A finished part's row."""
    found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return found
