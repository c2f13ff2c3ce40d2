"""Walking the linear layers of a causal language model's blocks: what pruning, quantisation and factorisation
change.

Embeddings, norms and the output head are never part of the walk. An architecture is known by its
`model_type`; one line of `BLOCKS`, or `register_architecture`, adds another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor, nn

from methods.common.errors import DataError

# model_type -> where the list of residual blocks lies below the causal model. Only architectures whose blocks
# take the hidden state as their first argument and return the next one; tests run each of them.
BLOCKS: dict[str, str] = {
    "gemma": "model.layers",
    "gemma2": "model.layers",
    "gemma3_text": "model.layers",
    "gpt2": "transformer.h",
    "gpt_neox": "gpt_neox.layers",
    "granite": "model.layers",
    "llama": "model.layers",
    "mistral": "model.layers",
    "olmo2": "model.layers",
    "phi3": "model.layers",
    "qwen2": "model.layers",
    "qwen3": "model.layers",
    "smollm3": "model.layers",
}


class UnknownArchitectureError(DataError, NotImplementedError):
    """The model's architecture has no known list of blocks."""


@dataclass(frozen=True)
class LinearLayer:
    """One linear layer of one block.

    Attributes:
        name: its dotted name in the model, e.g. `model.layers.0.self_attn.q_proj`.
        local_name: its dotted name in its block, e.g. `self_attn.q_proj`.
        block: index of the block.
        module: an `nn.Linear`, or GPT-2's `Conv1D`, which keeps its weight transposed.
    """

    name: str
    local_name: str
    block: int
    module: nn.Module

    @property
    def parameter_name(self) -> str:
        """Name of the weight in the state dict."""
        return f"{self.name}.weight"

    @property
    def weight(self) -> Tensor:
        """The weight as [outputs, inputs], whatever the layout of the module: a view, so that edits in place
        count."""
        return oriented_weight(self.module)


def oriented_weight(module: nn.Module) -> Tensor:
    """A linear module's weight as a detached view [outputs, inputs]."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    weight = weight.detach()
    return weight.T if type(module).__name__ == "Conv1D" else weight


def is_linear(module: nn.Module) -> bool:
    """Whether the module computes x W^T + b with a dense two-dimensional weight."""
    # By name, since `transformers` is no dependency of this module.
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def register_architecture(model_type: str, blocks: str) -> None:
    """Add an architecture: `blocks` is the dotted place of the `nn.ModuleList` of residual blocks."""
    BLOCKS[model_type] = blocks


def known_architectures() -> str:
    """The known model types, for messages."""
    return ", ".join(sorted(BLOCKS))


def require_architecture(model_type: str) -> str:
    """The place of the blocks.

    Raises:
        UnknownArchitectureError: naming the type and the known ones.
    """
    if model_type not in BLOCKS:
        raise UnknownArchitectureError(
            f"model_type {model_type!r} has no known linear layers; known are {known_architectures()} "
            "(methods.common.linear_layers.register_architecture adds one)"
        )
    return BLOCKS[model_type]


def residual_blocks(model: nn.Module) -> list[nn.Module]:
    """The residual blocks of a causal language model, in order.

    Raises:
        UnknownArchitectureError: the architecture is not known, or the model lacks what its type promises.
    """
    place, blocks = _blocks(model)
    if not blocks:
        raise UnknownArchitectureError(f"{type(model).__name__} has no blocks at {place}")
    return blocks


def _blocks(model: nn.Module) -> tuple[str, list[nn.Module]]:
    model_type = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
    place = require_architecture(model_type)
    try:
        found = attrgetter(place)(model)
    except AttributeError as error:
        raise UnknownArchitectureError(
            f"{type(model).__name__} has no {place}; give the causal language model of type {model_type}"
        ) from error
    return place, list(found)


def linear_layers(model: nn.Module, block: int | None = None) -> Iterator[LinearLayer]:
    """The linear layers of all blocks, or of one, in the order of the modules.

    Raises:
        UnknownArchitectureError: as `residual_blocks`, or a block without any linear layer.
    """
    residual_blocks(model)
    place, blocks = _blocks(model)
    for index in range(len(blocks)) if block is None else [block]:
        found = False
        for local, module in blocks[index].named_modules():
            if is_linear(module):
                found = True
                yield LinearLayer(f"{place}.{index}.{local}", local, index, module)
        if not found:
            raise UnknownArchitectureError(f"{place}.{index} has no linear layers")
