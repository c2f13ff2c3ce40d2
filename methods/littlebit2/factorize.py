"""One weight in, its binary factors out: truncated SVD, latent rotation, Dual-SVID, and the residual branch."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from methods.common.errors import ConfigError, DataError
from methods.littlebit2.admm import admm
from methods.littlebit2.bits import nominal_bits, rank_for, smallest_bpp
from methods.littlebit2.config import LittleBitConfig
from methods.littlebit2.factors import BinaryFactors, dual_svid, refit_scales, stack
from methods.littlebit2.rotation import joint_itq
from methods.littlebit2.signs import sgn
from methods.littlebit2.spectrum import (
    Svd,
    alignment,
    check_rank,
    check_weight,
    coherence,
    decay,
    energy_share,
    haar_error,
    truncated_svd,
)


def layer_generator(seed: int, name: str) -> torch.Generator:
    """A layer's own random numbers: they depend on its name, not on the order of the layers or on the method."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def choose_rank(outputs: int, inputs: int, config: LittleBitConfig, name: str = "") -> tuple[int, bool]:
    """The rank of a layer, and whether the target was missed.

    Raises:
        ConfigError: `strict`, and the layer cannot reach the target; names the layer and the smallest feasible bpp.
    """
    found = rank_for(
        outputs,
        inputs,
        config.bpp,
        residual=config.residual,
        min_rank=config.min_rank,
        multiple=config.multiple,
    )
    least = smallest_bpp(outputs, inputs, config.residual, min(config.min_rank, outputs, inputs))
    if config.strict and found.clamped and config.bpp < least:
        raise ConfigError(
            f"bpp {config.bpp:g}: {name or 'the layer'} ({outputs}x{inputs}) needs at least {least:.3f}; "
            "set that or more, or strict to false"
        )
    rank = found.rank
    if config.kv_factor != 1 and name.rsplit(".", 1)[-1] in ("k_proj", "v_proj"):
        scaled = int(rank * config.kv_factor) // config.multiple * config.multiple
        rank = max(min(config.min_rank, outputs, inputs), min(scaled, outputs, inputs))
    return rank, found.clamped


def factorize(
    weight: Tensor,
    rank: int | None = None,
    config: LittleBitConfig | None = None,
    *,
    name: str = "",
    svd: Svd | None = None,
    **settings: object,
) -> BinaryFactors:
    """Factorise W [o, i] (section 2.3 of the paper's method; see the modules for each step's equation).

    Args:
        weight: any float type; computed in float32 (float64 stays).
        rank: inner rank; None takes it from `config.bpp`.
        config: settings; or give some as keywords, such as `factorize(W, bpp=0.3)`.
        name: of the layer, for its random numbers, `kv_factor` and messages.
        svd: of this weight, at least `rank` triplets, to save its time.

    Returns:
        the factors; `stats` holds error, energy (E), gamma, haar_error (closed form), coherence and alignment before
        and after the rotation, rank, nominal_bpp, clamped.

    Raises:
        ConfigError: a wrong setting, or rank outside 1..min(o, i).
        DataError: the weight is no finite matrix, or the svd is not of it.
    """
    if config is None:
        config = LittleBitConfig.from_dict(settings)
    elif settings:
        raise ConfigError(f"give either a config or {', '.join(settings)}, not both")
    weight = check_weight(weight)
    outputs, inputs = weight.shape
    clamped = False
    if rank is None:
        rank, clamped = choose_rank(outputs, inputs, config, name)
    check_rank(rank, weight)
    generator = layer_generator(config.seed, name)
    if svd is not None and (len(svd.u), svd.vt.shape[1], len(svd.s) >= rank) != (outputs, inputs, True):
        shape = f"{len(svd.u)}x{svd.vt.shape[1]} with {len(svd.s)} triplets"
        raise DataError(
            f"svd: is of {shape}, the weight is {outputs}x{inputs} and the rank {rank}; leave it out"
        )
    first = svd or truncated_svd(weight, rank, solver=config.svd, generator=generator)
    parts: list[dict[str, Any]] = []
    rest, stats = weight, dict[str, float]()
    for branch in range(1 + config.residual):
        spectrum = first if branch == 0 else truncated_svd(rest, rank, solver=config.svd, generator=generator)
        part, facts = _branch(rest, spectrum, rank, config, generator)
        parts.append(part)
        stats = stats or facts
        if branch < config.residual:
            u, v = sgn(part["u"]), sgn(part["v"])
            rest = rest - (part["h"].unsqueeze(1) * u * part["l"]) @ (v * part["g"])
    factors = stack(parts)
    error = float((weight - factors.dense()).double().square().sum())
    energy = first.energy
    factors.stats = {
        **stats,
        "error": error / energy if energy > 0 else 0.0,
        "rank": float(rank),
        "nominal_bpp": nominal_bits(outputs, inputs, rank, len(parts)) / (outputs * inputs),
        "clamped": float(clamped),
    }
    return factors


def _branch(
    weight: Tensor, spectrum: Svd, rank: int, config: LittleBitConfig, generator: torch.Generator
) -> tuple[dict[str, Any], dict[str, float]]:
    root = spectrum.s[:rank].clamp(min=0).sqrt()
    u, v = spectrum.u[:, :rank] * root, root.unsqueeze(1) * spectrum.vt[:rank]
    stacked = torch.cat([u, v.T])
    facts = {
        "energy": energy_share(spectrum.s, rank, spectrum.energy),
        "gamma": decay(spectrum.s),
        "haar_error": haar_error(spectrum.s, rank, spectrum.energy),
        "coherence_before": float(coherence(stacked).mean()),
        "alignment_before": alignment(stacked),
    }
    trace: list[float] = []
    if config.init == "admm":
        u, v, trace = _admm(weight, u, v, config, generator)
    elif config.init != "svd":
        turned = joint_itq(
            stacked,
            n_iter=config.n_iter if config.init == "joint_itq" else 0,
            generator=generator,
            restarts=config.restarts if config.init == "joint_itq" else 1,
            target=config.itq_target,
            polar=config.polar,
        )
        u, v, trace = u @ turned.r, turned.r.T @ v, turned.trace
    stacked = torch.cat([u, v.T])
    facts |= {"coherence_after": float(coherence(stacked).mean()), "alignment_after": alignment(stacked)}
    if config.scales == "dual_svid":
        u1, u2, v1, v2 = dual_svid(u, v)
    else:
        u1, u2, v1, v2 = u.new_ones(len(u)), u.abs().mean(0), v.abs().mean(1), v.new_ones(v.shape[1])
    scales = (u1, u2 * v1, v2)
    # ADMM's factors are fitted jointly: a last least-squares round belongs to it.
    rounds = max(config.refit, 3 if config.init == "admm" else 0)
    if rounds:
        scales = refit_scales(weight, sgn(u), sgn(v), scales, rounds)
    return {"u": u, "v": v, "h": scales[0], "l": scales[1], "g": scales[2], "trace": trace}, facts


def _admm(
    weight: Tensor, u: Tensor, v: Tensor, config: LittleBitConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor, list[float]]:
    best = admm(weight, u, v, sweeps=config.n_iter)
    for _ in range(config.restarts - 1):
        noise_u = torch.randn(u.shape, dtype=u.dtype, generator=generator) * u.square().mean().sqrt()
        noise_v = torch.randn(v.shape, dtype=v.dtype, generator=generator) * v.square().mean().sqrt()
        found = admm(weight, noise_u, noise_v, sweeps=config.n_iter)
        if min(found.trace, default=1.0) < min(best.trace, default=1.0):
            best = found
    return best.a, best.b, best.trace
