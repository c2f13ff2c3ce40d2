"""Whole models: which layers are taken, parallel and resumed work, folders that transformers loads, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from methods.common.errors import ConfigError, DataError
from methods.littlebit2 import (
    LittleBitConfig,
    binary_layers,
    compress_model,
    densify,
    is_compressed,
    load_compressed,
    save_compressed,
    sizes,
    target_layers,
)
from tests.methods.pruning_representations.tiny import tiny
from tests.tiny_models import sentences, tiny_llama

TOKENS = torch.randint(3, 61, (2, 12), generator=torch.Generator().manual_seed(0))
CONFIG = LittleBitConfig(bpp=2.0, n_iter=3)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=TOKENS).logits
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, _ = compress_model(tiny(), CONFIG, n_jobs=1)
    save_compressed(model, tmp_path / "model", CONFIG)
    return tmp_path / "model"


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma2", "qwen2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_saved_model_loads_through_transformers_with_the_same_logits(
    model_type: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = tiny(model_type).to(dtype)
    head = model.get_output_embeddings().weight.detach().clone()
    model, rows = compress_model(model, CONFIG, n_jobs=2)
    assert torch.equal(model.get_output_embeddings().weight, head)
    assert not any("lm_head" in row["name"] for row in rows)
    measured = save_compressed(model, tmp_path, CONFIG)
    for _, layer in binary_layers(model):
        layer.pack()
    expected = logits(model)
    again = load_compressed(tmp_path)
    assert again.dtype == dtype
    assert all(layer.is_packed for _, layer in binary_layers(again))
    # A cast model also casts its rotary frequencies, a loaded one keeps them in float32: half formats differ a little.
    assert (logits(again) - expected).abs().max() <= (
        1e-6 if dtype == torch.float32 else 0.05 * expected.abs().max()
    )
    assert (
        again.generate(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS), max_new_tokens=3).shape[1]
        == 15
    )
    # The file's size is its tensors and its header; the layers' share is what the report says.
    file = tmp_path / "model.safetensors"
    header = int.from_bytes(file.read_bytes()[:8], "little")
    stored = load_file(file)
    assert measured["file_bytes"] == 8 + header + sum(t.numel() * t.element_size() for t in stored.values())
    packed = sum(
        t.numel() * t.element_size()
        for name, t in stored.items()
        if name.rpartition(".")[0] in {row["name"] for row in rows} and not name.endswith("bias")
    )
    weights = sum(row["outputs"] * row["inputs"] for row in rows)
    assert measured["packed_bytes"] == packed
    assert measured["stored_bpp"] == 8 * packed / weights
    assert sum(row["stored_bpp"] * row["outputs"] * row["inputs"] for row in rows) == pytest.approx(
        8 * packed
    )
    assert measured["parameters"] == sum(p.numel() for p in tiny(model_type).parameters())
    assert again.get_input_embeddings().weight.dtype == dtype


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_dense_storage_is_the_same_model_for_any_software(model_type: str, tmp_path: Path) -> None:
    model, _ = compress_model(tiny(model_type), CONFIG, n_jobs=1)
    save_compressed(model, tmp_path / "packed", CONFIG)
    expected = logits(model)
    densify(model)
    assert not list(binary_layers(model))
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    model.save_pretrained(tmp_path / "dense")
    torch.testing.assert_close(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path / "dense")), expected, rtol=1e-4, atol=1e-4
    )
    unpacked = densify(load_compressed(tmp_path / "packed"))
    torch.testing.assert_close(logits(unpacked), expected, rtol=0.05, atol=0.05)  # fp16 scales


def test_a_loaded_model_is_saved_again_and_stays_packed(saved: Path, tmp_path: Path) -> None:
    model = load_compressed(saved)
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load_compressed(tmp_path / "again")), logits(model))
    save_compressed(model, tmp_path / "third")
    assert sizes(tmp_path / "third") == sizes(saved)
    assert not is_compressed(tmp_path)


def test_software_that_does_not_know_the_format_refuses_it(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers without this package's registration must not run with random weights."""
    from transformers.quantizers import auto

    monkeypatch.delitem(auto.AUTO_QUANTIZER_MAPPING, "littlebit2", raising=False)
    monkeypatch.delitem(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, "littlebit2", raising=False)
    with pytest.raises(RuntimeError, match="size"):
        AutoModelForCausalLM.from_pretrained(saved)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from methods.littlebit2.__main__ import main

    source = tiny_llama(tmp_path / "source")
    text = tmp_path / "text.txt"
    text.write_text(" ".join(sentences(40)))
    options = ["--model", str(source), "--bpp", "1.5", "--length", "16", "--distill-tokens", "128"]
    assert main([*options, "--text", str(text), "--out", str(tmp_path / "out")]) == 0
    assert "stored_bpp" in capsys.readouterr().out
    assert load_compressed(tmp_path / "out").config.vocab_size > 0
    for wrong, line in (
        (["--out", str(tmp_path / "out"), "--text", str(text)], "holds files; name a new folder"),
        (["--out", str(tmp_path / "new")], "distill-tokens 128: give it together with --text"),
        (["--out", str(tmp_path / "new"), "--model", str(tmp_path)], "holds no config.json"),
        (["--out", str(text)], "holds files; name a new folder"),
    ):
        assert main([*options, *wrong]) == 2
        assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (["--length", "0"], "length 0: give a whole number of at least 2"),
        (["--length", "999"], "length 999: the model reads at most 256 tokens"),
        (["--batch", "0"], "batch 0: give"),
        (["--lr", "nan"], "lr nan: give a number above 0"),
        (["--jobs", "-1"], "jobs -1: give"),
        (["--distill-tokens", "-5"], "distill-tokens -5: give"),
        (["--hidden-weight", "-1"], "hidden-weight -1.0: give"),
        (["--text", "nowhere.txt"], "text nowhere.txt: is no readable UTF-8 file"),
        (["--bpp", "-1"], "bpp -1.0: give a number above 0"),
    ],
)
def test_the_command_line_refuses_before_the_model_is_loaded(
    wrong: list[str],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from methods.littlebit2 import __main__ as command

    source = tiny_llama(tmp_path / "source")
    text = tmp_path / "text.txt"
    text.write_text(" ".join(sentences(40)))
    monkeypatch.setattr(command, "_load", None)  # what would be called
    options = ["--model", str(source), "--length", "16", "--distill-tokens", "128", "--text", str(text)]
    assert command.main([*options, "--out", str(tmp_path / "new"), *wrong]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert shown[-1].startswith("error: ")
    assert line in shown[-1]


def test_rows_say_what_was_done() -> None:
    model = tiny()
    weights = {target.name: target.weight.clone() for target in target_layers(model, CONFIG)}
    seen: list[tuple[int, int]] = []
    model, rows = compress_model(model, CONFIG, n_jobs=2, on_layer=lambda *done: seen.append(done))
    assert [row["name"] for row in rows] == list(weights)
    assert seen == [(n + 1, len(rows)) for n in range(len(rows))]
    layers = dict(binary_layers(model))
    for row in rows:
        weight = weights[row["name"]]
        found = layers[row["name"]].reconstruct()
        error = float((weight - found).square().sum() / weight.square().sum())
        assert row["error"] == pytest.approx(error, rel=1e-4)
        assert (row["outputs"], row["inputs"]) == tuple(weight.shape)
        assert {
            "gamma",
            "energy",
            "haar_error",
            "coherence_before",
            "alignment_after",
            "clamped",
        } <= row.keys()


def test_the_number_of_jobs_and_a_cache_do_not_change_the_result(tmp_path: Path) -> None:
    states = []
    for jobs, cache in ((1, None), (3, None), (1, tmp_path), (2, tmp_path)):
        model, rows = compress_model(tiny(), CONFIG, n_jobs=jobs, cache=cache)
        states.append((model.state_dict(), [row["error"] for row in rows]))
    first, errors = states[0]
    for state, other in states[1:]:
        assert all(torch.equal(first[name], state[name]) for name in first)
        assert errors == other


def test_a_cut_off_factorisation_goes_on_from_its_finished_layers(tmp_path: Path, monkeypatch: Any) -> None:
    from methods.littlebit2 import model as module

    def stop(done: int, _: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress_model(tiny(), CONFIG, n_jobs=1, cache=tmp_path, on_layer=stop)
    finished = len(list(tmp_path.glob("*.safetensors")))
    assert 5 <= finished < 21
    real, calls = module.factorize, []
    monkeypatch.setattr(module, "factorize", lambda *a, **k: (calls.append(1), real(*a, **k))[1])
    compress_model(tiny(), CONFIG, n_jobs=1, cache=tmp_path)
    assert len(calls) == 21 - finished


def test_finished_layers_of_other_settings_weights_or_a_damaged_file_are_made_anew(tmp_path: Path) -> None:
    def ranks_and_errors(seed: int, config: LittleBitConfig, cache: Path | None) -> list[tuple[int, float]]:
        _, rows = compress_model(tiny(seed=seed), config, n_jobs=1, cache=cache)
        return [(row["rank"], row["error"]) for row in rows]

    ranks_and_errors(0, CONFIG, tmp_path)
    other = LittleBitConfig(bpp=CONFIG.bpp, init="svd")
    assert ranks_and_errors(0, other, tmp_path) == ranks_and_errors(0, other, None)
    assert ranks_and_errors(1, other, tmp_path) == ranks_and_errors(1, other, None)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:50])
    assert ranks_and_errors(1, other, tmp_path) == ranks_and_errors(1, other, None)


def test_which_layers_are_taken() -> None:
    names = [t.name for t in target_layers(tiny(), LittleBitConfig(include=("mlp",), exclude=("layers.1.",)))]
    assert names
    assert all("mlp" in name and "layers.1." not in name for name in names)
    for field in ("include", "exclude"):
        with pytest.raises(ConfigError, match=f"{field} 'attention': no linear layer has that in its name"):
            target_layers(tiny(), LittleBitConfig(**{field: ("attention",)}))
    with pytest.raises(DataError, match="no linear layer to compress"):
        target_layers(nn.Sequential(nn.ReLU()), CONFIG)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out, self.inner = nn.Embedding(9, 16), nn.Linear(16, 9), nn.Linear(16, 16)
            self.out.weight = self.embed.weight

    assert [t.name for t in target_layers(Tied(), CONFIG)] == ["inner"]


def test_models_that_cannot_be_compressed() -> None:
    model, _ = compress_model(tiny(), CONFIG, n_jobs=1)
    with pytest.raises(DataError, match="the model is compressed already; give the original model"):
        compress_model(model, CONFIG)
    broken = tiny()
    with torch.no_grad():
        broken.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(DataError, match=r"model\.layers\.1\.mlp\.up_proj: the weight holds NaN"):
        compress_model(broken, CONFIG, n_jobs=2)
    with pytest.raises(
        DataError, match=r"the model is itself a linear layer; use LittleBitLinear.from_linear"
    ):
        compress_model(nn.Linear(4, 4))
    for wrong, line in (
        ({"n_jobs": 0}, "n_jobs 0: give"),
        ({"gradient": "ste"}, "gradient 'ste': choose"),
        ({"config": {"bpp": 0.5}}, "give a LittleBitConfig"),
    ):
        with pytest.raises(ConfigError, match=line):
            compress_model(tiny(), **wrong)  # type: ignore[arg-type]
    layer, _ = compress_model(nn.Sequential(nn.Linear(16, 16)), n_jobs=1)
    with pytest.raises(DataError, match="Sequential is no model of transformers; keep single layers"):
        save_compressed(layer, "nowhere")
    small = tiny()
    with pytest.raises(
        ConfigError, match=r"bpp 0\.1: model\.layers\.0\.self_attn\.q_proj \(16x16\) needs at least"
    ):
        compress_model(small, LittleBitConfig(bpp=0.1, strict=True))
    assert isinstance(small.model.layers[0].self_attn.q_proj, nn.Linear)
    with pytest.raises(DataError, match="has no compressed layer; call compress_model first"):
        save_compressed(tiny(), "nowhere")


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))


