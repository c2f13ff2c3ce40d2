"""One merge method on one group of experts: try the coefficients in memory, write the best as a model folder."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.common.dtype import compute_device, resolve_dtype
from methods.common.errors import ConfigError, NumericalError
from methods.common.safetensors_stream import StreamWriter, read_header
from methods.merge_early_stop.merge import copy_companions
from methods.merge_early_stop.sources import FileTensors
from tasks.file_names import shares_memory, weights_in_file
from tasks.load_model import load_causal_lm
from tasks.merge.built_in import BuiltIn
from tasks.merge.config import MergeSettings
from tasks.merge.experts import check_experts, expert_doubts
from tasks.merge.methods import MergeJob, MergeMethod, merge_method
from tasks.merge.select import Selector, base_scores
from tasks.merge.trials import Trials
from tasks.notices import say_once
from tasks.one_model import one_model_at_a_time
from tasks.prepare.models import check_model_folder
from tasks.reference import Reference
from tasks.train.expert_folder import drop_records
from tasks.train.loading import load_tokenizer, weights_digest

RECORD = "merge.json"
STAGING, TRIAL, TRIALS = ".merged", ".trial", ".trials.jsonl"


def merge_candidate(
    out: Path,
    *,
    settings: MergeSettings,
    method: str,
    base: Reference,
    experts: list[Reference],
    tasks: Reference,
) -> dict[str, Any]:
    """Merge the experts by one method into the model folder `out`.

    Args:
        out: an empty folder, or what a killed run left: coefficients that it tried are not tried again, other files
            are written over.
        settings: how to merge; its `methods` is not looked at.
        method: name of the method.
        base: folder of the base model.
        experts: adapters or whole models of that base, mixed as you like.
        tasks: folder of task sets; their `select` parts are read.

    Returns:
        method, coefficient, select_score (mean over tasks of the chosen coefficient), scores (a row a coefficient with
        every task; coefficient 0 is the base), experts, notes (doubts about them); seconds under `timings`.

    Raises:
        ConfigError: no experts, an unknown method.
        DataError: an expert, the base or the task sets cannot be used; names it.
        NumericalError: an expert holds NaN, or every coefficient gives one.
    """
    begin = time.perf_counter()
    folder = base.expect("model")
    check_model_folder(folder, "causal-lm")
    work = merge_method(method)
    digest = weights_digest(folder)
    found = check_experts(folder, digest, experts)
    doubts = expert_doubts(folder, digest, found)
    say_once(doubts)
    job = MergeJob(folder, found, tasks.expect("tasks", "data"), settings)
    for left in (STAGING, TRIAL):
        shutil.rmtree(out / left, ignore_errors=True)
    tokenizer = load_tokenizer(folder)
    selector = Selector(job.tasks, tokenizer, settings)

    with one_model_at_a_time:
        dtype = resolve_dtype(settings.dtype, compute_device())
        vector = work.vector(job, dtype) if isinstance(work, BuiltIn) else _checked(work, job, method)
        ready = time.perf_counter()
        trials = Trials(out / TRIALS, _facts(settings, method, base, experts, tasks, dtype))
        rows = _search(job, vector, work.tuned, selector, dtype, (base.digest, tasks.digest), out, trials)
    searched = time.perf_counter()
    # The smallest coefficient wins a tie: it is nearest to the base.
    best = max(rows[1:], key=lambda row: (row["select_score"], -row["coefficient"]))
    save = None if settings.save_dtype == "base" else resolve_dtype(settings.save_dtype)
    if isinstance(work, BuiltIn):
        del vector
        work.write(job, best["coefficient"], out / STAGING, save)
    else:
        write_vector(folder, vector, best["coefficient"], out / STAGING, save)
    drop_records(out / STAGING)
    for path in sorted((out / STAGING).iterdir()):
        path.replace(out / path.name)
    (out / STAGING).rmdir()
    (out / TRIALS).unlink()
    summary: dict[str, Any] = {
        "method": method,
        "coefficient": best["coefficient"],
        "select_score": best["select_score"],
        "objective": settings.objective,
        "experts": sorted(found),
        "scores": rows,
        "notes": doubts,
    }
    (out / RECORD).write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    summary["timings"] = {
        "vector_seconds": ready - begin,
        "search_seconds": searched - ready,
        "write_seconds": time.perf_counter() - searched,
    }
    return summary


def _search(
    job: MergeJob,
    vector: Mapping[str, Tensor],
    tuned: bool,
    selector: Selector,
    dtype: torch.dtype,
    digests: tuple[str, ...],
    out: Path,
    trials: Trials,
) -> list[dict[str, Any]]:
    """A row a coefficient, the base first; those among the trials are not scored again."""
    model = load_causal_lm(job.base, dtype).to(compute_device())
    settings = job.settings
    limits = (settings.objective, settings.select_examples, settings.max_length, settings.batch_tokens, dtype)
    unchanged = base_scores((*digests, *map(str, limits)), selector, model)
    set_coefficient = live_merge(job.base, vector, model, out / TRIAL)
    rows = [{"coefficient": 0.0, "select_score": selector.mean(unchanged, unchanged), **_table(unchanged)}]
    for coefficient in settings.coefficients if tuned else (1.0,):
        if coefficient not in trials.found:
            set_coefficient(coefficient)
            trials.keep(coefficient, selector(model))
        scores = trials.found[coefficient]
        mean = selector.mean(scores, unchanged)
        if mean == mean:  # a coefficient that blows the model up is not a candidate
            rows.append({"coefficient": coefficient, "select_score": mean, **_table(scores)})
    if len(rows) == 1:
        raise NumericalError(
            "every coefficient gives a model whose scores are not numbers; lower coefficients"
        )
    return rows


def _facts(
    settings: MergeSettings,
    method: str,
    base: Reference,
    experts: list[Reference],
    tasks: Reference,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """What a coefficient's scores depend on."""
    fields = set(MergeSettings.model_fields) - {"methods", "coefficients"}
    return {
        "method": method,
        "settings": settings.model_dump(mode="json", include=fields),
        "base": base.digest,
        "experts": [expert.digest for expert in experts],
        "tasks": tasks.digest,
        "dtype": str(dtype),
        "device": str(compute_device()),
    }


