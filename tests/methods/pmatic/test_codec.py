"""Archives of tokens: exact at the bound's edge, told beyond it, and safe whatever the bytes are."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.pmatic import (
    Archive,
    FormatError,
    MismatchError,
    ModelMismatchWarning,
    NGram,
    PMATICCodec,
    estimate_mismatch,
)
from methods.pmatic.codec import open_archive
from methods.pmatic.mismatch import in_blocks
from tests.methods.pmatic.noisy import Blocks, Noisy


def calibrated(model: Any, Delta: float | None = 0.02, **options: Any) -> PMATICCodec:
    text = Noisy(model.vocabulary).sample(400, seed=99)
    return PMATICCodec(Delta=Delta, **{"chunk_tokens": 128, **options}).calibrate(model, text)


@pytest.mark.parametrize(
    ("size", "tree", "design"),
    [
        (2, "flat", "companded"),
        (3, "huffman", "companded"),
        (7, "rank", "dp"),
        (7, "flat", "uniform"),
        (256, "flat", "companded"),
        (256, "huffman", "companded"),
    ],
)
def test_noise_of_exactly_the_bound_is_decoded(size: int, tree: str, design: str) -> None:
    Delta = 0.02
    codec = calibrated(Noisy(size), Delta, tree=tree, design=design)
    for seed in range(3):
        text = Noisy(size).sample(150, seed)
        blob = codec.encode(text, Noisy(size, Delta / 2, machine=1 + seed))
        # Each side is off by half of the bound, in its own way: together they are apart by all of it.
        again = PMATICCodec.decode(blob, Noisy(size, Delta / 2, machine=100 + seed))
        assert (again == text).all()


def test_a_large_vocabulary() -> None:
    model = Noisy(5000, scale=5.0)
    text = model.sample(60)
    codec = calibrated(model, 1e-4)
    blob = codec.encode(text, Noisy(5000, 1e-4, machine=3, scale=5.0))
    assert (PMATICCodec.decode(blob, model) == text).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 12),
    st.lists(st.integers(0, 1), max_size=60),
    st.sampled_from([1e-6, 1e-3, 0.1, 3.0]),
    st.integers(1, 40),
    st.integers(1, 5),
)
def test_any_tokens_at_any_bound_come_back(
    size: int, ends: list[int], Delta: float, chunk: int, rows: int
) -> None:
    text = np.asarray([end * (size - 1) for end in ends], dtype=np.int64)
    codec = PMATICCodec(Delta=Delta, chunk_tokens=chunk, tree="flat").calibrate(Noisy(size))
    blob = codec.encode(text, Blocks(size, Delta, machine=5))
    assert PMATICCodec.decode(blob, Noisy(size), rows=rows).tolist() == text.tolist()


def test_beyond_the_bound_it_is_told_and_never_decoded_wrongly() -> None:
    # Equal cells: edges everywhere, so that noise beyond the bound is nearly sure to meet one.
    Delta, told = 0.1, 0
    codec = calibrated(Noisy(256), Delta, design="uniform", tree="flat")
    for seed in range(40):
        text = Noisy(256).sample(100, seed)
        blob = codec.encode(text, Noisy(256))
        try:
            found = PMATICCodec.decode(blob, Noisy(256, 1.6 * Delta, machine=seed + 1))
        except MismatchError as error:
            told += error.chunk == 0
        else:
            assert (found == text).all()
    assert told >= 38


def test_base_pmatic_is_one_configuration() -> None:
    base = PMATICCodec(delta=1e-3, r=0.05, design="uniform_p", helper="fixed", tree="flat", chunk_tokens=256)
    base.calibrate(Noisy(256))
    text = Noisy(256).sample(500)
    # Logits within epsilon = 2 delta of each other: the paper's own condition.
    blob = base.encode(text, Noisy(256, 1e-3, machine=1))
    assert (PMATICCodec.decode(blob, Noisy(256, 1e-3, machine=2)) == text).all()
    ours = calibrated(Noisy(256), 4e-3, chunk_tokens=256, tree="flat").encode(text, Noisy(256))
    assert len(ours) < len(blob)


def test_the_bound_is_measured_on_calibration_text() -> None:
    first, second = Noisy(64), Noisy(64, 1e-3, machine=4, extreme=False)
    report = estimate_mismatch(first, second, Noisy(64).sample(300))
    assert 0 < report.median <= report.q999 <= report.largest <= report.step_range <= 1e-3 + 1e-9
    assert report.violation_rate == pytest.approx(3 / report.events)
    codec = PMATICCodec(safety=3).calibrate(
        first, Noisy(64).sample(300), Noisy(64, 1e-3, machine=4, extreme=False)
    )
    assert codec.report is not None
    assert codec.Delta == pytest.approx(3 * codec.report.largest)
    assert report.Delta(2, conservative=True) == pytest.approx(2 * report.step_range)
    assert estimate_mismatch(first, first, [1, 2]).Delta() == 1e-6  # never none at all
    with pytest.raises(DataError, match="without tokens"):
        estimate_mismatch(first, second, [])
    with pytest.raises(ConfigError, match="must agree"):
        estimate_mismatch(first, Noisy(65), [1])


def test_a_chunk_is_read_alone_and_damage_stays_in_its_chunk() -> None:
    model = Noisy(256)
    text = model.sample(1000)
    codec = calibrated(model)
    blob = bytearray(codec.encode(text, model))
    assert (PMATICCodec.decode_chunk(bytes(blob), 3, model) == text[384:512]).all()
    blob[-1] ^= 1
    with pytest.raises(FormatError, match="chunk 7 was changed"):
        PMATICCodec.decode(bytes(blob), model)
    assert (PMATICCodec.decode_chunk(bytes(blob), 6, model) == text[768:896]).all()
    with pytest.raises(DataError, match="chunks 0 to 7"):
        PMATICCodec.decode_chunk(bytes(blob), 8, model)


def test_every_flipped_byte_is_told() -> None:
    model = Noisy(16)
    text = model.sample(90)
    blob = calibrated(model, chunk_tokens=40).encode(text, model)
    for place in range(len(blob)):
        for mask in (1, 0x80, 0xFF):
            damaged = bytearray(blob)
            damaged[place] ^= mask
            with pytest.raises((FormatError, MismatchError)):
                PMATICCodec.decode(bytes(damaged), model)
    for length in range(len(blob)):
        with pytest.raises(FormatError):
            PMATICCodec.decode(blob[:length], model)
    with pytest.raises(FormatError, match="bytes follow"):
        PMATICCodec.decode(blob + b"x", model)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.booleans(), st.data())
def test_hostile_bytes_with_true_checksums(noise: bytes, whole: bool, data: st.DataObject) -> None:
    # An attacker repairs every checksum; what is left may decode to other data, but within bounds and without a crash.
    import struct
    import zlib

    from methods.pmatic.container import FIXED, MAGIC, VERSION

    model = Noisy(16)
    blob = calibrated_small().encode(Noisy(16).sample(40), model)
    _, _, flags, length, _ = FIXED.unpack_from(blob)
    header = bytearray(blob[FIXED.size : FIXED.size + length])
    if whole:
        header = bytearray(noise)
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    body = data.draw(st.sampled_from([blob[FIXED.size + length :], noise]))
    check = zlib.crc32(bytes(header), zlib.crc32(struct.pack("<BBI", VERSION, flags, len(header))))
    forged = FIXED.pack(MAGIC, VERSION, flags, len(header), check) + bytes(header) + body
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelMismatchWarning)
        try:
            PMATICCodec.decode(forged, model, most=4 * 4096)
        except (FormatError, MismatchError):
            return


_small: list[PMATICCodec] = []


def calibrated_small() -> PMATICCodec:
    if not _small:
        _small.append(calibrated(Noisy(16), chunk_tokens=32))
    return _small[0]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_as_archive_and_as_codec(noise: bytes) -> None:
    for data in (noise, b"\x89PMZ\r\n\x1a\n" + noise):
        with pytest.raises(FormatError):
            Archive.unpack(data)
    with pytest.raises((FormatError, MismatchError)):
        PMATICCodec.from_bytes(b"PMC\x01" + noise)


def test_what_an_archive_claims_is_bounded_before_any_work() -> None:
    model = Noisy(16)
    blob = calibrated_small().encode(np.zeros(64, dtype=np.int64), model)
    with pytest.raises(FormatError, match="claims to hold 256 bytes, more than the 100 allowed"):
        PMATICCodec.decode(blob, model, most=100)
    assert open_archive(blob, 256).tokens == 64


def test_a_chunk_cannot_claim_more_tokens_than_its_content_has() -> None:
    from dataclasses import replace

    blob = calibrated_small().encode(np.zeros(64, dtype=np.int64), Noisy(16))
    archive = Archive.unpack(blob)
    for text, tokens in ((False, 33), (True, 4 * 32 + 1)):
        forged = replace(archive, text=text, chunks=(replace(archive.chunks[0], tokens=tokens),))
        with pytest.raises(FormatError, match="contradicts itself"):
            Archive.unpack(forged.pack())


def test_a_codec_as_a_file_and_archives_without_theirs(tmp_path: Path) -> None:
    model = Noisy(256)
    codec = calibrated(model)
    codec.save(tmp_path / "codec.pmc")
    again = PMATICCodec.load(tmp_path / "codec.pmc")
    assert again.to_bytes() == codec.to_bytes()
    text = model.sample(200)
    blob = codec.encode(text, model, embed=False)
    assert len(codec.encode(text, model)) > len(blob) + 50
    assert again.encode(text, model, embed=False) == blob
    assert (PMATICCodec.decode(blob, model, codec=again) == text).all()
    with pytest.raises(FormatError, match="give the codec's file"):
        PMATICCodec.decode(blob, model)
    with pytest.raises(FormatError, match="with another codec"):
        PMATICCodec.decode(blob, model, codec=calibrated(model, 0.5))
    damaged = bytearray((tmp_path / "codec.pmc").read_bytes())
    damaged[9] ^= 4
    (tmp_path / "codec.pmc").write_bytes(damaged)
    with pytest.raises(FormatError, match="was changed"):
        PMATICCodec.load(tmp_path / "codec.pmc")
    (tmp_path / "other").write_bytes(b"hello")
    with pytest.raises(FormatError, match="no codec written by Seedloom"):
        PMATICCodec.load(tmp_path / "other")
    with pytest.raises(DataError, match="cannot be read"):
        PMATICCodec.load(tmp_path / "nowhere")


def test_a_newer_format_is_told() -> None:
    blob = bytearray(calibrated_small().encode(np.zeros(4, dtype=np.int64), Noisy(16)))
    blob[8] = 2
    with pytest.raises(FormatError, match="is of format 2, this program reads format 1"):
        Archive.unpack(bytes(blob))


def test_the_same_input_gives_the_same_bytes() -> None:
    model, text = Noisy(256), Noisy(256).sample(500)
    assert calibrated(model).encode(text, model) == calibrated(model).encode(text, Blocks(256))


def test_models_are_named_and_another_one_is_warned_of() -> None:
    text = np.random.default_rng(0).choice(4, size=2000, p=[0.7, 0.2, 0.05, 0.05]).cumsum() % 4
    right, wrong = NGram.fit(text, 4, 3), NGram.fit((text + 1) % 4, 4, 3)
    codec = PMATICCodec(Delta=1e-3, chunk_tokens=64).calibrate(right, text[:1000])
    blob = codec.encode(text[:100], right)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (PMATICCodec.decode(blob, right) == text[:100]).all()
    with (
        pytest.warns(ModelMismatchWarning, match="another model"),
        pytest.raises(MismatchError, match=r"chunk \d"),
    ):
        PMATICCodec.decode(blob, wrong)
    with pytest.raises(MismatchError, match="model of 4 tokens, this one has 5"):
        PMATICCodec.decode(blob, Noisy(5))
    with pytest.raises(ConfigError, match="made for 4 tokens"):
        codec.encode([1], Noisy(5))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"Delta": 0}, "Delta = 0"),
        ({"Delta": float("nan")}, "Delta = nan"),
        ({"delta": -1}, "delta = -1"),
        ({"design": "best"}, "design = 'best'"),
        ({"tree": "oak"}, "tree = 'oak'"),
        ({"helper": "fixed"}, "helper = 'fixed'"),
        ({"design": "uniform_p", "Delta": 1.0}, "needs delta"),
        ({"chunk_tokens": 0}, "chunk_tokens = 0"),
        ({"chunk_tokens": 1 << 20}, "chunk_tokens = 1048576"),
        ({"safety": 0.5}, "safety = 0.5"),
    ],
)
def test_settings_that_cannot_be_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PMATICCodec(**values)


def test_inputs_that_cannot_be_are_refused() -> None:
    model = Noisy(16)
    with pytest.raises(ConfigError, match="Delta is missing"):
        PMATICCodec().calibrate(model, [1, 2])
    with pytest.raises(ConfigError, match="not calibrated"):
        PMATICCodec(Delta=1).encode([1], model)
    codec = calibrated_small()
    for tokens, said in (([16], "token 16 is outside"), ([-1], "token -1"), ([0.5], "row of integers")):
        with pytest.raises(DataError, match=said):
            codec.encode(tokens, model)
    with pytest.raises(ConfigError, match="rows = 0"):
        PMATICCodec.decode(codec.encode([1], model), model, rows=0)

    class Broken(Noisy):
        def logits(self, state: Any) -> np.ndarray:
            return super().logits(state) * np.nan

    with pytest.raises(NumericalError, match="not finite"):
        codec.encode([1, 2], Broken(16))


@pytest.mark.parametrize("text", [[], [3], [15, 0]])
def test_empty_and_short_texts(text: list[int]) -> None:
    blob = calibrated_small().encode(np.asarray(text, dtype=np.int64), Noisy(16))
    assert PMATICCodec.decode(blob, Noisy(16)).tolist() == text


def test_one_token_vocabularies_cost_nothing() -> None:
    codec = PMATICCodec(Delta=0.1).calibrate(Noisy(1))
    blob = codec.encode(np.zeros(5000, dtype=np.int64), Noisy(1))
    assert len(blob) < 200
    assert (PMATICCodec.decode(blob, Noisy(1)) == 0).all()


def test_blocks_are_cut_anew() -> None:
    rows = [np.arange(n)[:, None] for n in (3, 1, 7, 2)]
    found = list(in_blocks(rows, 4))
    assert [len(block) for block in found] == [4, 4, 4, 1]
    assert (np.concatenate(found) == np.concatenate(rows)).all()
