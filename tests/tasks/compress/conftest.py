"""A tiny model folder with a tokenizer and calibration text."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tasks.reference import Reference, reference_to

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{number}" for number in range(57))]


def save_tiny_model(folder: Path, *, dtype: torch.dtype = torch.float32, tie: bool = True) -> Path:
    """A random Llama of three blocks with a tokenizer of one token per word, and two side files."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=tie,
        dtype=dtype,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    (folder / "LICENSE").write_text("free\n")
    (folder / "optimizer.pt").write_bytes(b"not wanted")
    return folder


def save_text(folder: Path, documents: int = 12) -> Path:
    """Arrow text data set of random words."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(4, len(WORDS), (documents, 30), generator=generator).tolist()
    Dataset.from_dict({"text": [" ".join(WORDS[i] for i in row) for row in rows]}).save_to_disk(str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return reference_to(save_tiny_model(tmp_path_factory.mktemp("tiny") / "model"), "model")


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return reference_to(save_text(tmp_path_factory.mktemp("tiny") / "text"), "text")
