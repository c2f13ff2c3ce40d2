"""Materialise a model once: a safetensors folder with tokenizer, provenance and finite weights.

Nothing of a foreign model is executed: weights come only from safetensors, `trust_remote_code` stays off, and a
folder that asks for its own code is refused. `check_model_source` finds most mistakes before any work starts,
from the folder's small files and the header of each weight file.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from methods.common.errors import DataError
from methods.common.safetensors_stream import Entry, check_one_model, header_entries
from tasks.prepare.bundled import MINILM, SMOLLM2, package_file, package_origin
from tasks.prepare.config import ModelSettings
from tasks.prepare.user_data import source_name
from tasks.quiet import quiet_progress
from tasks.reference import file_digest

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUNDLED_MODELS = ("bundled:smollm2-135m", "bundled:minilm-l6")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")
# Model types of this project's own causal language models: the module whose `register` teaches transformers them.
OWN_TYPES = {"spannorm": "methods.span_norm"}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
# What is copied beside the weights; everything else of a folder stays behind (code, pickles, training state).
SIDE_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
)
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")


def check_model_source(settings: ModelSettings) -> None:
    """Refuse a model that cannot be used, before any work starts.

    Reads configuration, file names and weight headers, never the weights themselves; a hub id is looked up in
    the local cache and then on the hub.

    Raises:
        DataError: one line that names the source, what is wrong, and the remedy.
    """
    source = settings.source
    if source.startswith("bundled:"):
        _check_bundled(settings)
        return
    folder = Path(source).expanduser()
    if folder.exists():
        check_model_folder(folder, settings.architecture)
        return
    if not _HUB_ID.match(source):
        raise DataError(
            f"model source {source!r}: there is no such folder, and it is not a hub id ('owner/name')"
        )
    _check_hub(settings)


def check_model_folder(folder: Path, architecture: str = "any", packed: tuple[str, ...] = ()) -> None:
    """The checks of `check_model_source` on a local folder (also used on checkpoints between steps).

    `packed` names the packed formats that the caller reads; all others are refused.

    Raises:
        DataError: no config, foreign code, only pickles, packed weights, a damaged or missing weight file, no
            tokenizer, or an architecture that transformers does not have.
    """
    if not folder.is_dir():
        raise DataError(
            f"model {folder}: is a file; give the folder that holds config.json and *.safetensors"
        )
    config = _read_json(
        folder / "config.json", f"model {folder}: holds no config.json; give a save_pretrained folder"
    )
    _check_no_foreign_code(folder, config)
    _check_architecture(str(folder), config, architecture, packed)
    for name in weight_files(folder):
        read_safetensors_header(folder / name)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise DataError(f"model {folder}: holds no tokenizer; save one with tokenizer.save_pretrained")


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files that make up a model, in order.

    Raises:
        DataError: only pickles, no weights, or a shard that the index names is missing.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        table = _read_json(index, f"{index}: is missing").get("weight_map")
        if not isinstance(table, dict) or not table:
            raise DataError(f"{index}: has no weight_map; save the model again")
        names = sorted({str(name) for name in table.values()})
        _check_names(index, names)
        check_one_model(folder, "model", names)
        for name in names:
            if not (folder / name).is_file():
                raise DataError(
                    f"{folder / name}: is missing although the index names it; fetch the model again"
                )
        for name in names:
            missing = {key for key, place in table.items() if place == name} - set(
                read_safetensors_header(folder / name)
            )
            if missing:
                raise DataError(f"{folder / name}: lacks the tensor {min(missing)}; fetch the model again")
        return names
    if (folder / "model.safetensors").is_file():
        return ["model.safetensors"]
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise DataError(
            f"model {folder}: {pickles[0]} is a pickle, which can run code when it is read; "
            "convert it with save_pretrained (safetensors) on a machine you trust"
        )
    raise DataError(f"model {folder}: holds no model.safetensors")


def _check_names(index: Path, names: list[str]) -> None:
    """Refuse an index that reaches outside its folder: only plain file names."""
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise DataError(f"{index}: names {name!r}, which is not a safetensors file of this folder")


def read_safetensors_header(path: Path) -> dict[str, Entry]:
    """Names, types, shapes and offsets of a safetensors file's tensors, checked against the file's size.

    Raises:
        DataError: see `header_entries`.
    """
    return header_entries(path)[0]


def materialise_model(settings: ModelSettings, out: Path) -> dict[str, Any]:
    """Write the model as a safetensors folder with its tokenizer and `provenance.json`.

    The same settings give the same bytes. Weights are streamed file by file; memory holds one shard.

    Returns:
        parameters, bytes of the weights, dtype, model type and the provenance record.

    Raises:
        DataError: everything that `check_model_source` refuses, and tensors that hold NaN or infinity.
    """
    check_model_source(settings)
    out.mkdir(parents=True, exist_ok=True)
    if settings.source == "bundled:smollm2-135m":
        provenance = _materialise_smollm2(settings, out)
    else:
        if settings.source == "bundled:minilm-l6":
            folder = package_file(MINILM, "model")
            provenance = package_origin(MINILM, folder / "model.safetensors", source=settings.source).record()
        elif Path(settings.source).expanduser().is_dir():
            folder = Path(settings.source).expanduser()
            provenance = {"source": source_name(settings.source), "licence": _licence_of(folder)}
        else:
            folder, commit = _fetch_from_hub(settings)
            check_model_folder(folder, settings.architecture)
            provenance = {"source": settings.source, "revision": commit, "licence": _licence_of(folder)}
        provenance["sha256"] = "+".join(file_digest(folder / name) for name in weight_files(folder))
        _copy_model(folder, out, settings.dtype)
    for name in weight_files(out):
        (out / name).chmod(0o644)  # the writer leaves them readable by their owner alone
    provenance["revision"] = provenance.get("revision", settings.revision)
    provenance["dtype"] = settings.dtype
    _write_json(out / "provenance.json", provenance)
    headers = [read_safetensors_header(out / name) for name in weight_files(out)]
    parameters = sum(math.prod(entry.shape) for header in headers for entry in header.values())
    config = _read_json(out / "config.json", "")
    return {
        "parameters": parameters,
        "bytes": sum((out / name).stat().st_size for name in weight_files(out)),
        "model_type": config.get("model_type", ""),
        "dtype": config.get("dtype", settings.dtype),
        "provenance": provenance,
    }


# -- the bundled language model -----------------------------------------------------------------------------------


def _materialise_smollm2(settings: ModelSettings, out: Path) -> dict[str, str]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    path = package_file(SMOLLM2, SMOLLM2_FILE)
    origin = package_origin(SMOLLM2, path, source=settings.source)
    with quiet_progress():
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        # Without `dequantize` the blocks stay packed and the model cannot be saved.
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=path.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        if settings.dtype in ("bfloat16", "float16"):
            model = model.to(getattr(torch, settings.dtype))
        _refuse_not_finite(settings.source, model.state_dict().items())
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    return origin.record() | {
        "note": "weights are 4-bit (Q4_1) blocks, dequantised: the full-precision reference here"
    }


# -- folders and the hub ------------------------------------------------------------------------------------------


def _copy_model(folder: Path, out: Path, dtype: str) -> None:
    """Copy weights (cast to `dtype`, checked to be finite) and the side files of a model folder."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    target = None if dtype == "stored" else getattr(torch, dtype)
    index: dict[str, str] = {}
    total = 0
    for name in weight_files(folder):
        tensors = {}
        with safe_open(folder / name, framework="pt") as shard:
            for key in shard.keys():  # noqa: SIM118 (a safetensors handle is no mapping)
                tensor = shard.get_tensor(key)
                _refuse_not_finite(str(folder), [(key, tensor)])
                if target is not None and tensor.is_floating_point():
                    tensor = tensor.to(target)
                    _refuse_not_finite(f"{folder} as {dtype}", [(key, tensor)])
                tensors[key] = tensor.contiguous()
                index[key] = name
                total += tensors[key].numel() * tensors[key].element_size()
        save_file(tensors, out / name, metadata={"format": "pt"})
    if len(set(index.values())) > 1:
        _write_json(
            out / "model.safetensors.index.json",
            {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))},
        )
    config = _read_json(folder / "config.json", "")
    if target is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = dtype
    _write_json(out / "config.json", config)
    for name in SIDE_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)


