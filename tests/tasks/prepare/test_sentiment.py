"""Rated sentences: read from the archive alone, the same bytes each time, refused when anything differs."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from methods.common.errors import DataError
from tasks.prepare.sentiment import FILE, read_sentences, sentences_from_sdist

NAMES = ("tweets", "movieReviewSnippets", "nytEditorialSnippets", "amazonReviewSnippets")
LINES = "1_1\t-0.75\tNot a word of it.\n1_2\t2.5\tAll of it, “warm”.\n"


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def sdist(folder: Path, lines: str = LINES, names: tuple[str, ...] = NAMES) -> Path:
    inner = packed({f"hutto_ICWSM_2014/{name}_GroundTruth.txt": lines.encode() for name in names})
    file = folder / "vaderSentiment-3.3.2.tar.gz"
    file.write_bytes(packed({"vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz": inner}))
    return file


def test_every_domain_is_read_and_the_bytes_repeat(tmp_path: Path) -> None:
    archive = sdist(tmp_path)
    record = sentences_from_sdist(archive, tmp_path / "a" / FILE, sha256=None)
    sentences_from_sdist(archive, tmp_path / "b" / FILE, sha256=None)
    assert (tmp_path / "a" / FILE).read_bytes() == (tmp_path / "b" / FILE).read_bytes()
    assert record["sentences"] == {"tweets": 2, "films": 2, "news": 2, "products": 2}
    assert record["sha256"] == hashlib.sha256((tmp_path / "a" / FILE).read_bytes()).hexdigest()
    rows = read_sentences(tmp_path / "a")
    assert rows[3] == {"domain": "films", "id": "1_2", "rating": 2.5, "text": "All of it, “warm”."}


def test_another_archive_is_refused_by_its_digest(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"has sha256 [0-9a-f]{12}\.\.\., expected 5d7c06e027fc\.\.\.; get it again"
    ):
        sentences_from_sdist(sdist(tmp_path), tmp_path / FILE)
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("1\t0.5\n", "tweets, line 1 has 2 fields"),
        ("1\tnan\ttext\n", "tweets, line 1 has the rating nan"),
        ("1\t4.5\ttext\n", "tweets, line 1 has the rating 4.5"),
        ("1\tgood\ttext\n", "could not convert string to float"),
        ("1\t1.0\t \n", "tweets, line 1 has 3 fields"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, lines: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        sentences_from_sdist(sdist(tmp_path, lines), tmp_path / FILE, sha256=None)


def test_files_that_are_no_such_archive_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"gone\.tar\.gz does not exist; get it with: seedloom fetch sentiment"
    ):
        sentences_from_sdist(tmp_path / "gone.tar.gz", tmp_path / FILE)
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="is not the source of vaderSentiment"):
        sentences_from_sdist(tmp_path / "x.tar.gz", tmp_path / FILE, sha256=None)
    with pytest.raises(DataError, match="amazonReviewSnippets_GroundTruth"):
        sentences_from_sdist(sdist(tmp_path, names=NAMES[:3]), tmp_path / FILE, sha256=None)


def test_missing_and_damaged_sentences_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist; `dvc repro data@sentiment` makes it"):
        read_sentences(tmp_path)
    (tmp_path / FILE).write_text(json.dumps({"domain": "tweets"}) + "\n{")
    with pytest.raises(DataError, match="is damaged"):
        read_sentences(tmp_path)
