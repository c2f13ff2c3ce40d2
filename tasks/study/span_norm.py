"""The study of `span_norm` as steps: the laws at the start, and trainings that are kept run by run.

Each finished training lies in the work folder under a key of its settings and the text; a study that was killed, and
one with further parts, trains only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from methods.common.errors import ConfigError
from methods.span_norm.study import Run, start_laws, train_run
from methods.span_norm.study_claims import final_loss
from methods.span_norm.study_deep import (
    COMPARED,
    SEARCH,
    chosen_rate,
    compared_runs,
    name_of,
    next_rate,
    search_runs,
)
from methods.span_norm.study_plan import LONGER, Plan, runs_of
from tasks.pretrain.config import CorpusSettings
from tasks.pretrain.corpus import PARTS, check_corpus, load_record, load_rows
from tasks.reference import Reference, combine, reference_to
from tasks.settings import settings as machine
from tasks.step import step
from tasks.study.span_norm_config import SpanNormStudy

logger = logging.getLogger("seedloom")
VERSION = "1"
DEFAULT_DATA = str(SpanNormStudy.model_fields["data"].default)
START_CANDIDATES = (
    ("span", "inv_sqrt_depth"),
    ("span", "none"),
    ("prenorm", "inv_sqrt_depth"),
    ("prenorm", "none"),
    ("postnorm", "inv_sqrt_depth"),
    ("postnorm", "none"),
    ("hybrid", "none"),
)


def corpus_settings(config: SpanNormStudy) -> CorpusSettings:
    """The text as bytes, a row one byte longer than the context: each byte but the first is predicted."""
    return CorpusSettings(source=config.data, tokenizer="bytes", context=config.context + 1)


def check_study(config: SpanNormStudy) -> None:
    """Refuse text that is not there and settings that do not fit.

    Raises:
        DataError, ConfigError: one line that names the field and the remedy.
    """
    if config.warmup >= config.steps:
        raise ConfigError(f"warmup={config.warmup}: give fewer than steps={config.steps}")
    if "range" in parts_of(config) and LONGER * config.warmup >= config.steps:
        raise ConfigError(
            f"warmup={config.warmup}: the part 'range' takes {LONGER} times as long, which is not below "
            f"steps={config.steps}; give more steps or fewer of warm-up"
        )
    if config.data == DEFAULT_DATA and not Path(config.data).exists():
        raise ConfigError(
            f"data={DEFAULT_DATA}: is not there; `dvc repro data@kjv` makes it, or name text of your own"
        )
    check_corpus(corpus_settings(config))


def parts_of(config: SpanNormStudy) -> tuple[str, ...]:
    """The parts to do; the full profile does all."""
    return (
        ("start", "moderate", "rates", "range", "smaller", "depth", "experts", "deep")
        if config.profile == "full"
        else config.parts
    )


def plan_of(config: SpanNormStudy) -> Plan:
    """The trainings' shared sizes."""
    base = Run(
        scheme="span",
        init="inv_sqrt_depth",
        rate=config.rates[0],
        seed=0,
        layers=config.layers,
        steps=config.steps,
        warmup=config.warmup,
        batch=config.batch,
        context=config.context,
    )
    return Plan(
        config.rates,
        config.seeds,
        config.grid_seeds,
        base,
        every=config.candidates == "all",
        full=config.profile == "full",
    )


@step("study-span-norm-start", kind="report", version=VERSION, timeout_seconds=24 * 3600)
def study_start(out: Path, *, depths: list[int], seeds: list[int]) -> dict[str, Any]:
    """Gradients, sizes and similarity before any training, by scheme, start, depth and seed."""
    import torch

    torch.set_num_threads(1)
    rows = [
        start_laws(scheme, init, layers, seed)
        for seed in seeds
        for layers in depths
        for scheme, init in START_CANDIDATES
    ]
    _write(out / "start.jsonl", rows)
    return {"rows": len(rows)}


