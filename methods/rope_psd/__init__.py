"""RoPE-perturbed self-distillation: long-context training that does not care where the evidence stands.

"Shuffle the Context: RoPE-Perturbed Self-Distillation for Long-Context Adaptation", ICML 2026 (arXiv 2604.14339). The
same tokens are read twice, under their own RoPE indices and with the suffix moved away by a random gap, and the second
reading learns to predict what the first one does:

    loss = CE(standard) + lambda / (L - s) * sum_{i >= s} KL( p(. | x_<i; moved) || stop[ p(. | x_<i; standard) ] )

Nothing changes at inference. `RopePSDLoss` is the loss, `RopePSDTrainer` a transformers Trainer with it;
`evaluate_positions` measures answers by the evidence's depth and `position_report` sums them up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from methods.rope_psd.extend import set_rope
from methods.rope_psd.kl import chunked_kl
from methods.rope_psd.loss import RopePSDLoss
from methods.rope_psd.pose import pose_rows
from methods.rope_psd.positions import evaluate_positions, position_report, view_gap
from methods.rope_psd.rope_models import check_rope, sees_prefix
from methods.rope_psd.ruler import TASKS
from methods.rope_psd.views import MODES, perturb_position_ids, sample_perturbation

if TYPE_CHECKING:
    from methods.rope_psd.trainer import RopePSDConfig, RopePSDMixin, RopePSDTrainer

# These need transformers, which importing the package must not.
_LAZY = ("RopePSDConfig", "RopePSDMixin", "RopePSDTrainer")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from methods.rope_psd import trainer

    return getattr(trainer, name)


__all__ = [
    "MODES",
    "TASKS",
    "RopePSDConfig",
    "RopePSDLoss",
    "RopePSDMixin",
    "RopePSDTrainer",
    "check_rope",
    "chunked_kl",
    "evaluate_positions",
    "perturb_position_ids",
    "pose_rows",
    "position_report",
    "sample_perturbation",
    "sees_prefix",
    "set_rope",
    "view_gap",
]
