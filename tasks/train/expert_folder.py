"""Writing an expert: the same bytes for the same weights, and no path of this machine in any file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from methods.common.safetensors_stream import StreamWriter, folder_tensors, read_header
from methods.merge_early_stop.merge import copy_companions
from methods.merge_early_stop.sources import FileTensors
from tasks.file_names import weights_in_file

RECORDS = ("expert.json", "stop.json", "merge.json", "merge_info.json", "compression.json")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


def drop_records(folder: Path) -> None:
    """Remove what says how the base was made: it is no record of what was made from the base."""
    for name in RECORDS:
        (folder / name).unlink(missing_ok=True)


def write_adapter(model: Any, out: Path) -> None:
    """A PEFT adapter folder: `adapter_model.safetensors` (float32) and `adapter_config.json`."""
    from peft import get_peft_model_state_dict

    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    save_file(
        {name: value.detach().float().cpu().contiguous() for name, value in sorted(weights.items())},
        out / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    config = model.peft_config["default"].to_dict()
    config["inference_mode"] = True
    config["base_model_name_or_path"] = _public_name(config.get("base_model_name_or_path"))
    write_json(out / "adapter_config.json", {name: _plain(value) for name, value in config.items()})


def write_full_model(model: Any, base: Path, out: Path) -> None:
    """A model folder with the base's files, names and types; only the weights differ.

    Raises:
        DataError: see `weights_in_file`.
    """
    infos = folder_tensors(base)
    live = weights_in_file(model, {name: info.shape for name, info in infos.items()}, base)
    origin = FileTensors(base)
    for file in dict.fromkeys(info.file for info in infos.values()):
        held = {name: info for name, info in infos.items() if info.file == file}
        declared = {name: (info.dtype, info.shape) for name, info in held.items()}
        with StreamWriter(out / file.name, declared, read_header(file)[1] or {"format": "pt"}) as writer:
            for name, info in held.items():
                # What transformers passes over when it loads the model (old buffers) stays as it is.
                value = live[name].detach().cpu() if name in live else origin.read(name)
                writer.write(name, value.to(info.dtype))
    copy_companions(base, out)
    drop_records(out)


def check_writable(model: Any, base: Path) -> None:
    """Refuse, before it is trained, a model that `write_full_model` could not write.

    Raises:
        DataError: see `weights_in_file`.
    """
    weights_in_file(model, {name: info.shape for name, info in folder_tensors(base).items()}, base)


def _public_name(name: str | None) -> str | None:
    """A hub id stays; a folder of this machine is nobody else's business."""
    if not name or name.startswith((".", "/", "~")) or Path(name).exists() or name.count("/") != 1:
        return None
    return name


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if hasattr(value, "value"):  # an enumeration
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
