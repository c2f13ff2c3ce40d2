"""The coder against exact arithmetic: its bits, its length, and what it says of bytes that no encoder wrote."""

import math

import numpy as np
import pytest

from methods.common.errors import ConfigError
from methods.pmatic.coder import (
    ChunkDecoder,
    Helper,
    encode_events,
    encode_plain,
    plain_probabilities,
)
from methods.pmatic.design import plan_design
from methods.pmatic.errors import FormatError, MismatchError
from methods.pmatic.synchroniser import ONE, Synchroniser
from methods.pmatic.tree import CodeTree
from tests.methods.pmatic.noisy import Noisy
from tests.methods.pmatic.range_decoder import decode_bits


@pytest.fixture(scope="module")
def events() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(5)
    x = draw.normal(size=60_000) * 6
    bits = (draw.random(len(x)) < 1 / (1 + np.exp(-x))).astype(np.uint8)
    return x, bits, draw.integers(0, 8, size=len(x))


def test_a_decoder_of_whole_numbers_reads_what_constriction_wrote(
    events: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    x, bits, _ = events
    payload = encode_plain(x, bits)
    assert decode_bits(payload, plain_probabilities(x)) == bits.tolist()
    rare = np.asarray([1, ONE - 1, 1, ONE - 1, ONE // 2] * 40)
    from methods.pmatic.coder import _coded

    symbols = np.asarray([1, 0, 0, 1, 1] * 40)
    assert decode_bits(_coded(symbols, rare), rare) == symbols.tolist()


def test_colours_and_bits_in_turns_by_the_oracle(events: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    x, bits, depths = (part[:8000] for part in events)
    synchroniser, helper = plan_design(x, 0.01), Helper.starting_at(0.02)
    payload, colours = encode_events(synchroniser, helper, x, bits, depths)
    # The helper's counters, told a second time and one event after the other.
    counts = {depth: [helper.zeros, helper.ones] for depth in range(8)}
    integers = []
    for place, depth in enumerate(depths.tolist()):
        zeros, ones = counts[depth]
        number = int(synchroniser.locate(x[place : place + 1])[0])
        integers += [min(max(ONE * ones // (zeros + ones), 1), ONE - 1), synchroniser.probabilities[number]]
        counts[depth][int(colours[place])] += 2
    expected = np.stack([colours, bits], axis=1).ravel()
    assert decode_bits(payload, integers) == expected.tolist()


def test_the_length_is_that_of_the_probabilities(events: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    x, bits, _ = events
    for count in (0, 1, 10, 1000, 60_000):
        p = plain_probabilities(x[:count]) / ONE
        ideal = float(-np.log2(np.where(bits[:count] == 1, p, 1 - p)).sum()) / 8
        assert len(encode_plain(x[:count], bits[:count])) <= ideal * 1.0005 + 8


def test_plain_coding_fails_where_the_other_machine_differs() -> None:
    model = Noisy(64)
    text = model.sample(3000, 2)
    tree = CodeTree.flat(64)
    x, bits, _ = tree.events(np.concatenate(list(model.score(text))), text)
    payload = encode_plain(x, bits)

    def read(machine: Noisy) -> np.ndarray:
        decoder, state, found = ChunkDecoder(tree, None, Helper(), payload), machine.start(1), []
        for _ in text:
            found.append(decoder.next(tree.node_sums(machine.logits(state)), 0))
            machine.push(state, np.asarray([found[-1]]))
        return np.asarray(found)

    assert (read(Noisy(64)) == text).all()
    try:
        wrong = read(Noisy(64, 1e-3, machine=1))
    except MismatchError:
        return
    assert (wrong != text).any()


def test_random_bytes_are_told_or_decoded_within_bounds() -> None:
    draw = np.random.default_rng(0)
    tree, synchroniser = CodeTree.flat(256), Synchroniser.windows([], 1000)
    sums = tree.node_sums(draw.normal(size=(1, 256)))
    places: list[tuple[int, int]] = []
    for size in (0, 4, 8, 40):
        for _ in range(50):
            decoder = ChunkDecoder(tree, synchroniser, Helper(), draw.bytes(size))
            try:
                assert all(0 <= decoder.next(sums, 0) < 256 for _ in range(100))
            except MismatchError as error:
                places.append((error.chunk, error.token))
    assert all(chunk == 0 and 0 <= token < 100 for chunk, token in places)
    with pytest.raises(FormatError, match="whole number of words"):
        ChunkDecoder(tree, synchroniser, Helper(), b"12345")


def test_a_counter_starts_at_what_calibration_found() -> None:
    helper = Helper.starting_at(0.01)
    assert helper.ones / (helper.ones + helper.zeros) == pytest.approx(0.01)
    first = helper.probabilities(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    assert first[0] == ONE * helper.ones // (helper.ones + helper.zeros)
    assert first[2] < first[0]
    assert math.isclose(Helper.starting_at(0).ones, 1)
    with pytest.raises(ConfigError):
        Helper(zeros=0)
