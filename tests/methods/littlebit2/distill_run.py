"""A distillation in a process of its own, to be killed: arguments FOLDER and seconds to wait after a step."""

import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from methods.littlebit2 import LittleBitConfig, compress_model, distill
from tests.methods.pruning_representations.tiny import tiny

STEPS = 12
TOKENS = torch.randint(3, 61, (10, 12), generator=torch.Generator().manual_seed(1))


def main(folder: Path, pause: float) -> None:
    torch.set_num_threads(1)
    student, _ = compress_model(tiny(), LittleBitConfig(bpp=2.0, n_iter=3), n_jobs=1)

    def on_step(done: int, total: int, row: dict[str, float]) -> None:
        print(f"step {done}", flush=True)
        time.sleep(pause)

    history = distill(
        student, tiny(), TOKENS, steps=STEPS, batch_size=3, lr=3e-3, checkpoint=folder / "checkpoint",
        checkpoint_every=4, on_step=on_step,
    )  # fmt: skip
    assert len(history) == STEPS + 1
    save_file({k: v.clone() for k, v in student.named_parameters()}, folder / "student.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
