"""Models whose names in memory are not those of their file can be fine-tuned whole and merged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from methods.common.errors import DataError
from tasks.load_model import load_causal_lm
from tasks.merge.candidates import live_merge
from tasks.train.expert_folder import check_writable, write_full_model

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def gpt_neox() -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL))


def qwen2_moe() -> Any:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    sizes = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 16, "num_experts": 4}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**SMALL, **sizes, num_key_value_heads=2, num_experts_per_tok=2))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
        )
    )


def without_prefix(folder: Path) -> None:
    """As the hub has GPT-2: no `transformer.` before the names, and masks that nobody reads."""
    file = folder / "model.safetensors"
    held = {name.removeprefix("transformer."): value for name, value in load_file(file).items()}
    save_file(held | {"h.0.attn.bias": torch.ones(1, 1, 32, 32)}, file, metadata={"format": "pt"})


@pytest.fixture(params=[gpt_neox, qwen2_moe, gpt2])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    request.param().save_pretrained(tmp_path / "base")
    if request.param is gpt2:
        without_prefix(tmp_path / "base")
    return tmp_path / "base"


def changed(folder: Path) -> Any:
    model = load_causal_lm(folder, torch.float32)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.arange(12).view(2, 6)).logits
    return found


def test_a_full_fine_tune_is_written_and_read_again(base: Path, tmp_path: Path) -> None:
    model = changed(base)
    check_writable(model, base)
    (tmp_path / "out").mkdir()
    write_full_model(model, base, tmp_path / "out")
    assert set(load_file(tmp_path / "out/model.safetensors")) == set(load_file(base / "model.safetensors"))
    again = load_causal_lm(tmp_path / "out", torch.float32)
    assert torch.equal(logits(again), logits(model))
    assert not torch.equal(logits(again), logits(load_causal_lm(base, torch.float32)))


def test_a_live_merge_is_the_merged_folder(base: Path, tmp_path: Path) -> None:
    model = changed(base)
    (tmp_path / "out").mkdir()
    write_full_model(model, base, tmp_path / "out")
    old, new = load_file(base / "model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    live = load_causal_lm(base, torch.float32)
    set_coefficient = live_merge(base, {n: new[n] - old[n] for n in old}, live, tmp_path / "scratch")
    set_coefficient(1.0)
    assert torch.allclose(logits(live), logits(model), atol=1e-5)
    set_coefficient(0.0)
    assert torch.equal(logits(live), logits(load_causal_lm(base, torch.float32)))
    assert not (tmp_path / "scratch").exists()


def test_a_model_without_a_place_in_its_file_is_refused_before_training(tmp_path: Path) -> None:
    gpt_neox().save_pretrained(tmp_path)
    model = load_causal_lm(tmp_path, torch.float32)
    file = tmp_path / "model.safetensors"
    held = load_file(file)
    save_file({n: v for n, v in held.items() if "final_layer_norm" not in n}, file, metadata={"format": "pt"})
    with pytest.raises(
        DataError, match=r"no place for 2 weights .* gpt_neox\.final_layer_norm\.bias; load it"
    ):
        check_writable(model, tmp_path)