def _table(scores: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tasks": {name: {"bits_per_byte": s.loss, "accuracy_norm": s.accuracy} for name, s in scores.items()}
    }


def live_merge(
    base: Path, vector: Mapping[str, Tensor], model: Any, scratch: Path
) -> Callable[[float], None]:
    """A function that sets the live model's weights to base + coefficient * vector, always from the base's file.

    Args:
        base: the folder that the model was loaded from.
        vector: by the names in the base's files.
        model: changed in place.
        scratch: a folder that may be made and removed, for models whose file has another layout than the live model.

    Raises:
        ConfigError: the vector has a tensor that the base lacks, or of another shape.
    """
    origin = FileTensors(base)
    for name, change in vector.items():
        if tuple(change.shape) != origin.shapes.get(name):
            raise ConfigError(
                f"the merged vector has {name} {tuple(change.shape)}, which the base does not have"
            )
    live = weights_in_file(model, origin.shapes, base)
    if any(name in live and not shares_memory(model, live[name]) for name in vector):
        return _reloading_merge(base, vector, model, scratch)

    @torch.no_grad()
    def set_coefficient(coefficient: float) -> None:
        for name, change in vector.items():
            if name in live:
                value = origin.read(name).reshape(change.shape).float().add_(change, alpha=coefficient)
                live[name].copy_(value)

    return set_coefficient


def _reloading_merge(
    base: Path, vector: Mapping[str, Tensor], model: Any, scratch: Path
) -> Callable[[float], None]:
    """As `live_merge`, by way of a model folder: transformers alone knows how the file becomes the live model."""

    @torch.no_grad()
    def set_coefficient(coefficient: float) -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        write_vector(base, vector, coefficient, scratch, None)
        try:
            model.load_state_dict(load_causal_lm(scratch, model.dtype).state_dict())
        finally:
            shutil.rmtree(scratch)

    return set_coefficient


def write_vector(
    base: Path, vector: Mapping[str, Tensor], coefficient: float, out: Path, save_dtype: torch.dtype | None
) -> None:
    """base + coefficient * vector as a model folder, a tensor at a time."""
    origin = FileTensors(base)
    out.mkdir()
    for file in dict.fromkeys(info.file for info in origin.infos.values()):
        names = [name for name, info in origin.infos.items() if info.file == file]
        declared = {n: (_saved(origin.dtypes[n], save_dtype), origin.shapes[n]) for n in names}
        with StreamWriter(out / file.name, declared, read_header(file)[1] or {"format": "pt"}) as writer:
            for name in names:
                value = origin.read(name)
                if name in vector:
                    value = value.double() + coefficient * vector[name].reshape(-1).double()
                    if not bool(torch.isfinite(value).all()):
                        raise NumericalError(f"the merged tensor {name} holds NaN or infinity")
                writer.write(name, value.to(declared[name][0]))
    copy_companions(base, out, save_dtype)


def _saved(dtype: torch.dtype, save_dtype: torch.dtype | None) -> torch.dtype:
    return save_dtype if save_dtype is not None and dtype.is_floating_point else dtype


def _checked(work: MergeMethod, job: MergeJob, method: str) -> Mapping[str, Tensor]:
    vector = work.vector(job)
    for name, change in vector.items():
        if not bool(torch.isfinite(change).all()):
            raise NumericalError(f"merge method {method}: its vector of {name} holds NaN or infinity")
    return vector
