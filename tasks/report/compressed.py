"""A compressed model as a run of its own in MLflow: its sizes, its error, and how its distillation went."""

import json

from tasks.candidates import Candidate
from tasks.compress.recipes import HISTORY
from tasks.tracking import STAGE_PARAM, RunContext, candidate_run, log_metrics, log_params, log_trace


def log_compressed(ctx: RunContext, candidate: Candidate) -> None:
    """Numbers under `compress/`, apart from what an evaluation measures; the curve under `distill/`."""
    run = candidate_run(ctx, candidate.name)
    log_params(ctx, run, {STAGE_PARAM: candidate.stage, "candidate.method": candidate.method})
    # The first metric is the one that MLflow's compare page plots.
    facts = sorted(candidate.facts.items(), key=lambda fact: fact[0] not in ("error/mean", "size/bytes"))
    numbers = {
        f"compress/{name}": value
        for name, value in facts
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "seed"
    }
    log_metrics(ctx, run, {**numbers, "compress/seconds": candidate.seconds})
    history = candidate.reference.path / HISTORY
    if history.is_file():
        rows = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
        log_trace(
            ctx,
            run,
            [{"step": row.pop("step"), **{f"distill/{k}": v for k, v in row.items()}} for row in rows],
        )
    ctx.client.set_terminated(run)
