"""What comes after: experts fine-tuned on a pre-trained mixture of experts, merged into a model of its kind."""

import json
from pathlib import Path

import pytest
import torch

from tasks.load_model import load_causal_lm
from tasks.merge.candidates import merge_candidate
from tasks.merge.config import MergeSettings
from tasks.pretrain.pretrain import pretrain
from tasks.reference import reference_to
from tasks.train.finetune import finetune
from tests.tasks.pretrain.tiny import reference, settings
from tests.tiny_experts import QUICK_TRAINING, toy_tasks


@pytest.mark.parametrize(("scheme", "adapter"), [("span", "lora"), ("siamese", "full")])
def test_experts_of_a_mixture_of_experts_are_trained_and_merged(
    scheme: str, adapter: str, corpus: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    shape = {"norm_scheme": scheme, "experts": 3}
    pretrain(base, settings=settings(shape=shape), corpus=reference(corpus))
    tasks = toy_tasks(tmp_path / "tasks")
    given = {"adapter": adapter, "max_steps": 4, "max_length": 32}
    experts = []
    for name in ("toy0", "toy1"):
        out = tmp_path / name
        out.mkdir()
        finetune(
            out,
            settings=QUICK_TRAINING.model_copy(update=given),
            base=reference_to(base, "model"),
            task=reference_to(tasks / name, "tasks"),
            stopping="fixed",
        )
        experts.append(reference_to(out, "adapter" if adapter == "lora" else "model"))
    merged = tmp_path / "merged"
    merged.mkdir()
    merge_candidate(
        merged,
        settings=MergeSettings(coefficients=(0.5,), dtype="float32", select_examples=8, max_length=32),
        method="task_arithmetic",
        base=reference_to(base, "model"),
        experts=experts,
        tasks=reference_to(tasks, "tasks"),
    )
    config = json.loads((merged / "config.json").read_text())
    assert (config["model_type"], config["norm_scheme"], config["num_experts"]) == ("spannorm", scheme, 3)
    before, after = (load_causal_lm(folder, torch.float32).state_dict() for folder in (base, merged))
    assert before.keys() == after.keys()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert any(".experts.2." in name for name in moved)
    assert any(".self_attn." in name for name in moved)
