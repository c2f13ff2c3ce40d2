"""Sizes of real archives, header and checksums included, beside general compressors with the same knowledge."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from methods.common.errors import ConfigError
from methods.pmatic.codec import PMATICCodec
from methods.pmatic.coder import encode_plain
from methods.pmatic.container import Archive, Chunk
from methods.pmatic.mismatch import estimate_mismatch
from methods.pmatic.ngram import NGram
from methods.pmatic.predictor import Predictor, Steps
from methods.pmatic.study_data import Split, byte_ids
from methods.pmatic.study_design import ORDER, PAPER_RADII, best_base_radius, ideal_bits
from methods.pmatic.text import decompress_text
from methods.pmatic.tree import CodeTree

PEER_PACKAGES = ("brotli", "zstandard", "pyppmd")


def check_peers() -> None:
    """Refuse to start without the peers. Raises ConfigError."""
    from importlib.util import find_spec

    if missing := [name for name in PEER_PACKAGES if find_spec(name) is None]:
        raise ConfigError(
            f"the peers {', '.join(missing)} are not installed; pip install 'seedloom[archivers]'"
        )


def bare_archive(chunks: Sequence[Chunk], name: str) -> bytes:
    """The same container without a codec."""
    nothing = bytes(16)
    return Archive(nothing, b"", nothing, nothing, nothing, name, tuple(chunks), True).pack()


class Scored:
    """A text's path events on several trees, by chunk: the model computes once for many archives.

    Args:
        texts: token ids of each chunk. contents: what they stand for.
        trees: by name.
    """

    def __init__(
        self,
        predictor: Predictor,
        texts: Sequence[np.ndarray],
        contents: Sequence[bytes],
        trees: dict[str, CodeTree],
    ) -> None:
        self.predictor, self.texts, self.contents = predictor, texts, contents
        self.trees = trees
        self.events: dict[str, list[Any]] = {name: [] for name in trees}
        for text in texts:
            parts: dict[str, list[Any]] = {name: [] for name in trees}
            at = 0
            for logits in predictor.score(text):
                for name, tree in trees.items():
                    parts[name].append(tree.events(logits, text[at : at + len(logits)]))
                at += len(logits)
            for name, found in parts.items():
                self.events[name].append([np.concatenate(column) for column in zip(*found, strict=True)])

    def log_odds(self, tree: str) -> np.ndarray:
        """Of all events."""
        return np.concatenate([x for x, _, _ in self.events[tree]])

    def chunks(self, payloads: Iterable[bytes]) -> list[Chunk]:
        return [
            Chunk.coded(len(text), content, payload)
            for text, content, payload in zip(self.texts, self.contents, payloads, strict=True)
        ]

    def plain(self) -> bytes:
        """Ordinary arithmetic coding with 16-bit probabilities."""
        payloads = (encode_plain(x, bits) for x, bits, _ in self.events["flat"])
        return bare_archive(self.chunks(payloads), self.predictor.name)

    def archive(self, codec: PMATICCodec, tree: str) -> bytes:
        """The archive that `compress_text` would write."""
        made = self.chunks(codec.encode_given(*part) for part in self.events[tree])
        return codec.archive(made, self.predictor, b"".join(self.contents), text=True).pack()

    def base(self, delta: float, radius: float) -> bytes:
        """Base PMATIC's archive."""
        codec = PMATICCodec(delta, design="uniform_p", helper="fixed", tree="flat", r=radius)
        return self.archive(codec.use(self.trees["flat"], None), "flat")


def byte_chunks(data: bytes, size: int = 4096) -> tuple[list[np.ndarray], list[bytes]]:
    """Bytes as chunks of token ids, and what they stand for."""
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return [byte_ids(part) for part in parts], parts


