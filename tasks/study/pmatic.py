"""The study of `pmatic` as steps. A finished part, and each finished seed in it, is not done again."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError
from methods.pmatic.study_data import Split, byte_ids, split
from tasks.one_thread import one_thread
from tasks.prepare.config import ModelSettings, TextSettings
from tasks.prepare.models import check_model_source
from tasks.prepare.text import check_text_source, read_documents
from tasks.quiet import quiet_progress
from tasks.reference import Reference
from tasks.step import step
from tasks.study.pmatic_config import Part, PmaticStudy

logger = logging.getLogger("seedloom")
VERSION = "1"
Rows = list[dict[str, Any]]
Work = Callable[[], Rows]
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


# What each part depends on: a part is not done again when another part's settings change.
OWN: dict[Part, tuple[str, ...]] = {
    "design": ("seeds", "deltas"),
    "sizes": ("seeds",),
    "violations": ("seeds", "streams"),
    "robust": ("seeds", "models", "pairs", "files", "file_bytes", "mismatch_tokens", "train_steps"),
    "llm": ("seeds", "llm_files", "llm_bytes"),
}


def settings_of(part: Part, config: PmaticStudy) -> PmaticStudy:
    """The settings that count for a part; where text and model lie are none of them."""
    own = {name: getattr(config, name) for name in OWN[part]}
    return PmaticStudy.model_validate({**own, "data": "given", "model": "given", "parts": ("design",)})


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
    pieces = {
        "design": lambda seed: [(f"design-{seed}", lambda: _design(settings, split(whole, seed), seed))],
        "sizes": lambda seed: [(f"sizes-{seed}", lambda: _sizes(split(whole, seed), seed))],
        "violations": lambda seed: [("violations", lambda: _violations(settings, split(whole, seed)))],
        "robust": lambda seed: _robust(settings, split(whole, seed), seed, out),
        "llm": lambda seed: _llm(
            settings, split(whole, seed), None if model is None else model.expect("model")
        ),
    }[part]
    count = {"violations": 1, "llm": 1, "robust": settings.models}.get(part, len(settings.seeds))
    seeds = settings.seeds[:count]
    rows = [row for seed in seeds for name, work in pieces(seed) for row in _once(out, name, work)]
    seconds = sum(row.pop("seconds", 0.0) for row in rows)
    write_rows(out / f"{part}.jsonl", rows)
    for kept in out.glob(".*"):
        shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
    return {"rows": len(rows), "timings": {"cpu_seconds": seconds}}


def _once(out: Path, name: str, work: Work) -> Rows:
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


def _design(settings: PmaticStudy, parts: Split, seed: int) -> Rows:
    from methods.pmatic.study_design import design_rows

    return design_rows(parts, seed, settings.deltas)


def _sizes(parts: Split, seed: int) -> Rows:
    from methods.pmatic.study_sizes import ngram_sizes, peer_sizes

    return ngram_sizes(parts, seed) + peer_sizes(parts, seed)


def _violations(settings: PmaticStudy, parts: Split) -> Rows:
    from methods.pmatic import NGram, PMATICCodec
    from methods.pmatic.study_violations import violation_rows

    model = NGram.fit_bytes(parts.train)
    codec = PMATICCodec(1e-2).calibrate(model, byte_ids(parts.calibration))
    return violation_rows(codec, model, parts.test, TIMES, min(settings.streams, len(parts.test) // 100))


def _robust(settings: PmaticStudy, parts: Split, seed: int, out: Path) -> Iterator[tuple[str, Work]]:
    """The pairs of a byte model, which is trained once and kept until the part is done."""
    import numpy as np

    from methods.pmatic import CodeTree, HFCausalLM
    from methods.pmatic.study_robust import DECODERS, START, byte_decoder, robust_row, train_byte_model
    from methods.pmatic.study_sizes import Scored
    from tasks.load_model import load_causal_lm

    folder = out / f".model-{seed}"

    def train() -> Rows:
        model = train_byte_model(parts.train, seed, settings.train_steps, context=CONTEXT)
        with quiet_progress():
            model.save_pretrained(folder)
        return []

    def pair(name: str) -> Rows:
        model = load_causal_lm(folder)
        encoder = HFCausalLM(model, window=CONTEXT, start_token=START)
        tree = CodeTree.huffman(np.bincount(byte_ids(parts.train), minlength=START + 1))
        size = min(settings.file_bytes, len(parts.test) // 2)
        starts = np.linspace(0, len(parts.test) - size, settings.files).round().astype(int)
        files = [byte_ids(parts.test[at : at + size]) for at in starts]
        fit = [
            byte_ids(parts.calibration[at : at + 4096])
            for at in range(0, min(16_384, len(parts.calibration)), 4096)
        ]
        row = robust_row(
            name,
            byte_decoder(name, model, CONTEXT),
            tree,
            Scored(encoder, files, [b""] * len(files), {"tree": tree}),
            Scored(encoder, fit, [b""] * len(fit), {"tree": tree}),
            fit[0][: settings.mismatch_tokens],
        )
        return [{"seed": seed, **row}]

    yield f"robust-{seed}-model", train
    for kind in settings.pairs:
        if kind != "threads" or seed == settings.seeds[0]:
            yield f"robust-{seed}-{kind}", partial(pair, DECODERS[kind])


def _llm(settings: PmaticStudy, parts: Split, folder: Path | None) -> Iterator[tuple[str, Work]]:
    """Sizes with a language model, then each pair of computations."""
    from methods.pmatic.study_llm import llm_decoders, llm_row, llm_sizes
    from tasks.archive.config import ArchiveSettings
    from tasks.archive.predictors import load_predictor

    assert folder is not None
    loaded = load_predictor(str(folder), ArchiveSettings())
    model: Any = loaded.predictor
    data = parts.test[: settings.llm_bytes]
    fit = _whole_characters(parts.calibration)
    apart = len(data) // settings.llm_files
    files = [_whole_characters(data[at * apart : at * apart + 1024]) for at in range(settings.llm_files)]
    yield "llm-sizes", lambda: llm_sizes(model, loaded.tokenizer, _whole_characters(data), fit)
    for name in llm_decoders(model):
        yield f"llm-{name}", partial(_llm_pair, llm_row, loaded, name, files, fit)


def _llm_pair(
    row: Callable[..., dict[str, Any]], loaded: Any, name: str, files: list[bytes], fit: bytes
) -> Rows:
    return [row(loaded.predictor, loaded.tokenizer, name, files, fit)]


def _whole_characters(data: bytes) -> bytes:
    """Without the halves of characters at the ends."""
    return data.decode("utf-8", "ignore").encode()


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows), encoding="utf-8")
