"""PMATIC, generalised: lossless compression with a learned model that decodes on another machine.

"Probability Matching Interval Coding" (Adler & Tang, ICLR 2026, arXiv 2601.10678) and its ICML 2026 generalisation. Two
machines compute one model's probabilities a little differently; an ordinary arithmetic coder then decodes nonsense.
Here each bit's log-odds is rounded to an interval, and a helper event of another colour is coded where the two
sides could disagree:

    x in J_i, code colour(i), then the bit with P_i;   decode with the J_j of that colour that is within Delta of y

With |x - y| <= Delta both sides use the same integers for every bit, so decoding is exact; beyond it, the reader
raises `MismatchError`. `PMATICCodec` codes token ids with any `Predictor`, `compress_text` text with a model of
transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from methods.pmatic.bounds import logit_range
from methods.pmatic.codec import PMATICCodec
from methods.pmatic.container import Archive
from methods.pmatic.design import plan_design
from methods.pmatic.errors import FormatError, MismatchError, ModelMismatchWarning
from methods.pmatic.mismatch import MismatchReport, estimate_mismatch
from methods.pmatic.ngram import NGram
from methods.pmatic.predictor import Predictor, Steps
from methods.pmatic.synchroniser import Synchroniser
from methods.pmatic.text import calibrate_on_text, compress_text, decompress_text
from methods.pmatic.tree import CodeTree

if TYPE_CHECKING:
    from methods.pmatic.torch_models import BytePredictor, HFCausalLM

_LAZY = ("BytePredictor", "HFCausalLM")  # these need torch


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from methods.pmatic import torch_models

    return getattr(torch_models, name)


__all__ = [
    "Archive",
    "BytePredictor",
    "CodeTree",
    "FormatError",
    "HFCausalLM",
    "MismatchError",
    "MismatchReport",
    "ModelMismatchWarning",
    "NGram",
    "PMATICCodec",
    "Predictor",
    "Steps",
    "Synchroniser",
    "calibrate_on_text",
    "compress_text",
    "decompress_text",
    "estimate_mismatch",
    "logit_range",
    "plan_design",
]
