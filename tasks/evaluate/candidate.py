"""Score one candidate: task sets with the harness, held-out text, size and speed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tasks.evaluate.config import EvaluateSettings
from tasks.evaluate.items import ITEMS_FILE, intervals, task_metrics, write_items
from tasks.evaluate.loading import best_device, check_candidate, load_candidate, measure_size
from tasks.quiet import quiet_logs


def evaluate_model(
    settings: EvaluateSettings,
    model: Path,
    tasks: Path,
    text: Path | None,
    out: Path,
    base: Path | None = None,
    dense: Path | None = None,
    steering: Path | None = None,
) -> dict[str, Any]:
    """Score a full model, or an adapter on its base; the same inputs give the same metrics.

    Args:
        settings: what is scored and how.
        model: a model folder or a PEFT adapter folder.
        tasks: folder of task sets, as prepare writes it.
        text: folder of held-out text, or None.
        out: gets `items.parquet` (one row an item), `metrics.json` and `harness/<task>.yaml`.
        base: the base model's folder; needed for an adapter.
        dense: folder of the model that this one was compressed from; needed for the probe.
        steering: what the steer flow wrote for this model: its test questions are answered plainly, with rollback alone
            and steered, under `steering/<policy>/...`, whatever the split.

    Returns:
        metrics: flat, `<split>/<task>/<metric>`, `<split>/mean/<metric>`, `text/...`, `size/...`, `public/...`; each
            score with its standard error under `<name>_stderr`.
        intervals: name -> (low, high), 95 %.
        dtype: number format of the computation.
        outlook: of each kind of task, by the probe; absent without it.
        timings: seconds of the parts, tokens per second (not deterministic).

    Raises:
        DataError: a damaged or missing model, task set or text; the message names it.
        NumericalError: a log-likelihood is not finite.
    """
    from methods.common.dtype import resolve_dtype
    from tasks.evaluate.harness import run_task_sets, task_folders
    from tasks.evaluate.packed import PackedLM
    from tasks.evaluate.perplexity import read_text, text_metrics
    from tasks.evaluate.probe import probe_candidate
    from tasks.evaluate.speed import measure_speed

    check_candidate(model, base)
    task_folders(tasks, settings.split)
    documents = read_text(text) if text is not None else []
    out.mkdir(parents=True, exist_ok=True)
    timings: dict[str, float] = {}
    clock = _Clock(timings)

    dtype = resolve_dtype(settings.dtype, best_device())
    network, tokenizer = load_candidate(model, base, dtype)
    clock.lap("load_seconds")
    with quiet_logs("lm_eval"):
        lm = PackedLM(network, tokenizer, settings.batch_tokens, show_progress=sys.stderr.isatty())
    items, public = run_task_sets(lm, tasks, settings, out)
    clock.lap("task_seconds")
    metrics = task_metrics(items, settings.split) | public
    if documents:
        metrics |= text_metrics(lm, documents, settings.text_window)
        clock.lap("text_seconds")
    metrics |= {f"size/{name}": value for name, value in measure_size(model, base).items()}
    clock.lap("size_seconds")
    if settings.measure_speed:
        timings |= measure_speed(network)
        clock.lap("speed_seconds")
    outlook: dict[str, Any] = {}
    if dense is not None and settings.probe_prompts:
        found, survivals = probe_candidate(
            network,
            tokenizer,
            load_candidate(dense, None, dtype)[0],
            prompts=settings.probe_prompts,
            steps=settings.probe_steps,
            tasks=tasks,
            split=settings.split,
            documents=documents,
            out=out,
        )
        metrics |= found
        outlook = {"outlook": survivals}
        clock.lap("probe_seconds")

    if steering is not None:
        from tasks.steer.artefact import steered_metrics

        answered, seconds = steered_metrics(network, tokenizer, steering)
        metrics |= answered
        timings |= seconds
        clock.lap("steering_seconds")
    write_items(items, out)
    summary = {
        "metrics": metrics,
        "intervals": intervals(metrics),
        "dtype": str(dtype).removeprefix("torch."),
        "items": ITEMS_FILE,
        **outlook,
    }
    (out / "metrics.json").write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return summary | {"timings": timings}


class _Clock:
    """Seconds between laps."""

    def __init__(self, timings: dict[str, float]) -> None:
        self.timings = timings
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.timings[name] = now - self.last
        self.last = now
