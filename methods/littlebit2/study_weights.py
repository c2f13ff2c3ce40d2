"""The study's part without training: reconstruction errors of real layers by every initialisation and peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from methods.common.safetensors_stream import folder_tensors
from methods.littlebit2.bits import equal_bits_rank
from methods.littlebit2.config import Init, LittleBitConfig
from methods.littlebit2.factorize import factorize
from methods.littlebit2.model import target_layers
from methods.littlebit2.peers import half_quadratic, low_rank_error, one_bit, relative_error
from methods.littlebit2.spectrum import break_even, truncated_svd

ROTATIONS: tuple[Init, ...] = ("svd", "random_rotation", "joint_itq")
GROUP = 64  # of the 2- and 4-bit peer
SYNTHETIC_SIZE = 512
Row = dict[str, Any]


@dataclass(frozen=True)
class LayerPlace:
    """Where a layer's weight lies."""

    name: str
    file: Path
    transposed: bool

    def read(self) -> Tensor:
        """[outputs, inputs], float32."""
        with safe_open(self.file, framework="pt") as handle:
            weight: Tensor = handle.get_tensor(f"{self.name}.weight").float()
        return weight.T.contiguous() if self.transposed else weight

    @property
    def block(self) -> int:
        """The first number in its name; -1 without one."""
        numbers = [int(part) for part in self.name.split(".") if part.isdigit()]
        return numbers[0] if numbers else -1


