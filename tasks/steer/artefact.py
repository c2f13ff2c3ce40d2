"""The folder that the steer flow writes: the steering beside its model, how to draw, and its questions.

steering.safetensors, steering.json   directions, gate and settings (`methods.dynasteer.DynaSteer.load`)
steer.json                            digest of the model, how answers are drawn, what was measured
questions/                            the questions that it was fitted on, and those that it was compared on
"""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from tasks.steer.config import DrawSettings, SteerSettings
from tasks.steer.questions import as_problems, read_questions
from tasks.train.expert_folder import write_json
from tasks.train.loading import weights_digest

RECORD, QUESTIONS = "steer.json", "questions"
EVALUATED = ("plain", "resample", "steer")


def write_artefact(
    out: Path, settings: SteerSettings, model: Path, questions: Path, steering: Path, facts: dict[str, Any]
) -> None:
    """Fill the empty folder `out`."""
    for name in ("steering.safetensors", "steering.json"):
        shutil.copy(steering / name, out / name)
    shutil.copytree(questions, out / QUESTIONS)
    write_json(
        out / RECORD,
        {
            "model": weights_digest(model),
            "draw": settings.draw.model_dump(mode="json"),
            "tau_decay": settings.tau_decay,
            "scope": settings.scope,
            "seed": settings.seed,
            "facts": facts,
        },
    )


def read_record(folder: Path) -> dict[str, Any]:
    """steer.json. DataError: it is missing or damaged."""
    try:
        found: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        DrawSettings.model_validate(found["draw"])
        str(found["model"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"steering {folder}: holds no whole {RECORD} ({type(error).__name__}); give what the steer flow wrote"
        ) from error
    return found


def steered_metrics(network: Any, tokenizer: Any, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Accuracy (with its standard error) and tokens of plain, resampled and steered answers; seconds apart.

    Raises:
        DataError: the folder is damaged, or the model has another shape.
    """
    from methods.dynasteer.steering import DynaSteer
    from tasks.steer.steer import answers, generation

    record = read_record(folder)
    steering = DynaSteer.load(folder)
    steering.check_model(network)
    rows, asked = read_questions(folder / QUESTIONS, "test")
    problems = as_problems(rows, asked, tokenizer)
    config = generation(DrawSettings.model_validate(record["draw"]), int(record["seed"]))
    metrics: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for name in EVALUATED:
        policy = steering.policy(policy=name, tau_decay=record["tau_decay"] or None, scope=record["scope"])
        started = time.perf_counter()
        found = answers(network, tokenizer, problems, asked["check"], config, policy)
        seconds[f"steering_{name}_seconds_per_question"] = (time.perf_counter() - started) / len(problems)
        share = sum(row["right"] for row in found) / len(found)
        metrics[f"steering/{name}/accuracy"] = share
        metrics[f"steering/{name}/accuracy_stderr"] = math.sqrt(share * (1 - share) / len(found))
        spent = sum(row["accepted_tokens"] + row["discarded_tokens"] for row in found)
        metrics[f"steering/{name}/tokens_per_question"] = spent / len(found)
    return metrics, seconds
