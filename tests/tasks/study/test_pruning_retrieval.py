"""Retrieval with a tiny encoder: the compressed variants, and vectors against a plain loop."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from methods.common.linear_layers import linear_layers
from tasks.study.pruning.retrieval import encode, measure

WORDS = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(40))]
PAIRS = [{"question": f"w{i} w{i + 1}", "passage": f"w{i} w{i + 1} w{i + 2} w5"} for i in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        folder
    )
    return folder


def test_vectors_are_means_over_real_tokens(folder: Path) -> None:
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    texts = ["w1 w2 w3 w4 w5", "w7", "w8 w9"]
    found = encode(model, tokenizer, texts, batch_size=2)
    for text, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), rtol=0, atol=1e-5)


def test_every_variant_answers_every_question(folder: Path) -> None:
    rows = measure(folder, PAIRS, ["w1 w2 w3 w4 " * 300], seed=0)
    variants = ["dense", "drop-attn-1", "wanda-30pct"]
    assert [row["variant"] for row in rows[:: len(PAIRS)]] == variants
    assert all(abs(row["cos_h"] - 1) < 1e-5 for row in rows[: len(PAIRS)])
    assert min(row["cos_h"] for row in rows[len(PAIRS) :]) < 1 - 1e-5
    # The encoder's layers are known to the walk over linear layers from here on.
    assert len(list(linear_layers(AutoModel.from_pretrained(folder)))) == 3 * 6
