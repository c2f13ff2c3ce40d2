"""The study of `rope_psd` as steps: small models trained here, and a real one; kept run by run.

Each finished training, the bases too, lies in the work folder under a key of its settings and the text.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from methods.common.errors import ConfigError
from methods.rope_psd.ruler import FACT
from methods.rope_psd.ruler_words import ADJECTIVES, NOUNS
from methods.rope_psd.study import (
    CANDIDATES,
    Sizes,
    Text,
    adapt,
    adapt_real,
    measure,
    small_llama,
    split_clauses,
    spread_rows,
    train_base,
)
from tasks.adapt.adapt import build_long_text
from tasks.adapt.config import LongText
from tasks.load_model import load_causal_lm
from tasks.prepare.text import read_documents
from tasks.pretrain.config import CorpusSettings
from tasks.pretrain.corpus import (
    build_corpus,
    check_corpus,
    load_rows,
    make_tokenizer,
    split_texts,
    text_settings,
)
from tasks.reference import Reference
from tasks.step import step
from tasks.study.rope_psd_config import RopePSDStudy
from tasks.study.run_bank import bank_file, banked
from tasks.train.loading import load_tokenizer

VERSION = "1"
BANK = "rope-psd-runs"
WORD_COPIES = 2_000  # more than most words of a text have: byte pairs are merged by their number
# Sizes that have no part in a base.
AFTER_BASE = ("steps", "rate", "theta", "depths", "prompts", "held_out")
DEFAULT_DATA = str(RopePSDStudy.model_fields["data"].default)
MAIN = ("clm", "clm_longer", "pose", "pose_rows", "psd_skip")
ABLATION = ("nope_view", "chunk_view")
VARIANTS = ("longce", "psd_cyclic", "psd_longce", "forward_kl")
REAL = ("clm", "pose", "psd_skip")


def corpus_settings(config: RopePSDStudy) -> CorpusSettings:
    """The text as rows of the adaptation's length."""
    return CorpusSettings(source=config.data, vocabulary=1_536, context=2 * config.context)


def real_text(config: RopePSDStudy) -> LongText:
    """The text of the real model's part."""
    return LongText(source=config.real_text, context=config.real_context)


def check_study(config: RopePSDStudy) -> None:
    """Refuse text that is not there.

    Raises:
        DataError, ConfigError: one line that names the field and the remedy.
    """
    if config.data == DEFAULT_DATA and not Path(config.data).exists():
        raise ConfigError(
            f"data={DEFAULT_DATA}: is not there; `dvc repro data@kjv` makes it, or name text of your own"
        )
    check_corpus(corpus_settings(config))
    if "real" in parts_of(config):
        check_corpus(CorpusSettings(source=config.real_text))


def parts_of(config: RopePSDStudy) -> tuple[str, ...]:
    """The parts to do; the full profile does all."""
    return ("main", "ablation", "variants", "grid", "real") if config.profile == "full" else config.parts


def candidates_of(part: str) -> tuple[str, ...]:
    """The candidates of a part."""
    if part == "grid":
        return tuple(name for name in CANDIDATES if "/" in name)
    return {"main": MAIN, "ablation": ABLATION, "variants": VARIANTS, "real": REAL}[part]


def sizes_of(config: RopePSDStudy) -> Sizes:
    """The small models and their trainings."""
    return Sizes(
        layers=config.layers,
        width=config.width,
        ffn=round(config.width * 43 / 16),
        context=config.context,
        copy_steps=config.copy_steps,
        base_steps=config.base_steps,
        steps=config.steps,
        rate=config.rate,
        depths=config.depths,
        prompts=config.prompts,
    )


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        candidate: a name of `CANDIDATES`, or empty for a base alone.
        seed: of everything.
        sizes: of the models.
        corpus: rows.
        base: file with the base's weights.
    """

    candidate: str
    seed: int
    sizes: Sizes
    corpus: Reference
    base: Path

    @property
    def key(self) -> dict[str, Any]:
        """What the base's, or the candidate's, result depends on."""
        sizes = asdict(self.sizes)
        if not self.candidate:
            sizes = {name: value for name, value in sizes.items() if name not in AFTER_BASE}
        about = {"candidate": self.candidate, "seed": self.seed, "sizes": sizes}
        return {"version": VERSION, "corpus": self.corpus.digest, **about}


@dataclass(frozen=True)
class RealJob:
    """One training of a given model."""

    candidate: str
    seed: int
    steps: int
    rate: float
    rows: int
    model: Reference
    corpus: Reference

    @property
    def key(self) -> dict[str, Any]:
        """What its result depends on."""
        about = {name: getattr(self, name) for name in ("candidate", "seed", "steps", "rate", "rows")}
        return {"version": VERSION, "model": self.model.digest, "corpus": self.corpus.digest, **about}


@step("study-rope-psd-corpus", kind="data", version=VERSION, timeout_seconds=24 * 3600)
def study_corpus(out: Path, *, settings: CorpusSettings, fingerprint: str) -> dict[str, Any]:
    """Rows of the adaptation's length, and both parts cut into clauses."""
    return pack_corpus(out, settings=settings)