def _fetch_from_hub(settings: ModelSettings) -> tuple[Path, str]:
    from huggingface_hub import snapshot_download

    try:
        place = snapshot_download(
            settings.source,
            revision=settings.revision or None,
            allow_patterns=["*.safetensors", "*.safetensors.index.json", "config.json", *SIDE_FILES],
        )
    except Exception as error:
        raise DataError(_hub_refusal(settings, error)) from error
    return Path(place), Path(place).name


def _check_hub(settings: ModelSettings) -> None:
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    revision = settings.revision or None
    cached = try_to_load_from_cache(settings.source, "config.json", revision=revision)
    if isinstance(cached, str) and any(Path(cached).parent.glob("*.safetensors")):
        check_model_folder(Path(cached).parent, settings.architecture)
        return
    try:
        files = {
            item.rfilename
            for item in HfApi().model_info(settings.source, revision=revision, timeout=10).siblings or []
        }
        config_path = (
            hf_hub_download(settings.source, "config.json", revision=revision)
            if "config.json" in files
            else ""
        )
    except Exception as error:
        raise DataError(_hub_refusal(settings, error)) from error
    if not config_path:
        raise DataError(f"model {settings.source}: the hub repository holds no config.json")
    if not any(name.endswith(".safetensors") for name in files):
        raise DataError(
            f"model {settings.source}: the hub repository has no safetensors weights; choose another revision"
        )
    config = _read_json(Path(config_path), "")
    _refuse_code(settings.source, config)
    _check_architecture(settings.source, config, settings.architecture)


