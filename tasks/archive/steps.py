"""The archive flow's steps as Prefect tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.archive.config import ArchiveSettings
from tasks.reference import Reference
from tasks.step import step


@step("archive-codec", kind="data", version="1", timeout_seconds=24 * 3600)
def calibrate_codec(
    out: Path, *, settings: ArchiveSettings, model: str, calibration: str, fingerprints: list[str]
) -> dict[str, Any]:
    """Measure the mismatch on calibration text and fit the codec."""
    from tasks.archive.archive import CODEC, make_codec
    from tasks.archive.predictors import load_predictor

    codec, facts = make_codec(load_predictor(model, settings), settings, calibration)
    codec.save(out / CODEC)
    (out / "codec.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    return facts


@step("archive", kind="data", version="1", timeout_seconds=7 * 24 * 3600)
def archive(
    out: Path,
    *,
    settings: ArchiveSettings,
    model: str,
    codec: Reference,
    source: Reference,
    fingerprints: list[str],
) -> dict[str, Any]:
    """Compress every file; those that a killed run has done are kept."""
    from methods.pmatic import PMATICCodec
    from tasks.archive.archive import CODEC, archive_files
    from tasks.archive.predictors import load_predictor

    folder = codec.expect("data")
    facts = json.loads((folder / "codec.json").read_text(encoding="utf-8"))
    loaded = load_predictor(model, settings)
    return archive_files(out, loaded, PMATICCodec.load(folder / CODEC), source.expect("data"), facts)


@step("archive-verify", kind="report", version="1", timeout_seconds=7 * 24 * 3600)
def verify_archive(
    out: Path, *, settings: ArchiveSettings, model: str, archive: Reference, fingerprints: list[str]
) -> dict[str, Any]:
    """Read every file back by each second computation."""
    from tasks.archive.archive import VERIFIED, verify
    from tasks.archive.predictors import load_predictor

    found = verify(
        archive.expect("data"), load_predictor(model, settings), settings.computations, settings.rows
    )
    (out / VERIFIED).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return found
