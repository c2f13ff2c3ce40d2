"""Theorem A at the very edge of the bound, theorem B just outside it, and the bounds that both rest on."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError
from methods.pmatic.bounds import (
    Delta_of,
    extremal_noise,
    log_odds,
    logit_range,
    probability_move,
    total_variation,
)
from methods.pmatic.errors import MismatchError
from methods.pmatic.synchroniser import UNIT, Synchroniser, binary_entropy, bound_units, divergence
from methods.pmatic.tree import CodeTree


@st.composite
def designs(draw: st.DrawFn) -> tuple[Synchroniser, float]:
    """Random boundaries as near to each other as (C) allows, or farther."""
    Delta = draw(st.sampled_from([1e-8, 1e-5, 1e-3, 0.03, 0.7]))
    bound = bound_units(Delta)
    at = draw(st.integers(-(11 << 32), 4 << 32))
    boundaries = []
    for gap in draw(st.lists(st.integers(0, 3 * bound), min_size=0, max_size=8)):
        at += 4 * bound + draw(st.sampled_from([0, 1, gap]))
        boundaries.append(at)
    return Synchroniser.windows(boundaries, bound), Delta


@settings(max_examples=1500, deadline=None)
@given(designs(), st.floats(-1, 1), st.floats(-3, 3))
def test_within_the_bound_the_decoder_finds_the_encoders_interval(
    design: tuple[Synchroniser, float], share: float, between: float
) -> None:
    synchroniser, Delta = design
    edges = np.asarray([0, *synchroniser.edges], dtype=np.float64) * UNIT
    moves = np.asarray([0, 1, -1, 2, -2, between]) * Delta
    at = (edges[:, None] + moves).ravel()
    x = np.concatenate([at, np.nextafter(at, -np.inf), np.nextafter(at, np.inf)])
    for number, value in zip(synchroniser.locate(x).tolist(), x.tolist(), strict=True):
        for y in (value - Delta, value + Delta, value + share * Delta):
            assert synchroniser.recover(synchroniser.colours[number], y) == number


@settings(max_examples=700, deadline=None)
@given(designs(), st.integers(-2, 2), st.fractions(-1, 1))
def test_theorem_a_without_any_rounding(
    design: tuple[Synchroniser, float], beside: int, share: Fraction
) -> None:
    # The theorem itself, over whole units: the bound with its slack, no float anywhere.
    synchroniser, _ = design
    bound, edges, colours = synchroniser.bound, list(synchroniser.edges), synchroniser.colours
    starts, ends = [-(1 << 60), *edges], [*edges, 1 << 60]
    for edge in edges or [0]:
        x = edge + beside
        number = sum(edge <= x for edge in edges)
        for y in (x - bound, x + bound, x + share * bound):
            fits = [
                i
                for i in range(len(colours))
                if colours[i] == colours[number] and starts[i] - bound <= y < ends[i] + bound
            ]
            assert fits == [number]


def test_a_gap_one_percent_too_small_is_refused_and_would_fail() -> None:
    bound = bound_units(0.01)
    near = round(4 * bound * 0.99)
    with pytest.raises(ConfigError, match="does not always decode"):
        Synchroniser.windows([0, near], bound)
    # The counterexample of theorem B: two cells of one colour, y within Delta of a point of each.
    edges = (-bound, bound, near - bound, near + bound)
    left, right = edges[1] - 1, edges[2]  # last unit of the window around 0, first unit of the next window
    y = (left + right) / 2
    assert abs(y - left) <= bound
    assert abs(y - right) <= bound
    decodable = Synchroniser.windows([0, near + bound], bound)
    with pytest.raises(MismatchError):
        decodable.recover(1, y * UNIT + 1.0)


def test_with_the_gap_too_small_some_pair_is_decoded_wrongly() -> None:
    bound = bound_units(0.01)
    near = round(4 * bound * 0.99)
    fair = Synchroniser.windows([0, 4 * bound], bound)
    # What a design with the smaller gap would do, told without the check of (C).
    broken = object.__new__(Synchroniser)
    for name, value in vars(fair).items():
        object.__setattr__(broken, name, value)
    object.__setattr__(broken, "edges", (-bound, bound, near - bound, near + bound))
    object.__setattr__(broken, "table", tuple(Synchroniser._of_colour(broken, c) for c in (0, 1)))
    x = (bound - 1) * UNIT  # in the first window
    y = x + 0.01
    assert int(broken.locate(np.asarray([x]))[0]) == 1
    assert broken.recover(1, y) != 1


def test_the_bound_holds_for_random_splits_and_is_attained() -> None:
    draw = np.random.default_rng(0)
    worst = 0.0
    for size in (2, 3, 7, 64):
        u = draw.normal(size=(2500, size)) * 4
        v = u + draw.normal(size=u.shape) * draw.choice([1e-3, 0.1, 2.0], size=(2500, 1))
        Delta = logit_range(u, v)
        for _ in range(10):
            ones = draw.random((2500, size)) < 0.5
            ones[:, 0], ones[:, 1] = True, False
            one, zero = np.where(ones, 0, -np.inf), np.where(ones, -np.inf, 0)
            moves = [np.logaddexp.reduce(w + one, 1) - np.logaddexp.reduce(w + zero, 1) for w in (u, v)]
            worst = max(worst, float((np.abs(moves[0] - moves[1]) - Delta).max()))
    assert worst <= 1e-12  # 4 x 10 x 2500 = 1e5 splits
    u = draw.normal(size=9)
    v = u + extremal_noise(9, [1, 4], 0.25)
    moved = log_odds(v, [1, 4], [0, 2, 3]) - log_odds(u, [1, 4], [0, 2, 3])
    assert moved == pytest.approx(0.25, abs=1e-9)
    assert logit_range(u, v) == pytest.approx(0.25, abs=1e-12)


@pytest.mark.parametrize("Delta", [1e-3, 0.3, 2.5])
def test_the_largest_move_of_a_probability_is_at_one_half(Delta: float) -> None:
    x = np.linspace(-12, 12, 200_001)
    moves = 1 / (1 + np.exp(-(x + Delta / 2))) - 1 / (1 + np.exp(-(x - Delta / 2)))
    assert moves.max() == pytest.approx(probability_move(Delta), rel=1e-7)
    assert total_variation(Delta) == pytest.approx(probability_move(2 * Delta))


def test_divergence_and_entropy_are_those_of_their_definitions() -> None:
    x = np.linspace(-9, 9, 37)
    p, q = 1 / (1 + np.exp(-x)), np.linspace(0.01, 0.99, 37)
    expected = p * np.log2(p / q) + (1 - p) * np.log2((1 - p) / (1 - q))
    assert divergence(x, q) == pytest.approx(expected, abs=1e-12)
    z = np.log(q / (1 - q))
    assert (divergence(x, q) * math.log(2) <= (x - z) ** 2 / 8 + 1e-12).all()  # quadratic in the width
    assert binary_entropy(x) == pytest.approx(-p * np.log2(p) - (1 - p) * np.log2(1 - p), abs=1e-12)


@pytest.mark.parametrize("Delta", [0, -1.0, math.nan, math.inf, 1e6])
def test_a_bound_that_is_none_is_refused(Delta: float) -> None:
    with pytest.raises(ConfigError, match="Delta = "):
        bound_units(Delta)


@pytest.mark.parametrize(
    ("edges", "colours", "probabilities", "said"),
    [
        ((0,), (0,), (5,), "need"),
        ((5, 3), (0, 1, 0), (5, 5, 5), "ascend"),
        ((0,), (0, 1), (0, 5), "1 to 65535"),
        ((0,), (0, 1), (5, 65536), "1 to 65535"),
        ((0,), (0, 2), (5, 5), "colours"),
        ((0,), (0, 0), (5, 5), "always decode"),
        ((1 << 60,), (0, 1), (5, 5), "beyond"),
    ],
)
def test_intervals_that_are_none_are_refused(
    edges: tuple[int, ...], colours: tuple[int, ...], probabilities: tuple[int, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Synchroniser(edges, colours, probabilities, 10)


def test_base_pmatics_delta_has_a_bound_in_log_odds() -> None:
    assert Delta_of(1e-3) == pytest.approx(4e-3)
    with pytest.raises(ConfigError, match="delta = -1"):
        Delta_of(-1)


# -- trees ----------------------------------------------------------------------------------------------------------


def trees(size: int) -> list[CodeTree]:
    counts = np.random.default_rng(size).integers(0, 1000, size=size) ** 2
    return [CodeTree.flat(size), CodeTree.huffman(counts), CodeTree.rank(size)]


@pytest.mark.parametrize("size", [2, 3, 7, 256, 5000])
def test_every_event_of_every_tree_moves_by_no_more_than_the_range(size: int) -> None:
    draw = np.random.default_rng(size)
    for tree in trees(size):
        for scale in (1e-4, 0.3):
            u = draw.normal(size=(40, size)) * 6
            v = u + draw.random(size=u.shape) * scale
            tokens = draw.integers(0, size, size=40)
            x, bits, _ = tree.events(u, tokens)
            y, again, _ = tree.events(v, tokens)
            assert (bits == again).all()
            assert np.abs(x - y).max() <= scale + 1e-9
            assert len(x) == tree.lengths[tokens].astype(int).sum()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_the_events_of_a_token_are_its_probability(size: int) -> None:
    draw = np.random.default_rng(size)
    u = draw.normal(size=(size, size)) * 3
    log_p = u - np.logaddexp.reduce(u, axis=1, keepdims=True)
    tokens = np.arange(size)
    for tree in trees(size):
        x, bits, _ = tree.events(u, tokens)
        each = -np.logaddexp(0, np.where(bits == 1, -x, x))
        assert each.sum() == pytest.approx(log_p[tokens, tokens].sum(), abs=1e-9)


@pytest.mark.parametrize("size", [2, 6, 17, 256])
def test_the_sums_are_those_of_the_leaves_below(size: int) -> None:
    u = np.random.default_rng(size).normal(size=(1, size)) * 3
    for tree in trees(size):
        nodes, bits, used = tree.paths(np.arange(size))
        for depth, (zeros, ones) in enumerate(tree.node_sums(u)):
            for node in range(zeros.shape[1]):
                below = used[:, depth] & (nodes[:, depth] == node)
                expected = [np.exp(u[0, below & (bits[:, depth] == b)] - u.max()).sum() for b in (0, 1)]
                assert (zeros[0, node], ones[0, node]) == pytest.approx(expected)


def test_an_improbable_subtree_keeps_its_digits() -> None:
    # Differences of running sums would lose all of them here.
    u = np.full((1, 8), -300.0)
    u[0, 0] = 0.0
    u[0, 6], u[0, 7] = -299.0, -300.0
    x, _, _ = CodeTree.flat(8).events(u, np.asarray([7]))
    assert x[-1] == pytest.approx(-1.0, abs=1e-12)


def test_a_huffman_tree_costs_what_an_optimal_one_costs() -> None:
    from heapq import heapify, heappop, heappush

    counts = np.random.default_rng(3).integers(0, 500, size=90)
    tree = CodeTree.huffman(counts)
    heap = [int(c) + 1 for c in counts]
    heapify(heap)
    cost = 0
    while len(heap) > 1:
        merged = heappop(heap) + heappop(heap)
        cost += merged
        heappush(heap, merged)
    assert int(((counts + 1) * tree.lengths).sum()) == cost


def test_trees_travel_and_damaged_ones_are_refused() -> None:
    from methods.pmatic import FormatError

    for tree in trees(300):
        again = CodeTree.unpack(tree.kind, tree.size, tree.pack())
        assert (again.lengths == tree.lengths).all()
    packed = CodeTree.huffman(np.arange(300)).pack()
    for size, data in (
        (299, packed),
        (301, packed),
        (300, packed[:-9]),
        (300, b"nonsense"),
        (0, b""),
        (1 << 30, b""),
    ):
        with pytest.raises(FormatError):
            CodeTree.unpack("huffman", size, data)
    with pytest.raises(FormatError, match="complete prefix code"):
        CodeTree("huffman", np.asarray([1, 2, 3, 4], dtype=np.uint8))


def test_logits_that_are_none_are_refused() -> None:
    from methods.common.errors import NumericalError

    tree = CodeTree.flat(4)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(NumericalError, match="not finite"):
            tree.node_sums(np.asarray([[0.0, bad, 1.0, 2.0]]))
    with pytest.raises(ConfigError, match=r"needs \(rows, 4\)"):
        tree.node_sums(np.zeros((1, 5)))
