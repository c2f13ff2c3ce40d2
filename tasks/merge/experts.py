"""Experts to merge: adapters, whole models or hub ids, checked before any work starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError, DataError
from methods.common.safetensors_stream import read_header
from methods.merge_early_stop import adapters
from methods.merge_early_stop.sources import RESEMBLES, FileTensors, FullExpert, resemblance
from tasks.prepare.models import check_model_folder
from tasks.reference import Reference, reference_to
from tasks.train.loading import weights_digest

ADAPTER_WEIGHTS = "adapter_model.safetensors"
RECORD = "expert.json"
HUB_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja")
SHAPE_FIELDS = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")


def resolve_expert(source: str) -> Reference:
    """An expert given as a folder (adapter or whole model) or a hub id.

    Raises:
        DataError: nothing is there, it is no expert, or the hub cannot be reached.
    """
    path = Path(source).expanduser()
    if not path.exists():
        if source.count("/") != 1 or source.startswith((".", "/", "~")):
            raise DataError(f"{source} does not exist; give a folder or a hub id like owner/name")
        path = _from_hub(source)
    return reference_to(path, expert_kind(path))


def expert_kind(folder: Path) -> Any:
    """ "adapter" or "model", by the files. Raises DataError when it is neither."""
    if (folder / adapters.CONFIG_FILE).is_file():
        return "adapter"
    if any(folder.glob("adapter_model.*")):
        raise DataError(
            f"expert {folder.name}: holds no {adapters.CONFIG_FILE}; save the adapter with save_pretrained"
        )
    if (folder / "config.json").is_file():
        return "model"
    raise DataError(
        f"expert {folder.name}: is no model; give a folder with adapter_config.json or config.json"
    )


def check_experts(base: Path, base_digest: str, experts: Sequence[Reference]) -> dict[str, Path]:
    """The experts' folders by name, when each fits the base.

    Args:
        base: the base model's folder.
        base_digest: `weights_digest` of it.

    Raises:
        ConfigError: the list is empty.
        DataError: an expert is no plain LoRA, a pickle, of another architecture or of another base.
    """
    if not experts:
        raise ConfigError("experts: the list is empty; give at least one adapter or model folder")
    found: dict[str, Path] = {}
    for number, expert in enumerate(experts):
        folder = expert.expect("adapter", "model")
        record = _json(folder / RECORD) if (folder / RECORD).is_file() else {}
        name = str(record.get("task") or folder.name)
        if name in found or not name or name == "output":
            name = f"{name or 'expert'}-{number + 1}"
        if expert_kind(folder) == "adapter":
            _check_adapter(folder, name)
        else:
            _check_model(folder, base, name)
        trained_on = record.get("base_digest")
        if trained_on and trained_on != base_digest:
            raise DataError(
                f"expert {name}: was trained on another base (weights {trained_on[:12]}, this base has "
                f"{base_digest[:12]}); give the base that it was trained on"
            )
        found[name] = folder
    return found


def expert_doubts(base: Path, base_digest: str, experts: Mapping[str, Path]) -> list[str]:
    """A line for each expert of which nothing proves that it was trained on this base, or much says that it was not.

    Args:
        base: the base model's folder.
        base_digest: `weights_digest` of it.
        experts: folders by name, as `check_experts` found them.
    """
    found = []
    for name, folder in experts.items():
        record = _json(folder / RECORD) if (folder / RECORD).is_file() else {}
        trained_on = record.get("base_digest")
        if trained_on == base_digest:
            continue
        if trained_on:
            line = f"was trained on another base (weights {str(trained_on)[:12]}, this base has {base_digest[:12]})"
        elif expert_kind(folder) == "adapter":
            line = adapter_doubt(folder, base, base_digest)
        else:
            line = _model_doubt(folder, base)
        if line:
            found.append(f"expert {name}: {line}")
    return found


def adapter_doubt(folder: Path, base: Path, base_digest: str) -> str:
    """What speaks against an adapter having been trained on this base; empty when it names it."""
    told = adapters.read_config(folder).get("base_model_name_or_path")
    if not told:
        return "nothing says which base it was trained on; on another base it means nothing"
    place = Path(str(told))
    if place.is_dir() and weights_digest(place) == base_digest:
        return ""
    names = _names_of(base)
    if str(told) in names:
        return ""
    known = f" ({names[0]})" if names else ""
    return f"says that it was trained on {told}, which is not known to be this base{known}; give the base it names"


def _names_of(base: Path) -> list[str]:
    """What a model folder says about its origin."""
    provenance = _json(base / "provenance.json") if (base / "provenance.json").is_file() else {}
    config = _json(base / "config.json")
    return [str(name) for name in (provenance.get("source"), config.get("_name_or_path")) if name]


def _model_doubt(folder: Path, base: Path) -> str:
    origin = FileTensors(base)
    cosine = resemblance(
        origin, FullExpert(FileTensors(folder), origin, folder.name, ()), list(origin.shapes)
    )
    if cosine >= RESEMBLES:
        return ""
    return (
        f"its weights hardly resemble the base's (cosine {cosine:.2f}; experts of one base are near 1); "
        "give the base that it was trained on"
    )


def _check_adapter(folder: Path, name: str) -> None:
    if not (folder / ADAPTER_WEIGHTS).is_file():
        pickled = sorted(p.name for p in folder.glob("adapter_model.*"))
        what = f"only {pickled[0]}, a pickle, which is never opened" if pickled else f"no {ADAPTER_WEIGHTS}"
        raise DataError(f"expert {name}: holds {what}; save the adapter as safetensors")
    adapters.check_config(adapters.read_config(folder), name)
    read_header(folder / ADAPTER_WEIGHTS)


def _check_model(folder: Path, base: Path, name: str) -> None:
    check_model_folder(folder, "any")
    own, wanted = _json(folder / "config.json"), _json(base / "config.json")
    if own.get("model_type") != wanted.get("model_type"):
        raise DataError(
            f"expert {name}: is a {own.get('model_type')}, the base a {wanted.get('model_type')}; "
            "give experts of one architecture"
        )
    for field in SHAPE_FIELDS:
        if own.get(field) != wanted.get(field):
            raise DataError(
                f"expert {name}: has {field} {own.get(field)}, the base {wanted.get(field)}; give experts of this base"
            )


def _from_hub(source: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=list(HUB_FILES)))
    except Exception as error:
        raise DataError(
            f"{source} is no folder, it is not in the local hub cache, and the hub does not give it "
            f"({type(error).__name__}); give a folder or an id of a public model"
        ) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is not valid JSON; save the model again") from error
    return content if isinstance(content, dict) else {}
