"""Text and bytes as archives: cut into segments that are tokenised, coded and checked each on its own.

A segment whose tokens do not give exactly its bytes back (a tokenizer that changes what it reads, bytes that are no
UTF-8), and one that the model makes larger than DEFLATE does, is stored instead; nothing is ever changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from methods.common.errors import ConfigError
from methods.pmatic.codec import (
    MOST_DECODED,
    ROWS,
    PMATICCodec,
    check_content,
    check_whole,
    decode_chunks,
    open_archive,
)
from methods.pmatic.container import MOST_CONTENT, MOST_TOKENS, STORED, Archive, Chunk
from methods.pmatic.errors import FormatError, MismatchError
from methods.pmatic.predictor import Predictor

CHARACTERS = 4  # bytes of a segment, for each token of a chunk


def as_predictor(model: Any, tokenizer: Any = None) -> Predictor:
    """A predictor as it is; a transformers model with its key-value cache.

    Raises:
        ConfigError: neither.
    """
    if isinstance(model, Predictor):
        return model
    if hasattr(model, "config") and hasattr(model, "forward"):
        from methods.pmatic.torch_models import HFCausalLM

        return HFCausalLM(model, tokenizer)
    raise ConfigError(f"model: a {type(model).__name__} is neither a Predictor nor a transformers model")


# A run of text inside of bytes that are no text as a whole: columns of tables, logs with binary parts.
_RUN = re.compile(
    rb"(?:[\t\n\r\x20-\x7e]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}){64,}"
)


def runs(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Consecutive parts, and whether each is text: all of it, or its long runs of UTF-8 without control characters."""
    if b"\0" not in data and _is_utf8(data):
        yield data, True
        return
    at = 0
    for found in _RUN.finditer(data):
        if found.start() > at:
            yield data[at : found.start()], False
        yield found.group(), True
        at = found.end()
    if at < len(data):
        yield data[at:], False


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def segments(data: bytes, size: int, exact: bool) -> Iterator[bytes]:
    """Consecutive parts of about `size` bytes.

    Args:
        exact: cut anywhere (tokens are bytes); else at the last line break or space of the part's second half, and
            never inside a character.
    """
    at = 0
    while at < len(data):
        end = min(len(data), at + size)
        if not exact and end < len(data):
            while end > at + 1 and 0x80 <= data[end] < 0xC0:
                end -= 1
            for mark in (b"\n", b" "):
                cut = data.rfind(mark, at + size // 2, end)
                if cut >= 0:
                    end = cut + (mark == b"\n")
                    break
        yield data[at:end]
        at = end


def tokenise(data: bytes, tokenizer: Any) -> np.ndarray | None:
    """The token ids of a segment; None when they would not give its bytes back."""
    if tokenizer is None:
        return np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    ids = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
    if len(ids) > min(MOST_TOKENS, len(data)) or detokenise(ids, tokenizer) != data:
        return None
    return ids


def detokenise(ids: np.ndarray, tokenizer: Any) -> bytes:
    """The bytes that token ids stand for."""
    if tokenizer is None:
        return bytes(ids.astype(np.uint8).tobytes())
    text: str = tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text.encode("utf-8", "surrogatepass")


def compress_text(
    text: str | bytes,
    model: Any,
    tokenizer: Any = None,
    *,
    codec: PMATICCodec | None = None,
    Delta: float | None = None,
    calibration: str | bytes = b"",
    reference: Any = None,
    embed: bool = True,
    store_larger: bool = True,
    **options: Any,
) -> bytes:
    """An archive of a text.

    Args:
        text: characters or bytes; `decompress_text` gives the same back.
        model: a `Predictor`, or a transformers causal language model.
        tokenizer: of transformers; None when tokens are bytes.
        codec: a calibrated codec; None makes one from the arguments that follow.
        Delta: the bound. calibration: text to fit the codec on, other than `text`. reference: a second computation
            of the model that measures Delta on it. options: for `PMATICCodec`.
        embed: put the codec into the archive.
        store_larger: store a segment that the model would make larger than DEFLATE does.

    Raises:
        ConfigError: no codec and no way to a bound, a wrong option. NumericalError: logits that are not finite.
    """
    predictor = as_predictor(model, tokenizer)
    if tokenizer is None and predictor.vocabulary < 256:
        raise ConfigError("tokenizer is missing: the model's tokens are not bytes")
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    if codec is None:
        second = None if reference is None else as_predictor(reference, tokenizer)
        codec = calibrate_on_text(
            PMATICCodec(Delta=Delta, **options), predictor, calibration, tokenizer, reference=second
        )
    codec.check(predictor)
    chunks = []
    for part, is_text in _parts(data, tokenizer, codec):
        ids = tokenise(part, tokenizer) if is_text else None
        stored = Chunk.stored(part)
        if ids is None:
            chunks.append(stored)
            continue
        coded = Chunk.coded(len(ids), part, codec.encode_chunk(ids, predictor)[0])
        # What the model does not expect, such as the inside of an image, would take more than its own size.
        smaller = len(coded.payload) <= len(stored.payload)
        chunks.append(coded if smaller or not store_larger else stored)
    return codec.archive(
        chunks, predictor, data, text=True, was_str=isinstance(text, str), embed=embed
    ).pack()


def _parts(data: bytes, tokenizer: Any, codec: PMATICCodec) -> Iterator[tuple[bytes, bool]]:
    """The content of each chunk, and whether it is text."""
    if tokenizer is None:
        yield from ((part, True) for part in segments(data, codec.chunk_tokens, exact=True))
        return
    for run, is_text in runs(data):
        size = codec.chunk_tokens * CHARACTERS if is_text else MOST_CONTENT
        yield from ((part, is_text) for part in segments(run, size, exact=not is_text))


def calibrate_on_text(
    codec: PMATICCodec,
    predictor: Predictor,
    calibration: str | bytes,
    tokenizer: Any = None,
    reference: Predictor | None = None,
) -> PMATICCodec:
    """Calibrate a codec on a text, cut as `compress_text` cuts."""
    data = calibration.encode("utf-8", "surrogatepass") if isinstance(calibration, str) else calibration
    parts = (part for part, is_text in _parts(data, tokenizer, codec) if is_text)
    texts = [ids for part in parts if (ids := tokenise(part, tokenizer)) is not None]
    return codec.calibrate(predictor, texts, reference)


def decompress_text(
    blob: bytes,
    model: Any,
    tokenizer: Any = None,
    *,
    codec: PMATICCodec | None = None,
    rows: int = ROWS,
    most: int = MOST_DECODED,
) -> str | bytes:
    """What was given to `compress_text`, or an error; never anything else.

    Args:
        blob: the archive. model, tokenizer: as this machine computes them.
        codec: for archives that were written without theirs.
        rows: chunks that are decoded side by side. most: bytes that the archive may claim to hold.

    Raises:
        FormatError: no archive, or changed since it was written. MismatchError: the bound was violated, or the
            model is another one.
    """
    predictor = as_predictor(model, tokenizer)
    archive = open_archive(blob, most)
    if not archive.text:
        raise FormatError("the archive holds token ids; read it with PMATICCodec.decode")
    found = dict(read_segments(archive, predictor, tokenizer, codec=codec, rows=rows))
    data = b"".join(found[index] for index in range(len(archive.chunks)))
    check_whole(archive, data)
    return data.decode("utf-8", "surrogatepass") if archive.was_str else data


def read_segments(
    archive: Archive,
    predictor: Predictor,
    tokenizer: Any = None,
    *,
    codec: PMATICCodec | None = None,
    rows: int = ROWS,
    indices: list[int] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Chunks of a text as bytes, each checked; those that are not asked for are not looked at.

    Args:
        indices: numbers of chunks; None: all.
    """
    wanted = list(range(len(archive.chunks))) if indices is None else indices
    for index, ids in decode_chunks(archive, predictor, codec=codec, rows=rows, indices=wanted):
        if tokenizer is None and len(ids) and ids.max() > 255:
            raise MismatchError(f"chunk {index}: holds tokens that are no bytes; give the tokenizer", index)
        content = detokenise(ids, tokenizer)
        check_content(archive, index, content)
        yield index, content
    for index in wanted:
        if archive.chunks[index].kind == STORED:
            yield index, archive.chunks[index].unpacked(index)


def readable_segments(
    archive: Archive, predictor: Predictor, tokenizer: Any = None, **options: Any
) -> dict[int, bytes]:
    """Of a damaged archive, or with a model beyond the bound, the chunks that can still be read and are right."""
    found: dict[int, bytes] = {}
    for index in range(len(archive.chunks)):
        try:
            found |= dict(read_segments(archive, predictor, tokenizer, indices=[index], **options))
        except (FormatError, MismatchError):
            continue
    return found
