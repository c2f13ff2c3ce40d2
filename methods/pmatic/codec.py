"""The codec: a bound, a tree and a synchroniser, fitted on calibration text, and archives written with them."""

from __future__ import annotations

import hashlib
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from methods.common.errors import ConfigError, DataError
from methods.pmatic.coder import ChunkDecoder, Helper, encode_events
from methods.pmatic.container import CODED, MOST_TOKENS, Archive, Chunk, Reader, block, number, signed
from methods.pmatic.design import DESIGNS, base_share, plan_design
from methods.pmatic.errors import FormatError, MismatchError, ModelMismatchWarning
from methods.pmatic.mismatch import SAFETY, MismatchReport, as_texts, estimate_mismatch
from methods.pmatic.predictor import Predictor
from methods.pmatic.synchroniser import MOST_EDGES, ONE, WIDEST, Synchroniser
from methods.pmatic.tree import KINDS, LARGEST, CodeTree

CODEC_MAGIC = b"PMC\x01"
ROWS = 16  # chunks that are decoded side by side
BOUNDARY_BITS = 56.0  # of a boundary in `to_bytes`: its place and two probabilities
SHORT_TREE = 4096
MOST_DECODED = 1 << 34  # bytes that an archive may claim to hold
NO_FINGERPRINT = bytes(16)


