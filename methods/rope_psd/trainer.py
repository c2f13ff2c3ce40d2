"""transformers' Trainer with the loss of this method, and the same for other trainers (trl's SFTTrainer) as a mixin."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from methods.rope_psd.extend import set_rope
from methods.rope_psd.kl import CHUNK
from methods.rope_psd.loss import RopePSDLoss
from methods.rope_psd.rope_models import check_rope

TOLD = ("clm", "kl", "perturbed_ce")


@dataclass
class RopePSDConfig(TrainingArguments):
    """transformers' arguments and the method's; see `RopePSDLoss` for what each does."""

    perturbation: str = field(
        default="skip", metadata={"help": "skip, cyclic, none; nope and chunks for ablation"}
    )
    max_skip: float = field(
        default=1.0, metadata={"help": "Largest gap: multiple of the length; an int is tokens"}
    )
    kl_weight: float = field(default=1.0, metadata={"help": "lambda; 0 is plain training"})
    kl_direction: str = field(default="reverse", metadata={"help": "reverse; forward for ablation"})
    prob_apply: float = field(default=1.0, metadata={"help": "Share of batches with the second view"})
    loss_variant: str = field(
        default="clm", metadata={"help": "clm, or longce: weighted by what long context adds"}
    )
    clm_view: str = field(
        default="standard", metadata={"help": "standard; perturbed is PoSE without a second view"}
    )
    kl_chunk: int = field(default=CHUNK, metadata={"help": "Rows of logits of the second view at a time"})
    prefix_sharing: bool = field(default=True, metadata={"help": "Read the suffix alone in the second view"})
    rope_theta: float | None = field(
        default=None, metadata={"help": "New base of the rotary frequencies (ABF)"}
    )
    long_ce_context: int = field(default=4096, metadata={"help": "Tokens of LongCE's short context"})
    long_ce_stride: int = field(default=1024, metadata={"help": "Tokens by which that context moves"})

    def psd_loss(self) -> RopePSDLoss:
        """The loss that these arguments describe. Raises ConfigError for a value out of bounds."""
        settings: dict[str, Any] = {
            "mode": self.perturbation,
            "max_skip": self.max_skip,
            "kl_weight": self.kl_weight,
            "direction": self.kl_direction,
            "prob_apply": self.prob_apply,
            "loss_variant": self.loss_variant,
            "clm_view": self.clm_view,
            "chunk_size": self.kl_chunk,
            "prefix_sharing": self.prefix_sharing,
            "long_ce_context": self.long_ce_context,
            "long_ce_stride": self.long_ce_stride,
        }
        return RopePSDLoss(**settings)


class RopePSDMixin:
    """Put before a Trainer class: `class Mine(RopePSDMixin, SFTTrainer)`. Evaluation stays as it is.

    The draws of (s, y) follow from the seed, the process, the optimiser step and the place in it: a resumed training
    draws what an uninterrupted one draws.

    Args:
        psd: the loss; of `RopePSDConfig` when left out.
    """

    psd: RopePSDLoss

    def __init__(self, *args: Any, psd: RopePSDLoss | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        trainer: Any = self
        if psd is None and not isinstance(trainer.args, RopePSDConfig):
            psd = RopePSDLoss()
        self.psd = psd or trainer.args.psd_loss()
        check_rope(trainer.model, self.psd.mode)
        theta = getattr(trainer.args, "rope_theta", None)
        if theta is not None:
            set_rope(trainer.model, theta=theta)
        # The loss is a mean over this batch: accumulated batches are averaged by the trainer.
        trainer.model_accepts_loss_kwargs = False
        self._place = (-1, 0)
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """The method's loss in training, the parent's in evaluation."""
        trainer: Any = self
        if not model.training or return_outputs:
            parent: Any = super()
            return parent.compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        self.psd.generator.manual_seed(self._draw_seed())
        names = ("input_ids", "attention_mask", "labels", "position_ids", "document_ids")
        given = {name: inputs[name] for name in names if inputs.get(name) is not None}
        # The second view is read by the body itself, which accelerate has not wrapped.
        bf16, device = trainer.args.bf16, given["input_ids"].device.type
        with torch.autocast(device, torch.bfloat16, enabled=True) if bf16 else torch.enable_grad():
            found = self.psd(model, **given)
        for name in TOLD:
            self._sums[name] = (
                self._sums.get(name, torch.zeros((), device=found["loss"].device)) + found[name]
            )
        self._count += 1
        return found["loss"]

    def _draw_seed(self) -> int:
        trainer: Any = self
        step = int(trainer.state.global_step)
        micro = self._place[1] + 1 if self._place[0] == step else 0
        self._place = (step, micro)
        text = f"{trainer.args.seed}|{trainer.args.process_index}|{step}|{micro}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The parent's, with the means of clm, kl and perturbed_ce since the last time beside the loss."""
        if "loss" in logs and self._count:
            logs = {**logs, **{name: float(value) / self._count for name, value in self._sums.items()}}
            self._sums, self._count = {}, 0
        parent: Any = super()
        parent.log(logs, *args, **kwargs)


class RopePSDTrainer(RopePSDMixin, Trainer):  # type: ignore[misc]
    """transformers' Trainer with RoPE-perturbed self-distillation; arguments are a `RopePSDConfig`."""
