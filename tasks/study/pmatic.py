"""The study of `pmatic` as steps. A finished part, and each finished seed in it, is not done again."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError
from methods.pmatic.study_data import Split, byte_ids, split
from tasks.one_thread import one_thread
from tasks.prepare.config import ModelSettings, TextSettings
from tasks.prepare.models import check_model_source
from tasks.prepare.text import check_text_source, read_documents
from tasks.reference import Reference
from tasks.step import step
from tasks.study.pmatic_config import Part, PmaticStudy

logger = logging.getLogger("seedloom")
VERSION = "1"
DEFAULT_DATA = str(PmaticStudy.model_fields["data"].default)
ALL: tuple[Part, ...] = ("design", "sizes", "violations", "robust", "llm")
TIMES = (1.0, 1.6, 4.0)
CONTEXT = 256


def text_settings(config: PmaticStudy) -> TextSettings:
    return TextSettings(source=config.data, calibration_bytes=0)


def model_settings(config: PmaticStudy) -> ModelSettings:
    return ModelSettings(source=config.model, dtype="float32")


def parts_of(config: PmaticStudy) -> tuple[Part, ...]:
    """The parts to do; the full profile does all."""
    return ALL if config.profile == "full" else config.parts


def check_study(config: PmaticStudy) -> None:
    """Refuse text, models and packages that are not there.

    Raises:
        DataError, ConfigError: one line that names the field and the remedy.
    """
    if config.data == DEFAULT_DATA and not Path(config.data).exists():
        raise ConfigError(
            f"data={DEFAULT_DATA}: is not there; `dvc repro data@kjv` makes it, or name text of your own"
        )
    check_text_source(text_settings(config))
    if wrong := [delta for delta in config.deltas if not 0 < delta < 0.2]:
        raise ConfigError(f"deltas: {wrong[0]} is not between 0 and 0.2")
    if "sizes" in parts_of(config):
        from methods.pmatic.study_sizes import check_peers

        check_peers()
    if "llm" in parts_of(config):
        check_model_source(model_settings(config))


@step("study-pmatic-text", kind="text", version=VERSION, timeout_seconds=3600)
def study_text(out: Path, *, settings: TextSettings, fingerprint: str) -> dict[str, Any]:
    """All documents of the source as one file of bytes."""
    documents, provenance = read_documents(settings)
    text = "\n".join(text for _, text in documents).encode("utf-8", "surrogatepass")
    split(text, 0)
    (out / "text").write_bytes(text)
    return {"bytes": len(text), "licence": provenance["licence"]}


@step("study-pmatic", kind="report", version=VERSION, timeout_seconds=7 * 24 * 3600)
def study_part(
    out: Path, *, part: Part, settings: PmaticStudy, text: Reference, model: Reference | None = None
) -> dict[str, Any]:
    """One part: its rows as `<part>.jsonl`."""
    whole = (text.expect("text") / "text").read_bytes()
    if part == "llm":
        assert model is not None
        folder = model.expect("model")
        rows = _once(out, "llm", lambda: _llm(settings, whole, folder))
    else:
        work = {"design": _design, "sizes": _sizes, "violations": _violations, "robust": _robust}[part]
        seeds = settings.seeds[:1] if part == "violations" else settings.seeds
        rows = [
            row
            for seed in seeds
            for row in _once(
                out, f"{part}-{seed}", lambda seed=seed: work(settings, split(whole, seed), seed)
            )
        ]
    seconds = sum(row.pop("seconds", 0.0) for row in rows)
    write_rows(out / f"{part}.jsonl", rows)
    for kept in out.glob(".*.json"):
        kept.unlink()
    return {"rows": len(rows), "timings": {"cpu_seconds": seconds}}


def _once(out: Path, name: str, work: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of a piece of work, from what a killed run left or made now."""
    place = out / f".{name}.json"
    if not place.is_file():
        logger.info("pmatic: %s started", name)
        started = time.process_time()
        with one_thread():
            rows = work()
        if rows:
            rows[0]["seconds"] = time.process_time() - started
        part = place.with_suffix(".part")
        part.write_text(json.dumps(rows), encoding="utf-8")
        part.replace(place)
    found: list[dict[str, Any]] = json.loads(place.read_text(encoding="utf-8"))
    return found


def _design(settings: PmaticStudy, parts: Split, seed: int) -> list[dict[str, Any]]:
    from methods.pmatic.study_design import design_rows

    return design_rows(parts, seed, settings.deltas)


def _sizes(settings: PmaticStudy, parts: Split, seed: int) -> list[dict[str, Any]]:
    from methods.pmatic.study_sizes import ngram_sizes, peer_sizes

    return ngram_sizes(parts, seed) + peer_sizes(parts, seed)


def _violations(settings: PmaticStudy, parts: Split, seed: int) -> list[dict[str, Any]]:
    from methods.pmatic import NGram, PMATICCodec
    from methods.pmatic.study_violations import violation_rows

    model = NGram.fit_bytes(parts.train)
    codec = PMATICCodec(1e-2).calibrate(model, byte_ids(parts.calibration))
    return violation_rows(codec, model, parts.test, TIMES, min(settings.streams, len(parts.test) // 100))


def _robust(settings: PmaticStudy, parts: Split, seed: int) -> list[dict[str, Any]]:
    import numpy as np

    from methods.pmatic import HFCausalLM
    from methods.pmatic.study_robust import START, byte_decoders, robust_rows, train_byte_model
    from methods.pmatic.tree import CodeTree

    model = train_byte_model(parts.train, seed, settings.train_steps, context=CONTEXT)
    size = min(settings.file_bytes, len(parts.test) // 2)
    starts = np.linspace(0, len(parts.test) - size, settings.files).round().astype(int)
    files = [byte_ids(parts.test[at : at + size]) for at in starts]
    calibration = [
        byte_ids(parts.calibration[at : at + 4096])
        for at in range(0, min(32_768, len(parts.calibration)), 4096)
    ]
    counts = np.bincount(byte_ids(parts.train), minlength=START + 1)
    rows = robust_rows(
        HFCausalLM(model, window=CONTEXT, start_token=START),
        byte_decoders(model, CONTEXT),
        files,
        calibration,
        [calibration[0][: settings.mismatch_tokens]],
        CodeTree.huffman(counts),
        done=lambda row: logger.info(
            "pmatic: %s: %s of %s decoded", row["pair"], row["pmatic_decoded"], row["pmatic_files"]
        ),
    )
    return [{"seed": seed, **row} for row in rows]


def _llm(settings: PmaticStudy, text: bytes, folder: Path) -> list[dict[str, Any]]:
    from methods.pmatic.study_llm import llm_files, llm_sizes
    from tasks.archive.config import ArchiveSettings
    from tasks.archive.predictors import load_predictor

    loaded = load_predictor(str(folder), ArchiveSettings())
    parts = split(text, 0)
    data = parts.test[: settings.llm_bytes]
    files = [data[at : at + 1024] for at in range(0, 20 * 1024 * settings.llm_files, 20 * 1024)]
    few = [_whole_characters(part) for part in files if len(part)][: settings.llm_files]
    model: Any = loaded.predictor
    fit = _whole_characters(parts.calibration)
    rows = llm_sizes(model, loaded.tokenizer, _whole_characters(data), fit)
    return rows + llm_files(model, loaded.tokenizer, few, fit)


def _whole_characters(data: bytes) -> bytes:
    """Without the halves of characters at the ends."""
    return data.decode("utf-8", "ignore").encode()


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows), encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a finished part."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
