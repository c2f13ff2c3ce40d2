"""A whole model: which layers, all of them factorised in parallel, and a row of facts for each."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from methods.common.checks import check_choice, check_whole
from methods.common.errors import ConfigError, DataError
from methods.common.linear_layers import is_linear, oriented_weight
from methods.littlebit2.config import LittleBitConfig
from methods.littlebit2.factorize import choose_rank, factorize
from methods.littlebit2.factors import BinaryFactors
from methods.littlebit2.layer import LATENT, LittleBitLinear
from methods.littlebit2.signs import Gradient, sgn

Model = TypeVar("Model", bound=nn.Module)
# Called after each layer with the number of finished layers and of all layers.
OnLayer = Callable[[int, int], None]


class Target(NamedTuple):
    """A dense linear layer to compress."""

    name: str
    module: nn.Module

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs], detached."""
        return oriented_weight(self.module)


def target_layers(model: nn.Module, config: LittleBitConfig) -> list[Target]:
    """The dense linear layers that `config` names, in the order of the modules.

    The output head, and any layer whose weight is tied to another module's, are never taken.

    Raises:
        DataError: the model is compressed already, or nothing is left to compress.
        ConfigError: a part of a name in `include` or `exclude` (other than the default) fits no layer.
    """
    if is_linear(model):
        raise DataError("the model is itself a linear layer; use LittleBitLinear.from_linear")
    if any(isinstance(module, LittleBitLinear) for module in model.modules()):
        raise DataError("the model is compressed already; give the original model")
    head = _output_layer(model)
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    found = [
        Target(name, module)
        for name, module in model.named_modules()
        if is_linear(module) and module is not head and owners[id(module.weight)] == 1
    ]
    every = [name for name, module in model.named_modules() if is_linear(module)]
    for field in ("include", "exclude"):
        for part in getattr(config, field):
            if part != "lm_head" and not any(part in name for name in every):
                raise ConfigError(
                    f"{field} {part!r}: no linear layer has that in its name; the first is {every[:1]}"
                )
    kept = [
        target
        for target in found
        if (not config.include or any(part in target.name for part in config.include))
        and not any(part in target.name for part in config.exclude)
    ]
    if not kept:
        raise DataError(f"{type(model).__name__} has no linear layer to compress; check include and exclude")
    return kept


def _output_layer(model: nn.Module) -> nn.Module | None:
    find = getattr(model, "get_output_embeddings", None)
    found = find() if find is not None else None
    return found if isinstance(found, nn.Module) else None


def compress_model(
    model: Model,
    config: LittleBitConfig | None = None,
    *,
    n_jobs: int | None = None,
    gradient: Gradient = "smooth_sign",
    on_layer: OnLayer | None = None,
    cache: Path | None = None,
) -> tuple[Model, list[dict[str, Any]]]:
    """Replace the linear layers by trainable `LittleBitLinear` layers, in place; `.pack()` or `save_compressed` packs.

    Args:
        model: any module with `nn.Linear` or Conv1D layers.
        config: settings.
        n_jobs: layers at the same time, one thread each; None takes all cores. It does not change the result.
        gradient: surrogate gradient of sgn in training.
        on_layer: progress.
        cache: folder for the finished layers; a second call goes on from those of the same weights and settings.

    Returns:
        the same model, and a row a layer: name, outputs, inputs, rank, clamped, nominal_bpp, stored_bpp, error
        (relative squared), energy, gamma, haar_error, coherence and alignment before and after, seconds.

    Raises:
        DataError: as `target_layers`, and a weight that is not finite (names the layer).
        ConfigError: `strict`, and a layer cannot reach the target, or n_jobs or gradient is wrong: before any work.
    """
    config = config or LittleBitConfig()
    if not isinstance(config, LittleBitConfig):
        raise ConfigError(f"config {config!r}: give a LittleBitConfig; LittleBitConfig.from_dict makes one")
    if n_jobs is not None:
        check_whole("n_jobs", n_jobs, 1)
    check_choice("gradient", gradient, Gradient)
    targets = target_layers(model, config)
    for target in targets:  # a target that cannot be reached is refused before any work
        choose_rank(target.weight.shape[0], target.weight.shape[1], config, target.name)
    jobs = n_jobs or os.cpu_count() or 1
    rows: list[dict[str, Any]] = []

    def work(target: Target) -> tuple[BinaryFactors, float]:
        started = time.perf_counter()
        try:
            factors = _cached(target, config, cache)
        except DataError as error:
            raise DataError(f"{target.name}: {error}") from error
        return factors, time.perf_counter() - started

    for done, (target, (factors, seconds)) in enumerate(_mapped(work, targets, jobs), 1):
        bias = getattr(target.module, "bias", None)
        layer = LittleBitLinear.from_factors(
            factors, bias.detach() if isinstance(bias, Tensor) else None, gradient=gradient
        )
        layer.conv1d = type(target.module).__name__ == "Conv1D"
        layer.to(target.weight.device).train(target.module.training)
        model.set_submodule(target.name, layer)
        rows.append(layer_row(target.name, factors) | {"seconds": seconds})
        if on_layer:
            on_layer(done, len(targets))
    return model, rows