class PMATICCodec:
    """Lossless compression that decodes as long as the two sides' predictions are within a declared bound.

    Args:
        delta: base PMATIC's bound in total variation; without `Delta`, Delta = 4 delta.
        Delta: bound on the move of a bit's log-odds, in nats; None: measured by `calibrate` with a reference.
        design: "companded", "dp", "uniform" or "uniform_p" (base PMATIC, in probability, which needs `delta`).
        tree: "huffman" (from calibration tokens, in the codec), "rank" or "flat" (from the vocabulary); "auto" is
            huffman up to 4,096 tokens, else rank.
        helper: "adaptive" counts by bit depth; "fixed" is base PMATIC's delta / r, for design "uniform_p".
        r: radius of base PMATIC's bins; None takes the best on calibration text.
        chunk_tokens: tokens of a chunk: what one violation costs, and what random access reads.
        safety: factor on the measured mismatch.

    Raises:
        ConfigError: a value out of range.
    """

    def __init__(
        self,
        delta: float | None = None,
        Delta: float | None = None,
        *,
        design: str = "companded",
        tree: str = "auto",
        helper: str = "adaptive",
        r: float | None = None,
        chunk_tokens: int = 4096,
        safety: float = SAFETY,
    ) -> None:
        for name, value in (("delta", delta), ("Delta", Delta)):
            if value is not None and not (np.isfinite(value) and value > 0):
                raise ConfigError(f"{name} = {value}: give a number above 0")
        if design not in DESIGNS:
            raise ConfigError(f"design = {design!r}: choose one of {', '.join(DESIGNS)}")
        if tree not in ("auto", *KINDS):
            raise ConfigError(f"tree = {tree!r}: choose one of auto, {', '.join(KINDS)}")
        if helper not in ("adaptive", "fixed") or (helper == "fixed" and design != "uniform_p"):
            raise ConfigError(f"helper = {helper!r}: 'adaptive', or 'fixed' for design 'uniform_p'")
        if design == "uniform_p" and delta is None:
            raise ConfigError("design = 'uniform_p' needs delta, base PMATIC's bound in total variation")
        if not 1 <= chunk_tokens <= MOST_TOKENS:
            raise ConfigError(f"chunk_tokens = {chunk_tokens}: give 1 to {MOST_TOKENS}")
        if not safety >= 1:
            raise ConfigError(f"safety = {safety}: give a factor of at least 1")
        self.delta, self.design, self.tree_kind, self.helper_kind = delta, design, tree, helper
        self.Delta = 4 * delta if Delta is None and delta is not None else Delta
        self.r, self.chunk_tokens, self.safety = r, chunk_tokens, safety
        self.report: MismatchReport | None = None
        self._tree: CodeTree | None = None
        self._synchroniser: Synchroniser | None = None
        self._helper = Helper()

    # -- calibration ------------------------------------------------------------------------------------------------

    def calibrate(
        self, predictor: Predictor, tokens: Any = (), reference: Predictor | None = None
    ) -> PMATICCodec:
        """Fit tree and design, and measure the bound when it was not given.

        Args:
            predictor: the encoder's model.
            tokens: calibration text, one or several; never what will be compressed. Empty: a design from the bound
                alone, and a tree that follows from the vocabulary.
            reference: a second computation of the same model; its distance from `predictor`, times `safety`, becomes
                Delta unless that was given.

        Raises:
            ConfigError: neither Delta nor a reference. DataError: tokens out of range, or none to measure on.
        """
        texts = [text for text in as_texts(tokens, predictor.vocabulary) if len(text)]
        self._tree = self._planned_tree(predictor.vocabulary, texts)
        if reference is not None:
            self.report = estimate_mismatch(predictor, reference, texts, self._tree)
            if self.Delta is None:
                self.Delta = self.report.Delta(self.safety)
        if self.Delta is None:
            raise ConfigError(
                "Delta is missing: give it, or a reference (a second computation of the model) to measure it with"
            )
        return self.use(self._tree, self.log_odds(predictor, texts) if texts else None)

    def use(self, tree: CodeTree, log_odds: np.ndarray | None) -> PMATICCodec:
        """Fit the design on path events that were computed already; the bound must be known.

        Args:
            tree: of the events. log_odds: of calibration text; None fits nothing.

        Raises:
            ConfigError: no bound.
        """
        self._tree = tree
        self._synchroniser = plan_design(
            log_odds,
            self.Delta,
            self.design,
            delta=self.delta,
            r=self.r,
            boundary_bits=BOUNDARY_BITS,
        )
        if self.helper_kind == "fixed":
            self._helper = Helper(fixed=min(max(round(ONE * base_share(self._synchroniser)), 1), ONE - 1))
        elif log_odds is not None:
            self._helper = Helper.starting_at(self._synchroniser.redundancy(log_odds)["helper_rate"])
        return self

    def _planned_tree(self, size: int, texts: Sequence[np.ndarray]) -> CodeTree:
        if size > LARGEST:
            raise ConfigError(f"the model has {size} tokens; at most {LARGEST} can be")
        kind = ("huffman" if size <= SHORT_TREE else "rank") if self.tree_kind == "auto" else self.tree_kind
        if kind == "flat" or (kind == "huffman" and not texts and size <= 256):
            return CodeTree.flat(size)
        if kind == "rank" or not texts:
            return CodeTree.rank(size)
        return CodeTree.huffman(np.bincount(np.concatenate(texts), minlength=size))

    def log_odds(self, predictor: Predictor, texts: Sequence[np.ndarray]) -> np.ndarray:
        """Log-odds of all path events of some texts."""
        found = [np.empty(0)]
        for text in texts:
            at = 0
            for logits in predictor.score(text):
                found.append(self.tree.events(logits, text[at : at + len(logits)])[0])
                at += len(logits)
        return np.concatenate(found)

    @property
    def tree(self) -> CodeTree:
        if self._tree is None:
            raise ConfigError("the codec is not calibrated; call calibrate first")
        return self._tree

    @property
    def synchroniser(self) -> Synchroniser:
        if self._synchroniser is None:
            raise ConfigError("the codec is not calibrated; call calibrate first")
        return self._synchroniser

    # -- the codec as bytes -----------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Everything that the decoder needs beside the model; integers only.

        50 4D 43 01; u8 kind of bound (0 logit, 1 tv); v bound in 2^-32; v chunk tokens; v fixed helper probability
        (0: counted); v counters of colour 0 and 1; v windows; u8 shift; middles of the windows in 2^(shift - 32), the
        first one signed, then v differences; u16 probabilities of the intervals, cell first and in turns; u8 kind of
        tree; v tokens; v + bytes: the tree.
        """
        design, tree, helper = self.synchroniser, self.tree, self._helper
        windows = [(a + b) // 2 for a, b in zip(design.edges[0::2], design.edges[1::2], strict=True)]
        shift = min((trailing_zeros(t) for t in windows), default=0)
        parts = [
            CODEC_MAGIC,
            bytes([design.kind == "tv"]),
            number(design.bound),
            number(self.chunk_tokens),
            number(helper.fixed),
            number(helper.zeros),
            number(helper.ones),
            number(len(windows)),
            bytes([shift]),
        ]
        if windows:
            steps = (number((b - a) >> shift) for a, b in pairwise(windows))
            parts += [signed(windows[0] >> shift), *steps]
        parts += [struct.pack(f"<{len(design.probabilities)}H", *design.probabilities)]
        parts += [bytes([KINDS.index(tree.kind)]), number(tree.size), block(tree.pack())]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: int | None = None) -> PMATICCodec:
        """The inverse of `to_bytes`.

        Args:
            vocabulary: tokens of the model at hand; a codec for another number is refused before its tree is made.

        Raises:
            FormatError: anything else than what `to_bytes` wrote. MismatchError: a codec for another vocabulary.
        """
        reader = Reader(data, "codec")
        if reader.take(4) != CODEC_MAGIC:
            raise FormatError("is no codec written by Seedloom")
        kind = reader.byte()
        bound, chunk_tokens = reader.number(WIDEST), reader.number(MOST_TOKENS)
        helper = reader.number(ONE), reader.number(ONE), reader.number(ONE)
        count, shift = reader.number(MOST_EDGES // 2 - 1), reader.byte()
        windows: list[int] = []
        for index in range(count):
            windows.append(windows[-1] + reader.number(WIDEST) if index else reader.signed(WIDEST))
        probabilities = struct.unpack(f"<{2 * count + 1}H", reader.take(4 * count + 2))
        tree_kind, size, packed = reader.byte(), reader.number(LARGEST), reader.block(1 << 21)
        reader.end()
        if vocabulary not in (None, size):
            raise MismatchError(
                f"the archive was written by a model of {size} tokens, this one has {vocabulary}"
            )
        if kind > 1 or tree_kind >= len(KINDS) or not chunk_tokens or shift > 31:
            raise FormatError("the codec is of a kind that this program does not know")
        try:
            codec = cls(Delta=1.0, tree=KINDS[tree_kind], chunk_tokens=chunk_tokens)
            codec._helper = Helper(*helper)
            codec._synchroniser = Synchroniser.windows(
                [t << shift for t in windows], bound, probabilities, ("logit", "tv")[kind]
            )
        except ConfigError as error:
            raise FormatError(f"the codec is damaged: {error}") from error
        codec._tree = CodeTree.unpack(KINDS[tree_kind], size, packed)
        codec.Delta = codec._synchroniser.Delta
        return codec

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.to_bytes()).digest()[:16]

    def save(self, path: Path) -> None:
        """The codec as a file of its own, with a CRC-32 at its end; archives can then refer to it."""
        data = self.to_bytes()
        path.write_bytes(data + struct.pack("<I", zlib.crc32(data)))

    @classmethod
    def load(cls, path: Path) -> PMATICCodec:
        """What `save` wrote.

        Raises:
            DataError: it cannot be read. FormatError: it is another file, or was changed.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        if data[:4] != CODEC_MAGIC:
            raise FormatError(f"{path}: is no codec written by Seedloom")
        if len(data) < 8 or struct.pack("<I", zlib.crc32(data[:-4])) != data[-4:]:
            raise FormatError(f"{path}: was changed since it was written")
        return cls.from_bytes(data[:-4])

    # -- archives of tokens -----------------------------------------------------------------------------------------

    def encode_chunk(self, tokens: np.ndarray, predictor: Predictor) -> tuple[bytes, int, int]:
        """One chunk's payload, its number of events, and how many of them needed the helper."""
        parts = [(np.empty(0), np.empty(0, np.uint8), np.empty(0, np.int64))]
        at = 0
        for logits in predictor.score(tokens):
            parts.append(self.tree.events(logits, tokens[at : at + len(logits)]))
            at += len(logits)
        x, bits, depths = (np.concatenate(found) for found in zip(*parts, strict=True))
        payload, colours = encode_events(self.synchroniser, self._helper, x, bits, depths)
        return payload, len(colours), int(colours.sum())

    def encode_given(self, x: np.ndarray, bits: np.ndarray, depths: np.ndarray) -> bytes:
        """One chunk's payload from events of `CodeTree.events` on the codec's own tree."""
        return encode_events(self.synchroniser, self._helper, x, bits, depths)[0]

    def encode(self, tokens: Any, predictor: Predictor, *, embed: bool = True) -> bytes:
        """An archive of token ids.

        Args:
            tokens: (N,) ids. predictor: the model. embed: put the codec into the archive; else `decode` needs it.

        Raises:
            DataError: ids out of range. NumericalError: logits that are not finite.
        """
        self.check(predictor)
        (row,) = as_texts(np.asarray(tokens), predictor.vocabulary)
        chunks = []
        for at in range(0, len(row), self.chunk_tokens):
            part = row[at : at + self.chunk_tokens]
            chunks.append(Chunk.coded(len(part), token_bytes(part), self.encode_chunk(part, predictor)[0]))
        return self.archive(chunks, predictor, token_bytes(row), embed=embed).pack()

    def archive(
        self,
        chunks: Sequence[Chunk],
        predictor: Predictor,
        content: bytes,
        *,
        text: bool = False,
        was_str: bool = False,
        embed: bool = True,
    ) -> Archive:
        """Chunks with the header that says what they are."""
        return Archive(
            codec_digest=self.digest,
            codec=self.to_bytes() if embed else b"",
            model=predictor.fingerprint,
            tokenizer=predictor.tokenizer_fingerprint,
            content_digest=hashlib.sha256(content).digest()[:16],
            name=predictor.name[:100],
            chunks=tuple(chunks),
            text=text,
            was_str=was_str,
        )

    def check(self, predictor: Predictor) -> None:
        """Refuse a model of another vocabulary. Raises ConfigError."""
        if predictor.vocabulary != self.tree.size:
            raise ConfigError(
                f"the codec is made for {self.tree.size} tokens, the model has {predictor.vocabulary}; calibrate anew"
            )

    @staticmethod
    def decode(
        blob: bytes,
        predictor: Predictor,
        *,
        codec: PMATICCodec | None = None,
        rows: int = ROWS,
        most: int = MOST_DECODED,
    ) -> np.ndarray:
        """The token ids of an archive; exactly those that were given to `encode`, or an error.

        Args:
            blob: what `encode` wrote.
            predictor: the model as this machine computes it.
            codec: for archives that were written without theirs.
            rows: chunks that are decoded side by side in one batch.
            most: bytes that the archive may claim to hold (4 a token); more is refused before any work.

        Raises:
            FormatError, MismatchError: what is wrong; never wrong data.
        """
        archive = open_archive(blob, most)
        if archive.text:
            raise FormatError("the archive holds text; read it with decompress_text")
        parts = dict(decode_chunks(archive, predictor, codec=codec, rows=rows))
        for index, ids in parts.items():
            check_content(archive, index, token_bytes(ids))
        row = np.concatenate([np.empty(0, np.int64), *(parts[index] for index in sorted(parts))])
        check_whole(archive, token_bytes(row))
        return row

    @staticmethod
    def decode_chunk(
        blob: bytes, index: int, predictor: Predictor, *, codec: PMATICCodec | None = None
    ) -> np.ndarray:
        """The token ids of one chunk; the others are not looked at."""
        archive = open_archive(blob, MOST_DECODED)
        ((_, ids),) = decode_chunks(archive, predictor, codec=codec, indices=(index,))
        check_content(archive, index, token_bytes(ids))
        return ids


