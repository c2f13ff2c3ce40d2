"""A tokenizer that ends every text with `</s>` gives the scores of the same tokenizer without that habit."""

from pathlib import Path
from typing import Any

import pytest

from methods.common.choice_scoring import encode_item
from methods.common.open_text import open_tokens
from tasks.train.examples import training_examples
from tests.tiny_models import tiny_llama


def closing(tokenizer: Any, template: str) -> Any:
    """The tokenizer with a template around each text."""
    from tokenizers.processors import TemplateProcessing

    special = [("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("closing") / "model")


def load(folder: Path, template: str) -> Any:
    from transformers import AutoTokenizer

    return closing(AutoTokenizer.from_pretrained(folder), template)


PAIRS = [("$A", "$A </s>"), ("<s> $A", "<s> $A </s>"), ("<s> $A", "<s> $A </s> </s>")]


@pytest.mark.parametrize(("plain", "ended"), PAIRS)
@pytest.mark.parametrize("text", ["the sea is", "the sea </s>", "</s>", "the </s> sea"])
def test_only_the_added_end_is_left_out(folder: Path, plain: str, ended: str, text: str) -> None:
    wanted = load(folder, plain)(text)["input_ids"]
    assert load(folder, ended)(text)["input_ids"] != wanted
    assert open_tokens(load(folder, ended), text) == wanted
    assert open_tokens(load(folder, plain), text) == wanted


@pytest.mark.parametrize(("plain", "ended"), PAIRS)
def test_prompt_and_answers_are_those_of_a_tokenizer_without_the_habit(
    folder: Path, plain: str, ended: str
) -> None:
    for context in ("the sea is", "the sea is ", ""):
        one, other = (
            encode_item(load(folder, template), context, [" blue", " red ."], 1, max_length=40)
            for template in (plain, ended)
        )
        assert one == other
    row = {"context": "the sea is", "choices": [" blue"], "gold": 0}
    made = [
        training_examples(load(folder, template), [row], max_length=40, learn_end="auto")
        for template in (plain, ended)
    ]
    assert made[0] == made[1]
    assert made[0][0].tokens.count(load(folder, plain).eos_token_id) == 1  # the one that is to be learnt


@pytest.mark.parametrize(("plain", "ended"), PAIRS)
def test_the_harness_sees_the_same_tokens(folder: Path, plain: str, ended: str) -> None:
    from transformers import AutoModelForCausalLM

    from tasks.evaluate.packed import PackedLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    one, other = (PackedLM(model, load(folder, template), 64) for template in (plain, ended))
    assert one._encode_pair("the sea is ", "blue") == other._encode_pair("the sea is ", "blue")
    texts = ["the sea is", "the sea is blue and the coal is"]
    for limit in (None, 3):
        pairs = [lm.tok_batch_encode(texts, left_truncate_len=limit) for lm in (one, other)]
        width = min(part[0].shape[1] for part in pairs)
        assert pairs[0][0][:, -width:].tolist() == pairs[1][0][:, -width:].tolist()
        assert pairs[1][1].shape == pairs[1][0].shape


def test_a_registered_model_goes_on_where_the_prompt_ends(folder: Path, tmp_path: Path) -> None:
    import shutil

    from tasks.report.registry import TextGenerator

    shutil.copytree(folder, tmp_path / "ended")
    load(folder, "<s> $A </s>").save_pretrained(tmp_path / "ended")
    shutil.copytree(folder, tmp_path / "plain")
    load(folder, "<s> $A").save_pretrained(tmp_path / "plain")
    said = [
        TextGenerator(tmp_path / name).predict(["the sea is", "the"], {"max_new_tokens": 8})
        for name in ("plain", "ended")
    ]
    assert said[0] == said[1]
    assert any(said[0])
