"""The bundled SmolLM2: two short experts on real task sets, merged; a few steps only."""

from pathlib import Path

import pytest

from tasks.merge.candidates import merge_candidate
from tasks.merge.config import MergeSettings
from tasks.prepare.config import TaskSetSettings
from tasks.prepare.task_sets import build_task_sets
from tasks.reference import reference_to
from tasks.train.config import FinetuneSettings
from tasks.train.finetune import finetune


@pytest.mark.bundled
def test_two_experts_and_their_merge(smollm2: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    build_task_sets(
        TaskSetSettings(
            bundled=("csqa", "openbookqa"),
            train_examples=32,
            stop_examples=6,
            select_examples=6,
            test_examples=2,
            max_characters=250,
        ),
        tasks,
    )
    base = reference_to(smollm2, "model")
    settings = FinetuneSettings(max_steps=4, warmup=1, stop_every=2, batch_size=6)
    experts = []
    for name in ("csqa", "openbookqa"):
        out = tmp_path / name
        out.mkdir()
        summary = finetune(
            out,
            settings=settings,
            base=base,
            task=reference_to(tasks / name, "tasks"),
            stopping="merge_aware",
        )
        scores = [row["stop_score"] for row in summary["trace"]]
        assert scores[-1] > scores[0]
        experts.append(reference_to(out, "adapter"))
    out = tmp_path / "merged"
    out.mkdir()
    merged = merge_candidate(
        out,
        settings=MergeSettings(coefficients=(0.5, 1.0), select_examples=6),
        method="task_arithmetic",
        base=base,
        experts=experts,
        tasks=reference_to(tasks, "tasks"),
    )
    assert merged["select_score"] > 0
    assert (out / "model.safetensors").stat().st_size == (smollm2 / "model.safetensors").stat().st_size