def trailing_zeros(value: int) -> int:
    """Of a whole number, at most 31; all bits of 0 are zeros."""
    return min(31, (value & -value).bit_length() - 1) if value else 31


def token_bytes(tokens: np.ndarray) -> bytes:
    """Token ids as the bytes that checks are made over: int32, little endian."""
    return bytes(np.asarray(tokens).astype("<i4").tobytes())


def open_archive(blob: bytes, most: int) -> Archive:
    """Read a blob that claims at most `most` bytes of content. Raises FormatError."""
    archive = Archive.unpack(blob)
    if archive.size > most:
        raise FormatError(f"the archive claims to hold {archive.size} bytes, more than the {most} allowed")
    return archive


def codec_of(archive: Archive, codec: PMATICCodec | None, vocabulary: int | None = None) -> PMATICCodec:
    """The codec inside, else the given one when it is the right one.

    Raises:
        FormatError: none, or another one. MismatchError: one for another vocabulary.
    """
    if archive.codec:
        if hashlib.sha256(archive.codec).digest()[:16] != archive.codec_digest:
            raise FormatError("the codec inside is not the one that the archive names")
        return PMATICCodec.from_bytes(archive.codec, vocabulary)
    if codec is None:
        raise FormatError("the archive was written without its codec; give the codec's file")
    if codec.digest != archive.codec_digest:
        raise FormatError("the archive was written with another codec")
    return codec


