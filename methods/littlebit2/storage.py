"""A compressed model on disk: an ordinary model folder of transformers whose linear layers are packed.

`config.json` names the format (`quantization_config.quant_method`), so that `from_pretrained` builds packed layers once
this package is imported (`register()`), and `generate`, the harness and everything else take the model as it is.
Without the import, the size of each packed `weight` differs from the dense one and transformers refuses the folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError
from methods.littlebit2.bits import stored_bytes
from methods.littlebit2.config import LittleBitConfig
from methods.littlebit2.layer import PACKED
from methods.littlebit2.model import binary_layers

METHOD, FORMAT = "littlebit2", 1
SCALE_TYPES = {"h": 1, "l": 2, "g": 3}  # place of each size in (branches, outputs, rank, inputs)


def save_compressed(
    model: nn.Module,
    folder: str | Path,
    config: LittleBitConfig | None = None,
    *,
    dtype: torch.dtype | None = None,
    max_shard_size: str = "5GB",
) -> dict[str, float]:
    """Write a compressed model of transformers; its layers need not be packed yet.

    Args:
        model: a `PreTrainedModel` with `LittleBitLinear` layers.
        folder: gets config.json, safetensors and generation_config.json; add the tokenizer beside them.
        config: kept in config.json for the record.
        dtype: number format of all that is not packed (embeddings, norms, head, biases); None keeps it.
        max_shard_size: as `save_pretrained`.

    Returns:
        `sizes(folder)`.

    Raises:
        DataError: no compressed layer, no model of transformers, a folder with another model's weights, or a scale that
            exceeds half precision.
    """
    layers = dict(binary_layers(model))
    if not layers:
        raise DataError(f"{type(model).__name__} has no compressed layer; call compress_model first")
    if not hasattr(model, "save_pretrained"):
        raise DataError(
            f"{type(model).__name__} is no model of transformers; keep single layers with BinaryFactors.save"
        )
    tensors: dict[str, Tensor] = {}
    cast: dict[int, Tensor] = {}  # tied tensors stay one tensor, else both would be written
    for name, value in model.state_dict().items():
        owner, _, part = name.rpartition(".")
        if owner in layers and part != "bias":
            continue
        if dtype is not None and value.is_floating_point():
            value = cast.setdefault(value.data_ptr(), value.to(dtype))
        tensors[name] = value
    shapes = {}
    for name, layer in layers.items():
        try:
            packed = layer.packed_tensors()
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        tensors |= {f"{name}.{part}": value for part, value in packed.items()}
        shapes[name] = [layer.branches, layer.out_features, layer.rank, layer.in_features]
    _make_room(Path(folder))
    _write(model, Path(folder), tensors, shapes, config, dtype, max_shard_size)
    return sizes(folder)


def _make_room(folder: Path) -> None:
    """Weights of an earlier compressed model go: shards of it beside the new files would be taken for a part of it.

    Raises:
        DataError: the weights there are of another kind.
    """
    old = sorted([*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")])
    if old and not is_compressed(folder):
        raise DataError(f"folder {folder}: holds weights of another model ({old[0].name}); name a new folder")
    for file in old:
        file.unlink()


def _write(
    model: nn.Module,
    folder: Path,
    tensors: dict[str, Tensor],
    shapes: dict[str, list[int]],
    config: LittleBitConfig | None,
    dtype: torch.dtype | None,
    max_shard_size: str,
) -> None:
    """`save_pretrained` with the section of this format in config.json; the model itself stays as it is."""
    own: Any = model
    before = (
        getattr(own.config, "quantization_config", None),
        own.config.dtype,
        getattr(own, "hf_quantizer", None),
    )
    own.config.quantization_config = {
        "quant_method": METHOD,
        "format": FORMAT,
        "settings": (config.to_dict() if config else {}),
        "layers": shapes,
    }
    if dtype is not None:
        own.config.dtype = dtype
    own.hf_quantizer = None
    try:
        own.save_pretrained(str(folder), state_dict=tensors, max_shard_size=max_shard_size)
    finally:
        own.config.quantization_config, own.config.dtype, own.hf_quantizer = before
        if before[0] is None:
            del own.config.quantization_config
        if before[2] is None:
            del own.hf_quantizer


def load_compressed(folder: str | Path, *, dtype: torch.dtype | str = "auto", device: str = "cpu") -> Any:
    """The model that `save_compressed` wrote, packed, in evaluation mode.

    Raises:
        ConfigError: no such number format or device.
        DataError: one line; the folder is no such model, lacks weights (transformers would go on with random ones), or
            its tensors do not fit its config.
    """
    from transformers import AutoModelForCausalLM

    if dtype != "auto" and not isinstance(
        getattr(torch, str(dtype).removeprefix("torch."), None), torch.dtype
    ):
        raise ConfigError(f"dtype {dtype!r}: give auto or a torch type, such as torch.float32")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device {device!r}: give one that torch knows, such as cpu or cuda:0") from error
    check_compressed(folder)
    register()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except DataError:
        raise
    except RuntimeError as error:  # it refers to a table on the terminal
        raise DataError(
            f"model {folder}: a tensor has another size than config.json gives; compress anew"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"model {folder}: cannot be loaded ({line}); use an intact folder") from error
    model, found = loaded
    if lacking := sorted(found["missing_keys"]):
        raise DataError(f"model {folder}: lacks the tensor {lacking[0]}; use an intact folder")
    for name, layer in binary_layers(model):
        if not all(getattr(layer, part).isfinite().all() for part in ("h", "l", "g")):
            raise DataError(f"model {folder}: the scales of {name} hold NaN or infinity; compress anew")
    return model.to(place).eval()


def is_compressed(folder: str | Path) -> bool:
    """Whether config.json names this format."""
    return _section(Path(folder)) is not None


def _section(folder: Path) -> dict[str, Any] | None:
    file = folder / "config.json"
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8")).get("quantization_config")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, dict) and found.get("quant_method") == METHOD else None


def check_compressed(folder: str | Path) -> dict[str, Any]:
    """Compare config.json with the headers of the safetensors files, without reading weights.

    Returns:
        name of each packed layer -> [branches, outputs, rank, inputs].

    Raises:
        DataError: one line: what does not fit, and the remedy.
    """
    from methods.common.safetensors_stream import folder_tensors

    path = Path(folder)
    section = _section(path)
    if section is None:
        raise DataError(
            f"model {path}: config.json does not name the format {METHOD}; give a folder that it wrote"
        )
    layers = section.get("layers")
    if section.get("format") != FORMAT or not isinstance(layers, dict) or not layers:
        raise DataError(
            f"model {path}: its packed format is {section.get('format')!r}, this version reads {FORMAT}; compress anew"
        )
    found = folder_tensors(path)
    for name, shape in layers.items():
        if not (
            isinstance(shape, list) and len(shape) == 4 and all(isinstance(n, int) and n > 0 for n in shape)
        ):
            raise DataError(
                f"model {path}: config.json gives {name} the shape {shape!r}; compress the model anew"
            )
        branches, outputs, rank, inputs = shape
        wanted: dict[str, tuple[int, ...]] = {
            part: (branches, shape[place]) for part, place in SCALE_TYPES.items()
        }
        scales = 2 * branches * (outputs + rank + inputs)
        wanted["weight"] = (stored_bytes(outputs, inputs, rank, branches) - scales,)
        for part, extent in wanted.items():
            stored = found.get(f"{name}.{part}")
            if stored is None:
                raise DataError(f"model {path}: lacks the tensor {name}.{part}; compress the model anew")
            kind = torch.uint8 if part == "weight" else torch.float16
            if (stored.dtype, tuple(stored.shape)) != (kind, extent):
                raise DataError(
                    f"model {path}: {name}.{part} is {stored.dtype} {list(stored.shape)}, config.json says {kind} "
                    f"{list(extent)}; the files do not belong together, compress the model anew"
                )
    return layers


def sizes(folder: str | Path) -> dict[str, float]:
    """Honest sizes of a compressed model folder.

    Returns:
        file_bytes: of all weight files, headers included.
        parameters: of the original model, embeddings included.
        packed_weights: weights of the compressed layers before compression.
        packed_bytes: bytes of the packed layers' tensors (biases apart).
        stored_bpp: 8 packed_bytes / packed_weights.
        whole_model_bits: 8 file_bytes / parameters.
        unpacked_bytes: bytes of everything else (embeddings, norms, head, biases).
        embedding_share: share of the file taken by the input embedding and the output head.
    """
    from methods.common.safetensors_stream import folder_tensors

    layers = check_compressed(folder)
    packed = {f"{name}.{part}" for name in layers for part in PACKED}
    others = parameters = embeddings = 0
    for name, info in folder_tensors(Path(folder)).items():
        if name in packed:
            continue
        count = info.numel
        size = count * info.dtype.itemsize
        others += size
        parameters += count
        embeddings += size if any(part in name for part in _EMBEDDINGS) else 0
    weights = sum(shape[1] * shape[3] for shape in layers.values())
    packed_bytes = sum(stored_bytes(o, i, r, b) for b, o, r, i in layers.values())
    file_bytes = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
    return {
        "file_bytes": float(file_bytes),
        "parameters": float(parameters + weights),
        "packed_weights": float(weights),
        "packed_bytes": float(packed_bytes),
        "stored_bpp": 8 * packed_bytes / weights,
        "whole_model_bits": 8 * file_bytes / (parameters + weights),
        "unpacked_bytes": float(others),
        "embedding_share": embeddings / file_bytes,
    }


_EMBEDDINGS = ("embed_tokens", "lm_head", "wte", "wpe", "embeddings", "embed_in", "embed_out")


def register() -> None:
    """Make transformers read this format; done once, by importing `methods.littlebit2` and using transformers."""
    from methods.littlebit2 import hf_quantizer

    hf_quantizer.register()
