"""The study of `dynasteer` as steps: the planted truth, and a whole pipeline for each seed of the small world.

A seed's reasoner and its results are steps of their own, and the latter keeps each policy that it has measured: a
study that was killed does only what is missing.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods.dynasteer.decoding import Policy
from methods.dynasteer.study import WorldPlan, run_planted, run_world
from methods.dynasteer.world import make_tokenizer, train_reasoner
from tasks.load_model import load_causal_lm
from tasks.one_thread import one_thread
from tasks.prepare.config import ModelSettings
from tasks.quiet import quiet_progress
from tasks.reference import Reference
from tasks.steer.config import DrawSettings
from tasks.steer.questions import as_problems, check_questions, read_questions
from tasks.steer.steer import answers, generation, load
from tasks.steer.steps import SteerRun
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
        for asked in (config.steer.questions, *config.plain_questions):
            check_questions(asked)


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


@step("study-dynasteer-world", kind="report", version="2", timeout_seconds=24 * 3600)
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
        "timings": {f"{name}_seconds_per_question": value for name, value in seconds.items()},
    }


@step("study-dynasteer-plain", kind="report", version=VERSION, timeout_seconds=7 * 24 * 3600)
def study_plain(
    out: Path, *, model: Reference, questions: Reference, draw: DrawSettings, dtype: str, seed: int
) -> dict[str, Any]:
    """Plain answers of the real model to one set of questions: what it can do there."""
    rows, record = read_questions(questions.expect("data"), "test")
    network, tokenizer = load(model.expect("model"), dtype)
    problems = as_problems(rows, record, tokenizer)
    started = time.perf_counter()
    found = answers(network, tokenizer, problems, record["check"], generation(draw, seed), Policy())
    seconds = (time.perf_counter() - started) / len(found)
    row = {
        "seed": seed,
        "source": record["source"],
        "questions": len(found),
        "accuracy": sum(answer["right"] for answer in found) / len(found),
        "tokens": sum(answer["accepted_tokens"] for answer in found) / len(found),
    }
    _write(out / RESULT, row)
    return {"accuracy": row["accuracy"], "timings": {"seconds_per_question": seconds}}


def model_rows(run: SteerRun, seed: int) -> list[dict[str, Any]]:
    """A seed's policies on the real model: facts, correctness of each question (0 to 1), groups, seconds a question."""
    questions, _ = read_questions(run.questions.path, "test")
    rows = []
    for name, facts in run.answered.summary["policies"].items():
        lines = (run.answered.path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        rows.append(
            {
                "seed": seed,
                "policy": name,
                "facts": facts,
                "fit": run.facts,
                "right": [float(json.loads(line)["right"]) for line in lines],
                "groups": [row["group"] for row in questions],
                "seconds": run.answered.timings[f"{name}_seconds_per_question"],
            }
        )
    return rows


def _write(path: Path, row: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")  # the policies keep their order


def read_result(folder: Path) -> dict[str, Any]:
    """A finished part's row."""
    found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return found
