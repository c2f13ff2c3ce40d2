"""A merged vector as a LoRA adapter: truncated SVD of each merged matrix (section 2.1, optional output)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from methods.common.errors import ConfigError
from methods.merge_early_stop.operators import Merger, Operator
from methods.merge_early_stop.sources import ExpertStream

_EXACT_UP_TO = 1024  # smaller side for which the full SVD is computed


def truncated(delta: Tensor, rank: int, seed: int = 0) -> tuple[Tensor, Tensor, float]:
    """`(B [m, r], A [r, n], error)` with B A the best rank-r approximation of `delta [m, n]`.

    error = ||delta - B A||_F / ||delta||_F. Beyond `_EXACT_UP_TO` a randomised SVD with oversampling, seeded.
    """
    if min(delta.shape) <= _EXACT_UP_TO:
        u, s, vh = torch.linalg.svd(delta.double(), full_matrices=False)
    else:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            u, s, v = torch.svd_lowrank(delta.double(), q=min(rank + 16, *delta.shape), niter=4)
        vh = v.T
    root = s[:rank].sqrt()
    b, a = u[:, :rank] * root, root[:, None] * vh[:rank]
    norm = float(delta.double().norm())
    error = float((delta.double() - b @ a).norm()) / norm if norm else 0.0
    return b.float(), a.float(), error


def write_adapter(
    folder: Path, base_path: Path, operator: Operator, stream: ExpertStream, rank: int
) -> dict[str, Any]:
    """Write `adapter_model.safetensors` and `adapter_config.json`.

    Only 2-D weights may differ from the base.
    """
    from methods.merge_early_stop.merge import merge_record

    weights: dict[str, Tensor] = {}
    errors: dict[str, float] = {}

    def consume(merger: Merger) -> None:
        weights.clear()
        for name in stream.names:
            pieces = [p.float() for p in merger.delta(name)]
            shape = stream.base.shapes[name]
            delta = torch.cat(pieces or [torch.empty(0)]).reshape(shape)
            if not bool(delta.any()):
                continue
            if len(shape) != 2 or not name.endswith(".weight") or "embed" in name:
                raise ConfigError(
                    f"lora_rank cannot hold the change of {name} {shape}; leave it out with exclude, or "
                    "merge into a folder"
                )
            r = min(rank, *shape)
            b, a, errors[name] = truncated(delta, r, operator.seed)
            module = name.removesuffix(".weight")
            # every matrix at the same rank, so that one r describes the adapter
            weights[f"base_model.model.{module}.lora_A.weight"] = _padded(a, rank, 0)
            weights[f"base_model.model.{module}.lora_B.weight"] = _padded(b, rank, 1)

    Merger(operator, stream).run(consume)
    save_file(dict(sorted(weights.items())), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "task_type": None, "inference_mode": True, "r": rank, "lora_alpha": rank,
        "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False, "use_rslora": False, "use_dora": False,
        "target_modules": sorted(n.removesuffix(".weight") for n in errors),
        "base_model_name_or_path": base_path.name, "init_lora_weights": True,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return merge_record(operator, stream) | {"lora_rank": rank, "relative_error": errors}


def _padded(factor: Tensor, rank: int, dim: int) -> Tensor:
    lack = rank - factor.shape[dim]
    if lack:
        shape = list(factor.shape)
        shape[dim] = lack
        factor = torch.cat([factor, factor.new_zeros(shape)], dim=dim)
    return factor.contiguous()
