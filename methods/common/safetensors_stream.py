"""Reading and writing safetensors files piece by piece, so that a model never has to be in memory as a whole.

`safetensors` itself maps the file and writes from complete tensors; here a reader takes any range of a tensor
with
plain reads (nothing stays mapped), and a writer puts tensors into a new file one piece after the other.
Format: 8 bytes little-endian header length, a JSON header, then the data
(https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, TypeGuard

import torch
from torch import Tensor

from methods.common.errors import DataError

INDEX_FILE = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000  # the limit of the reference implementation
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
# Bytes of a number, also of types that are only copied; a type that is not named here is not checked.
WIDTHS = {name: dtype.itemsize for name, dtype in DTYPES.items()} | {"U16": 2, "U32": 4, "U64": 8}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TensorInfo(NamedTuple):
    """Where one tensor lies: absolute byte range `[begin, end)` in `file`."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class Entry(NamedTuple):
    """One tensor as a header tells of it: type by its name in the file, byte range `[begin, end)` of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def header_entries(file: Path) -> tuple[dict[str, Entry], dict[str, str], int]:
    """The tensors of one file in the order of their data, its metadata, and where the data start.

    Raises:
        DataError: it cannot be read, is no safetensors file, or its tensors are not the file: they overlap, leave
            gaps, do not fit their shape or end elsewhere.
    """
    damaged = f"{file}: is not a safetensors file or is cut short"
    again = "fetch or write it again"
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if size < 8 or length > min(_MAX_HEADER, size - 8):
                raise DataError(f"{damaged} ({size} bytes); {again}")
            header: Any = json.loads(handle.read(length))
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except RecursionError as error:
        raise DataError(f"{damaged} (unreadable header); {again}") from error
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{damaged} (unreadable header); {again}") from error
    if not isinstance(header, dict):
        raise DataError(f"{damaged} (its header is a {type(header).__name__}, no table of tensors); {again}")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise DataError(f"{damaged} (its metadata are no table of texts); {again}")
    entries = {}
    for name, told in header.items():
        entry = _entry(told)
        if entry is None:
            raise DataError(f"{damaged} (tensor {name} has no type, shape and offsets); {again}")
        entries[name] = entry
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    end = 0
    for name, entry in entries.items():
        width = WIDTHS.get(entry.dtype)
        fits = width is None or entry.end - entry.begin == math.prod(entry.shape) * width
        if entry.begin != end or entry.end < entry.begin or not fits:
            raise DataError(f"{damaged} (tensor {name} has wrong offsets); {again}")
        end = entry.end
    if 8 + length + end != size:
        raise DataError(
            f"{file}: is cut short or padded ({size} bytes where the header says {8 + length + end}); {again}"
        )
    return entries, metadata, 8 + length


def _entry(told: Any) -> Entry | None:
    if not isinstance(told, dict):
        return None
    dtype, shape, offsets = told.get("dtype"), told.get("shape"), told.get("data_offsets")
    if not isinstance(dtype, str) or not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        return None
    return Entry(dtype, tuple(shape), *offsets)


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def read_header(file: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Tensors of one file in the order of their data, and its metadata.

    Raises:
        DataError: as `header_entries`, or a tensor has a type that torch does not have.
    """
    entries, metadata, start = header_entries(file)
    tensors = {}
    for name, entry in entries.items():
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            raise DataError(f"{file}: tensor {name} has the unsupported type {entry.dtype}")
        tensors[name] = TensorInfo(file, dtype, entry.shape, start + entry.begin, start + entry.end)
    return tensors, metadata


