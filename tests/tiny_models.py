"""Models and data small enough for tests: a random Llama with a trained tokenizer, and a toy task that it can learn."""

import json
import random
from pathlib import Path

COLOURS = ("red", "green", "blue", "black")
THINGS = ("apple", "leaf", "sky", "night", "rose", "grass", "sea", "coal")


def sentences(count: int = 400, seed: int = 0) -> list[str]:
    """Sentences of a tiny grammar, for tokenizers and held-out text."""
    rng = random.Random(seed)
    return [
        f"the {rng.choice(THINGS)} is {rng.choice(COLOURS)} and the {rng.choice(THINGS)} is {rng.choice(COLOURS)} ."
        for _ in range(count)
    ]


def tiny_llama(
    folder: Path, *, seed: int = 0, hidden: int = 32, layers: int = 2, vocabulary: int = 200
) -> Path:
    """Write a random Llama (about 30k parameters) with a byte-level BPE tokenizer; the same bytes for the same seed."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        sentences(), vocab_size=max(vocabulary, 260), special_tokens=["<s>", "</s>"], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    torch.set_rng_state(generator_state)
    model.save_pretrained(folder)
    return folder


def toy_task(file: Path, *, shift: int = 0, count: int = 300, seed: int = 0) -> Path:
    """A multiple-choice task as JSONL (question, choices, answer): each thing has one colour, turned by `shift`."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        thing = rng.randrange(len(THINGS))
        answer = (thing + shift) % len(COLOURS)
        rows.append(
            {
                "question": f"{i} : the {THINGS[thing]} is",
                "choices": list(COLOURS),
                "answer": answer,
            }
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def toy_text(file: Path, *, documents: int = 60, seed: int = 1) -> Path:
    """Held-out text as JSONL (text): documents of a few sentences."""
    rng = random.Random(seed)
    lines = sentences(documents * 6, seed)
    rows = [{"text": " ".join(lines[i : i + 6]) + f" {rng.random():.3f}"} for i in range(0, len(lines), 6)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