def pack_corpus(out: Path, *, settings: CorpusSettings) -> dict[str, Any]:
    """What the step `study_corpus` does.

    The words of the facts are made tokens of their own, so that a fact is a matter of looking up, not of spelling.
    """
    documents, _ = read_documents(text_settings(settings))
    train, _ = split_texts([text for _, text in documents if text.strip()], settings.validation_share)
    words = f" {FACT.split()[0]}" + "".join(f" {word}" for word in (*NOUNS, *ADJECTIVES))
    record = build_corpus(settings, out, make_tokenizer(settings, [*train, words * WORD_COPIES]))
    tokenizer = load_tokenizer(out / "tokenizer")
    for part in ("train", "validation"):
        rows = load_rows(out, part).with_format("numpy")[:]["input_ids"]
        text = tokenizer.decode(np.concatenate(rows), skip_special_tokens=True)
        (out / f"{part}.clauses.json").write_text(json.dumps(split_clauses(text)), encoding="utf-8")
    return record


@step("study-rope-psd-runs", kind="report", version=VERSION, timeout_seconds=7 * 24 * 3600)
def study_runs(out: Path, *, part: str, settings: RopePSDStudy, corpus: Reference) -> dict[str, Any]:
    """The trainings of one part on small models; bases come first."""
    return small_runs(out, part=part, settings=settings, corpus=corpus)


def small_runs(out: Path, *, part: str, settings: RopePSDStudy, corpus: Reference) -> dict[str, Any]:
    """What the step `study_runs` does."""
    corpus.expect("data")
    bases = []
    for seed in settings.seeds:
        job = Job("", seed, sizes_of(settings), corpus, Path())
        bases.append(replace(job, base=bank_file(BANK, job.key, ".safetensors")))
    banked(BANK, bases, _key, make_base, settings.processes)
    jobs = [replace(base, candidate=name) for base in bases for name in candidates_of(part)]
    return _finish(out, part, banked(BANK, jobs, _key, run_job, settings.processes))


@step("study-rope-psd-real", kind="report", version=VERSION, timeout_seconds=7 * 24 * 3600)
def study_real(
    out: Path, *, part: str, settings: RopePSDStudy, model: Reference, corpus: Reference
) -> dict[str, Any]:
    """A given model under the method, plain training and PoSE."""
    return real_runs(out, part=part, settings=settings, model=model, corpus=corpus)


def real_runs(
    out: Path, *, part: str, settings: RopePSDStudy, model: Reference, corpus: Reference
) -> dict[str, Any]:
    """What the step `study_real` does."""
    model.expect("model")
    corpus.expect("data")
    sizes = (settings.real_steps, settings.real_rate, settings.real_rows)
    jobs = [
        RealJob(candidate, seed, *sizes, model, corpus)
        for seed in settings.seeds
        for candidate in candidates_of(part)
    ]
    # One at a time: each holds a whole model with its optimiser.
    return _finish(out, part, banked(BANK, jobs, _key, run_real))


def _key(job: Job | RealJob) -> dict[str, Any]:
    return job.key


@step("study-rope-psd-real-text", kind="data", version=VERSION, timeout_seconds=24 * 3600)
def study_real_text(out: Path, *, text: LongText, model: Reference, fingerprint: str) -> dict[str, Any]:
    """Rows of the real model's tokens."""
    return build_long_text(out, text=text, model=model)


def _finish(out: Path, part: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [row.pop("cpu_seconds") for row in found]
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in found)
    (out / f"{part}.jsonl").write_text(lines, encoding="utf-8")
    return {"runs": len(found), "timings": {"cpu_seconds": sum(seconds)}}


def load_text(corpus: Path) -> Text:
    """A corpus of `study_corpus` in memory."""
    clauses = [
        json.loads((corpus / f"{part}.clauses.json").read_text(encoding="utf-8"))
        for part in ("train", "validation")
    ]
    return Text(
        load_tokenizer(corpus / "tokenizer"), _rows(corpus, "train"), _rows(corpus, "validation"), *clauses
    )


def _rows(corpus: Path, part: str) -> torch.Tensor:
    table = load_rows(corpus, part).with_format("numpy")[:]["input_ids"]
    return torch.from_numpy(np.asarray(table).astype(np.int64))


def make_base(job: Job) -> dict[str, Any]:
    """Train a base and keep its weights beside its result."""
    from safetensors.torch import save_model

    torch.set_num_threads(1)
    started = time.process_time()
    model, curve = train_base(load_text(job.corpus.path), job.sizes, job.seed)
    job.base.parent.mkdir(parents=True, exist_ok=True)
    part = job.base.with_suffix(".part")
    save_model(model, str(part))
    shutil.move(part, job.base)
    return {"seed": job.seed, "curve": curve, "cpu_seconds": time.process_time() - started}


def run_job(job: Job) -> dict[str, Any]:
    """Adapt a base by one method and measure it."""
    from safetensors.torch import load_model

    torch.set_num_threads(1)
    started = time.process_time()
    text = load_text(job.corpus.path)
    base = small_llama(text, job.sizes, job.seed)
    load_model(base, str(job.base))
    model, curve = adapt(base, text, job.sizes, job.candidate, job.seed)
    row = {"candidate": job.candidate, "seed": job.seed, "steps": len(curve), "curve": curve}
    return {**row, **measure(model, text, job.sizes), "cpu_seconds": time.process_time() - started}


def run_real(job: RealJob) -> dict[str, Any]:
    """Train a given model by one method and measure its view gaps."""
    started = time.process_time()
    model = load_causal_lm(job.model.path, dtype=torch.float32)
    held_out = spread_rows(_rows(job.corpus.path, "validation"), job.rows)
    train_rows = _rows(job.corpus.path, "train")
    found = adapt_real(model, train_rows, held_out, job.candidate, job.seed, job.steps, job.rate)
    row = {"candidate": job.candidate, "seed": job.seed, "steps": len(found["curve"])}
    return {**row, **found, "cpu_seconds": time.process_time() - started}
