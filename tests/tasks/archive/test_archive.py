"""Folders as archives: every file comes back by a second computation before the first one may go."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from methods.common.errors import ConfigError, DataError
from methods.pmatic import FormatError, MismatchError, NGram, PMATICCodec
from tasks.archive import archive as module
from tasks.archive.archive import (
    CODEC,
    MANIFEST,
    VERIFIED,
    archive_files,
    describe,
    drop_original,
    make_codec,
    read_manifest,
    restore,
    source_names,
    verify,
)
from tasks.archive.config import ArchiveSettings
from tasks.archive.predictors import Loaded, check_model, load_predictor
from tests.tiny_models import sentences, tiny_llama, toy_text

SETTINGS = ArchiveSettings(chunk_tokens=256, mismatch_tokens=64, calibration_tokens=2000)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that both sides have."""
    file = tmp_path_factory.mktemp("known") / "known.txt"
    file.write_text("\n".join(sentences(200, 3)))
    return file


@pytest.fixture(scope="module")
def loaded(known: Path) -> Loaded:
    return load_predictor(f"ngram:{known}", SETTINGS)


@pytest.fixture(scope="module")
def codec(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> tuple[PMATICCodec, dict[str, Any]]:
    text = toy_text(tmp_path_factory.mktemp("calibration") / "text.jsonl", documents=20, seed=8)
    return make_codec(loaded, SETTINGS, str(text))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep/er").mkdir(parents=True)
    (folder / "a.txt").write_text("\n".join(sentences(30, 9)))
    (folder / "deep/empty").write_bytes(b"")
    (folder / "deep/er/b.bin").write_bytes(bytes(range(256)) * 3)
    return folder


def test_a_folder_comes_back_byte_for_byte(
    loaded: Loaded, codec: tuple[PMATICCodec, dict[str, Any]], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    summary = archive_files(out, loaded, *_given(codec, source))
    assert summary["files"] == 3
    assert summary["source_bytes"] == sum(p.stat().st_size for p in source.rglob("*") if p.is_file())
    found = verify(out, loaded, SETTINGS.computations, 4)
    assert found == {
        "files": 3,
        "bytes": summary["source_bytes"],
        "computations": ["steps"],
        "verified": True,
    }
    assert restore(out, loaded, tmp_path / "again", 4) == 3
    for name, path in source_names(source).items():
        assert (tmp_path / "again" / name).read_bytes() == path.read_bytes()
    with pytest.raises(DataError, match=r"a.txt exists already"):
        restore(out, loaded, tmp_path / "again", 4)


def _given(
    codec: tuple[PMATICCodec, dict[str, Any]], source: Path
) -> tuple[PMATICCodec, Path, dict[str, Any]]:
    return codec[0], source, codec[1]


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(
    loaded: Loaded,
    codec: tuple[PMATICCodec, dict[str, Any]],
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive_files(tmp_path / "whole", loaded, *_given(codec, source))
    done: list[int] = []
    compress = module.compress_text

    def counted(data: bytes, *arguments: Any, **options: Any) -> bytes:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(len(data))
        return compress(data, *arguments, **options)

    monkeypatch.setattr(module, "compress_text", counted)
    with pytest.raises(KeyboardInterrupt):
        archive_files(tmp_path / "out", loaded, *_given(codec, source))
    # A file that the kill cut short is written anew.
    place = sorted((tmp_path / "out/files").glob("*.pmz"))[0]
    place.write_bytes(place.read_bytes()[:-3])
    again: list[int] = []
    monkeypatch.setattr(
        module, "compress_text", lambda data, *a, **o: again.append(len(data)) or compress(data, *a, **o)
    )
    archive_files(tmp_path / "out", loaded, *_given(codec, source))
    assert len(again) == 2
    for path in (tmp_path / "whole").rglob("*"):
        if path.is_file():
            assert (tmp_path / "out" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()


def test_the_original_goes_only_when_it_was_read_back_and_is_still_the_same(
    loaded: Loaded, codec: tuple[PMATICCodec, dict[str, Any]], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    archive_files(out, loaded, *_given(codec, source))
    with pytest.raises(DataError, match="was not verified; the original stays"):
        drop_original(source, out)
    (out / VERIFIED).write_text(json.dumps(verify(out, loaded, ("steps",), 4)))
    before = (source / "a.txt").read_text()
    (source / "a.txt").write_text(before + "!")
    with pytest.raises(DataError, match=r"a.txt: was changed since"):
        drop_original(source, out)
    (source / "a.txt").write_text(before)
    (source / "new.txt").write_text("")
    with pytest.raises(DataError, match=r"new.txt was added or removed"):
        drop_original(source, out)
    assert (source / "a.txt").read_text() == before
    (source / "new.txt").unlink()
    assert drop_original(source, out) == 3
    assert not source.exists()
    restore(out, loaded, source, 4)
    assert (source / "a.txt").read_text() == before


def test_a_damaged_or_foreign_archive_is_told_by_file(
    loaded: Loaded, codec: tuple[PMATICCodec, dict[str, Any]], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    archive_files(out, loaded, *_given(codec, source))
    place = out / "files/00000.pmz"
    blob = bytearray(place.read_bytes())
    blob[-2] ^= 1
    place.write_bytes(blob)
    with pytest.raises(FormatError, match=r"a.txt: chunk \d was changed"):
        verify(out, loaded, ("steps",), 4)
    place.unlink()
    with pytest.raises(FormatError, match=r"a.txt: its archive files/00000.pmz is missing"):
        verify(out, loaded, ("steps",), 4)
    with pytest.raises(FormatError, match="holds no manifest"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "", 3, "a\\..\\b"])
def test_names_that_point_outside_are_refused(
    name: Any, loaded: Loaded, codec: tuple[PMATICCodec, dict[str, Any]], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    archive_files(out, loaded, *_given(codec, source))
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["files"][0]["name"] = name
    (out / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match="points outside"):
        restore(out, loaded, tmp_path / "again", 4)
    assert not (tmp_path / "again").exists()


def test_another_model_is_told(
    codec: tuple[PMATICCodec, dict[str, Any]], loaded: Loaded, source: Path, tmp_path: Path
) -> None:
    archive_files(tmp_path / "out", loaded, *_given(codec, source))
    other = Loaded(NGram.fit_bytes(b"something else entirely" * 20))
    with (
        pytest.warns(UserWarning, match="another model"),
        pytest.raises(MismatchError, match=r"a.txt: chunk \d"),
    ):
        verify(tmp_path / "out", other, ("steps",), 4)


def test_a_language_model_archives_a_data_set_and_reads_it_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset

    # The untrained model expects nothing: its segments would be stored.
    monkeypatch.setattr(module, "compress_text", partial(module.compress_text, store_larger=False))
    folder = tiny_llama(tmp_path / "model")
    Dataset.from_dict({"text": sentences(40, 4)}).save_to_disk(str(tmp_path / "source"))
    (tmp_path / "other.txt").write_text("\n".join(sentences(60, 5)))
    settings = ArchiveSettings(
        computations=("steps", "bfloat16"), mismatch_tokens=128, calibration_tokens=900
    )
    loaded = load_predictor(str(folder), settings)
    codec, facts = make_codec(loaded, settings, str(tmp_path / "other.txt"))
    assert facts["Delta"] == pytest.approx(4 * max(r["largest"] for r in facts["mismatch"].values()))
    assert facts["mismatch"]["bfloat16"]["largest"] > facts["mismatch"]["steps"]["largest"]
    archive_files(tmp_path / "out", loaded, codec, tmp_path / "source", facts)
    assert verify(tmp_path / "out", loaded, settings.computations, 8)["verified"]
    shown = [describe(path.read_bytes()) for path in (tmp_path / "out/files").glob("*.pmz")]
    assert any(
        facts["tokens"] > 100 for facts in shown
    )  # the column of text inside the Arrow file is coded as text
    assert all(facts["codec bytes"] == 0 for facts in shown)
    assert PMATICCodec.load(tmp_path / "out" / CODEC).digest == codec.digest


def test_mistakes_are_told_before_any_work(known: Path, loaded: Loaded, tmp_path: Path) -> None:
    for source, said in (("nowhere", "give a model folder"), ("ngram:nowhere.txt", "there is no such file")):
        with pytest.raises(DataError, match=said):
            check_model(source)
    with pytest.raises(ConfigError, match="an n-gram model has 'steps' only"):
        loaded.second("bfloat16")
    with pytest.raises(DataError, match="calibration is missing"):
        make_codec(loaded, SETTINGS, "")
    assert make_codec(loaded, ArchiveSettings(bound=0.1), "")[1]["Delta"] == 0.1
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no files"):
        source_names(tmp_path / "empty")
    (tmp_path / "empty/link").symlink_to(known)
    with pytest.raises(DataError, match="is a link"):
        source_names(tmp_path / "empty")
    with pytest.raises(ValueError, match="nothing could be measured"):
        ArchiveSettings(calibration_tokens=0)
