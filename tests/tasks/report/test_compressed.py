"""A compressed model's run in MLflow: numbers, and the curve of its distillation."""

import json
from pathlib import Path

import pytest

from tasks.candidates import Candidate
from tasks.compress.recipes import HISTORY
from tasks.config import Config
from tasks.reference import Reference
from tasks.report import compressed
from tasks.report.compressed import log_compressed
from tasks.settings import settings
from tasks.tracking import children, flow_run


@pytest.mark.parametrize("trained", [True, False])
def test_it_holds_sizes_and_the_curve(trained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDLOOM_WORK_DIR", str(tmp_path / "work"))
    settings.cache_clear()
    folder = tmp_path / "model"
    folder.mkdir()
    if trained:
        rows = [{"step": 1.0, "loss": 3.0, "lr": 0.1}, {"step": 2.0, "loss": 2.5, "lr": 0.0}]
        (folder / HISTORY).write_text("\n".join(map(json.dumps, rows)) + "\n")
    made = Candidate(
        name="compressed/littlebit2-0.55bit",
        stage="compressed",
        method="littlebit2-0.55bit",
        reference=Reference(path=folder, digest="d", kind="model"),
        facts={"a": 3, "size/bytes": 12, "seed": 0, "label": "x", "layers": [1], "strict": True},
        seconds=1.5,
    )
    written: dict[str, float] = {}
    real = compressed.log_metrics
    monkeypatch.setattr(compressed, "log_metrics", lambda *given: (written.update(given[2]), real(*given)))
    with flow_run("compress", Config()) as ctx:
        log_compressed(ctx, made)
        (run,) = children(ctx)
        assert run.info.status == "FINISHED"
        numbers = {"compress/size/bytes": 12.0, "compress/a": 3.0, "compress/seconds": 1.5}
        last = {"distill/loss": 2.5, "distill/lr": 0.0} if trained else {}
        assert run.data.metrics == numbers | last
        assert next(iter(written)) == "compress/size/bytes"  # what the compare page plots
        assert run.data.params["candidate.method"] == "littlebit2-0.55bit"
        if trained:
            curve = ctx.client.get_metric_history(run.info.run_id, "distill/loss")
            assert [(point.step, point.value) for point in curve] == [(1, 3.0), (2, 2.5)]
    settings.cache_clear()
