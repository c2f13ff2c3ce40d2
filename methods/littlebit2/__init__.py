"""LittleBit-2: linear layers as products of two sign matrices of small rank, below one bit per weight.

Lee and Kim, "LittleBit-2: Maximizing the Spectral Energy Gain in Sub-1-Bit LLMs via Latent Geometry Alignment", ICML
2026 (arXiv 2603.00042). Written from the equations; no code of the authors (CC BY-NC) was used.
"""

from __future__ import annotations

from methods.littlebit2.bits import equal_bits_rank, nominal_bits, rank_for, smallest_bpp, stored_bytes
from methods.littlebit2.config import LittleBitConfig
from methods.littlebit2.distillation import distill, token_blocks
from methods.littlebit2.factorize import factorize
from methods.littlebit2.factors import BinaryFactors, dual_svid, refit_scales
from methods.littlebit2.layer import LittleBitLinear
from methods.littlebit2.model import binary_layers, compress_model, densify, target_layers
from methods.littlebit2.rotation import joint_itq
from methods.littlebit2.spectrum import break_even, haar_error, truncated_svd
from methods.littlebit2.storage import (
    check_compressed,
    is_compressed,
    load_compressed,
    register,
    save_compressed,
    sizes,
)

__all__ = [
    "BinaryFactors",
    "LittleBitConfig",
    "LittleBitLinear",
    "binary_layers",
    "break_even",
    "check_compressed",
    "compress_model",
    "densify",
    "distill",
    "dual_svid",
    "equal_bits_rank",
    "factorize",
    "haar_error",
    "is_compressed",
    "joint_itq",
    "load_compressed",
    "nominal_bits",
    "rank_for",
    "refit_scales",
    "register",
    "save_compressed",
    "sizes",
    "smallest_bpp",
    "stored_bytes",
    "target_layers",
    "token_blocks",
    "truncated_svd",
]
