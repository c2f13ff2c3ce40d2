"""Which number format a device computes fast in."""

from __future__ import annotations

import torch


def compute_device() -> torch.device:
    """The accelerator of this machine (a GPU), else its processor."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if found is None else found


def fast_dtype(device: torch.device | str = "cpu") -> torch.dtype:
    """bfloat16 where the device has instructions for it (several times faster than float32 there), else float32.

    A processor without them emulates bfloat16, which is slower than float32.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if kind == "cpu" and cpu_has_bfloat16():
        return torch.bfloat16
    return torch.float32


def cpu_has_bfloat16() -> bool:
    """True with AVX512-BF16 or AMX (x86), or the bf16 extension (Arm)."""
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return True
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as text:
            features = next((line for line in text if line.startswith("Features")), "")
    except OSError:
        return False
    return "bf16" in features.split()


def resolve_dtype(name: str, device: torch.device | str = "cpu") -> torch.dtype:
    """`auto` is `fast_dtype(device)`; else the torch type of that name."""
    if name == "auto":
        return fast_dtype(device)
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
