"""A live model's weights under the names that its file has for them.

transformers renames and regroups weights as it loads a model (GPT-NeoX's `embed_out` becomes `lm_head`, the experts of
a mixture become one tensor), and it remembers how; a file may also leave out the prefix of the model's body, as GPT-2's
do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.common.errors import DataError


def weights_in_file(model: Any, shapes: Mapping[str, tuple[int, ...]], folder: Path) -> dict[str, Tensor]:
    """The live weights by their names in the file; what the model does not read (old buffers) is left out.

    Args:
        model: a transformers model that was loaded from `folder`.
        shapes: name -> shape of the file's tensors.
        folder: for messages.

    Returns:
        name in the file -> the live tensor, or a new one where the file holds it in another layout.

    Raises:
        DataError: a weight of the model has no place in the file, or another shape there.
    """
    live = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers())
    if not set(shapes) <= {*live, *buffers}:
        live = _as_saved(model, live)
    place = _places(model, shapes)
    # The output layer may be tied to the embedding, and then the file need not hold it.
    found = {name: tensor for own, tensor in live.items() if (name := place(own)) is not None}
    held = {tensor.data_ptr() for tensor in found.values()}
    lost = [own for own, tensor in live.items() if place(own) is None and tensor.data_ptr() not in held]
    lost += [name for name, tensor in found.items() if tuple(tensor.shape) != tuple(shapes[name])]
    if lost:
        raise DataError(
            f"model {folder.name}: its file has no place for {len(lost)} weights of the loaded model, first {lost[0]}; "
            "load it with transformers, save it with save_pretrained, and give that folder"
        )
    found |= {name: tensor for own, tensor in buffers.items() if (name := place(own)) and name not in found}
    return {name: tensor for name, tensor in found.items() if tuple(tensor.shape) == tuple(shapes[name])}


def shares_memory(model: Any, tensor: Tensor) -> bool:
    """Whether writing into `tensor` changes the model."""
    own = tensor.untyped_storage().data_ptr()
    return any(value.untyped_storage().data_ptr() == own for value in model.parameters()) or any(
        value.untyped_storage().data_ptr() == own for value in model.buffers()
    )


@torch.no_grad()
def _as_saved(model: Any, live: dict[str, Tensor]) -> dict[str, Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    renamed: dict[str, Tensor] = revert_weight_conversion(model, live)
    return renamed


def _places(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """A function: name in the model -> name in the file, or None."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."

    def place(name: str) -> str | None:
        ways = (name, name.removeprefix(prefix), prefix + name)
        return next((way for way in ways if way in shapes), None)

    return place
