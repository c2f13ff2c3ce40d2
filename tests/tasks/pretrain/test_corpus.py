"""Text into rows of tokens: nothing of the held-out end reaches training, and the bytes are the same each time."""

import hashlib
import json
from pathlib import Path

import pytest

from methods.common.errors import DataError
from tasks.pretrain.config import CorpusSettings
from tasks.pretrain.corpus import (
    build_corpus,
    check_corpus,
    load_rows,
    make_tokenizer,
    shared_sequences,
    split_texts,
)
from tasks.reference import reference_to
from tests.tiny_models import sentences, toy_text


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_text(tmp_path_factory.mktemp("text") / "toy.jsonl", documents=60)


def small(file: Path, **changes: object) -> CorpusSettings:
    values = {"source": str(file), "vocabulary": 280, "context": 16, "validation_share": 0.2}
    return CorpusSettings.model_validate({**values, **changes})


def texts_of(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_rows_are_the_text_in_order(file: Path, tmp_path: Path, tokenizer: str) -> None:
    from transformers import AutoTokenizer

    record = build_corpus(small(file, tokenizer=tokenizer), tmp_path / "corpus")
    reader = AutoTokenizer.from_pretrained(tmp_path / "corpus/tokenizer")
    joined = ""
    for part in ("train", "validation"):
        rows = load_rows(tmp_path / "corpus", part)
        assert len(rows) == record[part]["rows"] == record[part]["tokens"] // 16
        assert all(len(row) == 16 for row in rows["input_ids"])
        flat = [token for row in rows["input_ids"] for token in row]
        joined += "|" + reader.decode(flat).replace("<|endoftext|>", "\n")
    whole = "\n".join(texts_of(file))
    first, second = joined[1:].split("|")
    assert whole.startswith(first)
    assert second in whole
    assert whole.index(second) >= len(first)
    assert record["vocabulary"] == (257 if tokenizer == "bytes" else 280)


def test_the_same_text_gives_the_same_bytes(file: Path, tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        build_corpus(small(file), tmp_path / name)
        digests.append(
            {
                p.relative_to(tmp_path / name).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
                for p in sorted((tmp_path / name).rglob("*"))
                if p.is_file()
            }
        )
    assert digests[0] == digests[1]


def test_what_a_killed_attempt_left_is_written_over(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    (out / "train").mkdir(parents=True)
    (out / "train/half.arrow").write_bytes(b"half")
    build_corpus(small(file), out)
    assert not (out / "train/half.arrow").exists()


def test_merges_come_from_the_training_part_alone() -> None:
    settings = CorpusSettings(vocabulary=300)
    once = make_tokenizer(settings, ["aaaa bbbb " * 50])
    assert len(once("aaaa", add_special_tokens=False)["input_ids"]) == 1
    assert len(once("zzzz", add_special_tokens=False)["input_ids"]) == 4  # bytes: every text can be written


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_every_text_comes_back(tokenizer: str) -> None:
    made = make_tokenizer(CorpusSettings(tokenizer=tokenizer, vocabulary=270), sentences(50))
    text = "naïve Ωmega\n\ttabs  and 日本語 \x00 end"
    assert made.decode(made(text, add_special_tokens=False)["input_ids"]) == text


def test_the_split_is_the_end_of_the_text() -> None:
    documents = [f"{i} " * 50 for i in range(10, 50)]
    train, held = split_texts(documents, 0.1)
    assert train + held == documents
    assert 0.05 <= sum(map(len, held)) / sum(map(len, documents)) <= 0.2


def test_one_long_document_is_cut_at_a_line() -> None:
    text = "\n".join(f"line {i} of one long text" for i in range(500))
    train, held = split_texts([text], 0.1)
    assert len(train) == len(held) == 1
    assert train[0] + held[0] == text
    assert train[0].endswith("\n")
    assert len(held[0]) / len(text) == pytest.approx(0.1, abs=0.01)


def test_a_huge_last_document_is_cut() -> None:
    texts = ["short " * 10, "word " * 10_000]
    train, held = split_texts(texts, 0.1)
    assert len("".join(held)) / sum(map(len, texts)) == pytest.approx(0.1, abs=0.01)
    assert "".join([*train, *held]) == "".join(texts)


def test_repeated_passages_are_counted() -> None:
    passage = " ".join(f"word{i}" for i in range(20))
    assert shared_sequences([passage + " and more"], [passage]) == 1.0
    assert shared_sequences(["nothing alike here"], [passage]) == 0.0
    assert shared_sequences([passage], ["too short"]) == 0.0
    mixed = passage + " " + " ".join(f"other{i}" for i in range(20))
    assert 0.2 < shared_sequences([passage], [mixed]) < 0.5


def test_where_the_text_lies_is_no_part_of_the_corpus(file: Path, tmp_path: Path) -> None:
    """The same text under another path is the same training; a path of this machine is nobody's business."""
    other = tmp_path / "elsewhere" / file.name
    other.parent.mkdir()
    other.write_bytes(file.read_bytes())
    for name, source in (("one", file), ("two", other)):
        build_corpus(small(source), tmp_path / name)
    assert reference_to(tmp_path / "one", "data").digest == reference_to(tmp_path / "two", "data").digest
    assert str(tmp_path) not in (tmp_path / "two" / "corpus.json").read_text()


def test_text_that_is_too_short_is_told_before_a_tokenizer_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.pretrain.corpus.make_tokenizer", None)
    (tmp_path / "short.txt").write_text("a few words only " * 10)
    with pytest.raises(DataError, match=r"the train part has at most .* tokens, fewer than one row of 4096"):
        build_corpus(small(tmp_path / "short.txt", context=4096), tmp_path / "corpus")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.txt", b"", "holds no text"),
        ("blank.md", b" \n\n\t", "holds no text"),
        ("latin.txt", b"caf\xe9", "line 1: is not UTF-8"),
        ("columns.jsonl", b'{"body": "words"}\n', "has no column 'text'; it has body"),
        ("numbers.jsonl", b'{"text": 1}\n', "holds int, not text"),
        ("broken.jsonl", b'{"text": \n', "line 1: is not JSON"),
        ("none.jsonl", b"\n", "holds no rows"),
    ],
)
def test_text_that_cannot_be_read_is_told_before_any_work(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        check_corpus(small(tmp_path / name))


def test_a_fetched_folder_and_hidden_files_hold_no_data_but_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of `seedloom fetch`, a marker, a notebook's checkpoint: none of them is text."""
    from tasks.prepare import fetch

    def make(out: Path) -> dict[str, str]:
        toy_text(out / "toy.jsonl", documents=60)
        return {"source": "here", "licence": "MIT"}

    monkeypatch.setitem(fetch.SETS, "demo", make)
    folder = tmp_path / "demo"
    fetch.fetch("demo", folder)
    (folder / ".seedloom.json").write_text("{}")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "note.txt").write_text("draft")
    check_corpus(small(folder))
    record = build_corpus(small(folder), tmp_path / "corpus")
    assert record["train"]["documents"] + record["validation"]["documents"] == 60


def test_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("merged words " * 40)  # enough bytes, but BPE makes few tokens of them
    with pytest.raises(DataError, match=r"part has \d+ tokens, fewer than one row of 100; give more text"):
        build_corpus(small(short, context=100), tmp_path / "corpus")
    short.write_text("   \n")
    with pytest.raises(DataError, match="holds no text"):
        build_corpus(small(short), tmp_path / "corpus")
