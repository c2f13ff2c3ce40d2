"""Load a candidate for evaluation: a full model, or an adapter merged into its base.

Every candidate is computed the same way: dense weights, cast once to the number format of the evaluation. An adapter
is therefore added to its base in float32 before the cast, as a merge or a compressed model is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from tasks.load_model import load_causal_lm
from tasks.one_model import one_model_at_a_time
from tasks.prepare.models import (
    check_model_folder,
    iterate_tensors,
    read_safetensors_header,
    weight_files,
)
from tasks.quiet import quiet_progress

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# Formats that transformers reads once their method is imported.
PACKED_FORMATS = ("littlebit2",)


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file()


def best_device() -> Any:
    """The first GPU, else the processor."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_candidate(model: Path, base: Path | None) -> None:
    """Refuse a folder that is no whole model or adapter, without reading its weights.

    Raises:
        DataError: names the folder or file, what is wrong, and the remedy.
    """
    if not is_adapter(model):
        check_model_folder(model, "causal-lm", PACKED_FORMATS)
        packed_layers(model)
        return
    if base is None:
        raise DataError(f"adapter {model}: needs its base model; give the folder that it was trained on")
    check_model_folder(base, "causal-lm")
    if not (model / ADAPTER_WEIGHTS).is_file():
        raise DataError(f"adapter {model}: holds no {ADAPTER_WEIGHTS}; only safetensors adapters are read")
    read_safetensors_header(model / ADAPTER_WEIGHTS)


def load_candidate(model: Path, base: Path | None, dtype: Any) -> tuple[Any, Any]:
    """The model in `dtype`, in evaluation mode on the best device, and its tokenizer.

    Raises:
        DataError: as `check_candidate`, and weights that hold NaN or infinity (names the tensor).
    """
    import torch
    from transformers import AutoTokenizer

    check_candidate(model, base)
    adapter = is_adapter(model)
    full = base if adapter and base is not None else model
    if packed_layers(full):
        from methods.littlebit2 import register

        register()
    with one_model_at_a_time, quiet_progress():
        loaded = load_causal_lm(full, torch.float32 if adapter else dtype)
        tokenizer = AutoTokenizer.from_pretrained(str(full), local_files_only=True)
        if adapter:
            loaded = _with_adapter(loaded, model).to(dtype)
    for name, tensor in loaded.state_dict().items():
        # The sum is finite unless a value is not: one pass without a mask of the tensor's size.
        if tensor.is_floating_point() and not tensor.float().sum().isfinite() and not tensor.isfinite().all():
            raise DataError(
                f"model {model}: the tensor {name} holds NaN or infinity; use an intact checkpoint"
            )
    return loaded.to(best_device()).eval().requires_grad_(False), tokenizer


def _with_adapter(base: Any, adapter: Path) -> Any:
    from peft import PeftModel

    config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    try:
        # The adapter's record of its base is another machine's path: the given base is used.
        return PeftModel.from_pretrained(base, str(adapter), is_trainable=False).merge_and_unload()
    except (RuntimeError, ValueError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise DataError(
            f"adapter {adapter}: does not fit the base (trained on {config.get('base_model_name_or_path')}): {reason}"
        ) from error


def packed_layers(folder: Path) -> dict[str, list[int]]:
    """Layers that lie packed in a model folder, name -> [branches, outputs, rank, inputs]; nothing for a dense model.

    Raises:
        DataError: the folder's files do not fit its config.json.
    """
    from methods.littlebit2.storage import check_compressed, is_compressed

    return check_compressed(folder) if is_compressed(folder) else {}


def measure_size(model: Path, base: Path | None) -> dict[str, float]:
    """Size of what must be shipped to run a candidate; an adapter counts with its base.

    Returns:
        bytes: of the weight files.
        parameters: numbers in them; of a packed layer, those of the dense layer that it stands for.
        nonzero_share: the share of numbers that are not zero.
        nominal_bytes: of the best simple storage of each tensor: as it is, or its non-zero values and one bit per
            place that says where they are. A packed layer counts as it is stored.
        nominal_bits_per_parameter: the same per number, in bits.
    """
    folders = [base, model] if is_adapter(model) and base is not None else [model]
    files = 0
    numbers = nonzero = 0
    nominal = 0.0
    for folder in folders:
        adapter = is_adapter(folder)
        files += sum(
            (folder / name).stat().st_size
            for name in ([ADAPTER_WEIGHTS] if adapter else weight_files(folder))
        )
        packed = {} if adapter else packed_layers(folder)
        for _, outputs, _, inputs in packed.values():
            numbers += outputs * inputs
            nonzero += outputs * inputs
        for name, tensor in _adapter_tensors(folder) if adapter else iterate_tensors(folder):
            owner, _, part = name.rpartition(".")
            if owner in packed and part != "bias":
                nominal += tensor.numel() * tensor.element_size()
                continue
            count, filled = tensor.numel(), int(tensor.count_nonzero())
            numbers += count
            nonzero += filled
            dense = count * tensor.element_size()
            nominal += min(dense, filled * tensor.element_size() + count / 8)
    return {
        "bytes": files,
        "parameters": numbers,
        "nonzero_share": nonzero / numbers,
        "nominal_bytes": nominal,
        "nominal_bits_per_parameter": 8 * nominal / numbers,
    }


def _adapter_tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    with safe_open(folder / ADAPTER_WEIGHTS, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 (a safetensors handle is no mapping)
            yield key, file.get_tensor(key)
