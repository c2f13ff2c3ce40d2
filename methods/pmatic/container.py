"""The archive's bytes: a header that is checked as a whole, then the chunks, each of which can be read alone.

    0   8  magic 89 50 4D 5A 0D 0A 1A 0A
    8   1  version (1)
    9   1  flags: 1 codec inside, 2 content is bytes of a text (else token ids), 4 the text was given as characters
    10  4  length H of the header, little endian
    14  4  CRC-32 of the bytes 8 to 14 and of the header
    18  H  header
    18+H   payloads of the chunks, one after the other

Header; `v` is an unsigned LEB128 number:

    16 codec digest; v + bytes: codec (empty when it is kept elsewhere)
    16 model fingerprint; 16 tokenizer fingerprint; 16 start of the content's sha256; v + bytes: model's name
    v chunks; for each: u8 kind (0 coded, 1 stored), v tokens, v content bytes, v payload bytes,
    u32 CRC-32 of the content, u32 CRC-32 of the payload

A stored chunk is raw DEFLATE. Sizes are bounded before anything is allocated for them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, replace

from methods.pmatic.errors import FormatError

MAGIC = b"\x89PMZ\r\n\x1a\n"
VERSION = 1
CODEC_INSIDE, IS_TEXT, WAS_STR = 1, 2, 4
CODED, STORED = 0, 1
LARGEST_HEADER = 1 << 26
LARGEST_CODEC = 1 << 21
MOST_TOKENS = 1 << 16  # of a chunk
MOST_CONTENT = 1 << 24  # bytes of a chunk
MOST_NAME = 200
FIXED = struct.Struct("<8sBBII")


class Reader:
    """Takes apart a byte string and never reads past its end."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.at, self.what = data, 0, what

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise FormatError(f"the {self.what} is cut short")
        found = self.data[self.at : self.at + count]
        self.at += count
        return found

    def byte(self) -> int:
        return self.take(1)[0]

    def word(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def number(self, most: int) -> int:
        """An LEB128 number, at most `most`."""
        found = 0
        for shift in range(0, 64, 7):
            part = self.byte()
            found |= (part & 127) << shift
            if part < 128:
                break
        else:
            raise FormatError(f"the {self.what} holds a number without end")
        if found > most:
            raise FormatError(f"the {self.what} holds {found} where at most {most} can be")
        return found

    def signed(self, most: int) -> int:
        found = self.number(2 * most + 1)
        return (found >> 1) ^ -(found & 1)

    def block(self, most: int) -> bytes:
        return self.take(self.number(most))

    def end(self) -> None:
        if self.at != len(self.data):
            raise FormatError(f"the {self.what} is longer than what it says")


def number(value: int) -> bytes:
    """LEB128."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def signed(value: int) -> bytes:
    """Zigzag LEB128."""
    return number(value << 1 if value >= 0 else (-value << 1) - 1)


def block(data: bytes) -> bytes:
    return number(len(data)) + data


@dataclass(frozen=True)
class Chunk:
    """A part of the content that is coded on its own.

    Attributes:
        kind: CODED or STORED.
        tokens: how many.
        size: bytes of its content.
        content_crc, payload_crc: CRC-32.
        payload: its bytes.
    """

    kind: int
    tokens: int
    size: int
    content_crc: int
    payload_crc: int
    payload: bytes = field(repr=False)

    @classmethod
    def coded(cls, tokens: int, content: bytes, payload: bytes) -> Chunk:
        return cls(CODED, tokens, len(content), zlib.crc32(content), zlib.crc32(payload), payload)

    @classmethod
    def stored(cls, content: bytes) -> Chunk:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        payload = packer.compress(content) + packer.flush()
        return cls(STORED, 0, len(content), zlib.crc32(content), zlib.crc32(payload), payload)

    def verified(self, number: int) -> bytes:
        """The payload, unchanged since it was written. Raises FormatError."""
        if zlib.crc32(self.payload) != self.payload_crc:
            raise FormatError(f"chunk {number} was changed since it was written")
        return self.payload

    def unpacked(self, number: int) -> bytes:
        """The content of a stored chunk. Raises FormatError."""
        unpacker = zlib.decompressobj(-15)
        try:
            content = unpacker.decompress(self.verified(number), self.size + 1)
        except zlib.error as error:
            raise FormatError(f"chunk {number} is damaged") from error
        if len(content) != self.size or zlib.crc32(content) != self.content_crc:
            raise FormatError(f"chunk {number} is damaged")
        return content


@dataclass(frozen=True)
class Archive:
    """What a blob holds, read but not decoded."""

    codec_digest: bytes
    codec: bytes
    model: bytes
    tokenizer: bytes
    content_digest: bytes
    name: str
    chunks: tuple[Chunk, ...]
    text: bool = False
    was_str: bool = False

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return sum(chunk.size for chunk in self.chunks)

    def without_codec(self) -> Archive:
        return replace(self, codec=b"")

    def pack(self) -> bytes:
        parts = [
            self.codec_digest,
            block(self.codec),
            self.model,
            self.tokenizer,
            self.content_digest,
            block(self.name.encode()[:MOST_NAME]),
            number(len(self.chunks)),
        ]
        for chunk in self.chunks:
            parts += [
                bytes([chunk.kind]),
                number(chunk.tokens),
                number(chunk.size),
                number(len(chunk.payload)),
                struct.pack("<II", chunk.content_crc, chunk.payload_crc),
            ]
        header = b"".join(parts)
        flags = CODEC_INSIDE * bool(self.codec) + IS_TEXT * self.text + WAS_STR * self.was_str
        check = zlib.crc32(header, zlib.crc32(struct.pack("<BBI", VERSION, flags, len(header))))
        start = FIXED.pack(MAGIC, VERSION, flags, len(header), check)
        return b"".join([start, header, *(chunk.payload for chunk in self.chunks)])

    @classmethod
    def unpack(cls, blob: bytes) -> Archive:
        """Read a blob; its chunks are looked at only when they are decoded.

        Raises:
            FormatError: one line that says what is wrong.
        """
        if len(blob) < FIXED.size:
            raise FormatError(
                "is no archive: it is cut short" if blob[:8] == MAGIC[: len(blob)] else "is no archive"
            )
        magic, version, flags, length, check = FIXED.unpack_from(blob)
        if magic != MAGIC:
            raise FormatError("is no archive written by Seedloom")
        if version != VERSION:
            raise FormatError(f"is of format {version}, this program reads format {VERSION}; use a newer one")
        if length > LARGEST_HEADER or length > len(blob) - FIXED.size:
            raise FormatError("the header is cut short")
        header = blob[FIXED.size : FIXED.size + length]
        if zlib.crc32(header, zlib.crc32(struct.pack("<BBI", version, flags, length))) != check:
            raise FormatError("the header was changed since it was written")
        reader = Reader(header, "header")
        digest, codec = reader.take(16), reader.block(LARGEST_CODEC)
        model, tokenizer, content = reader.take(16), reader.take(16), reader.take(16)
        name = reader.block(MOST_NAME).decode("utf-8", "replace")
        if flags > 7 or bool(flags & CODEC_INSIDE) != bool(codec):
            raise FormatError("the header contradicts itself")
        count = reader.number(len(header))
        chunks = []
        at = FIXED.size + length
        for index in range(count):
            kind, tokens = reader.byte(), reader.number(MOST_TOKENS)
            size, payload = reader.number(MOST_CONTENT), reader.number(len(blob))
            sums = reader.word(), reader.word()
            if kind not in (CODED, STORED) or payload > len(blob) - at:
                raise FormatError(f"chunk {index} is cut short")
            # What a chunk claims to hold bounds the work of reading it: a token stands for a byte at least.
            if (tokens > size) if flags & IS_TEXT else (size != 4 * tokens):
                raise FormatError(f"chunk {index} contradicts itself")
            chunks.append(Chunk(kind, tokens, size, *sums, blob[at : at + payload]))
            at += payload
        reader.end()
        if at != len(blob):
            raise FormatError("bytes follow the last chunk")
        return cls(
            digest,
            codec,
            model,
            tokenizer,
            content,
            name,
            tuple(chunks),
            bool(flags & IS_TEXT),
            bool(flags & WAS_STR),
        )
