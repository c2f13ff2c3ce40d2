"""Compress one model by one recipe: the checks, the side files and the honest sizes that all recipes
share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError, DataError
from tasks.compress.prune import text_documents
from tasks.compress.recipes import CompressionRecipe, compressor_for
from tasks.compress.record import REPORT, note_calibration
from tasks.reference import Reference

DENSE = "dense"
# Everything else of the source folder goes along: tokenizer, chat template, generation settings, licence.
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
NOT_COPIED_NAMES = frozenset({"model.safetensors.index.json", REPORT, "timings.json", ".seedloom.json"})


def check_compression(recipes: tuple[CompressionRecipe, ...], model: Path) -> None:
    """Refuse a model that a recipe cannot compress, by its file names and config, before any work starts.

    Raises:
        DataError, ConfigError: one line that names the model or field, what is wrong, and the remedy.
    """
    from tasks.prepare.models import check_model_folder

    check_model_folder(model)
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    classes = config.get("architectures") or []
    if classes and not any("CausalLM" in name or "LMHead" in name for name in classes):
        raise DataError(
            f"model {model}: holds {classes[0]}, no causal language model; compress takes no other"
        )
    for recipe in recipes:
        try:
            recipe.check_model(config)
        except (ConfigError, DataError) as error:
            raise type(error)(f"recipe {recipe.label}: {error}") from error


def compress_model(
    out: Path,
    *,
    recipe: CompressionRecipe,
    model: Reference,
    calibration: Reference | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Write the compressed model to `out` as a model folder with `compression.json`.

    Args:
        out: emptied first, unless the recipe resumes, so what a killed attempt left does no harm.
        recipe: one of the known recipes.
        model: a model folder.
        calibration: held-out text (Arrow, column `text`), or the output of the prepare step, of which only
            the part `calibration` is read. It must not be the text that the result is evaluated on; the
            prepare step keeps the two apart.
        seed: of the choice of calibration sequences.

    Returns:
        what `compression.json` holds without the list of layers; `timings` are measured and stand in no file.
            size/bytes: the weight files as they lie on disk. Zeros in a dense file take as much as other
                numbers.
            size/nonzero_share: of all stored numbers, embeddings included; only for the format `dense`.
            size/nominal_bytes: what the method's own format would take; for pruning one bit per weight for
                its place and the remaining values, the rest dense. No file of that size is written.
            size/nominal_bits_per_weight: of the compressed layers alone.

    Raises:
        DataError: the model is no causal language model of a known architecture, or has a tensor with NaN or
            infinity; no, empty or too short calibration text where the recipe needs it.
        ConfigError: the recipe does not fit the model.
        NumericalError: activations became infinite.
    """
    folder = model.expect("model")
    check_compression((recipe,), folder)
    text = calibration_part(calibration) if calibration is not None else None
    if recipe.uses_calibration and text is None:
        raise DataError(
            f"recipe {recipe.label} needs calibration text; give a text data set with a column 'text'"
        )
    _check_finite(folder)
    out.mkdir(parents=True, exist_ok=True)
    if not recipe.resumes:
        for left in out.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    facts = compressor_for(recipe)(out, recipe=recipe, model=folder, calibration=text, seed=seed)
    timings = facts.pop("timings", {})
    _copy_side_files(folder, out)
    note_calibration(out, folder, text_documents(text) if text and recipe.uses_calibration else ())
    record = {
        "kind": recipe.kind,
        "label": recipe.label,
        "recipe": recipe.model_dump(mode="json"),
        "seed": seed,
        "model_digest": model.digest,
        "calibration_digest": calibration.digest if calibration and recipe.uses_calibration else "",
        **facts,
        "size/bytes": _weight_bytes(out),
        "size/dense_bytes": _weight_bytes(folder),
    }
    if facts["format"] == DENSE:
        record["size/nonzero_share"] = _nonzero_share(out)
    (out / REPORT).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    record.pop("layers", None)
    return {**record, "timings": timings}


def calibration_part(text: Reference) -> Path:
    """The folder to calibrate on: the part `calibration` of the prepare step's text, else the data set
    itself."""
    folder = text.expect("text")
    part = folder / "calibration"
    return part if part.is_dir() else folder


def check_calibration(recipes: tuple[CompressionRecipe, ...], text: Reference) -> None:
    """Refuse text that the recipes cannot read, before any work starts. Raises DataError."""
    if any(recipe.uses_calibration for recipe in recipes):
        next(text_documents(calibration_part(text)), None)


def _check_finite(folder: Path) -> None:
    from tasks.prepare.models import iterate_tensors

    for name, tensor in iterate_tensors(folder):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise DataError(
                f"model {folder}: the tensor {name} holds NaN or infinity; use an intact checkpoint"
            )


def _copy_side_files(folder: Path, out: Path) -> None:
    for file in sorted(folder.iterdir()):
        kept = file.suffix not in NOT_COPIED and file.name not in NOT_COPIED_NAMES
        if file.is_file() and kept and not (out / file.name).exists():
            shutil.copyfile(file, out / file.name)


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _nonzero_share(folder: Path) -> float:
    """Share of the stored numbers that are not zero."""
    from tasks.prepare.models import iterate_tensors

    numbers = nonzero = 0
    for _, tensor in iterate_tensors(folder):
        numbers += tensor.numel()
        nonzero += int(tensor.count_nonzero())
    return nonzero / numbers
