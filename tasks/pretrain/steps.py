"""The pretrain flow's steps as Prefect tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.pretrain.config import CorpusSettings, PretrainSettings
from tasks.reference import Reference
from tasks.step import step
from tasks.tracking import RunContext
from tasks.train.steps import curves


@step("pretrain-corpus", kind="data", version="1", timeout_seconds=24 * 3600)
def build_corpus(out: Path, *, settings: CorpusSettings, fingerprint: str) -> dict[str, Any]:
    """Train the tokenizer, hold the end of the text out, and pack both parts into rows of tokens."""
    from tasks.pretrain.corpus import build_corpus as work

    return work(settings, out)


@step(
    "pretrain",
    kind="model",
    version="1",
    timeout_seconds=30 * 24 * 3600,
    tags=("training",),
    live=True,
)
def pretrain(
    out: Path,
    *,
    settings: PretrainSettings,
    corpus: Reference,
    ctx: RunContext | None = None,
    label: str = "pretrain",
) -> dict[str, Any]:
    """Train a base model from scratch into a model folder."""
    from tasks.pretrain.pretrain import pretrain as work

    with curves(ctx, label) as on_row:
        return work(out, settings=settings, corpus=corpus, on_row=on_row)