def ngram_sizes(parts: Split, seed: int) -> list[dict[str, Any]]:
    """Archives of the test part by an n-gram model of the training part.

    Returns:
        one row an archive: bytes and bits a byte. Two at delta = 1e-3 are read back by the model's single steps.
    """
    model = NGram.fit_bytes(parts.train, ORDER)
    data = parts.test
    trees = {
        "flat": CodeTree.flat(256),
        "huffman": CodeTree.huffman(np.bincount(byte_ids(parts.calibration), minlength=256)),
    }
    fit = Scored(model, *byte_chunks(parts.calibration), trees)
    test = Scored(model, *byte_chunks(data), trees)
    x_fit, x_test = {name: fit.log_odds(name) for name in trees}, test.log_odds("flat")
    plain = len(test.plain())
    rows: list[dict[str, Any]] = [
        {"archive": "ideal", "delta": 0.0, "bytes": ideal_bits(model, data) * len(data) / 8},
        {"archive": "plain", "delta": 0.0, "bytes": plain},
    ]
    for delta in (1e-5, 1e-3, 1e-2):
        blobs = {
            "base_paper_r": test.base(delta, PAPER_RADII[delta]),
            "base": test.base(delta, best_base_radius(x_test, delta)),
            "ours_flat": test.archive(PMATICCodec(delta).use(trees["flat"], x_fit["flat"]), "flat"),
            "ours": test.archive(PMATICCodec(delta).use(trees["huffman"], x_fit["huffman"]), "huffman"),
        }
        for name, blob in blobs.items():
            row: dict[str, Any] = {"archive": name, "delta": delta, "bytes": len(blob)}
            row["codec_bytes"] = len(Archive.unpack(blob).codec)
            if delta == 1e-3 and name in ("base", "ours"):
                row["read_back"] = decompress_text(blob, Steps(model)) == data
            rows.append(row)
    report = estimate_mismatch(model, Steps(model), fit.texts[0][:2048], trees["huffman"])
    codec = PMATICCodec(Delta=report.Delta()).use(trees["huffman"], x_fit["huffman"])
    rows.append(
        {
            "archive": "ours_measured",
            "delta": report.Delta() / 4,
            "bytes": len(test.archive(codec, "huffman")),
        }
    )
    for row in rows:
        row |= {
            "seed": seed,
            "bits_per_byte": 8 * row["bytes"] / len(data),
            "over_plain": row["bytes"] / plain - 1,
        }
    return rows


def _ppmd(data: bytes) -> bytes:
    import pyppmd

    encoder = pyppmd.Ppmd7Encoder(10, 256 << 20)
    return bytes(encoder.encode(data) + encoder.flush())


def _brotli(data: bytes) -> bytes:
    import brotli

    return bytes(brotli.compress(data, quality=11, lgwin=24))


def _zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=19).compress(data)


def _zstd_with(known: bytes, data: bytes) -> bytes:
    import zstandard

    raw = zstandard.ZstdCompressionDict(known, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    settings = zstandard.ZstdCompressionParameters.from_level(19, window_log=27, enable_ldm=True)
    return zstandard.ZstdCompressor(dict_data=raw, compression_params=settings).compress(data)


def _xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)


PEERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: zlib.compress(data, 9),
    "bz2": lambda data: bz2.compress(data, 9),
    "xz": _xz,
    "zstd": _zstd,
    "brotli": _brotli,
    "ppmd": _ppmd,
}
WITH_PREFIX = (
    "xz",
    "brotli",
    "ppmd",
)  # their windows hold the known text: appended, and its own size subtracted


def peer_sizes(parts: Split, seed: int) -> list[dict[str, Any]]:
    """The test part by each peer: alone, and with all that our model and codec were fitted on known beforehand."""
    data, known = parts.test, parts.known
    rows: list[dict[str, Any]] = [
        {"peer": name, "known": False, "bytes": len(pack(data))} for name, pack in PEERS.items()
    ]
    for name in WITH_PREFIX:
        size = len(PEERS[name](known + data)) - len(PEERS[name](known))
        rows.append({"peer": name, "known": True, "bytes": size})
    rows.append({"peer": "zstd", "known": True, "bytes": len(_zstd_with(known, data))})
    # What must be shipped when the other side does not have the model: the text that it is counted from.
    rows.append({"peer": "model", "known": False, "bytes": len(_ppmd(parts.train))})
    return [row | {"seed": seed, "bits_per_byte": 8 * row["bytes"] / len(data)} for row in rows]
