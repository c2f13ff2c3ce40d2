"""The Trainer: it learns, logs both parts, evaluates as ever, and a resumed training is the uninterrupted one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from methods.common.errors import ConfigError
from methods.rope_psd import RopePSDConfig, RopePSDLoss, RopePSDMixin, RopePSDTrainer
from tests.methods.rope_psd.tiny import ids, model


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int = 16) -> None:
        self.rows = ids(count, 16)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def arguments(folder: Path, kind: Any = RopePSDConfig, **changes: Any) -> Any:
    settings = {
        "output_dir": str(folder),
        "max_steps": 6,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_steps": 3,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
    }
    return kind(**(settings | changes))


def curve(trainer: Any) -> list[tuple[float, ...]]:
    names = ("step", "loss", "clm", "kl", "perturbed_ce")
    return [tuple(row[name] for name in names) for row in trainer.state.log_history if "clm" in row]


class Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 3


def small(seed: int = 0) -> Any:
    return model(seed, initializer_range=0.1).float()


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = RopePSDTrainer(model=small(), args=arguments(tmp_path / "whole"), train_dataset=Rows())
    whole.train()
    first = RopePSDTrainer(
        model=small(), args=arguments(tmp_path / "cut"), train_dataset=Rows(), callbacks=[Stop()]
    )
    first.train()
    again = RopePSDTrainer(model=small(7), args=arguments(tmp_path / "cut"), train_dataset=Rows())
    again.train(resume_from_checkpoint=str(tmp_path / "cut/checkpoint-3"))
    expected, found = curve(whole), curve(again)
    assert len(expected) == len(found) == 6
    for one, other in zip(expected, found, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    for mine, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert all(row[3] > 0 for row in expected)
    assert all(row[1] == pytest.approx(row[2] + row[3], rel=1e-4) for row in expected)


def test_weight_zero_is_the_plain_trainer(tmp_path: Path) -> None:
    plain = Trainer(
        model=small(),
        args=arguments(tmp_path / "plain", TrainingArguments, gradient_accumulation_steps=1),
        train_dataset=Rows(),
    )
    own = RopePSDTrainer(
        model=small(),
        args=arguments(tmp_path / "own", kl_weight=0.0, gradient_accumulation_steps=1),
        train_dataset=Rows(),
    )
    plain.train()
    own.train()
    for mine, other in zip(plain.model.parameters(), own.model.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


def test_evaluation_reads_standard_indices(tmp_path: Path) -> None:
    trainer = RopePSDTrainer(
        model=small(), args=arguments(tmp_path), train_dataset=Rows(), eval_dataset=Rows(4)
    )
    rows = Rows(4).rows
    with torch.no_grad():
        expected = trainer.model.eval()(rows, labels=rows).loss
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(expected), abs=1e-5)


def test_the_mixin_goes_before_any_trainer(tmp_path: Path) -> None:
    class Other(Trainer):
        """As trl's SFTTrainer: a Trainer with a loss of its own."""

        def compute_loss(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("the mixin's loss comes first")

    class Mine(RopePSDMixin, Other):
        pass

    made = Mine(
        model=small(),
        args=arguments(tmp_path, TrainingArguments),
        train_dataset=Rows(),
        psd=RopePSDLoss(mode="cyclic"),
    )
    made.train()
    assert len(curve(made)) == 6


def test_settings_reach_the_loss(tmp_path: Path) -> None:
    made = RopePSDTrainer(
        model=small(),
        args=arguments(tmp_path, perturbation="cyclic", max_skip=2.0, kl_direction="forward", rope_theta=8e6),
        train_dataset=Rows(),
    )
    assert (made.psd.mode, made.psd.max_skip, made.psd.direction) == ("cyclic", 2.0, "forward")
    assert made.model.config.rope_parameters["rope_theta"] == 8e6
    with pytest.raises(ConfigError, match="kl_weight=-1"):
        RopePSDTrainer(model=small(), args=arguments(tmp_path, kl_weight=-1.0), train_dataset=Rows())