def test_folders_whose_parts_do_not_fit_are_refused_in_one_line(saved: Path, tmp_path: Path) -> None:
    layers = json.loads((saved / "config.json").read_text())["quantization_config"]["layers"]
    name = next(iter(layers))

    def refused(match: str) -> None:
        with pytest.raises(DataError, match=match) as error:
            load_compressed(saved)
        assert "\n" not in str(error.value)

    edit_config(saved, layers={**layers, name: [1, 16, 16, 16]})
    refused(f"{name}.* config.json says .* compress the model anew")
    edit_config(saved, layers={**layers, name: [1, 16, "8", 16]})
    refused("gives .* the shape")
    edit_config(saved, layers={**layers, "model.layers.9.mlp.up_proj": [1, 32, 8, 16]})
    refused(r"lacks the tensor model\.layers\.9\.mlp\.up_proj")
    edit_config(saved, layers=layers, format=2)
    refused("its packed format is 2, this version reads 1")
    edit_config(saved, format=1, quant_method="gptq")
    refused("does not name the format littlebit2")
    edit_config(saved, quant_method="littlebit2")
    load_compressed(saved)

    config = json.loads((saved / "config.json").read_text())
    for field, value, line in (
        # transformers would make up the fourth block's weights and go on
        ("num_hidden_layers", 4, r"lacks the tensor model\.layers\.3\..*use an intact folder"),
        ("intermediate_size", 64, "is packed as .*, which does not fit config.json's sizes"),
        ("vocab_size", 99, "a tensor has another size than config.json gives"),
    ):
        (saved / "config.json").write_text(json.dumps(config | {field: value}))
        refused(line)
    (saved / "config.json").write_text(json.dumps(config))
    tensors = load_file(saved / "model.safetensors")
    spoilt = {**tensors, f"{name}.l": tensors[f"{name}.l"] * float("nan")}
    save_file(spoilt, saved / "model.safetensors", metadata={"format": "pt"})
    refused(f"the scales of {name} hold NaN")
    for wrong in ({"dtype": "foo"}, {"device": "foo"}):
        with pytest.raises(ConfigError, match="'foo': give"):
            load_compressed(saved, **wrong)
    save_file(
        {k: v for k, v in tensors.items() if k != f"{name}.l"}, saved / "model.safetensors", {"format": "pt"}
    )
    refused(f"lacks the tensor {name}.l")
    save_file(
        {**tensors, f"{name}.h": tensors[f"{name}.h"].float()}, saved / "model.safetensors", {"format": "pt"}
    )
    refused(rf"{name}\.h is torch.float32")
    (saved / "model.safetensors").write_bytes(b"cut")
    refused("is not a safetensors file or is cut short")
    with pytest.raises(DataError, match="does not name the format"):
        load_compressed(tmp_path / "nothing")


def test_saving_again_leaves_no_shard_and_never_replaces_another_model(tmp_path: Path) -> None:
    model, _ = compress_model(tiny(), CONFIG, n_jobs=1)
    save_compressed(model, tmp_path / "m", CONFIG, max_shard_size="8KB")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 1
    again = save_compressed(model, tmp_path / "m", CONFIG)
    assert [p.name for p in (tmp_path / "m").glob("*.safetensors*")] == ["model.safetensors"]
    assert again["file_bytes"] == (tmp_path / "m" / "model.safetensors").stat().st_size
    tiny().save_pretrained(tmp_path / "original")
    before = (tmp_path / "original/model.safetensors").read_bytes()
    with pytest.raises(
        DataError, match=r"holds weights of another model \(model.safetensors\); name a new folder"
    ):
        save_compressed(model, tmp_path / "original")
    assert (tmp_path / "original/model.safetensors").read_bytes() == before


def test_a_model_of_another_shape_is_refused_by_transformers_too(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["num_hidden_layers"] = 1
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"has no layer model\.layers\.1.*which config\.json says is packed"):
        AutoModelForCausalLM.from_pretrained(saved)
