"""A base and its experts, whatever they are given as, opened as one stream of task vectors.

A model may be a state dict, an `nn.Module` (a `PeftModel` counts as an adapter), a folder or file of
safetensors, or a PEFT adapter folder. Nothing is unpickled; no model code is loaded.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.common.safetensors_stream import RangeReader, folder_tensors, read_header
from methods.merge_early_stop import adapters
from methods.merge_early_stop.operators import PIECE

# Below this cosine an expert was most likely trained from another base.
RESEMBLES = 0.5
Model = Mapping[str, Tensor] | nn.Module | str | os.PathLike[str]


class Tensors(Protocol):
    """Named tensors of which any range can be read."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    aliases: dict[str, str]  # a tied weight's other names -> the one under which it stands in `shapes`
    tied: bool  # whether the embedding is also the output layer although only one of them stands in `shapes`

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor: ...


class HeldTensors:
    """A state dict. Names that share memory are one tensor (tied weights)."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state: dict[str, Tensor] = {}
        self.aliases: dict[str, str] = {}
        seen: dict[tuple[int, tuple[int, ...]], str] = {}
        for name, value in state.items():
            if not isinstance(value, Tensor):
                raise ConfigError(
                    f"{name} is a {type(value).__name__}, not a tensor; give state dicts, modules or paths"
                )
            place = (value.data_ptr(), tuple(value.shape))
            if value.numel() and place in seen and seen[place] in self.state:
                self.aliases[name] = seen[place]
            else:
                seen[place] = name
                self.state[name] = value.detach()
        self.shapes = {n: tuple(v.shape) for n, v in self.state.items()}
        self.dtypes = {n: v.dtype for n, v in self.state.items()}
        self.tied = any(adapters.is_embedding(n) for pair in self.aliases.items() for n in pair)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        return self.state[name].reshape(-1)[start:stop].cpu()


class FileTensors:
    """Safetensors in a folder or a file."""

    def __init__(self, path: Path, stem: str = "model") -> None:
        self.infos = read_header(path)[0] if path.is_file() else folder_tensors(path, stem)
        self.aliases: dict[str, str] = {}
        config = path / "config.json"
        self.tied = config.is_file() and adapters.ties_embedding(_json(config), self.infos)
        self.shapes = {n: i.shape for n, i in self.infos.items()}
        self.dtypes = {n: i.dtype for n, i in self.infos.items()}
        self._reader = RangeReader()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        return self._reader.read(self.infos[name], start, stop)


def open_tensors(model: Model) -> Tensors:
    """The tensors of a whole model (not an adapter). `DataError` or `ConfigError` when it is none."""
    if isinstance(model, nn.Module):
        if hasattr(model, "peft_config"):
            raise ConfigError(
                "the base is a PEFT model; give the plain base, or call merge_and_unload() on it"
            )
        return HeldTensors(model.state_dict(keep_vars=True))
    if isinstance(model, Mapping):
        return HeldTensors(model)
    path = Path(model)
    if (path / adapters.CONFIG_FILE).is_file():
        raise DataError(f"{path} is an adapter; give the model that it was trained on as base")
    if not path.exists():
        raise DataError(f"{path} does not exist; give a folder with model.safetensors")
    return FileTensors(path)


class FullExpert:
    """theta_t given as a whole."""

    def __init__(self, tensors: Tensors, base: Tensors, label: str, exclude: Sequence[str]) -> None:
        self.tensors, self.label = tensors, label
        wanted = {n: s for n, s in base.shapes.items() if not matches(n, exclude)}
        # either side may hold a tied weight under its other name
        other = {name: alias for alias, name in base.aliases.items()} | dict(tensors.aliases)
        self._name = {n: n if n in tensors.shapes else other.get(n, "") for n in wanted}
        lacking = [n for n, own in self._name.items() if own not in tensors.shapes]
        known = {*base.shapes, *base.aliases}
        unknown = [n for n in tensors.shapes if n not in known and not matches(n, exclude)]
        extra = [n for n in unknown if not self._is_copy(n)]
        if lacking or extra:
            said = [f"lacks {len(lacking)} tensors ({', '.join(lacking[:5])})"] * bool(lacking)
            said += [f"has {len(extra)} more ({', '.join(extra[:5])})"] * bool(extra)
            raise DataError(f"expert {label} {' and '.join(said)} than the base; give experts of this base")
        shapes = [
            f"{n} {tensors.shapes[own]} instead of {wanted[n]}"
            for n, own in self._name.items() if tensors.shapes[own] != wanted[n]
        ]  # fmt: skip
        if shapes:
            raise DataError(f"expert {label} differs in {len(shapes)} shapes: {', '.join(shapes[:5])}")

    def _is_copy(self, name: str) -> bool:
        """A tied head that one side stored twice and the other once."""
        twins = [n for n, s in self.tensors.shapes.items() if n != name and s == self.tensors.shapes[name]]
        return len(self.tensors.shapes[name]) == 2 and any(
            torch.equal(self.tensors.read(name), self.tensors.read(n))
            for n in twins
            if "embed" in n or "wte" in n
        )

    def touches(self, name: str) -> bool:
        return name in self._name

    def read(self, name: str, start: int, stop: int) -> Tensor:
        return self.tensors.read(self._name[name], start, stop)

    def tau(self, name: str, start: int, stop: int, base: Tensor, dtype: torch.dtype) -> Tensor:
        return self.read(name, start, stop).to(dtype) - base.to(dtype)


class AdapterExpert:
    """theta_t given as a LoRA adapter."""

    def __init__(self, config: Mapping[str, Any], tensors: Tensors, base: Tensors, label: str) -> None:
        self.label = label
        self.tensors = tensors
        self.factors, self.whole = adapters.factors(
            config, tensors.shapes, lambda n: tensors.read(n).reshape(tensors.shapes[n]), base.shapes, label
        )

        # A trained embedding leaves the tied output layer behind, as it was.
        trained = self.whole.keys() - self.factors.keys() if base.tied else ()
        alone = sorted(name for name in trained if adapters.is_embedding(name))
        if alone:
            adapters.refuse_tied(label, alone[0])

    def touches(self, name: str) -> bool:
        return name in self.factors or name in self.whole

    def tau(self, name: str, start: int, stop: int, base: Tensor, dtype: torch.dtype) -> Tensor:
        if name in self.factors:
            return self.factors[name].rows(start, stop, dtype)
        return self.tensors.read(self.whole[name], start, stop).to(dtype) - base.to(dtype)


def resemblance(base: Tensors, expert: FullExpert, names: Sequence[str]) -> float:
    """Cosine between the starts of the expert's and the base's matrices; 1 where nothing can be compared.

    Models that grew from one base stay near 1, models of another origin are near 0. Vectors are passed over where
    there are matrices: the scales of norms are near 1 in every model.
    """
    touched = [name for name in names if expert.touches(name)]
    compared = [name for name in touched if len(base.shapes[name]) > 1] or touched
    dot = own = theirs = 0.0
    for name in compared:
        some = min(4096, math.prod(base.shapes[name]))
        a, b = base.read(name, 0, some).double(), expert.read(name, 0, some).double()
        dot, own, theirs = dot + float(a @ b), own + float(a @ a), theirs + float(b @ b)
    return dot / (own * theirs) ** 0.5 if own * theirs > 0 else 1.0


def open_expert(
    model: Model, base: Tensors, label: str, exclude: Sequence[str] = ()
) -> FullExpert | AdapterExpert:
    """An expert of `base`. `DataError` lists names and shapes that do not fit."""
    if isinstance(model, nn.Module) and hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        live: Any = model
        name: str = live.active_adapter if isinstance(live.active_adapter, str) else live.active_adapter[0]
        weights = HeldTensors(get_peft_model_state_dict(live, adapter_name=name))
        return AdapterExpert(live.peft_config[name].to_dict(), weights, base, label)
    if isinstance(model, str | os.PathLike) and (Path(model) / adapters.CONFIG_FILE).is_file():
        config = adapters.read_config(Path(model))
        adapters.check_config(config, label)
        return AdapterExpert(config, FileTensors(Path(model), "adapter_model"), base, label)
    return FullExpert(open_tensors(model), base, label, exclude)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is not valid JSON; save the model again") from error
    return content if isinstance(content, dict) else {}


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def expert_names(experts: Sequence[Model] | Mapping[str, Model], names: Sequence[str] | None) -> list[str]:
    """Names given, keys of the mapping, folder names if they differ, else numbers."""
    if isinstance(experts, Mapping):
        result = [str(k) for k in experts]
    elif names is not None:
        result = [str(n) for n in names]
    elif all(isinstance(e, str | os.PathLike) for e in experts):
        result = [Path(e).name for e in experts]  # type: ignore[arg-type]
        if len(set(result)) < len(result):
            result = [str(i) for i in range(len(experts))]
    else:
        result = [str(i) for i in range(len(experts))]
    if len(result) != len(experts) or len(set(result)) < len(result):
        raise ConfigError(f"names={result} must be {len(experts)} different names")
    return result


class ExpertStream:
    """`TaskVectors` of opened experts. `base_piece` is the base's part of the piece yielded last."""

    def __init__(
        self,
        base: Model,
        experts: Sequence[Model] | Mapping[str, Model],
        *,
        names: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        frozen: Sequence[str] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if isinstance(experts, str | os.PathLike | nn.Module):
            raise ConfigError("experts must be a list or a mapping of models, not one model")
        if not len(experts):
            raise ConfigError("the list of experts is empty; give at least one")
        self.base = open_tensors(base)
        self.dtype = dtype
        self.experts = expert_names(experts, names)
        models = list(experts.values()) if isinstance(experts, Mapping) else list(experts)
        self.opened = [
            open_expert(m, self.base, n, exclude) for m, n in zip(models, self.experts, strict=True)
        ]
        floating = [n for n, t in self.base.dtypes.items() if t.is_floating_point and not matches(n, exclude)]
        self.names = [n for n in floating if any(e.touches(n) for e in self.opened)]
        self.base_piece = torch.empty(0)
        integers = [n for n, t in self.base.dtypes.items() if not t.is_floating_point]
        if integers:
            warnings.warn(
                f"{len(integers)} tensors are not floating point and are copied from the base: "
                f"{', '.join(integers[:5])}",
                stacklevel=3,
            )
        self._check_base(frozen)

    def _check_base(self, frozen: Sequence[str]) -> None:
        for expert in self.opened:
            if not isinstance(expert, FullExpert):
                continue
            for name in self.base.shapes:
                if matches(name, frozen) and expert.touches(name):
                    for start, stop in pieces_of(self.numel(name)):
                        if not torch.equal(self.base.read(name, start, stop), expert.read(name, start, stop)):
                            raise DataError(
                                f"expert {expert.label}: frozen tensor {name} differs from the base; it was "
                                "trained from another base"
                            )
            cosine = resemblance(self.base, expert, self.names)
            if cosine < RESEMBLES:
                warnings.warn(
                    f"expert {expert.label} hardly resembles the base (cosine {cosine:.2f}); "
                    "was it trained from another base?",
                    stacklevel=4,
                )

    def numel(self, name: str) -> int:
        return int(torch.Size(self.base.shapes[name]).numel())

    def pieces(self, name: str) -> Iterator[Tensor]:
        for start, stop in pieces_of(self.numel(name)):
            self.base_piece = self.base.read(name, start, stop)
            piece = torch.zeros(len(self.opened), stop - start, dtype=self.dtype)
            for row, expert in enumerate(self.opened):
                if expert.touches(name):
                    piece[row] = expert.tau(name, start, stop, self.base_piece, self.dtype)
            if not bool(torch.isfinite(piece.sum())):
                self._refuse(name, piece)
            yield piece

    def _refuse(self, name: str, piece: Tensor) -> None:
        if not bool(torch.isfinite(self.base_piece).all()):
            raise NumericalError(f"the base has NaN or infinite entries in {name}")
        for label, row in zip(self.experts, piece, strict=True):
            if not bool(torch.isfinite(row).all()):
                raise NumericalError(f"expert {label}: the task vector of {name} has NaN or infinite entries")


def pieces_of(numel: int) -> Iterator[tuple[int, int]]:
    for start in range(0, numel, PIECE):
        yield start, min(numel, start + PIECE)
