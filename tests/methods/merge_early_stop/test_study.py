"""The study end to end on a small bench: complete frames, the same in two runs, claims that can fail."""

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

from methods.common.claims import Claim
from methods.common.errors import ConfigError
from methods.merge_early_stop.shifted_digits import Sizes
from methods.merge_early_stop.study import Frames, StudySettings, collect, run_study, study_job
from methods.merge_early_stop.study_claims import claims

SETTINGS = StudySettings(
    steps=(4, 16, 32), seeds=(0,), label_noise=(0.0, 0.2), tasks=("rotate_left", "mirror"),
    sizes=Sizes(base=200, train=60, stop=60, select=60, test=100), base_steps=40, batch_size=20, el2n_step=4,
    el2n_seeds=1, select_budget=3, drop_fractions=(0.1,), drop_steps=4, methods=("task_arithmetic", "ties_lambda_1"),
    stoppers={"early_stop": {"warmup": 4, "every": 4, "patience": 1}},
)  # fmt: skip


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    raw = load_digits()
    large = F.interpolate(torch.from_numpy(raw.images).float()[:, None] / 16, size=28, mode="bilinear")[:, 0]
    return (large * 255).round().to(torch.uint8), torch.from_numpy(raw.target)


@pytest.fixture(scope="module")
def frames(images: tuple[Tensor, Tensor]) -> Frames:
    return run_study(*images, SETTINGS)


def test_frames_are_complete_and_repeatable(images: tuple[Tensor, Tensor], frames: Frames) -> None:
    assert {len(f[["seed", "noise"]].drop_duplicates()) for f in frames.values()} == {2}
    assert len(frames["sweep"]) == 3 * 2 * 2
    strategies = {
        "full", "own_optimum", "epoch_patience_3", "early_stop", "fixed_step", "own_steps_constant", "selected",
        "best_uniform",
    }  # fmt: skip
    assert set(frames["stopping"]["strategy"]) == strategies
    again = study_job(*images, 0, 0.2, SETTINGS)
    for name, frame in again.items():
        if name != "costs":
            whole = frames[name]
            part = whole[whole["noise"] == 0.2].reset_index(drop=True)[frame.columns]
            pd.testing.assert_frame_equal(part, frame, check_dtype=False)
    for _, group in frames["shares"].groupby(["seed", "noise", "step"]):
        assert group["loss_share"].sum() == pytest.approx(1)
        assert group["gradient_share"].sum() == pytest.approx(1)


def test_full_in_stopping_is_the_end_of_the_sweep(frames: Frames) -> None:
    stopping = frames["stopping"].query("strategy == 'full'")
    sweep = frames["sweep"].query("step == 32")
    both = stopping.merge(sweep, on=["method", "seed", "noise"], suffixes=("", "_sweep"))
    assert len(both) == 4
    assert (both["merged"] == both["merged_sweep"]).all()
    assert (both["own"] == both["own_sweep"]).all()
    assert (stopping["full_share"] == 1).all()


def test_the_confound_split_adds_up(frames: Frames) -> None:
    found = {c.name: c for c in claims(frames)}
    for label in ("clean", "noise20"):
        for method in SETTINGS.methods:
            name = f"{label}/early_stop/{method}"
            parts = ("of_which_shorter", "of_which_task_dependent", "of_which_rate_decay")
            total = sum(found[f"{name}/{part}"].mean for part in parts)
            assert total == pytest.approx(found[f"{name}/over_full"].mean)


def test_claims_read_the_frames(frames: Frames) -> None:
    frame = pd.DataFrame([{"claim": c.name, "values": list(c.values)} for c in claims(frames)])
    assert frame["claim"].is_unique
    assert all(
        len(v) == 1 for v in frame["values"] if len(v) != 2
    )  # the overhead is over both levels of noise
    by_hand = frames["sweep"].query("method == 'task_arithmetic' and noise == 0").set_index("step")["merged"]
    drop = frame.set_index("claim").loc["clean/task_arithmetic/drop", "values"][0]
    assert drop == pytest.approx(100 * (by_hand.max() - by_hand[32]))


def test_a_claim_fails_when_its_numbers_do() -> None:
    assert Claim("x", "", (1.0, 2.0), 1.0).held is True
    assert Claim("x", "", (0.9, 2.0), 1.0).held is False
    assert Claim("x", "", (0.9, 2.0), 1.0, rule="mean").held is True
    assert Claim("x", "", (0.9, 2.0, 2.0), 1.0, rule="two_thirds").held is True
    assert Claim("x", "", (0.9, 0.9, 2.0), 1.0, rule="two_thirds").held is False
    assert Claim("x", "", (0.9, 2.0), 1.0, "<=").held is False
    assert Claim("x", "", (0.9,), 1.0, rule="report").held is None
    assert Claim("x", "", (1.0, 2.0), 1.0).spread == pytest.approx(0.5**0.5)


def test_order_of_jobs_does_not_matter(frames: Frames) -> None:
    parts = [
        {n: f[(f["seed"] == s) & (f["noise"] == z)] for n, f in frames.items()}
        for z in (0.0, 0.2)
        for s in (0, 1)
    ]
    for name, frame in collect(parts[::-1]).items():
        pd.testing.assert_frame_equal(frame, frames[name])
    with pytest.raises(ConfigError, match="methods="):
        StudySettings(methods=("fisher",))
    with pytest.raises(ConfigError, match="must not be empty"):
        StudySettings(seeds=())
