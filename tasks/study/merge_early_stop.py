"""The study of `merge_early_stop` as a step: images in, frames out, resumable replicate by replicate."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from methods.common.errors import DataError
from methods.merge_early_stop.shifted_digits import Sizes, load_digit_images
from methods.merge_early_stop.study import StudySettings, run_study
from tasks.reference import Reference
from tasks.step import step
from tasks.study.merge_early_stop_config import MergeEarlyStopStudy

logger = logging.getLogger("seedloom")
FULL = {"seeds": (0, 1, 2, 3, 4), "label_noise": (0.0, 0.1, 0.2, 0.4)}


def digits_file(data: str) -> Path:
    """The images' file.

    Raises:
        DataError: nothing is there; names the command that makes it.
    """
    path = Path(data).expanduser()
    file = path / "digits.npz" if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"data: {file} does not exist; `dvc repro data@mnist` makes it, or name an .npz of your own"
        )
    return file


def study_settings(config: MergeEarlyStopStudy) -> StudySettings:
    """The method's settings; the full profile widens seeds and noise."""
    widened = FULL if config.profile == "full" else {}
    return StudySettings(
        steps=config.steps,
        seeds=widened.get("seeds", config.seeds),
        label_noise=widened.get("label_noise", config.label_noise),
        sizes=Sizes(train=config.train_per_task),
        base_steps=config.base_steps,
    )


@step("study-merge-early-stop", kind="report", version="1", timeout_seconds=24 * 3600)
def study(out: Path, *, settings: MergeEarlyStopStudy, images: Reference) -> dict[str, Any]:
    """Train, merge, stop and diagnose over all replicates; one CSV a frame."""
    pictures, labels = load_digit_images(images.path)

    def progress(done: int, every: int) -> None:
        logger.info("study: %d of %d replicates", done, every)

    frames = run_study(
        pictures,
        labels,
        study_settings(settings),
        workers=settings.processes,
        bank=out / "bank",
        progress=progress,
    )
    shutil.rmtree(out / "bank")
    costs = frames.pop("costs")
    for name, frame in frames.items():
        frame.to_csv(out / f"{name}.csv", index=False)
    return {"frames": sorted(frames), "timings": {"costs": costs.to_dict("records")}}


def read_frames(folder: Path, costs: list[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    """The frames of a finished study, with its measured costs."""
    frames = {path.stem: pd.read_csv(path) for path in sorted(folder.glob("*.csv"))}
    return {**frames, "costs": pd.DataFrame(costs)}