def check_model(archive: Archive, predictor: Predictor) -> None:
    """Warn about another model; refuse another tokenizer, whose ids stand for other text.

    Raises:
        MismatchError: another tokenizer.
    """
    known = NO_FINGERPRINT not in (archive.tokenizer, predictor.tokenizer_fingerprint)
    if known and archive.tokenizer != predictor.tokenizer_fingerprint:
        raise MismatchError(
            "the archive was written with another tokenizer; use the model folder it was written with"
        )
    known = NO_FINGERPRINT not in (archive.model, predictor.fingerprint)
    if known and archive.model != predictor.fingerprint:
        warnings.warn(
            f"the archive was written with another model ({archive.name or 'without a name'}); decoding is tried and "
            "verified all the same",
            ModelMismatchWarning,
            stacklevel=3,
        )


def decode_chunks(
    archive: Archive,
    predictor: Predictor,
    *,
    codec: PMATICCodec | None = None,
    rows: int = ROWS,
    indices: Sequence[int] | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """The token ids of coded chunks, `rows` of them side by side; their content is not checked yet.

    Raises:
        FormatError, MismatchError: as `PMATICCodec.decode`.
    """
    used = codec_of(archive, codec, predictor.vocabulary)
    if predictor.vocabulary != used.tree.size:
        raise MismatchError(
            f"the archive was written by a model of {used.tree.size} tokens, this one has {predictor.vocabulary}"
        )
    check_model(archive, predictor)
    wanted = list(range(len(archive.chunks)) if indices is None else indices)
    if any(not 0 <= index < len(archive.chunks) for index in wanted):
        raise DataError(f"the archive has the chunks 0 to {len(archive.chunks) - 1}")
    coded = [index for index in wanted if archive.chunks[index].kind == CODED]
    if rows < 1:
        raise ConfigError(f"rows = {rows}: give at least 1")
    for at in range(0, len(coded), rows):
        yield from _side_by_side(archive, used, predictor, coded[at : at + rows])


def _side_by_side(
    archive: Archive, codec: PMATICCodec, predictor: Predictor, indices: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    decoders = [
        ChunkDecoder(
            codec.tree, codec.synchroniser, codec._helper, archive.chunks[index].verified(index), chunk=index
        )
        for index in indices
    ]
    lengths = [archive.chunks[index].tokens for index in indices]
    found: list[list[int]] = [[] for _ in indices]
    state = predictor.start(len(indices))
    for step in range(max(lengths)):
        sums = codec.tree.node_sums(predictor.logits(state))
        latest = np.zeros(len(indices), dtype=np.int64)
        for row, decoder in enumerate(decoders):
            if step < lengths[row]:
                latest[row] = decoder.next(sums, row)
                found[row].append(int(latest[row]))
        if step + 1 < max(lengths):
            predictor.push(state, latest)
    yield from ((index, np.asarray(ids, dtype=np.int64)) for index, ids in zip(indices, found, strict=True))


def check_content(archive: Archive, index: int, content: bytes) -> None:
    """Raises MismatchError when a chunk's content is not what was written."""
    chunk = archive.chunks[index]
    if len(content) != chunk.size or zlib.crc32(content) != chunk.content_crc:
        raise MismatchError(
            f"chunk {index}: decoded data is not what was written; the models are farther apart than the bound, or "
            "are different models",
            index,
        )


def check_whole(archive: Archive, content: bytes) -> None:
    """Raises MismatchError when the whole is not what was written."""
    if hashlib.sha256(content).digest()[:16] != archive.content_digest:
        raise MismatchError("the decoded content is not what was written")