def layer_places(folder: Path) -> list[LayerPlace]:
    """The layers that `compress_model` would take of a model folder, without loading it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.tie_weights()
    tensors = folder_tensors(folder)
    return [
        LayerPlace(
            target.name, tensors[f"{target.name}.weight"].file, type(target.module).__name__ == "Conv1D"
        )
        for target in target_layers(model, LittleBitConfig())
    ]


@dataclass(frozen=True)
class Grid:
    """What is computed of one layer.

    Args:
        points: (bpp, residual) at which the three rotations are compared.
        admm: (bpp, residual) at which ADMM is, too.
        peers: OneBit, 2- and 4-bit quantisation.
    """

    points: tuple[tuple[float, bool], ...] = ((0.55, False),)
    admm: tuple[tuple[float, bool], ...] = ()
    peers: bool = False


def layer_rows(place: LayerPlace, grid: Grid, seed: int = 0) -> list[Row]:
    """One row a method and point: layer, outputs, inputs, method, bpp, residual, rank, nominal_bpp, stored_bpp, error,
    haar_error (closed form), gamma, break_even, coherence and alignment before and after, seconds."""
    weight = place.read()
    outputs, inputs = weight.shape
    started = time.perf_counter()
    svd = truncated_svd(weight, min(outputs, inputs))
    svd_seconds = time.perf_counter() - started
    rows: list[Row] = []
    common = {"layer": place.name, "outputs": outputs, "inputs": inputs}

    def add(init: Init, bpp: float, residual: bool) -> int:
        config = LittleBitConfig(bpp=bpp, residual=residual, init=init, seed=seed)
        begin = time.perf_counter()
        found = factorize(weight, config=config, name=place.name, svd=svd)
        seconds = time.perf_counter() - begin + svd_seconds
        stats = found.stats
        rows.append(
            common
            | {"method": init, "bpp": bpp, "residual": residual, "rank": found.rank}
            | {"stored_bpp": 8 * found.stored_bytes() / weight.numel(), "seconds": seconds}
            | {key: stats[key] for key in ("nominal_bpp", "clamped", "error", "haar_error", "gamma", "energy")}
            | {f"{key}_{when}": stats[f"{key}_{when}"] for key in ("coherence", "alignment")
               for when in ("before", "after")}
        )  # fmt: skip
        return found.bits()

    for bpp, residual in grid.points:
        bits = 0
        for init in ROTATIONS:
            bits = add(init, bpp, residual)
        low = equal_bits_rank(outputs, inputs, bits)
        share = 16 * low * (outputs + inputs) / weight.numel()
        rows.append(
            common
            | {"method": "fp16_low_rank", "bpp": bpp, "residual": residual, "rank": low, "nominal_bpp": share}
            | {"stored_bpp": share, "error": low_rank_error(svd, low), "seconds": svd_seconds}
        )
    for bpp, residual in grid.admm:
        add("admm", bpp, residual)
    if grid.peers:
        for name, make in _peer_makers(inputs).items():
            begin = time.perf_counter()
            made = make(weight)
            stored = made.bits / weight.numel()
            rows.append(
                common
                | {"method": name, "bpp": float("nan"), "residual": False, "rank": 0, "nominal_bpp": stored}
                | {"stored_bpp": stored, "error": relative_error(weight, made.weight)}
                | {"seconds": time.perf_counter() - begin}
            )
    return rows


def _peer_makers(inputs: int) -> dict[str, Callable[[Tensor], Any]]:
    makers: dict[str, Callable[[Tensor], Any]] = {"onebit": one_bit}
    if inputs % GROUP == 0:
        makers["hqq_2bit"] = lambda weight: half_quadratic(weight, 2, GROUP)
        makers["hqq_4bit"] = lambda weight: half_quadratic(weight, 4, GROUP)
    return makers


def all_rows(
    places: Sequence[tuple[LayerPlace, Grid]], *, n_jobs: int, seed: int = 0
) -> Iterator[tuple[str, list[Row]]]:
    """Rows of each layer as it is finished, `n_jobs` layers at a time, one thread each."""

    def work(place: LayerPlace, grid: Grid) -> list[Row]:
        return layer_rows(place, grid, seed)

    if n_jobs == 1:
        for place, grid in places:
            yield place.name, work(place, grid)
        return
    with ThreadPoolExecutor(n_jobs, initializer=lambda: torch.set_num_threads(1)) as pool:
        running = {pool.submit(work, place, grid): place.name for place, grid in places}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def synthetic_rows(
    gammas: Sequence[float], *, bpp: float = 0.55, seeds: Sequence[int] = (0, 1, 2)
) -> list[Row]:
    """Planted spectra sigma_k = k^-gamma in incoherent (Haar) and coherent (spiky) bases: every rotation's error.

    The coherent basis is an orthogonalised random matrix with entries sgn(z) |z|^3: its columns hold few large values.
    """
    rows: list[Row] = []
    size = SYNTHETIC_SIZE
    for seed in seeds:
        numbers = np.random.default_rng(seed)
        for basis in ("incoherent", "coherent"):
            left, right = (_basis(numbers, size, basis) for _ in range(2))
            for gamma in gammas:
                s = np.arange(1, size + 1) ** -gamma
                weight = torch.from_numpy((left * s) @ right.T).float()
                svd = truncated_svd(weight, size)
                for init in ROTATIONS:
                    made = factorize(weight, config=LittleBitConfig(bpp=bpp, init=init, seed=seed), svd=svd)
                    low = equal_bits_rank(size, size, made.bits())
                    rows.append(
                        {"seed": seed, "basis": basis, "gamma": gamma, "method": init, "rank": made.rank}
                        | {"error": made.stats["error"], "haar_error": made.stats["haar_error"]}
                        | {"coherence_before": made.stats["coherence_before"]}
                        | {"low_rank_error": low_rank_error(svd, low), "low_rank": low}
                        | {"break_even": break_even(size, made.rank, low)}
                    )
    return rows


def _basis(numbers: np.random.Generator, size: int, kind: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    entries = numbers.standard_normal((size, size))
    if kind == "coherent":
        entries = np.sign(entries) * np.abs(entries) ** 3
    q, r = np.linalg.qr(entries)
    return np.asarray(q * np.sign(np.diag(r)))


def iteration_rows(places: Sequence[LayerPlace], counts: Sequence[int], *, bpp: float = 0.55) -> list[Row]:
    """Joint-ITQ's error after so many updates of the rotation, and that of the unrotated factors."""
    rows: list[Row] = []
    for place in places:
        weight = place.read()
        svd = truncated_svd(weight, min(weight.shape))
        plain = factorize(weight, config=LittleBitConfig(bpp=bpp, init="svd"), name=place.name, svd=svd)
        rows.append({"layer": place.name, "n_iter": -1, "error": plain.stats["error"]})
        for count in counts:
            made = factorize(weight, config=LittleBitConfig(bpp=bpp, n_iter=count), name=place.name, svd=svd)
            rows.append({"layer": place.name, "n_iter": count, "error": made.stats["error"]})
    return rows
