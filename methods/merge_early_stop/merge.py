"""`merge`, `task_vector`, `tune_lambda`: experts of one base into one model (section 2.1).

Folders are merged tensor by tensor: what is in memory is a piece of the base and of each expert, never a
model. The output is a normal model folder (the base's shards, configuration and tokenizer), complete or
absent.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.common.safetensors_stream import StreamWriter, read_header
from methods.merge_early_stop.operators import Merger, Method, Operator
from methods.merge_early_stop.sources import (
    ExpertStream,
    FileTensors,
    FullExpert,
    Model,
    open_tensors,
    pieces_of,
)

Experts = Sequence[Model] | Mapping[str, Model]
LAMBDAS = tuple(round(0.05 * i, 2) for i in range(1, 21))  # the grid of section 2.1
INFO_FILE = "merge_info.json"
_COPIED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".md")
_NOT_COPIED = ("adapter_config.json", "trainer_state.json", INFO_FILE)


@dataclass(frozen=True)
class MergeResult:
    """What `tune_lambda` found. `scores` has the validation score of every lambda tried."""

    lambda_: float
    val_score: float
    merged: Any
    method: str
    scores: dict[float, float] = field(default_factory=dict)


def task_vector(base: Model, expert: Model, *, exclude: Sequence[str] = ()) -> dict[str, Tensor]:
    """tau = theta_t - theta_0 over the floating-point tensors that the expert changes (float32, on the CPU).

    Tied weights appear once; an adapter gives its dense s B A for the adapted tensors only.
    """
    stream = ExpertStream(base, [expert], exclude=exclude)
    return {
        name: torch.cat([p[0] for p in stream.pieces(name)]).reshape(stream.base.shapes[name])
        for name in stream.names if stream.numel(name)
    }  # fmt: skip


def merge_direction(
    base: Model, experts: Experts, method: Method = "task_arithmetic", **options: Any
) -> dict[str, Tensor]:
    """The merged vector at lambda = 1, in memory.

    For every operator merged(lambda) = theta_0 + lambda * direction.
    """
    operator, stream = _open(base, experts, method, 1.0, options)
    result: dict[str, Tensor] = {}

    def consume(merger: Merger) -> None:
        for name in stream.names:
            flat = torch.cat([p.float() for p in merger.delta(name)] or [torch.empty(0)])
            result[name] = flat.reshape(stream.base.shapes[name])

    Merger(operator, stream).run(consume)
    return result


@overload
def merge(
    base: nn.Module,
    experts: Experts,
    method: Method = ...,
    *,
    out: None = ...,
    lambda_: float | None = ...,
    **options: Any,
) -> nn.Module: ...
@overload
def merge(
    base: Mapping[str, Tensor],
    experts: Experts,
    method: Method = ...,
    *,
    out: None = ...,
    lambda_: float | None = ...,
    **options: Any,
) -> dict[str, Tensor]: ...
@overload
def merge(
    base: str | os.PathLike[str], experts: Experts, method: Method = ..., *, out: str | os.PathLike[str],
    lambda_: float | None = ..., **options: Any,
) -> Path: ...  # fmt: skip


def merge(
    base: Model,
    experts: Experts,
    method: Method = "task_arithmetic",
    *,
    out: str | os.PathLike[str] | None = None,
    lambda_: float | None = None,
    **options: Any,
) -> Any:
    """theta_0 + delta(tau_1, ..., tau_T).

    Args:
        base, experts: state dicts, modules, folders of safetensors; experts also PEFT adapter folders or
            models. `experts` is a list, or a mapping from names.
        method: `average`, `task_arithmetic`, `ties`, `dare`, or a function `[T, n] -> [n]`.
        out: folder to write, for a base given as folder. It must be absent or empty; it appears complete or
            not at all.
        lambda_: factor of the merged vector; None: the plain average, else 1.
        density, trim, drop, then, seed, dtype: see `Operator`.
        names: names of the experts, for error messages and DARE's masks.
        exclude: patterns of tensors (task heads) that stay as in the base and that experts may lack.
        frozen: patterns of tensors that must be the same in base and experts.
        save_dtype: type of the merged floating-point tensors; None keeps the base's.
        lora_rank: write a LoRA adapter of this rank instead (truncated SVD of delta); only with `out`.

    Returns: the same kind as the base: a new state dict, a new module, or the path `out`.

    Errors: `ConfigError` (empty list, lambda NaN, density outside (0, 1], unknown option, `out` not empty),
    `DataError` (names or shapes differ: they are listed; an adapter that is no plain LoRA; damaged files),
    `NumericalError` (NaN or infinite task vectors, overflow of the output type). Integer tensors are copied
    from the base with a warning.
    """
    save_dtype: torch.dtype | None = options.pop("save_dtype", None)
    lora_rank: int | None = options.pop("lora_rank", None)
    is_path = isinstance(base, str | os.PathLike)
    if is_path and out is None:
        raise ConfigError("out is missing; a base given as folder is merged into a folder")
    if lora_rank is not None and (out is None or lora_rank < 1):
        raise ConfigError(f"lora_rank={lora_rank} must be at least 1 and needs out")
    if out is not None and not is_path:
        raise ConfigError(
            "out needs a base given as folder, whose configuration and tokenizer the result takes"
        )
    operator, stream = _open(base, experts, method, lambda_, options)
    if out is not None:
        with _complete_folder(Path(out)) as folder:
            if lora_rank is not None:
                from methods.merge_early_stop.lora_output import write_adapter

                record = write_adapter(folder, Path(base), operator, stream, lora_rank)  # type: ignore[arg-type]
            else:
                record = _write_folder(folder, Path(base), operator, stream, save_dtype)  # type: ignore[arg-type]
            (folder / INFO_FILE).write_text(
                json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8"
            )
        return Path(out)
    state = _merge_state(operator, stream, save_dtype)
    if isinstance(base, nn.Module):
        merged = copy.deepcopy(base)
        merged.load_state_dict(state, strict=True)
        return merged
    return state


def tune_lambda(
    base: nn.Module | Mapping[str, Tensor],
    experts: Experts,
    score_fn: Callable[[Any], float],
    *,
    method: Method = "task_arithmetic",
    lambdas: Sequence[float] = LAMBDAS,
    **options: Any,
) -> MergeResult:
    """The lambda of the grid with the best `score_fn(merged)` (higher is better; the smallest wins a draw).

    One lambda for all tasks, as in task arithmetic. `score_fn` must use a split that neither trained, nor
    stopped the experts, nor is reported. The merged vector is computed once.
    """
    if not lambdas:
        raise ConfigError("lambdas is empty; give at least one value")
    direction = merge_direction(base, experts, method, **options)
    origin = open_tensors(base)
    work: Any = copy.deepcopy(base) if isinstance(base, nn.Module) else None
    scores: dict[float, float] = {}
    for lambda_ in lambdas:
        replace(Operator(method), lambda_=float(lambda_))  # refuses NaN
        scores[float(lambda_)] = float(score_fn(_at(origin, direction, lambda_, work)))
    best = max(scores, key=lambda value: (scores[value], -value))
    name = method if isinstance(method, str) else getattr(method, "__name__", "function")
    return MergeResult(best, scores[best], _at(origin, direction, best, work), name, scores)


def _at(origin: Any, direction: Mapping[str, Tensor], lambda_: float, work: nn.Module | None) -> Any:
    moved = {
        n: (origin.read(n).reshape(origin.shapes[n]).double() + lambda_ * d.double()).to(origin.dtypes[n])
        for n, d in direction.items()
    }  # fmt: skip
    if work is not None:
        with torch.no_grad():
            targets = dict(work.named_parameters()) | dict(work.named_buffers())
            for name, value in moved.items():
                targets[name].copy_(value)
        return work
    rest = {n: t for n, t in origin.state.items() if n not in moved}
    state = {n: moved.get(n, rest.get(n)) for n in origin.state}
    return state | {alias: state[name] for alias, name in origin.aliases.items()}


def _open(
    base: Model, experts: Experts, method: Method, lambda_: float | None, options: dict[str, Any]
) -> tuple[Operator, ExpertStream]:
    known = {"density", "trim", "drop", "then", "seed", "dtype"}
    places = {"names", "exclude", "frozen"}
    unknown = sorted(set(options) - known - places)
    if unknown:
        raise ConfigError(
            f"{unknown[0]} is no option of merge; choose from {', '.join(sorted(known | places))}"
        )
    operator = Operator(method, lambda_, **{k: v for k, v in options.items() if k in known})
    stream = ExpertStream(
        base, experts, dtype=operator.dtype, **{k: v for k, v in options.items() if k in places}
    )
    return operator, stream


def _is_copy_of_expert(operator: Operator, stream: ExpertStream) -> bool:
    """T = 1 and lambda = 1 without sparsification is the expert itself, to the last bit."""
    plain = operator.method in ("average", "task_arithmetic") or (
        operator.method == "ties" and operator.density == 1
    )
    return (
        plain
        and len(stream.opened) == 1
        and operator.scale(1) == 1.0
        and isinstance(stream.opened[0], FullExpert)
    )


def _merged_pieces(name: str, merger: Merger, stream: ExpertStream, dtype: torch.dtype) -> Iterator[Tensor]:
    """The merged tensor `name`, flattened, piece by piece, in `dtype`."""
    only = stream.opened[0]
    if isinstance(only, FullExpert) and _is_copy_of_expert(merger.operator, stream):
        for (start, stop), _ in zip(pieces_of(stream.numel(name)), stream.pieces(name), strict=True):
            yield only.read(name, start, stop).to(dtype)
        return
    for delta in merger.delta(name):
        value = delta.add_(stream.base_piece).to(dtype)
        if not bool(torch.isfinite(value.sum(dtype=torch.float64))):
            raise NumericalError(
                f"merged tensor {name} overflows {dtype}; save in a wider type or lower lambda"
            )
        yield value


def _output_type(dtype: torch.dtype, save_dtype: torch.dtype | None) -> torch.dtype:
    return save_dtype if save_dtype is not None and dtype.is_floating_point else dtype


def _merge_state(
    operator: Operator, stream: ExpertStream, save_dtype: torch.dtype | None
) -> dict[str, Tensor]:
    base = stream.base
    state: dict[str, Tensor] = {}

    def consume(merger: Merger) -> None:
        for name, shape in base.shapes.items():
            dtype = _output_type(base.dtypes[name], save_dtype)
            if name in stream.names:
                pieces = list(_merged_pieces(name, merger, stream, dtype))
                state[name] = (torch.cat(pieces) if pieces else torch.empty(0, dtype=dtype)).reshape(shape)
            else:
                state[name] = base.read(name).reshape(shape).to(dtype, copy=True)

    Merger(operator, stream).run(consume)
    return state | {alias: state[name] for alias, name in base.aliases.items()}


def _write_folder(
    folder: Path, base_path: Path, operator: Operator, stream: ExpertStream, save_dtype: torch.dtype | None
) -> dict[str, Any]:
    base = stream.base
    assert isinstance(base, FileTensors)
    files: dict[Path, list[str]] = {}
    for name, info in base.infos.items():
        files.setdefault(info.file, []).append(name)

    def consume(merger: Merger) -> None:
        for file, names in files.items():
            declared = {n: (_output_type(base.dtypes[n], save_dtype), base.shapes[n]) for n in names}
            with StreamWriter(
                folder / file.name, declared, read_header(file)[1] or {"format": "pt"}
            ) as writer:
                for name in names:
                    if name in stream.names:
                        for piece in _merged_pieces(name, merger, stream, declared[name][0]):
                            writer.write(name, piece)
                    else:
                        for start, stop in pieces_of(stream.numel(name)):
                            writer.write(name, base.read(name, start, stop).to(declared[name][0]))

    Merger(operator, stream).run(consume)
    if base_path.is_dir():
        copy_companions(base_path, folder, save_dtype)
    return merge_record(operator, stream)


def merge_record(operator: Operator, stream: ExpertStream) -> dict[str, Any]:
    """What was merged, without paths."""
    settings = {k: v for k, v in asdict(operator).items() if k not in ("method", "dtype", "lambda_")}
    method = (
        operator.method
        if isinstance(operator.method, str)
        else getattr(operator.method, "__name__", "function")
    )
    return {
        "method": method, "lambda": operator.lambda_, "scale": operator.scale(len(stream.opened)), **settings,
        "experts": list(stream.experts), "merged_tensors": len(stream.names),
        "merged_parameters": sum(stream.numel(n) for n in stream.names),
    }  # fmt: skip


def copy_companions(source: Path, target: Path, save_dtype: torch.dtype | None = None) -> None:
    """Configuration, tokenizer, card and licence; no weights, no code, no training state."""
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            # sentence-transformers keeps its pooling configuration in a folder
            wanted = entry / "config.json"
            if wanted.is_file():
                (target / entry.name).mkdir(exist_ok=True)
                shutil.copyfile(wanted, target / entry.name / "config.json")
        elif entry.name in _NOT_COPIED:
            continue
        elif entry.suffix in _COPIED or entry.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")):
            shutil.copyfile(entry, target / entry.name)
    config = target / "config.json"
    if save_dtype is not None and config.is_file():
        content = json.loads(config.read_text(encoding="utf-8"))
        key = "torch_dtype" if "torch_dtype" in content else "dtype"
        content[key] = str(save_dtype).removeprefix("torch.")
        config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _complete_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place when all went well and vanishes otherwise."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out} is not an empty folder; give a new one or remove it first")
    part = out.parent / f".{out.name}.part-{uuid.uuid4().hex[:8]}"
    try:
        part.mkdir(parents=True)
        yield part
        os.replace(part, out)
    except OSError as error:
        raise DataError(f"cannot write {out} ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
