"""Headers of safetensors files: those of the reference writer are read, every malformed one is one line."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from methods.common.errors import DataError
from methods.common.safetensors_stream import folder_tensors, header_entries, read_header
from tasks.prepare.models import read_safetensors_header

GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def written(path: Path, header: Any, data: bytes = b"\0" * 8) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize(
    "header",
    [
        {"a": None},
        [1],
        "text",
        None,
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": GOOD | {"shape": None}},
        {"a": GOOD | {"shape": [-2]}},
        {"a": GOOD | {"shape": ["2"]}},
        {"a": GOOD | {"shape": [3]}},
        {"a": GOOD | {"dtype": 3}},
        {"a": GOOD | {"data_offsets": [0]}},
        {"a": GOOD | {"data_offsets": [8, 0]}},
        {"a": GOOD | {"data_offsets": [0, 8.0]}},
        {"a": GOOD | {"data_offsets": {"0": 8}}},
        {"a": GOOD, "b": GOOD},
        {"a": GOOD, "__metadata__": [1]},
        {"a": GOOD, "__metadata__": {"x": 1}},
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=lambda header: str(header)[:50],
)
@pytest.mark.parametrize("reader", [read_header, read_safetensors_header])
def test_a_malformed_header_is_one_line(reader: Any, header: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "model.safetensors", header)
    with pytest.raises(DataError, match=r"model\.safetensors: is [^\n]*; fetch or write it again$"):
        reader(path)


def test_a_good_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"b": torch.ones(2, 3), "a": torch.ones(0, 4), "c": torch.ones(5, dtype=torch.bfloat16)}
    save_file(tensors, path, metadata={"format": "pt"})
    infos, metadata = read_header(path)
    assert metadata == {"format": "pt"}
    assert {name: (info.shape, info.dtype) for name, info in infos.items()} == {
        name: (tuple(value.shape), value.dtype) for name, value in tensors.items()
    }
    assert {name: entry.shape for name, entry in header_entries(path)[0].items()} == {
        name: tuple(value.shape) for name, value in tensors.items()
    }
    assert header_entries(written(path, {"a": GOOD, "__metadata__": None}))[0]["a"].end == 8


def test_a_whole_model_beside_an_index_of_other_files(tmp_path: Path) -> None:
    for name in ("model.safetensors", "one.safetensors"):
        save_file({"a": torch.ones(2)}, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with pytest.raises(DataError, match=r"holds model\.safetensors and an index of other files"):
        folder_tensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert list(folder_tensors(tmp_path)) == ["a"]
    index.write_text("[]")
    with pytest.raises(DataError, match="is damaged"):
        folder_tensors(tmp_path)
