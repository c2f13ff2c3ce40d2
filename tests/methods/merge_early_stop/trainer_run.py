"""A small training run of its own process, so that the test can kill it: prints stop step and weights'
digest.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from methods.merge_early_stop import (
    MergeEarlyStopping,
    MergeEarlyStoppingCallback,
    latest_resumable_checkpoint,
)


class Kill(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(out: Path, kill_at: int, lora: bool, restore: str, trainer_restores: bool) -> dict:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, attention_dropout=0.1,
        )
    )  # fmt: skip
    if lora:
        model = get_peft_model(
            model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
        )
    draw = torch.Generator().manual_seed(1)
    rows = [{"input_ids": r, "labels": r} for r in torch.randint(0, 32, (16, 8), generator=draw)]
    held_out = torch.stack([r["labels"] for r in rows[:8]])

    def score(m: torch.nn.Module) -> float:
        return -float(m(input_ids=held_out, labels=held_out).loss)

    # patience 2 and two reductions: the run passes through every branch of the rule
    stopper = MergeEarlyStopping(warmup=3, every=2, patience=2, factor=0.5, max_reductions=2, restore=restore)
    callback = MergeEarlyStoppingCallback(stopper, score)
    args = TrainingArguments(
        output_dir=str(out), max_steps=200, per_device_train_batch_size=8, learning_rate=0.5,
        lr_scheduler_type="constant", save_strategy="steps", save_steps=7, save_total_limit=2, report_to=[],
        disable_tqdm=True, use_cpu=True, seed=3, restore_callback_states_from_checkpoint=trainer_restores,
    )  # fmt: skip
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=rows,
        callbacks=[callback] + ([Kill(kill_at)] if kill_at else []),
    )
    resume = latest_resumable_checkpoint(out)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    digest = hashlib.sha256()
    for _, p in sorted(model.named_parameters()):
        digest.update(p.detach().numpy().tobytes())
    return {
        "resumed": resume.name if resume else None, "digest": digest.hexdigest(),
        "stopped_at": stopper.trace[-1]["step"], "chosen": stopper.chosen_step, "reason": stopper.reason,
        "trace": stopper.trace,
    }  # fmt: skip


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "lora", sys.argv[4], sys.argv[5] == "1")
