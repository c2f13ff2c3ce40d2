"""The study of `littlebit2` as steps, each resumable part by part: weights and small models."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

from tasks.reference import Reference
from tasks.step import step
from tasks.study.littlebit2_config import SmallStudy, WeightsStudy

logger = logging.getLogger("seedloom")
ROWS = "rows"
WIDE = ((0.3, False), (1.0, False), (0.3, True), (0.55, True), (1.0, True))
ADMM = ((0.3, False), (0.55, False), (1.0, True))
TWO_BITS = (2.5, True)  # one branch would need more than full rank
GAMMAS = (0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.8, 1.0)
ITERATIONS = (0, 5, 20, 50, 100)
SMALL_SIZES: dict[str, int] = {}  # tests train smaller ones


class Parts:
    """Finished parts of a step, a JSON file each, so that a killed step goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> list[dict[str, Any]] | None:
        file = self.folder / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def keep(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        partial = self.folder / f"{name}.partial"
        partial.write_text(json.dumps(list(rows)))
        partial.replace(self.folder / f"{name}.json")

    def frame(self, names: Sequence[str]) -> pd.DataFrame:
        rows = [row for name in names for row in self.get(name) or []]
        return pd.DataFrame(rows)


def write_frames(out: Path, frames: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """CSV files without measured times, which are no part of the result."""
    seconds: dict[str, Any] = {}
    for name, frame in frames.items():
        if "seconds" in frame:
            key = "method" if "method" in frame else frame.columns[0]
            seconds[name] = frame.groupby(key, sort=True).seconds.sum().round(3).to_dict()
            frame = frame.drop(columns="seconds")
        frame.to_csv(out / f"{name}.csv", index=False)
    shutil.rmtree(out / ROWS)
    return {"frames": sorted(frames), "timings": {"by_part": seconds}}


def measure_weights(out: Path, *, settings: WeightsStudy, model: Reference) -> dict[str, Any]:
    """Errors of every layer by each initialisation and peer, synthetic spectra, and the number of iterations."""
    import torch

    from methods.littlebit2.study_weights import Grid, all_rows, iteration_rows, layer_places, synthetic_rows

    parts = Parts(out / ROWS)
    places = layer_places(model.path)
    plain = Grid()
    high = (TWO_BITS,) if settings.two_bits else ()
    wide = Grid(((0.55, False), *WIDE, *high), (*ADMM, *high), peers=True)
    work = [(p, wide if p.block % settings.every_block == 0 else plain) for p in places]
    missing = [(p, grid) for p, grid in work if parts.get(p.name) is None]
    # The longest first, so that no core waits at the end.
    missing.sort(key=lambda item: -len(item[1].points))
    done = len(work) - len(missing)
    for name, rows in all_rows(missing, n_jobs=settings.processes):
        parts.keep(name, rows)
        done += 1
        if done % 30 == 0 or done == len(work):
            logger.info("study: %d of %d layers", done, len(work))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums, and so the last digits, depend on the number of threads
    try:
        if parts.get("synthetic") is None:
            parts.keep("synthetic", synthetic_rows(GAMMAS))
        if parts.get("iterations") is None:
            middle = max(p.block for p in places) // 2
            chosen = [p for p in places if p.block == middle]
            parts.keep("iterations", iteration_rows(chosen, ITERATIONS))
    finally:
        torch.set_num_threads(threads)
    frames = {
        "layers": parts.frame([p.name for p in places]),
        "synthetic": parts.frame(["synthetic"]),
        "iterations": parts.frame(["iterations"]),
    }
    return write_frames(out, frames)


def measure_small(out: Path, *, settings: SmallStudy, text: Reference) -> dict[str, Any]:
    """Teachers, then each student of each seed, over processes."""
    from methods.littlebit2.study_small import POINTS

    parts = Parts(out / ROWS)
    seeds = settings.seeds
    teachers = [(settings, text.path, out, seed) for seed in seeds]
    for _ in _spread(_teacher, teachers, settings.processes):
        logger.info("study: a teacher is trained")
    names = [(seed, point) for seed in seeds for point in POINTS]
    missing = [
        (settings, text.path, out, seed, point.name)
        for seed, point in names
        if not parts.get(_key(seed, point.name))
    ]
    done = len(names) - len(missing)
    for (_, _, _, seed, name), rows in _spread(_student, missing, settings.processes):
        parts.keep(_key(seed, name), rows)
        done += 1
        logger.info("study: %d of %d students", done, len(names))
    summary = write_frames(out, {"small": parts.frame([_key(seed, point.name) for seed, point in names])})
    shutil.rmtree(out / "teachers")
    return summary


def _key(seed: int, name: str) -> str:
    return f"{seed}-{name}"


def _spread(
    work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], processes: int
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Results as they finish, over processes with one thread each."""
    if processes == 1:
        _one_thread()
        yield from ((given, work(*given)) for given in arguments)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        running = {pool.submit(work, *given): given for given in arguments}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _small_settings(settings: SmallStudy) -> Any:
    from methods.littlebit2.study_small import SmallSettings

    return SmallSettings(
        base_steps=settings.base_steps, steps=settings.distill_steps, lr=settings.distill_rate, **SMALL_SIZES
    )


def _small_text(text: Path, own: Any) -> tuple[Any, Any]:
    from methods.littlebit2.study_small import byte_rows
    from tasks.compress.prune import text_documents

    tokens = byte_rows(text_documents(text / "calibration"), own.length)
    return tokens, byte_rows(text_documents(text), own.length, own.eval_bytes)


def _teacher(settings: SmallStudy, text: Path, out: Path, seed: int) -> None:
    from methods.littlebit2.study_small import train_base

    folder = out / "teachers" / str(seed)
    if folder.exists():
        return
    own = _small_settings(settings)
    model = train_base(own, _small_text(text, own)[0], seed)
    partial = folder.with_suffix(".partial")
    model.save_pretrained(partial)
    partial.rename(folder)


def _student(settings: SmallStudy, text: Path, out: Path, seed: int, name: str) -> list[dict[str, Any]]:
    import time

    from transformers import AutoModelForCausalLM

    from methods.littlebit2.study_small import POINTS, distilled, nats_per_token
    from tasks.quiet import quiet_progress

    begin = time.perf_counter()
    own = _small_settings(settings)
    tokens, heldout = _small_text(text, own)
    with quiet_progress():
        teacher = AutoModelForCausalLM.from_pretrained(str(out / "teachers" / str(seed)))
    teacher = teacher.eval().requires_grad_(False)
    point = next(point for point in POINTS if point.name == name)
    rows, _ = distilled(teacher, tokens, heldout, own, point, seed=seed)
    facts = {
        "teacher_nats": nats_per_token(teacher, heldout),
        "teacher_parameters": sum(p.numel() for p in teacher.parameters()),
    }
    rows[-1]["seconds"] = time.perf_counter() - begin
    return [row | facts for row in rows]


def read_frames(folders: Sequence[Path]) -> dict[str, pd.DataFrame]:
    """The frames of finished study steps."""
    return {path.stem: pd.read_csv(path) for folder in folders for path in sorted(folder.glob("*.csv"))}


@step("study-littlebit2-weights", kind="report", version="1", timeout_seconds=24 * 3600)
def weights_study(out: Path, **inputs: Any) -> dict[str, Any]:
    """Errors of every layer by each initialisation and peer."""
    return measure_weights(out, **inputs)


@step("study-littlebit2-small", kind="report", version="1", timeout_seconds=24 * 3600)
def small_study(out: Path, **inputs: Any) -> dict[str, Any]:
    """Small models trained here, compressed and distilled alike."""
    return measure_small(out, **inputs)
