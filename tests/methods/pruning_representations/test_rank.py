"""Rankings against the damage that was really done."""

import pytest
import torch

from methods.common.errors import ConfigError, DataError
from methods.common.linear_layers import UnknownArchitectureError
from methods.common.sublayers import blocks_of
from methods.pruning_representations import drop_sublayers, rank_layers
from methods.pruning_representations.second_order import second_order_kl
from tests.methods.pruning_representations.tiny import tiny, tokens


def states(model: torch.nn.Module, ids: torch.Tensor, layer: int) -> list[torch.Tensor]:
    """What enters and leaves a block."""
    seen: list[torch.Tensor] = []
    handle = blocks_of(model)[layer].register_forward_hook(
        lambda _m, args, output: seen.extend([args[0], output[0] if isinstance(output, tuple) else output])
    )
    with torch.no_grad():
        model(input_ids=ids)
    handle.remove()
    return seen


@pytest.mark.parametrize("model_type", ["llama", "gpt_neox", "gemma2"])
def test_block_influence_is_the_cosine_of_what_enters_and_leaves(model_type: str) -> None:
    model, ids = tiny(model_type), tokens(6, 12)
    ranking = rank_layers(model, ids, criterion="block_influence", sublayer="block", batch_size=2)
    expected = {
        layer: 1 - float(torch.cosine_similarity(*states(model, ids, layer), dim=-1).mean())
        for layer in range(3)
    }
    assert ranking.scores == pytest.approx(expected, abs=1e-5)
    assert ranking.order == tuple(sorted(expected, key=expected.__getitem__)[:2])
    same = rank_layers(model, ids, criterion="cosine", sublayer="block")
    assert same.scores == pytest.approx(ranking.scores, abs=1e-5)


def test_kl_estimate_is_the_estimate_at_the_chosen_tokens() -> None:
    model, ids = tiny(), tokens(1, 12)
    ranking = rank_layers(
        model, ids, criterion="kl_estimate", sublayer="block", kl_tokens=100, temperature=0.5
    )
    for layer in range(3):
        before, after = states(model, ids, layer)
        with torch.no_grad():
            z, z2 = (model.lm_head(model.model.norm(h[0, 6:])) for h in (after, before))
        assert ranking.scores[layer] == pytest.approx(float(second_order_kl(z, z2, 0.5).mean()), rel=1e-4)


def test_a_layer_that_does_nothing_comes_first_by_every_rule() -> None:
    model = tiny(num_hidden_layers=4)
    with torch.no_grad():
        model.model.layers[2].self_attn.o_proj.weight.zero_()
        model.model.layers[1].mlp.down_proj.weight.zero_()
    for criterion in ("cosine", "kl_estimate"):
        for iterative in (False, True):
            given = {"criterion": criterion, "iterative": iterative, "n": 2}
            assert rank_layers(model, tokens(), **given).order[0] == 2
            assert rank_layers(model, tokens(), sublayer="mlp", **given).order[0] == 1


def test_the_first_block_comes_last_by_predicted_kl() -> None:
    """Its estimate says nothing: at that depth the head's probabilities do not follow the model's."""
    model = tiny(num_hidden_layers=4)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
    ranking = rank_layers(model, tokens(), criterion="kl_estimate", n=3)
    assert 0 not in ranking.order
    assert ranking.scores[0] == min(ranking.scores.values()) == 0
    assert rank_layers(model, tokens(), criterion="cosine", n=1).order == (0,)


def test_iterative_scores_again_without_what_is_gone() -> None:
    model, ids = tiny(num_hidden_layers=5, seed=3), tokens(6, 12)
    first = rank_layers(model, ids, n=1).order[0]
    after = rank_layers(drop_sublayers(model, attn=[first]), ids)
    both = rank_layers(model, ids, n=2, iterative=True)
    assert both.order == (first, after.order[0])
    assert first not in after.order


def test_the_model_is_left_as_it_was() -> None:
    model = tiny().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rank_layers(model, tokens(), iterative=True, n=2)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_bad_inputs() -> None:
    for given, message in (
        ({"criterion": "luck"}, "criterion 'luck'"),
        ({"criterion": "block_influence"}, "ranks blocks, not sublayer 'attn'"),
        ({"n": 3}, "n 3: the model has 3 layers with attn"),
        ({"n": 1.5}, "n 1.5: the model has 3 layers"),
        ({"temperature": -1.0}, r"temperature -1\.0"),
        ({"sublayer": "attention"}, "sublayer 'attention': give 'attn', 'mlp' or 'block'"),
        ({"kl_tokens": 0}, "kl_tokens 0: give an integer of at least 1"),
        ({"batch_size": 0}, "batch_size 0: give"),
    ):
        with pytest.raises(ConfigError, match=message):
            rank_layers(tiny(), tokens(), **given)
    for calibration, message in (
        (torch.empty(0, 4, dtype=torch.long), "calibration is empty"),
        (tokens() + 1000, "other values than token ids of the model, 0 to 60"),
        (tokens().float(), "other values than token ids"),
        (tokens(1, 65), "65 tokens a sequence, the model reads at most 64"),
    ):
        with pytest.raises(DataError, match=message):
            rank_layers(tiny(), calibration)
    with pytest.raises(UnknownArchitectureError, match="model_type 'Linear'"):
        rank_layers(torch.nn.Linear(2, 2), tokens())