def _hub_refusal(settings: ModelSettings, error: Exception) -> str:
    name = type(error).__name__
    if name in ("RepositoryNotFoundError", "HFValidationError"):
        return f"model {settings.source}: there is no such folder, and the hub has no such public model"
    if name == "GatedRepoError":
        return (
            f"model {settings.source}: is gated; accept its terms on the hub and log in with `hf auth login`"
        )
    if name == "RevisionNotFoundError":
        return f"model {settings.source}: the hub has no revision {settings.revision!r}"
    return (
        f"model {settings.source}: there is no such folder, it is not in the local hub cache, and the hub cannot be "
        f"reached ({name}); give a folder or one of {', '.join(BUNDLED_MODELS)}"
    )


# -- checks ---------------------------------------------------------------------------------------------------------


def _check_bundled(settings: ModelSettings) -> None:
    if settings.source == "bundled:smollm2-135m":
        path = package_file(SMOLLM2, SMOLLM2_FILE)
        with path.open("rb") as handle:
            if handle.read(4) != b"GGUF":
                raise DataError(f"{path.name}: is damaged; run `{SMOLLM2.install} --force-reinstall`")
    elif settings.source == "bundled:minilm-l6":
        check_model_folder(package_file(MINILM, "model"), settings.architecture)
    else:
        raise DataError(f"model source {settings.source!r}: choose one of {', '.join(BUNDLED_MODELS)}")


def _check_no_foreign_code(folder: Path, config: dict[str, Any]) -> None:
    _refuse_code(str(folder), config)
    if (folder / "tokenizer_config.json").is_file():
        _refuse_code(f"{folder}/tokenizer_config.json", _read_json(folder / "tokenizer_config.json", ""))


def _refuse_code(name: str, config: dict[str, Any]) -> None:
    if config.get("auto_map"):
        raise DataError(
            f"model {name}: asks for its own code (auto_map), which is never run here; "
            "use a model that transformers itself supports"
        )


def _check_architecture(
    name: str, config: dict[str, Any], architecture: str, packed_formats: tuple[str, ...] = ()
) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = _dense_type(config.get("model_type"))
    own = _register_own(kind)
    if not own and kind not in CONFIG_MAPPING_NAMES:
        raise DataError(
            f"model {name}: model_type {kind!r} is not one that transformers has; it would need foreign code"
        )
    packed = config.get("quantization_config")
    if packed:
        method = packed.get("quant_method", "unknown") if isinstance(packed, dict) else "unknown"
        if method not in packed_formats:
            raise DataError(f"model {name}: its weights are packed ({method}); give the unquantised model")
    if architecture == "causal-lm":
        if not own and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise DataError(
                f"model {name}: {kind} is no language model that writes text; set architecture to 'any'"
            )
        classes = config.get("architectures") or []
        if not isinstance(classes, list) or not all(isinstance(item, str) for item in classes):
            raise DataError(
                f"model {name}: config.json has architectures {classes!r}, which is no list of class names"
            )
        if classes and not any("CausalLM" in item or "LMHead" in item for item in classes):
            raise DataError(
                f"model {name}: holds {classes[0]}, not a causal language model; set architecture to 'any'"
            )


def _register_own(kind: Any) -> bool:
    """Whether the type is one of this project's methods; transformers' Auto classes load it from here on."""
    if kind not in OWN_TYPES:
        return False
    import_module(OWN_TYPES[kind]).register()
    return True


def _dense_type(kind: Any) -> Any:
    """The type of the dense model behind one with dropped sublayers, which transformers can load from here on."""
    if not str(kind).startswith("dropped_"):
        return kind
    from methods.pruning_representations.dropped_models import dense_type, register

    dense = dense_type(str(kind))
    if dense is None:
        return kind
    register(dense)
    return dense


def _refuse_not_finite(name: str, tensors: Any) -> None:
    for key, tensor in tensors:
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise DataError(f"model {name}: the tensor {key} holds NaN or infinity; use an intact checkpoint")


def _licence_of(folder: Path) -> str:
    """The licence that a model card states in its front matter, else 'not stated'."""
    card = folder / "README.md"
    if card.is_file():
        match = re.search(
            r"^license:\s*(\S+)", card.read_text(encoding="utf-8", errors="replace")[:4_000], re.MULTILINE
        )
        if match:
            return match.group(1)
    return "not stated"


def _read_json(path: Path, missing: str) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(missing)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: is not valid JSON; fetch or save it again") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: is not a JSON object; fetch or save it again")
    return value


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def iterate_tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names and tensors of a model folder, one at a time, in the order of its files."""
    from safetensors import safe_open

    for name in weight_files(folder):
        with safe_open(folder / name, framework="pt") as shard:
            for key in shard.keys():  # noqa: SIM118
                yield key, shard.get_tensor(key)