class RangeReader:
    """Reads ranges of tensors and keeps the files open in between; use as a context manager or call
    `close`.
    """

    def __init__(self) -> None:
        self._handles: dict[Path, BinaryIO] = {}

    def read(self, info: TensorInfo, start: int = 0, stop: int | None = None) -> Tensor:
        """Elements `[start, stop)` of the flattened tensor, as a new 1-D tensor."""
        stop = info.numel if stop is None else stop
        width = info.dtype.itemsize
        buffer = bytearray((stop - start) * width)
        if not buffer:
            return torch.empty(0, dtype=info.dtype)
        handle = self._handles.get(info.file)
        if handle is None:
            handle = self._handles[info.file] = info.file.open("rb")
        handle.seek(info.begin + start * width)
        if handle.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]
            raise DataError(f"{info.file} is cut short; write it again")
        return torch.frombuffer(buffer, dtype=info.dtype)

    def close(self) -> None:
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def folder_tensors(folder: Path, stem: str = "model") -> dict[str, TensorInfo]:
    """All tensors of `<stem>.safetensors` or of the shards that `<stem>.safetensors.index.json` lists.

    `DataError` if there is none, if only pickled weights are there (they are never opened), or a shard is
    missing.
    """
    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if index.is_file():
        try:
            weight_map: dict[str, str] = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{index} is damaged; download or save the model again") from error
        check_one_model(folder, stem, weight_map.values())
        tensors: dict[str, TensorInfo] = {}
        for shard in dict.fromkeys(weight_map.values()):
            if Path(shard).name != shard:
                raise DataError(f"{index} names a shard outside its folder: {shard}")
            tensors.update(read_header(folder / shard)[0])
        missing = sorted(set(weight_map) - set(tensors))
        if missing:
            raise DataError(
                f"{folder}: the shards lack {len(missing)} tensors of the index, first {missing[0]}"
            )
        return tensors
    if single.is_file():
        return read_header(single)[0]
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the path of a saved model")
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickled:
        raise DataError(
            f"{folder} holds only pickled weights ({pickled[0]}), which are not opened; save it as "
            "safetensors"
        )
    raise DataError(f"{folder} holds no {stem}.safetensors; give the folder of a saved model")


def check_one_model(folder: Path, stem: str, shards: Iterable[object]) -> None:
    """`DataError` when a folder holds a whole model and an index of other files: readers differ in which they take."""
    single = f"{stem}.safetensors"
    others = sorted({str(shard) for shard in shards} - {single})
    if others and (folder / single).is_file():
        raise DataError(
            f"{folder}: holds {single} and an index of other files ({others[0]}); remove the one or the other"
        )


class StreamWriter:
    """A safetensors file whose tensors arrive in pieces, in the order given at the start.

    Use as a context manager. Each tensor is a sequence of `write` calls; sizes are checked. The file is
    complete only
    after a clean exit, so write to a temporary name and rename.
    """

    def __init__(
        self,
        file: Path,
        tensors: Mapping[str, tuple[torch.dtype, Iterable[int]]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        offset = 0
        self._expected: list[tuple[str, int]] = []
        for name, (dtype, shape) in tensors.items():
            dims = [int(n) for n in shape]
            size = math.prod(dims) * dtype.itemsize
            header[name] = {"dtype": NAMES[dtype], "shape": dims, "data_offsets": [offset, offset + size]}
            self._expected.append((name, size))
            offset += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # data starts at a multiple of 8, as the reference writer does
        self._file = file
        self._handle = file.open("wb")
        self._handle.write(len(text).to_bytes(8, "little") + text)
        self._position, self._filled = 0, 0

    def write(self, name: str, piece: Tensor) -> None:
        """Append a piece of `name`; pieces of another tensor before it is full are refused."""
        while self._position < len(self._expected) and self._filled == self._expected[self._position][1]:
            self._position, self._filled = self._position + 1, 0
        if self._position == len(self._expected) or self._expected[self._position][0] != name:
            raise ValueError(f"tensor {name} comes out of order")
        raw = piece.detach().cpu().contiguous().view(-1).view(torch.uint8)
        self._filled += raw.numel()
        if self._filled > self._expected[self._position][1]:
            raise ValueError(f"tensor {name} is longer than declared")
        self._handle.write(raw.numpy().data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                rest = [name for name, size in self._expected[self._position + 1 :] if size]
                if rest or (self._expected and self._filled != self._expected[self._position][1]):
                    raise ValueError(f"{self._file}: not all tensors were written")
                self._handle.flush()
                os.fsync(self._handle.fileno())
        finally:
            self._handle.close()
