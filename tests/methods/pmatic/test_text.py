"""Text with real tokenizers and models: what is given comes back, by another computation, or an error does."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from methods.common.errors import ConfigError
from methods.pmatic import (
    Archive,
    BytePredictor,
    FormatError,
    HFCausalLM,
    MismatchError,
    NGram,
    PMATICCodec,
    Steps,
    calibrate_on_text,
    compress_text,
    decompress_text,
    estimate_mismatch,
)
from methods.pmatic.container import CODED, STORED
from methods.pmatic.predictor import next_window
from methods.pmatic.text import readable_segments, segments, tokenise
from tests.tiny_models import sentences, tiny_llama

TEXT = " ".join(sentences(30, 5))
CALIBRATION = " ".join(sentences(40, 6))


# The tiny model expects nothing: without this its segments were stored, and the coder not tested.
coded = partial(compress_text, store_larger=False)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tiny_llama(tmp_path_factory.mktemp("model"), vocabulary=280)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():  # a model that has opinions
        model.lm_head.weight.mul_(12)
    return model, AutoTokenizer.from_pretrained(folder)


def test_a_text_comes_back_by_the_cached_steps_of_its_model(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    blob = coded(
        TEXT,
        model,
        tokenizer,
        calibration=CALIBRATION,
        reference=Steps(HFCausalLM(model, tokenizer)),
        chunk_tokens=64,
    )
    assert decompress_text(blob, model, tokenizer) == TEXT
    assert decompress_text(blob, HFCausalLM(model, tokenizer), tokenizer, rows=3) == TEXT
    assert len(Archive.unpack(blob).chunks) > 2


def test_a_bound_for_another_number_format_is_kept_and_a_smaller_one_is_told(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    half = HFCausalLM(model, tokenizer, autocast=torch.bfloat16)
    text = TEXT[:300]
    # Untied random weights make bfloat16 differ by little; measured on other text, never on this one.
    codec = calibrate_on_text(
        PMATICCodec(chunk_tokens=64), HFCausalLM(model, tokenizer), CALIBRATION[:600], tokenizer, half
    )
    assert codec.report is not None
    assert codec.report.largest > 1e-3
    blob = coded(text, model, tokenizer, codec=codec)
    assert decompress_text(blob, half, tokenizer) == text
    tight = coded(TEXT, model, tokenizer, Delta=1e-6, calibration=CALIBRATION, chunk_tokens=512)
    with pytest.raises(MismatchError):
        decompress_text(tight, half, tokenizer)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "ünïcode — 漢字 🙂\n\ttabs",
        "a\r\nb\x00c",
        "\ud800 alone",
        b"\xff\xfe bytes \x80" * 40,
        b"",
        "  <s> </s> ",
    ],
)
def test_every_text_comes_back(loaded: tuple[Any, Any], text: str | bytes) -> None:
    model, tokenizer = loaded
    bytewise = NGram.fit_bytes(b"abcabc" * 9, 2)
    for make in (coded, compress_text):
        found = decompress_text(make(text, model, tokenizer, Delta=1e-3), model, tokenizer)
        assert found == text
        assert type(found) is type(text)
        assert decompress_text(make(text, bytewise, Delta=1e-3), bytewise) == text


def test_what_the_model_does_not_expect_is_stored() -> None:
    model = NGram.fit_bytes("\n".join(sentences(60, 1)).encode(), 3)
    expected, strange = "\n".join(sentences(20, 2)).encode()[:1024], np.random.default_rng(0).bytes(1024)
    options: dict[str, Any] = {"Delta": 1e-3, "chunk_tokens": 1024}
    blob = compress_text(expected + strange, model, **options)
    assert [chunk.kind for chunk in Archive.unpack(blob).chunks] == [CODED, STORED]
    assert decompress_text(blob, model) == expected + strange
    larger = coded(expected + strange, model, **options)
    assert len(blob) < len(larger) - 200
    assert decompress_text(larger, model) == expected + strange


def test_a_tokenizer_that_changes_what_it_reads_changes_nothing(loaded: tuple[Any, Any]) -> None:
    class Lower:
        """Normalises: its tokens cannot give capitals back."""

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": list(text.lower().encode())}

        def decode(self, ids: list[int], **_: Any) -> str:
            return bytes(ids).decode()

    model = NGram.fit_bytes(b"some lower case text" * 4, 2)
    text = "lower case\n" * 30 + "Capitals\n" * 30
    blob = compress_text(text, model, Lower(), Delta=1e-3, chunk_tokens=16)
    kinds = [chunk.kind for chunk in Archive.unpack(blob).chunks]
    assert 0 < kinds.count(STORED) < len(kinds)
    assert decompress_text(blob, model, Lower()) == text


def test_segments_follow_each_other_and_never_cut_a_character() -> None:
    data = ("wörter und zeichen 漢字\n" * 50).encode()
    parts = list(segments(data, 40, exact=False))
    assert b"".join(parts) == data
    assert all(part.decode() and len(part) <= 40 for part in parts)
    assert [len(part) for part in segments(data, 100, exact=True)][:-1] == [100] * (len(data) // 100)
    assert b"".join(segments(b"\x80" * 100, 30, exact=False)) == b"\x80" * 100
    assert tokenise(b"\xff", object()) is None


def test_damage_costs_one_chunk(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    predictor = HFCausalLM(model, tokenizer)
    blob = bytearray(coded(TEXT, model, tokenizer, Delta=1e-3, chunk_tokens=40))
    archive = Archive.unpack(bytes(blob))
    blob[-len(archive.chunks[-1].payload) - 2] ^= 8
    with pytest.raises(FormatError, match="was changed"):
        decompress_text(bytes(blob), model, tokenizer)
    found = readable_segments(Archive.unpack(bytes(blob)), predictor, tokenizer)
    assert sorted(found) == [i for i in range(len(archive.chunks)) if i != len(archive.chunks) - 2]
    assert found[0].decode() == TEXT[: len(found[0])]


def test_tokens_and_texts_are_not_mixed_up(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    with pytest.raises(FormatError, match="holds text"):
        PMATICCodec.decode(compress_text("a", model, tokenizer, Delta=1e-3), HFCausalLM(model, tokenizer))
    blob = PMATICCodec(Delta=1e-3).calibrate(HFCausalLM(model)).encode([1, 2], HFCausalLM(model))
    with pytest.raises(FormatError, match="holds token ids"):
        decompress_text(blob, model, tokenizer)
    with pytest.raises(ConfigError, match="neither a Predictor"):
        compress_text("a", 3, Delta=1)
    with pytest.raises(ConfigError, match="Delta is missing"):
        compress_text("a", model, tokenizer)


def test_another_tokenizer_is_refused(loaded: tuple[Any, Any], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model, tokenizer = loaded
    blob = coded(TEXT, model, tokenizer, Delta=1e-3)
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    whole = json.loads(file.read_text())
    ids = whole["model"]["vocab"]
    one, two = list(ids)[100:102]
    ids[one], ids[two] = ids[two], ids[one]
    file.write_text(json.dumps(whole))
    other = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(MismatchError, match="another tokenizer"):
        decompress_text(blob, model, other)


# -- torch models ---------------------------------------------------------------------------------------------------


def test_windows_start_anew_at_the_same_tokens_on_both_paths(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    ids = np.asarray(tokenizer(TEXT)["input_ids"])[:70]
    for window, overlap in ((16, 4), (9, 0), (32, 31 - 1), (200, None)):
        cached = HFCausalLM(model, tokenizer, window=window, overlap=overlap, block=5)
        whole = BytePredictor(
            model, model.config.vocab_size, window=window, overlap=overlap, start_token=cached.start_token
        )
        parallel = np.concatenate(
            list(HFCausalLM(model, tokenizer, window=window, overlap=overlap, block=999).score(ids))
        )
        assert parallel.shape == (len(ids), model.config.vocab_size)
        for other in (cached, Steps(cached), whole, Steps(whole)):
            assert np.concatenate(list(other.score(ids))) == pytest.approx(parallel, abs=2e-3)
    assert [next_window(n, 4, 2) for n in range(9)] == [0, 1, 2, 3, 2, 3, 2, 3, 2]


def test_rows_side_by_side_are_each_their_own_text(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    predictor = HFCausalLM(model, tokenizer, window=8, overlap=3)
    ids = np.asarray(tokenizer(TEXT)["input_ids"])[:60].reshape(3, 20)
    state = predictor.start(3)
    alone = [np.concatenate(list(predictor.score(row))) for row in ids]
    for step in range(20):
        for row in range(3):
            assert predictor.logits(state)[row] == pytest.approx(alone[row][step], abs=2e-3)
        predictor.push(state, ids[:, step])


def test_a_model_keeps_its_name_in_every_number_format(loaded: tuple[Any, Any]) -> None:
    import copy

    model, tokenizer = loaded
    first = HFCausalLM(model, tokenizer)
    half = HFCausalLM(copy.deepcopy(model).to(torch.bfloat16), tokenizer)
    assert first.fingerprint == half.fingerprint != bytes(16)
    assert first.tokenizer_fingerprint == half.tokenizer_fingerprint != bytes(16)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.lm_head.weight[0, 0] += 1
    assert HFCausalLM(changed, tokenizer).fingerprint != first.fingerprint
    assert HFCausalLM(model, tokenizer, window=64).fingerprint != first.fingerprint
    assert not first.model.training
    report = estimate_mismatch(first, half, tokenizer(CALIBRATION[:200])["input_ids"])
    assert report.largest > 0


def test_windows_that_cannot_be_are_refused(loaded: tuple[Any, Any]) -> None:
    model, _ = loaded
    for values, said in (
        ({"window": 1000}, "the model has 256 positions"),
        ({"window": 8, "overlap": 7}, "must leave room"),
        ({"window": 1}, "must leave room"),
        ({"block": 0}, "block = 0"),
        ({"start_token": 999}, "start token 999"),
    ):
        with pytest.raises(ConfigError, match=said):
            HFCausalLM(model, **values)
