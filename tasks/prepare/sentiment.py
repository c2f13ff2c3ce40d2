"""Sentences of four domains with the mean rating of 20 people, from the source archive of `vaderSentiment` (MIT).

Hutto and Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text", ICWSM
2014: 4,200 tweets, 10,605 snippets of film reviews, 5,190 of New York Times editorials, 3,708 of product
reviews.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import tarfile
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from tasks.prepare.bundled import check_archive

REQUIREMENT = "vaderSentiment==3.3.2"
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
COMMAND = "seedloom fetch sentiment data/sentiment"
FILE = "sentences.jsonl"
_INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_MEMBER = "hutto_ICWSM_2014/{}_GroundTruth.txt"
_LARGEST = 16 * 2**20  # bytes of one member; the real ones have at most 2.3 MB
DOMAINS = {
    "tweets": "tweets",
    "films": "movieReviewSnippets",
    "news": "nytEditorialSnippets",
    "products": "amazonReviewSnippets",
}


def sentences_from_sdist(archive: Path, out: Path, *, sha256: str | None = SHA256) -> dict[str, Any]:
    """Write the rated sentences as JSON lines (`domain, id, rating, text`); the archive is read in memory.

    Args:
        archive: `vaderSentiment-3.3.2.tar.gz`.
        out: the file to write, the same bytes for the same archive.
        sha256: what the archive's digest must be; None accepts any (for another version).

    Returns: counts, digests, licence and source, JSON-able. Ratings lie in -4..4.

    Errors: `DataError` with the file and the remedy: absent, another digest, not such an archive, damaged.
    """
    found = check_archive(archive, sha256, COMMAND)
    rows: list[dict[str, Any]] = []
    try:
        with tarfile.open(archive, "r:gz") as outer:
            inner = _read(outer, _INNER)
        with tarfile.open(fileobj=io.BytesIO(inner), mode="r:gz") as papers:
            for domain, name in DOMAINS.items():
                rows += _rows(domain, _read(papers, _MEMBER.format(name)).decode("utf-8"))
    except (tarfile.TarError, KeyError, ValueError, OSError, EOFError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{archive} is not the source of {REQUIREMENT} ({error}); get it with: {COMMAND}"
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.replace(out)
    return {
        "sentences": {domain: sum(row["domain"] == domain for row in rows) for domain in DOMAINS},
        "archive_sha256": found,
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        "source": f"{REQUIREMENT} (PyPI, source archive)",
        "licence": "MIT",
    }


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.getmember(name)
    handle = archive.extractfile(member)
    if handle is None or member.size > _LARGEST:
        raise DataError(f"{name} in the archive is not a file of sentences; get it again with: {COMMAND}")
    return handle.read()


def _rows(domain: str, text: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) != 3 or not fields[2].strip():
            raise ValueError(f"{domain}, line {number} has {len(fields)} fields")
        rating = float(fields[1])
        if not math.isfinite(rating) or abs(rating) > 4:
            raise ValueError(f"{domain}, line {number} has the rating {fields[1]}")
        rows.append({"domain": domain, "id": fields[0], "rating": rating, "text": fields[2].strip()})
    return rows


def read_sentences(folder: Path) -> list[dict[str, Any]]:
    """The rows of `sentences.jsonl` in a folder that `seedloom fetch sentiment` made.

    Raises:
        DataError: it is not there or cannot be read; names the command.
    """
    path = folder / FILE
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; `dvc repro data@sentiment` makes it, or `{COMMAND}`"
        ) from None
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); make it again: {COMMAND}") from error