def _mapped(
    work: Callable[[Target], tuple[BinaryFactors, float]], targets: list[Target], jobs: int
) -> Iterator[tuple[Target, tuple[BinaryFactors, float]]]:
    """Results in order; one thread of the linear algebra a job, so that sums do not depend on the number of jobs."""
    threads = torch.get_num_threads()
    try:
        if jobs == 1:
            torch.set_num_threads(1)
            yield from ((target, work(target)) for target in targets)
            return
        with ThreadPoolExecutor(jobs, initializer=lambda: torch.set_num_threads(1)) as pool:
            try:
                yield from zip(targets, pool.map(work, targets), strict=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)


def _cached(target: Target, config: LittleBitConfig, cache: Path | None) -> BinaryFactors:
    if cache is None:
        return factorize(target.weight, config=config, name=target.name)
    file = cache / f"{target.name}.safetensors"
    mark = _mark(target, config)
    kept = _read_kept(file, mark)
    if kept is not None:
        return kept
    factors = factorize(target.weight, config=config, name=target.name)
    cache.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    save_file(
        {name: getattr(factors, name).contiguous() for name in LATENT},
        partial,
        metadata={"stats": json.dumps(factors.stats), "mark": mark},
    )
    partial.replace(file)
    return factors


def _mark(target: Target, config: LittleBitConfig) -> str:
    """What a finished layer was made of: its weight and the settings."""
    digest = hashlib.sha256(json.dumps(config.to_dict()).encode())
    digest.update(target.weight.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read_kept(file: Path, mark: str) -> BinaryFactors | None:
    """A finished layer; None when there is none of this mark, or only a damaged file."""
    try:
        with safe_open(file, framework="pt") as handle:
            facts = handle.metadata() or {}
            if facts.get("mark") != mark:
                return None
            u, v, h, middle, g = (handle.get_tensor(name) for name in LATENT)
    except (FileNotFoundError, SafetensorError):
        return None
    signs = sgn(u).to(torch.int8), sgn(v).to(torch.int8)
    return BinaryFactors(*signs, h, middle, g, latent_u=u, latent_v=v, stats=json.loads(facts["stats"]))


def layer_row(name: str, factors: BinaryFactors) -> dict[str, Any]:
    """The report's row of a layer."""
    outputs, inputs = factors.shape
    facts = {k: v for k, v in factors.stats.items() if k not in ("rank", "nominal_bpp", "clamped")}
    return {
        "name": name,
        "outputs": outputs,
        "inputs": inputs,
        "rank": factors.rank,
        "clamped": bool(factors.stats.get("clamped", 0.0)),
        "nominal_bpp": factors.bits() / (outputs * inputs),
        "stored_bpp": 8 * factors.stored_bytes() / (outputs * inputs),
        **facts,
    }


def densify(model: Model, dtype: torch.dtype | None = None) -> Model:
    """Replace the binary layers by `nn.Linear`s with their reconstructed weights, in place: the storage switched off.

    For software that does not know this format; the files are then as large as the original's. `dtype` None takes that
    of the input embedding or, without one, float32.
    """
    find = getattr(model, "get_input_embeddings", None)
    kind = dtype or (find().weight.dtype if find is not None else torch.float32)
    for name, layer in list(binary_layers(model)):
        dense = _dense_layer(layer).to(kind)
        with torch.no_grad():
            oriented_weight(dense).copy_(layer.reconstruct())
            if layer.bias is not None:
                dense.bias.copy_(layer.bias)
        model.set_submodule(name, dense.train(layer.training))
    return model


def _dense_layer(layer: LittleBitLinear) -> Any:
    if layer.conv1d:
        from transformers.pytorch_utils import Conv1D

        return Conv1D(layer.out_features, layer.in_features)
    return nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)


def binary_layers(model: nn.Module) -> Iterator[tuple[str, LittleBitLinear]]:
    """Name and layer of all `LittleBitLinear`s."""
    for name, module in model.named_modules():
        if isinstance(module, LittleBitLinear):
            yield name, module
