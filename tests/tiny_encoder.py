"""A random BERT with a word tokenizer, and text tasks that it can learn in seconds."""

import random
from pathlib import Path

WORDS = (
    "good",
    "bad",
    "warm",
    "cold",
    "film",
    "soup",
    "day",
    "the",
    "a",
    "was",
    "is",
    "very",
    "north",
    "south",
)


def tiny_bert(folder: Path, *, hidden: int = 16, layers: int = 2, seed: int = 0) -> Path:
    """Write a random BERT (about 6k parameters) and its tokenizer; the same bytes for the same seed."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertModel(
            BertConfig(
                vocab_size=len(words),
                hidden_size=hidden,
                intermediate_size=2 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=2,
                max_position_embeddings=32,
                initializer_range=0.3,
            )
        )
    model.save_pretrained(folder)
    return folder


def toy_texts(positive: str, negative: str, count: int = 200, seed: int = 0) -> list[tuple[str, int]]:
    """Different texts of filler words with one telling word, and whether it is the positive one."""
    rng = random.Random(seed)
    filler = [w for w in WORDS if w not in (positive, negative)]
    rows: dict[str, int] = {}
    while len(rows) < count:
        gold = len(rows) % 2
        words = [rng.choice(filler) for _ in range(rng.randint(4, 8))] + [positive if gold else negative]
        rng.shuffle(words)
        rows.setdefault(" ".join(words), gold)
    return list(rows.items())
