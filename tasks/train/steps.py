"""The finetune step as a Prefect task, with its curves in MLflow while it trains."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.reference import Kind, Reference
from tasks.step import step
from tasks.tracking import RunContext, candidate_run, log_trace, system_metrics
from tasks.train.config import FinetuneSettings, Stopping

FLUSH_SECONDS = 5.0


def _kind(inputs: Mapping[str, Any]) -> Kind:
    return "model" if inputs["settings"].adapter == "full" else "adapter"


@step(
    "finetune",
    kind=_kind,
    version="2",
    timeout_seconds=7 * 24 * 3600,
    tags=("training",),
    live=True,
)
def finetune(
    out: Path,
    *,
    settings: FinetuneSettings,
    base: Reference,
    task: Reference,
    stopping: Stopping,
    seed: int | None = None,
    ctx: RunContext | None = None,
    label: str = "finetune",
) -> dict[str, Any]:
    """Train one expert of one task, stopped by one rule, into an adapter or model folder."""
    from tasks.train.finetune import finetune as work

    with curves(ctx, label) as on_row:
        return work(out, settings=settings, base=base, task=task, stopping=stopping, seed=seed, on_row=on_row)


class _Live:
    """Rows of a training curve on their way to MLflow, a request every few seconds."""

    def __init__(self, ctx: RunContext, run_id: str) -> None:
        self.ctx, self.run_id = ctx, run_id
        self.rows: list[dict[str, float]] = []
        self.sent = time.monotonic()

    def __call__(self, row: dict[str, float]) -> None:
        self.rows.append(row)
        if time.monotonic() - self.sent >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self.rows:
            log_trace(self.ctx, self.run_id, self.rows)
        self.rows, self.sent = [], time.monotonic()


@contextlib.contextmanager
def curves(ctx: RunContext | None, label: str) -> Iterator[_Live | None]:
    """A receiver of rows that writes them into the run of the candidate `label`; None without a run."""
    if ctx is None:
        yield None
        return
    run_id = candidate_run(ctx, label)
    live = _Live(ctx, run_id)
    with system_metrics(ctx, run_id):
        try:
            yield live
        finally:
            live.flush()


def replay_trace(ctx: RunContext, label: str, folder: Path) -> None:
    """Write the curves of an expert that was trained in an earlier run into its run of this one.

    A run that has them already is left alone.
    """
    from tasks.train.trace import read_trace

    rows = read_trace(folder)
    run_id = candidate_run(ctx, label)
    if rows and "train/loss" not in ctx.client.get_run(run_id).data.metrics:
        log_trace(ctx, run_id, rows)
