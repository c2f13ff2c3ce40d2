"""The model with a planted truth as a folder, and its questions as a file."""

import json
from pathlib import Path
from typing import Any

from methods.dynasteer.planted import make_planted, planted_problems
from tasks.steer.config import SteerSettings


def write_planted(folder: Path, questions: int = 360) -> tuple[Path, Path]:
    """The model's folder and the questions' file."""
    made = make_planted(0, head_dim=16)
    made.model.save_pretrained(folder / "model")
    made.tokenizer.save_pretrained(folder / "model")
    rows = [
        {"question": made.tokenizer.decode(problem.prompt), "answer": problem.answer}
        for problem in planted_problems(questions, 0)
    ]
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "model", file


def settings(source: Path, **changes: Any) -> SteerSettings:
    values: dict[str, Any] = {
        "questions": {"source": str(source), "template": "{question}", "train": 96, "test": 200}
        | changes.pop("questions", {}),
        "draw": {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "max_new_tokens": 8,
            "delimiter": r"\.\n",
            "stop": "none",
            "batch_size": 512,
        },
        "completions": 2,
        "heads": 1,
        "alpha": 3.0,
        "seed": 1,
    }
    return SteerSettings.model_validate(values | changes)
