"""Files as archives: calibrate a codec, compress a folder file by file, read everything back, restore.

A folder's archive holds `codec.pmc`, one `files/NNNN.pmz` a file, and `manifest.json` with names, sizes and digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from methods.common.errors import DataError
from methods.pmatic import Archive, FormatError, MismatchError, PMATICCodec, compress_text, decompress_text
from methods.pmatic.mismatch import MismatchReport, estimate_mismatch
from methods.pmatic.text import tokenise
from tasks.archive.config import ArchiveSettings, Computation
from tasks.archive.predictors import Loaded, text_settings
from tasks.prepare.text import read_documents
from tasks.reference import file_digest

MANIFEST = "manifest.json"
CODEC = "codec.pmc"
FILES = "files"
VERIFIED = "verified.json"
FORMAT = 1
LARGEST = 1 << 30  # bytes of a file: it is held in memory


# -- the codec ------------------------------------------------------------------------------------------------------


def calibration_tokens(loaded: Loaded, source: str, settings: ArchiveSettings) -> list[np.ndarray]:
    """Texts of the calibration source as token ids, each no longer than a chunk, up to the wanted number of tokens.

    Raises:
        DataError: the source holds no text.
    """
    found: list[np.ndarray] = []
    left = settings.calibration_tokens
    documents, _ = read_documents(text_settings(source))
    for _, text in documents:
        ids = (
            tokenise(text.encode("utf-8", "surrogatepass"), loaded.tokenizer) if len(text) < 1 << 16 else None
        )
        if ids is None:  # longer than a chunk can be, or not invertible: its lines
            lines = [line + "\n" for line in text.split("\n")]
            parts = [tokenise(line.encode("utf-8", "surrogatepass"), loaded.tokenizer) for line in lines]
            whole = [part for part in parts if part is not None and len(part)]
            ids = np.concatenate(whole) if whole else np.empty(0, np.int64)
        for at in range(0, len(ids), settings.chunk_tokens):
            part = ids[at : at + min(left, settings.chunk_tokens)]
            if len(part):
                found.append(part)
            left -= len(part)
            if left <= 0:
                return found
    if not found:
        raise DataError(f"calibration {source}: holds no text; give some that is like what will be archived")
    return found


def make_codec(
    loaded: Loaded, settings: ArchiveSettings, calibration: str
) -> tuple[PMATICCodec, dict[str, Any]]:
    """A codec for a model, fitted on calibration text: never on what will be archived.

    Args:
        calibration: a text source; empty only with a given bound.

    Returns:
        the codec; and the bound, the measured mismatch by computation, intervals, expected redundancy, bytes of the
        codec.

    Raises:
        DataError: no calibration text. ConfigError: a computation that the model does not have.
    """
    texts = calibration_tokens(loaded, calibration, settings) if calibration else []
    reports = {} if settings.bound else _measured(loaded, settings, texts)
    Delta = settings.bound or max(report.Delta(settings.safety) for report in reports.values())
    codec = PMATICCodec(
        Delta=Delta, design=settings.design, tree=settings.tree, chunk_tokens=settings.chunk_tokens
    )
    codec.calibrate(loaded.predictor, texts)
    facts: dict[str, Any] = {
        "Delta": Delta,
        "safety": settings.safety if reports else 0.0,
        "mismatch": {name: report.as_dict() for name, report in reports.items()},
        "intervals": len(codec.synchroniser.colours),
        "codec_bytes": len(codec.to_bytes()),
        "calibration_tokens": sum(len(text) for text in texts),
    }
    return codec, facts


def _measured(
    loaded: Loaded, settings: ArchiveSettings, texts: Sequence[np.ndarray]
) -> dict[str, MismatchReport]:
    few: list[np.ndarray] = []
    left = settings.mismatch_tokens
    for text in texts:
        if left > 0:
            few.append(text[:left])
            left -= len(few[-1])
    if not few:
        raise DataError("calibration is missing: the mismatch is measured on it; give text, or a bound")
    return {
        name: estimate_mismatch(loaded.predictor, loaded.second(name), few) for name in settings.computations
    }


# -- folders --------------------------------------------------------------------------------------------------------


def source_names(source: Path) -> dict[str, Path]:
    """The files of a source by their names in the archive.

    Raises:
        DataError: nothing there, a link, or a file that is too large.
    """
    if source.is_file():
        found = {source.name: source}
    else:
        found = {
            path.relative_to(source).as_posix(): path
            for path in sorted(source.rglob("*"))
            if not path.is_dir()
        }
    if not found:
        raise DataError(f"source {source}: holds no files")
    for path in found.values():
        if path.is_symlink() or not path.is_file():
            raise DataError(
                f"source {path}: is a link or no plain file; replace it by a file, or leave it out"
            )
        if path.stat().st_size > LARGEST:
            raise DataError(f"source {path}: is larger than {LARGEST >> 30} GiB; split it")
    return found


def archive_files(
    out: Path, loaded: Loaded, codec: PMATICCodec, source: Path, facts: dict[str, Any]
) -> dict[str, Any]:
    """Compress every file of a source into `out`; files that a killed run has done are not done again.

    Returns:
        files, bytes before and after (codec and manifest included), ratio, bits per byte.

    Raises:
        DataError: a file that cannot be archived.
    """
    (out / FILES).mkdir(parents=True, exist_ok=True)
    codec.save(out / CODEC)
    entries = []
    for index, (name, path) in enumerate(source_names(source).items()):
        data = path.read_bytes()
        place = out / FILES / f"{index:05d}.pmz"
        if not _is_done(place, data, codec):
            blob = compress_text(data, loaded.predictor, loaded.tokenizer, codec=codec, embed=False)
            part = place.with_suffix(".part")
            part.write_bytes(blob)
            part.replace(place)
        entries.append(
            {
                "name": name,
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "archive": f"{FILES}/{place.name}",
                "bytes": place.stat().st_size,
            }
        )
    manifest = {
        "format": FORMAT,
        "codec": CODEC,
        "codec_sha256": file_digest(out / CODEC),
        "model": {"name": loaded.predictor.name, "fingerprint": loaded.predictor.fingerprint.hex()},
        "Delta": codec.synchroniser.Delta,
        **facts,
        "files": entries,
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    before = sum(entry["size"] for entry in entries)
    after = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return {
        "files": len(entries),
        "source_bytes": before,
        "archive_bytes": after,
        "ratio": after / before if before else 0.0,
        "bits_per_byte": 8 * after / before if before else 0.0,
    }


def _is_done(place: Path, data: bytes, codec: PMATICCodec) -> bool:
    if not place.is_file():
        return False
    try:
        held = Archive.unpack(place.read_bytes())
    except FormatError:
        return False
    return held.codec_digest == codec.digest and held.content_digest == hashlib.sha256(data).digest()[:16]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an archived folder, its names checked.

    Raises:
        FormatError: none, damaged, of a later format, or with names that point elsewhere.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        entries = manifest["files"]
        version = manifest["format"]
        for entry in entries:
            _check_name(entry["name"])
            if not re.fullmatch(rf"{FILES}/\d{{5,}}\.pmz", entry["archive"]):
                raise FormatError(f"{folder / MANIFEST}: names the archive {entry['archive']!r}")
            int(entry["size"]), str(entry["sha256"])
    except OSError as error:
        raise FormatError(
            f"{folder}: holds no {MANIFEST}; give a folder that the archive flow wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{folder / MANIFEST}: is damaged") from error
    if version != FORMAT:
        raise FormatError(f"{folder / MANIFEST}: is of format {version}, this program reads format {FORMAT}")
    return manifest


def _check_name(name: Any) -> None:
    """Refuse names that would be written outside the restored folder."""
    parts = PurePosixPath(str(name)).parts
    if (
        not isinstance(name, str)
        or not parts
        or name.startswith("/")
        or ".." in parts
        or "\\" in name
        or "\0" in name
    ):
        raise FormatError(f"{MANIFEST}: the file name {name!r} points outside the archive")


def read_back(
    folder: Path, loaded: Loaded, computation: Computation, rows: int
) -> Iterator[tuple[str, bytes]]:
    """Every file of an archived folder by one computation, each checked against its digest.

    Raises:
        FormatError, MismatchError: naming the file.
    """
    manifest = read_manifest(folder)
    codec = PMATICCodec.load(folder / CODEC)
    predictor = loaded.second(computation)
    for entry in manifest["files"]:
        name = entry["name"]
        try:
            blob = (folder / entry["archive"]).read_bytes()
            found = decompress_text(
                blob, predictor, loaded.tokenizer, codec=codec, rows=rows, most=min(LARGEST, entry["size"])
            )
        except OSError as error:
            raise FormatError(f"{name}: its archive {entry['archive']} is missing") from error
        except FormatError as error:
            raise FormatError(f"{name}: {error}") from error
        except MismatchError as error:
            raise MismatchError(f"{name}: {error}", error.chunk, error.token) from error
        data = found.encode("utf-8", "surrogatepass") if isinstance(found, str) else found
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise MismatchError(f"{name}: the restored file is not the one that was archived")
        yield name, data


def verify(folder: Path, loaded: Loaded, computations: Sequence[Computation], rows: int) -> dict[str, Any]:
    """Read every file back by every computation.

    Returns:
        files and bytes read, by which computations.

    Raises:
        MismatchError, FormatError: the first file that does not come back.
    """
    files = size = 0
    for computation in computations:
        files = size = 0
        for _, data in read_back(folder, loaded, computation, rows):
            files, size = files + 1, size + len(data)
    return {"files": files, "bytes": size, "computations": list(computations), "verified": True}


def restore(folder: Path, loaded: Loaded, out: Path, rows: int) -> int:
    """Write the files of an archived folder below `out`, which must not hold any of them; returns how many.

    Raises:
        DataError: a file is there already. FormatError, MismatchError: as `read_back`.
    """
    names = [entry["name"] for entry in read_manifest(folder)["files"]]
    if there := [name for name in names if (out / name).exists()]:
        raise DataError(f"{out / there[0]} exists already; name an empty or new folder")
    count = 0
    for name, data in read_back(folder, loaded, "steps", rows):
        place = out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}.part")
        part.write_bytes(data)
        part.replace(place)
        count += 1
    return count


def drop_original(source: Path, folder: Path) -> int:
    """Delete the files of a source that its verified archive holds, unchanged since; returns how many.

    Raises:
        DataError: the archive is not verified, or a file was changed, added or removed since; nothing is deleted
            then.
    """
    try:
        verified = json.loads((folder / VERIFIED).read_text(encoding="utf-8")).get("verified") is True
    except (OSError, ValueError, AttributeError):
        verified = False
    if not verified:
        raise DataError(f"{folder}: was not verified; the original stays")
    entries = {entry["name"]: entry for entry in read_manifest(folder)["files"]}
    files = source_names(source)
    if set(files) != set(entries):
        odd = sorted(set(files) ^ set(entries))[0]
        raise DataError(f"{source}: {odd} was added or removed since it was archived; the original stays")
    for name, path in files.items():
        if hashlib.sha256(path.read_bytes()).hexdigest() != entries[name]["sha256"]:
            raise DataError(f"{path}: was changed since it was archived; the original stays")
    for path in files.values():
        path.unlink()
    if source.is_dir():
        for place, _, _ in os.walk(source, topdown=False):
            if not os.listdir(place):
                Path(place).rmdir()
    return len(files)


def describe(blob: bytes) -> dict[str, Any]:
    """What an archive says of itself, without any model."""
    archive = Archive.unpack(blob)
    found: dict[str, Any] = {
        "bytes": len(blob),
        "holds": "text" if archive.text else "token ids",
        "content bytes": archive.size,
        "tokens": archive.tokens,
        "chunks": len(archive.chunks),
        "stored chunks": sum(chunk.kind for chunk in archive.chunks),
        "bits per byte": 8 * len(blob) / archive.size if archive.size else 0.0,
        "model": archive.name,
        "model fingerprint": archive.model.hex(),
        "tokenizer fingerprint": archive.tokenizer.hex(),
        "codec": archive.codec_digest.hex(),
        "codec bytes": len(archive.codec),
    }
    if archive.codec:
        found |= describe_codec(PMATICCodec.from_bytes(archive.codec))
    return found


def describe_codec(codec: PMATICCodec) -> dict[str, Any]:
    """The bound and the design of a codec."""
    design = codec.synchroniser
    return {
        "Delta": design.Delta,
        "bound": "log-odds" if design.kind == "logit" else "total variation",
        "boundaries": len(design.edges) // 2,
        "tree": f"{codec.tree.kind}, {codec.tree.size} tokens, depth {codec.tree.depth}",
        "chunk tokens": codec.chunk_tokens,
    }
