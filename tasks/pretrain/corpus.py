"""Text into rows of tokens: a tokenizer trained on the training part, and a contiguous held-out part.

The held-out part is the end of the text, whole documents where there are several: shuffled lines would put near
copies of held-out text (repeated verses, repeated passages) into the training part.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from methods.common.errors import DataError
from tasks.prepare.config import TextSettings
from tasks.prepare.text import check_text_source, no_text, read_documents
from tasks.prepare.user_data import source_name
from tasks.pretrain.config import CorpusSettings
from tasks.quiet import quiet_progress

END = "<|endoftext|>"
PARTS = ("train", "validation")
RECORD = "corpus.json"
OVERLAP_WORDS = 13


def text_settings(corpus: CorpusSettings) -> TextSettings:
    return TextSettings(
        source=corpus.source,
        hub_config=corpus.hub_config,
        hub_split=corpus.hub_split,
        column=corpus.column,
        calibration_bytes=0,
    )


def check_corpus(corpus: CorpusSettings) -> None:
    """Refuse text that is not there, before any work starts. Raises DataError."""
    check_text_source(text_settings(corpus))


def build_corpus(settings: CorpusSettings, out: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Write `out/tokenizer`, and the Arrow data sets `out/train` and `out/validation` with rows `input_ids`.

    Documents follow each other with an end-of-text token between; each row has `context` tokens and the last,
    shorter one is left out. The same settings and text give the same bytes.

    Args:
        settings: the text and its rows.
        out: replaced.
        tokenizer: one of transformers to take; without it one is trained.

    Returns:
        tokens, rows, documents and bytes of both parts, vocabulary, bytes a token, the share of held-out
        13-word sequences that the training part has too, provenance.

    Raises:
        DataError: the text cannot be read, or is too short for one row of each part.
    """
    documents, provenance = read_documents(text_settings(settings))
    texts = [text for _, text in documents if text.strip()]
    if not texts:
        raise no_text(settings.source)
    train, validation = split_texts(texts, settings.validation_share)
    for part, chosen in zip(PARTS, (train, validation), strict=True):
        # A token has at least one byte: what is too short by bytes needs no tokenizer to be told.
        _check_length(part, sum(len(text.encode()) + 1 for text in chosen), settings.context, "at most ")
    if out.exists():  # a part of a run that was killed
        shutil.rmtree(out)
    given = tokenizer is not None
    tokenizer = tokenizer if given else make_tokenizer(settings, train)
    tokenizer.save_pretrained(out / "tokenizer")
    record: dict[str, Any] = {
        "source": source_name(settings.source),
        "tokenizer": "given" if given else settings.tokenizer,
        "vocabulary": len(tokenizer),
        "context": settings.context,
        "shared_13_grams": shared_sequences(train, validation),
        **provenance,
    }
    for part, chosen in zip(PARTS, (train, validation), strict=True):
        record[part] = _write_part(out / part, tokenizer, chosen, settings.context, part)
    (out / RECORD).write_text(
        json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
    )
    return record


def split_texts(texts: Sequence[str], share: float) -> tuple[list[str], list[str]]:
    """The texts, and their end with about `share` of all characters.

    Cut between documents when that leaves between half and twice the share; else the document that lies across the
    border is cut there, at a paragraph, line or word.
    """
    total = sum(len(text) for text in texts)
    wanted = max(1, round(share * total))
    held = 0
    for place in range(len(texts) - 1, -1, -1):
        size = len(texts[place])
        if held + size < wanted:
            held += size
            continue
        if place and held + size <= 2 * wanted:
            return list(texts[:place]), list(texts[place:])
        if held >= wanted / 2:
            return list(texts[: place + 1]), list(texts[place + 1 :])
        first, second = _cut_before(texts[place], size - (wanted - held))
        return [*texts[:place], first], [second, *texts[place + 1 :]]
    raise DataError("the text is too short to hold a part of it out; give more text")


def _cut_before(text: str, border: int) -> tuple[str, str]:
    border = max(1, min(border, len(text) - 1))
    for mark in ("\n\n", "\n", " "):
        place = text.rfind(mark, 0, border)
        if place > border // 2:
            return text[: place + len(mark)], text[place + len(mark) :]
    return text[:border], text[border:]


def make_tokenizer(settings: CorpusSettings, texts: Sequence[str]) -> Any:
    """A byte-level tokenizer: every text can be written in it. BPE merges come from the training part alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if settings.tokenizer == "bytes":
        vocabulary = {END: 0, **{byte: place for place, byte in enumerate(alphabet, 1)}}
        raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    else:
        raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    if settings.tokenizer == "bpe":
        trainer = trainers.BpeTrainer(
            vocab_size=settings.vocabulary,
            special_tokens=[END],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        raw.train_from_iterator(_pieces(texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=END, eos_token=END, pad_token=END, model_max_length=settings.context
    )


def _pieces(texts: Sequence[str], size: int = 100_000) -> Iterator[str]:
    """Long texts in pieces, so that the trainer counts words of one piece at a time."""
    for text in texts:
        yield from (text[start : start + size] for start in range(0, len(text), size))


def shared_sequences(train: Sequence[str], validation: Sequence[str]) -> float:
    """Share of the held-out part's sequences of 13 words that the training part has too."""
    held = [_hash(words) for text in validation for words in _sequences(text)]
    if not held:
        return 0.0
    wanted = set(held)
    found = {key for text in train for words in _sequences(text) if (key := _hash(words)) in wanted}
    return sum(key in found for key in held) / len(held)


def _sequences(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    for start in range(len(words) - OVERLAP_WORDS + 1):
        yield tuple(words[start : start + OVERLAP_WORDS])


def _hash(words: tuple[str, ...]) -> int:
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _write_part(
    folder: Path, tokenizer: Any, texts: Sequence[str], context: int, part: str
) -> dict[str, int]:
    from datasets import Dataset, Features, List, Value

    end = tokenizer.eos_token_id
    pieces: list[np.ndarray] = []
    for text in texts:
        encoded = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        pieces.append(np.asarray([*encoded, end], dtype=np.int32))
    tokens = np.concatenate(pieces)
    _check_length(part, len(tokens), context)
    rows = len(tokens) // context
    table = tokens[: rows * context].reshape(rows, context)
    features = Features({"input_ids": List(Value("int32"), length=context)})
    data = Dataset.from_dict({"input_ids": list(table)}, features=features)
    data._fingerprint = hashlib.sha256(table.tobytes()).hexdigest()[:16]  # else each run's bytes would differ
    with quiet_progress():
        data.save_to_disk(str(folder))
    return {
        "documents": len(texts),
        "bytes": sum(len(text.encode()) for text in texts),
        "tokens": len(tokens),
        "rows": rows,
    }


def _check_length(part: str, tokens: int, context: int, words: str = "") -> None:
    if tokens < context:
        raise DataError(
            f"corpus: the {part} part has {words}{tokens} tokens, fewer than one row of {context}; give more text, "
            "another validation_share, or a smaller context"
        )


def load_rows(corpus: Path, part: str) -> Any:
    """The Arrow data set of one part, memory-mapped.

    Raises:
        DataError: missing or damaged.
    """
    from datasets import load_from_disk

    try:
        return load_from_disk(str(corpus / part))
    except Exception as error:
        raise DataError(
            f"corpus {corpus}: the part {part!r} is missing or damaged; run the flow again"
        ) from error


def load_record(corpus: Path) -> dict[str, Any]:
    """What `build_corpus` wrote about itself."""
    record: dict[str, Any] = json.loads((corpus / RECORD).read_text(encoding="utf-8"))
    return record