@step("study-span-norm-runs", kind="report", version=VERSION, timeout_seconds=7 * 24 * 3600)
def study_runs(out: Path, *, part: str, settings: SpanNormStudy, corpus: Reference) -> dict[str, Any]:
    """The trainings of one part."""
    bank = machine().work / "span-norm-runs"
    bank.mkdir(parents=True, exist_ok=True)
    if part == "deep":
        found = search_and_compare(corpus, settings, bank)
    else:
        found = train_all(runs_of(part, plan_of(settings)), corpus, settings, bank)
    seconds = [row.pop("cpu_seconds") for row in found]
    _write(out / f"{part}.jsonl", found)
    return {
        "runs": len(found),
        "diverged": sum(row["diverged"] is not None for row in found),
        "timings": {"cpu_seconds": sum(seconds)},
    }


def search_and_compare(corpus: Reference, settings: SpanNormStudy, bank: Path) -> list[dict[str, Any]]:
    """The part `deep`: every training of the search and of the comparison, marked by its `stage`."""
    deep = settings.deep
    base = replace(plan_of(settings).base, layers=deep.layers, steps=deep.steps, warmup=deep.warmup)
    losses: dict[str, dict[float, float]] = {}
    found = []
    # The candidates walk side by side, so that two processes have work.
    while runs := [
        replace(run, rate=rate)
        for run in search_runs(base, deep.search_seed, deep.further)
        if (rate := next_rate(losses.get(name_of(run, base), {}))) is not None
    ]:
        for run, row in zip(runs, train_all(runs, corpus, settings, bank), strict=True):
            name = name_of(run, base)
            losses.setdefault(name, {})[run.rate] = final_loss(row)
            found.append({**row, "candidate": name, "stage": SEARCH})
    chosen = {candidate: chosen_rate(tried) for candidate, tried in losses.items()}
    logger.info("rates that the search chose: %s", chosen)
    rows = train_all(compared_runs(chosen, base, deep.seeds), corpus, settings, bank)
    return found + [{**row, "stage": COMPARED} for row in rows]


def train_all(
    runs: Sequence[Run], corpus: Reference, settings: SpanNormStudy, bank: Path
) -> list[dict[str, Any]]:
    """Every run's result, from the bank or trained now; in the order of `runs`."""
    rows = rows_digest(corpus.expect("data"))
    files = {run: bank / f"{_key(run, rows, settings.validation_rows)}.json" for run in runs}
    missing = [run for run, file in files.items() if not file.is_file()]
    done = len(files) - len(missing)
    logger.info("trainings: %d of %d are there", done, len(files))
    folder, count = corpus.expect("data"), settings.validation_rows
    for run, result in _trained(missing, folder, count, settings.processes):
        part = files[run].with_suffix(".part")
        part.write_text(json.dumps(result, sort_keys=True), encoding="utf-8")
        part.replace(files[run])
        done += 1
        logger.info("trainings: %d of %d", done, len(files))
    return [json.loads(files[run].read_text(encoding="utf-8")) for run in runs]


def _trained(
    runs: Sequence[Run], corpus: Path, rows: int, processes: int
) -> Iterator[tuple[Run, dict[str, Any]]]:
    if processes == 1 or len(runs) < 2:
        for run in runs:
            yield run, _train(run, corpus, rows)
        return
    # A fresh interpreter for each worker: a forked one would share torch's threads.
    pool = ProcessPoolExecutor(min(processes, len(runs)), mp_context=multiprocessing.get_context("spawn"))
    try:
        waiting = {pool.submit(_train, run, corpus, rows): run for run in runs}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _train(run: Run, corpus: Path, rows: int) -> dict[str, Any]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        started = time.process_time()
        train, validation = _table(corpus, "train"), _table(corpus, "validation")
        places = np.linspace(0, len(validation) - 1, min(rows, len(validation))).round().astype(int)
        result = train_run(run, train, validation[places], load_record(corpus)["vocabulary"])
        return {**result, "cpu_seconds": time.process_time() - started}
    finally:
        torch.set_num_threads(threads)


def _table(corpus: Path, part: str) -> np.ndarray:
    return np.asarray(load_rows(corpus, part).with_format("numpy")[:]["input_ids"])


def rows_digest(corpus: Path) -> str:
    """What a training reads, by its content: the rows of both parts, not the record of where they came from."""
    return combine({part: reference_to(corpus / part, "data").digest for part in PARTS})


def _key(run: Run, rows: str, validation_rows: int) -> str:
    record = {"version": VERSION, "run": asdict(run), "rows": rows, "validation_rows": validation_rows}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:32]


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows), encoding="utf-8")
