"""A tiny language model that has learnt its grammar, and toy tasks that an adapter on it can learn in seconds."""

from pathlib import Path

from tasks.train.config import FinetuneSettings
from tests.tiny_models import sentences, tiny_llama, toy_task

# An adapter learns a toy task within these.
QUICK_TRAINING = FinetuneSettings(
    learning_rate=0.01,
    batch_size=16,
    max_steps=40,
    warmup=2,
    stop_every=4,
    stop_patience=4,
    stop_reductions=1,
    stop_examples=24,
    rank=4,
    dtype="float32",
)


def taught_llama(folder: Path, *, seed: int = 0, steps: int = 150) -> Path:
    """`tiny_llama` trained on its sentences: a random one has nothing that an adapter could turn into an answer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny_llama(folder, seed=seed)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    stream = [
        token for line in sentences(600) for token in [*tokenizer(line)["input_ids"], tokenizer.eos_token_id]
    ]
    rows = torch.tensor(stream[: len(stream) // 32 * 32]).view(-1, 32)
    draw = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        batch = rows[torch.randint(0, len(rows), (16,), generator=draw)]
        model(batch, labels=batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    return folder


def toy_tasks(folder: Path, shifts: tuple[int, ...] = (0, 1)) -> Path:
    """Task sets `toy0`, `toy1`, ... below `folder`: each thing has one colour, another one in each task."""
    from tasks.prepare.config import OwnTask, TaskSetSettings
    from tasks.prepare.task_sets import build_task_sets

    own = tuple(
        OwnTask(
            name=f"toy{shift}",
            source=str(toy_task(folder.parent / f"toy{shift}.jsonl", shift=shift, seed=shift)),
            prompt_column="question",
            choices_column="choices",
            answer_column="answer",
        )
        for shift in shifts
    )
    settings = TaskSetSettings(
        bundled=(), own=own, train_examples=160, stop_examples=24, select_examples=24, test_examples=48
    )
    folder.mkdir()
    build_task_sets(settings, folder)
    return folder
