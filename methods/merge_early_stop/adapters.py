"""LoRA adapters as dense task vectors: tau = s B A per adapted matrix, computed row range by row range.

Adapters are never merged by averaging A and B: mean(B_t) mean(A_t) is not mean(B_t A_t). What
`adapter_config.json` may contain and this module does not know how to turn into a dense difference from the
*unchanged* base (DoRA, trained biases, initialisations that alter the base, ...) is refused, not ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from methods.common.errors import DataError

CONFIG_FILE = "adapter_config.json"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"^(?P<module>.+)\.lora_(?:embedding_)?(?P<side>[AB])(?:\.default)?(?:\.weight)?$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output_layer|decoder\.weight$)")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embed_in|wte|word_embeddings|tok_embeddings)\.weight$")
# settings that change what the adapter computes; each has one value that means "off"
_MUST_BE_OFF = (
    "use_dora", "lora_bias", "use_qalora", "target_parameters", "alora_invocation_tokens",
    "layer_replication", "trainable_token_indices", "use_bdlora", "arrow_config", "kasa_config",
    "monteclora_config", "velora_config", "megatron_config",
)  # fmt: skip
# initialisations after which B A is not zero at the start and the base weights were changed to make up for it
_ALTERS_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")


class Factors(NamedTuple):
    """tau = scale * left @ right with `left` [rows, r] and `right` [r, columns].

    A convolution keeps its tau in `dense`.
    """

    left: Tensor
    right: Tensor
    scale: float
    dense: Tensor | None = None

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Elements `[start, stop)` of the flattened tau."""
        if self.dense is not None:
            return self.dense.reshape(-1)[start:stop].to(dtype)
        columns = self.right.shape[1]
        first = start // columns
        block = self.left[first : -(-stop // columns)].to(dtype) @ self.right.to(dtype)
        return block.reshape(-1)[start - first * columns : stop - first * columns] * self.scale


def read_config(folder: Path) -> dict[str, Any]:
    """The adapter's configuration. `DataError` if it cannot be read."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / CONFIG_FILE} cannot be read; save the adapter again") from error
    if not isinstance(config, dict):
        raise DataError(f"{folder / CONFIG_FILE} is not an adapter configuration")
    return config


def check_config(config: Mapping[str, Any], label: str) -> None:
    """`DataError` for every adapter that is not a plain LoRA."""
    kind = getattr(config.get("peft_type"), "value", config.get("peft_type"))
    if kind != "LORA":
        raise DataError(
            f"adapter {label}: peft_type={kind!r} is not supported; merge it into its base first (peft)"
        )
    if config.get("bias", "none") != "none":
        raise DataError(
            f"adapter {label}: bias={config['bias']!r} is not supported; merge it into its base first"
        )
    for field in _MUST_BE_OFF:
        if config.get(field):
            raise DataError(
                f"adapter {label}: {field}={config[field]!r} is not supported; merge it into its base first"
            )
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower().startswith(_ALTERS_BASE):
        raise DataError(
            f"adapter {label}: init_lora_weights={init!r} changed the base weights; convert it to a plain "
            "LoRA when saving (path_initial_model_for_weight_conversion)"
        )


def scaling(config: Mapping[str, Any], module: str, rank: int, label: str) -> float:
    """alpha/r, or alpha/sqrt(r) with `use_rslora`; patterns of rank and alpha as peft matches them."""

    def pattern(field: str, default: Any) -> Any:
        patterns = config.get(field) or {}
        for key, value in patterns.items():
            if re.match(rf"(.*\.)?({key})$", module):
                return value
        return default

    declared = int(pattern("rank_pattern", config.get("r", 8)))
    if declared != rank:
        raise DataError(f"adapter {label}: {module} has rank {rank}, its configuration says {declared}")
    alpha = float(pattern("alpha_pattern", config.get("lora_alpha", 8)))
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _find(module_weight: str, base: Mapping[str, tuple[int, ...]]) -> str | None:
    """The base's name of a weight.

    It is the same, or the only one that differs by a prefix (a head around the body).
    """
    if module_weight in base:
        return module_weight
    found = [n for n in base if n.endswith("." + module_weight) or module_weight.endswith("." + n)]
    return found[0] if len(found) == 1 else None


def factors(
    config: Mapping[str, Any],
    names: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Tensor],
    base: Mapping[str, tuple[int, ...]],
    label: str,
) -> tuple[dict[str, Factors], dict[str, str]]:
    """Factors by base tensor name, and whole tensors (`modules_to_save`) as base name -> adapter name.

    `names`: the adapter's tensors with their shapes, `read` gets one; `base`: the base's with their shapes.
    `DataError` lists what does not fit the base.
    """
    check_config(config, label)
    pairs: dict[str, dict[str, str]] = {}
    whole: dict[str, str] = {}
    lost: list[str] = []
    for name in names:
        plain = name.removeprefix(_PREFIX)
        if "lora_magnitude" in plain:
            raise DataError(
                f"adapter {label}: {name} belongs to DoRA, which is not supported; merge it first"
            )
        match = _FACTOR.match(plain)
        if match:
            pairs.setdefault(match["module"], {})[match["side"]] = name
        elif ".lora_" in plain:
            raise DataError(
                f"adapter {label}: tensor {name} is not supported; merge the adapter into its base first"
            )
        else:
            plain = plain.replace(".modules_to_save.default.", ".").replace(".modules_to_save.", ".")
            target = _find(plain.replace(".base_layer.", "."), base)
            if target is None or base[target] != names[name]:
                lost.append(plain)
            else:
                whole[target] = name
    result: dict[str, Factors] = {}
    for module, sides in pairs.items():
        weight = _find(f"{module}.weight", base)
        if weight is None or set(sides) != {"A", "B"}:
            lost.append(module)
            continue
        a, b = read(sides["A"]), read(sides["B"])
        embedding = "lora_embedding" in sides["A"]
        scale = scaling(config, module, a.shape[0], label)
        made = _orient(a, b, scale, base[weight], embedding or bool(config.get("fan_in_fan_out")))
        if made is None:
            lost.append(f"{module} {tuple(b.shape)} x {tuple(a.shape)} for {base[weight]}")
        else:
            result[weight] = made
    heads = [name for name in lost if _HEAD.search(name)]
    if heads and not any(_HEAD.search(name) for name in base):
        refuse_tied(label, heads[0])
    if lost or not (result or whole):
        what = (
            f"{len(lost)} tensors do not fit the base: {', '.join(lost[:5])}"
            if lost
            else "it holds no LoRA weights"
        )
        raise DataError(f"adapter {label}: {what}; give the base that it was trained on")
    return result, whole


def refuse_tied(label: str, name: str) -> NoReturn:
    """One of two layers that share a weight is changed: what comes out is no longer a model of the base's layout."""
    raise DataError(
        f"adapter {label}: {name} is trained as a whole or apart, and the base ties its embedding and output layer; "
        "untie them before training, or merge the adapter into its base first (peft) and give the whole model"
    )


def ties_embedding(config: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a language model's file holds one weight for the embedding and the output layer.

    Args:
        config: of the model.
        names: of the file's tensors.
    """
    if any(_HEAD.search(name) for name in names):
        return False
    classes = config.get("architectures")
    if isinstance(classes, list) and classes:
        return any(re.search("CausalLM|LMHead|MaskedLM|Generation", str(item)) for item in classes)
    return bool(config.get("tie_word_embeddings"))


def is_embedding(name: str) -> bool:
    """Whether a tensor is the embedding of the tokens, by its name."""
    return bool(_EMBEDDING.search(name))


def _orient(a: Tensor, b: Tensor, scale: float, shape: tuple[int, ...], transposed: bool) -> Factors | None:
    if a.dim() == 2 and b.dim() == 2:
        plain, turned = (b.shape[0], a.shape[1]), (a.shape[1], b.shape[0])
        # peft's fan_in_fan_out flag is one for all modules; shapes decide unless the matrix is square
        if shape == plain and (plain != turned or not transposed):
            return Factors(b, a, scale)
        if shape == turned:
            return Factors(a.T, b.T, scale)
        return None
    if a.dim() == 4 and b.dim() == 4 and b.shape[2:] == (1, 1):
        flat = b.flatten(1).float() @ a.flatten(1).float()
        dense = flat.reshape(b.shape[0], *a.shape[1:]) * scale
        return Factors(a, b, scale, dense) if dense.shape == shape else None
    return None


def inner_product(first: tuple[Tensor, Tensor, float], second: tuple[Tensor, Tensor, float]) -> Tensor:
    """<s1 B1 A1, s2 B2 A2> = s1 s2 tr((B1^T B2)(A2 A1^T)), from r x r products only.

    Each argument is `(B [out, r], A [r, in], s)`. The ranks may differ.
    """
    b1, a1, s1 = first
    b2, a2, s2 = second
    return s1 * s2 * ((b1.T @ b2) * (a1 @ a2.T)).sum()
