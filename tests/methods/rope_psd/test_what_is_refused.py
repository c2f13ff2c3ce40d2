"""The loss on models and batches that it cannot serve, or only with care: windows, documents, foreign rotations."""

from typing import Any

import pytest
import torch

from methods.common.errors import ConfigError
from methods.rope_psd import RopePSDLoss, perturb_position_ids
from methods.rope_psd.rope_models import run_body
from methods.rope_psd.views import standard_position_ids
from tests.methods.rope_psd.tiny import VOCABULARY, ids, model, one


def windowed() -> Any:
    """A Mistral whose layers look back over six tokens."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    return MistralForCausalLM(
        MistralConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.3,
            sliding_window=6,
        )
    ).double()


@pytest.mark.parametrize("left", [0, 5])
def test_windows_reach_as_many_tokens_in_both_views(left: int) -> None:
    """A window counts tokens, not indices: behind the gap a row sees the five before it, and no more."""
    made, tokens = windowed().eval(), ids(1, 24)
    mask = torch.ones_like(tokens)
    mask[:, :left] = 0
    places = perturb_position_ids(standard_position_ids(mask), "skip", one(12), one(9), mask)
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % VOCABULARY
    with torch.no_grad():
        first, second = (run_body(made, part, mask, places) for part in (tokens, changed))
    moved = (first != second).any(-1)[0]
    # Two layers reach over twice five tokens: 10 .. 20, over the split that comes at 12 or later.
    assert moved.nonzero()[:, 0].tolist() == list(range(10, 21))


def test_documents_need_layers_that_see_all_of_them() -> None:
    """The documents' mask would replace the window: another model would be trained, without a word."""
    with pytest.raises(ConfigError, match="document_ids: this model has layers with sliding windows"):
        RopePSDLoss()(windowed(), ids(1, 24), document_ids=torch.zeros(1, 24, dtype=torch.long))
    flash = model()
    flash.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ConfigError, match="document_ids with flash_attention_2: takes no mask"):
        RopePSDLoss()._check_documents(flash)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kl_weight": -1}, "kl_weight=-1: give 0 or more"),
        ({"kl_weight": float("inf")}, "kl_weight=inf: give 0 or more"),
        ({"kl_weight": float("nan")}, "kl_weight=nan: give 0 or more"),
        ({"max_skip": 0}, "max_skip=0: give a positive"),
        ({"max_skip": float("inf")}, "max_skip=inf: give a positive"),
        ({"mode": "shift"}, "mode='shift': choose one of"),
        ({"direction": "both"}, "direction='both': choose one of reverse, forward"),
        ({"prob_apply": 0}, "prob_apply=0: give a share above 0"),
        ({"chunk_size": 0}, "chunk_size=0"),
        ({"loss_variant": "mse"}, "loss_variant='mse'"),
        ({"clm_view": "perturbed"}, "set kl_weight=0"),
        (
            {"long_ce_context": 4, "long_ce_stride": 5},
            "long_ce_stride=5: give at least 1, and fewer than long_ce_context=4",
        ),
    ],
)
def test_wrong_settings_are_refused(settings: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RopePSDLoss(**settings)


def test_models_without_one_plain_rotation_are_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

    gpt = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=VOCABULARY))
    opt = OPTForCausalLM(
        OPTConfig(
            hidden_size=16, num_hidden_layers=1, ffn_dim=16, num_attention_heads=2, vocab_size=VOCABULARY
        )
    )
    for other in (gpt, opt):
        with pytest.raises(TypeError, match="has no rotary position embedding"):
            RopePSDLoss()(other, ids(1, 8))
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    with pytest.raises(ConfigError, match="rope_type='dynamic': its frequencies depend on the largest index"):
        RopePSDLoss()(model(rope_parameters=dynamic), ids(1, 8))
    many = model()
    many.config.rope_parameters = {**many.config.rope_parameters, "mrope_section": [1, 1, 2]}
    with pytest.raises(NotImplementedError, match="mrope_section"):
        RopePSDLoss()(many, ids(1, 8))
    flash = model()
    flash.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ConfigError, match="mode='cyclic' with flash_attention_2"):
        RopePSDLoss(mode="cyclic")(flash, ids(1, 8))


def test_batches_that_do_not_fit_are_refused() -> None:
    made = model()
    with pytest.raises(ConfigError, match="length=3"):
        RopePSDLoss()(made, ids(1, 3))
    with pytest.raises(ConfigError, match="attention_mask: has shape"):
        RopePSDLoss()(made, ids(1, 8), torch.ones(1, 7))
    with pytest.raises(ConfigError, match="labels: has shape"):
        RopePSDLoss()(made, ids(1, 8), labels=ids(1, 7))
    with pytest.raises(ConfigError, match="input_ids: has shape"):
        RopePSDLoss()(made, ids(1, 8)[0])
    with pytest.raises(ConfigError, match="document_ids: has shape"):
        RopePSDLoss()(made, ids(1, 8), document_ids=torch.zeros(1, 7, dtype=torch.long))
    with pytest.raises(ConfigError, match="given indices and a second view exclude"):
        RopePSDLoss()(made, ids(1, 8), position_ids=torch.arange(8)[None])
    nothing = torch.full((1, 8), -100)
    nothing[0, 1] = 4
    told = RopePSDLoss()(made, ids(1, 8), labels=nothing, perturbation=(one(5), one(2)))
    assert float(told["kl"]) == 0
