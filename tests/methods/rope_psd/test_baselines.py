"""PoSE's rows and LongCE's weights against slow readings of their texts."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError
from methods.rope_psd import RopePSDLoss, pose_rows
from methods.rope_psd.long_ce import long_ce_weights, token_losses
from tests.methods.rope_psd.oracle import logits as oracle
from tests.methods.rope_psd.tiny import ids, model


@given(st.integers(4, 30), st.integers(0, 60), st.integers(0, 100), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_pose_rows_are_two_chunks_with_a_gap(length: int, extra: int, more: int, seed: int) -> None:
    tokens = torch.arange(length + extra)
    row, places = pose_rows(tokens, length, length + more, torch.Generator().manual_seed(seed))
    jumps = [i for i in range(1, length) if row[i] != row[i - 1] + 1]
    assert len(jumps) <= 1
    assert row[0] == 0
    shift = places - torch.arange(length)
    border = int((shift == 0).sum())
    assert sorted(set(shift.tolist())) in ([0], [0, int(shift[-1])])
    assert (shift[:border] == 0).all()
    assert 0 <= int(shift[-1]) <= more
    if shift[-1] and jumps:
        assert jumps == [border]
        assert 1 <= border <= length // 2


def test_pose_uses_all_the_room() -> None:
    generator = torch.Generator().manual_seed(0)
    ends = [int(pose_rows(torch.arange(40), 20, 80, generator)[1][-1]) for _ in range(300)]
    assert max(ends) == 79
    assert min(ends) <= 22


def test_pose_rows_train_with_their_indices_and_an_explicit_mask() -> None:
    made = model()
    tokens = ids(1, 24)
    places = torch.where(torch.arange(24) >= 9, torch.arange(24) + 30, torch.arange(24))
    told = RopePSDLoss(kl_weight=0, mode="none")(made, tokens, position_ids=places[None])
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(oracle(made, tokens[0], places)[:-1], tokens[0, 1:])
    assert float(told["loss"].detach()) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("length", "target", "says"),
    [(50, 80, "length=50: give 4 to 40"), (20, 10, "target=10: give at least length=20")],
)
def test_pose_refuses(length: int, target: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        pose_rows(torch.arange(40), length, target, torch.Generator())


@pytest.mark.parametrize(("context", "stride"), [(8, 4), (10, 3), (6, 5), (40, 10)])
def test_long_ce_weights_are_those_of_short_windows(context: int, stride: int) -> None:
    made = model(initializer_range=0.15)
    rows = ids(2, 26)
    with torch.no_grad():
        full = token_losses(made(rows).logits, rows)
    weights = long_ce_weights(made, rows, rows, full, context, stride)
    seen = 0
    for row in range(2):
        for place in range(26):
            if place < context:
                assert weights[row, place] == 1
                continue
            # The window that first reaches this token: it starts at the smallest multiple of the stride.
            start = math.ceil((place + 1 - context) / stride) * stride
            before = rows[row, start : place + 1]
            assert context - stride <= len(before) - 1 < context
            with torch.no_grad():
                scores = oracle(made, before, torch.arange(len(before)))[-2].log_softmax(-1)
            short = -float(scores[rows[row, place]])
            expected = min(math.exp(short - float(full[row, place])), 5.0)
            assert float(weights[row, place]) == pytest.approx(expected, rel=1e-4)
            seen += expected not in (1.0, 5.0)
    assert seen or context == 40


def test_long_ce_weighs_the_cross_entropy_alone() -> None:
    made = model(initializer_range=0.15)
    rows = ids(1, 26)
    where: Any = {"perturbation": (torch.tensor([9]), torch.tensor([7]))}
    own = RopePSDLoss(loss_variant="longce", long_ce_context=8, long_ce_stride=4)(made, rows, **where)
    plain = RopePSDLoss()(made, rows, **where)
    assert float(own["kl"]) == float(plain["kl"])
    with torch.no_grad():
        losses = token_losses(made(rows).logits, rows)
        weights = long_ce_weights(made, rows, rows, losses, 8, 4)
    expected = (losses * weights)[0, 1:].mean()
    assert float(own["clm"]) == pytest.approx(float(expected), abs=1e-9)
    assert float(own["loss"].detach()) == pytest.approx(float(expected) + float(own["kl"]), abs=1e-9)
    whole = RopePSDLoss(loss_variant="longce", long_ce_context=64, long_ce_stride=4, kl_weight=0)(made, rows)
    assert float(whole["loss"].detach()) == pytest.approx(float(plain["clm"]), abs=1e-6)
