"""Views: the indices are what the equations say, whatever the padding, and wrong values are refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError
from methods.rope_psd import perturb_position_ids, sample_perturbation
from methods.rope_psd.views import standard_position_ids


@given(st.data(), st.integers(4, 40))
@settings(max_examples=40, deadline=None)
def test_skip_moves_the_suffix_alone(data: st.DataObject, length: int) -> None:
    s, y = data.draw(st.integers(0, length - 1)), data.draw(st.integers(1, 4 * length))
    places = torch.arange(length)[None]
    r = perturb_position_ids(places, "skip", s, y)[0]
    assert r.tolist() == [i if i < s else i + y for i in range(length)]
    assert (r.diff() >= 1).all()


@given(st.data(), st.integers(4, 40))
@settings(max_examples=40, deadline=None)
def test_cyclic_and_chunks_are_permutations(data: st.DataObject, length: int) -> None:
    places = torch.arange(length)[None]
    u = data.draw(st.integers(1, length - 1))
    cyclic = perturb_position_ids(places, "cyclic", 0, u)[0]
    assert cyclic.tolist() == [(i + u) % length for i in range(length)]
    size, seed = data.draw(st.integers(1, length - 1)), data.draw(st.integers(1, 100))
    chunks = perturb_position_ids(places, "chunks", size, seed)[0]
    assert sorted(chunks.tolist()) == list(range(length))
    inside = [i for i in range(length - 1) if (i + 1) % size]
    assert (chunks.diff()[inside] == 1).all()  # within a chunk the order stays
    assert torch.equal(chunks, perturb_position_ids(places, "chunks", size, seed)[0])


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_padding_on_either_side_changes_nothing(data: st.DataObject) -> None:
    length, left, right = (data.draw(st.integers(low, 12)) for low in (4, 0, 0))
    mode = data.draw(st.sampled_from(["skip", "cyclic", "chunks", "nope"]))
    s, y = data.draw(st.integers(1, length - 1)), data.draw(st.integers(1, 20))
    plain = perturb_position_ids(torch.arange(length)[None], mode, s, y)
    mask = torch.tensor([[0] * left + [1] * length + [0] * right])
    padded = perturb_position_ids(standard_position_ids(mask), mode, s, y, mask)
    assert torch.equal(padded[:, left : left + length], plain)
    assert torch.equal(padded[mask == 0], standard_position_ids(mask)[mask == 0])


def test_rows_have_their_own_split() -> None:
    places = torch.arange(6).expand(3, 6)
    r = perturb_position_ids(places, "skip", torch.tensor([0, 2, 5]), torch.tensor([1, 10, 3]))
    assert r.tolist() == [[1, 2, 3, 4, 5, 6], [0, 1, 12, 13, 14, 15], [0, 1, 2, 3, 4, 8]]
    assert perturb_position_ids(places, "nope", 0, 1).sum() == 0
    assert torch.equal(perturb_position_ids(places, "none", 0, 1), places)


@given(st.integers(4, 64), st.one_of(st.floats(0.05, 4), st.integers(1, 300)), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_draws_stay_in_bounds(length: int, largest: float | int, seed: int) -> None:
    lengths = torch.full((200,), length)
    s, y = sample_perturbation(lengths, largest, torch.Generator().manual_seed(seed))
    highest = max(1, round(largest * length)) if isinstance(largest, float) else largest
    assert s.min() >= 0
    assert s.max() <= length - 1
    assert y.min() >= 1
    assert y.max() <= highest
    _, u = sample_perturbation(lengths, largest, torch.Generator().manual_seed(seed), "cyclic")
    assert u.min() >= 1
    assert u.max() <= length - 1


def test_draws_are_uniform_and_each_row_has_its_own() -> None:
    s, y = sample_perturbation(torch.full((40_000,), 8), 1.0, torch.Generator().manual_seed(0))
    for counts in (torch.bincount(s, minlength=8), torch.bincount(y - 1, minlength=8)):
        assert counts.min() > 4_700
        assert counts.max() < 5_300
    assert abs(float(torch.corrcoef(torch.stack((s, y)).double())[0, 1])) < 0.02


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mode": "shuffle"}, "perturbation mode='shuffle': choose one of skip, cyclic"),
        ({"s": 8}, "s=8: the split must lie in 0 .. 7"),
        ({"s": -1}, "the split must lie in 0 .. 7"),
        ({"y": 0}, "y=0: the gap must be at least 1"),
        ({"position_ids": torch.arange(3)[None]}, "length=3: a sequence needs at least 4 tokens"),
    ],
)
def test_wrong_values_are_refused(changes: dict, says: str) -> None:
    given_ = {"position_ids": torch.arange(8)[None], "mode": "skip", "s": 3, "y": 2}
    with pytest.raises(ConfigError, match=says):
        perturb_position_ids(**(given_ | changes))


def test_several_axes_are_not_supported() -> None:
    with pytest.raises(NotImplementedError, match="not M-RoPE"):
        perturb_position_ids(torch.zeros(3, 1, 8, dtype=torch.long), "skip", 1, 1)
    with pytest.raises(ConfigError, match="max_skip=0: give a positive multiple"):
        sample_perturbation(torch.tensor([8]), 0)
