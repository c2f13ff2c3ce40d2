"""Drop whole sublayers: attention, MLP, or both (a block).

What is dropped is gone: no computation, no weights in the file, no entry in the key-value cache. The norm that
leads into a sublayer goes with it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import nn

from methods.common.errors import ConfigError
from methods.common.sublayers import Layout, Sublayer, blocks_of, is_removed, layout_of, remove_sublayer
from methods.pruning_representations.dropped_models import ATTENTION, KEPT_BLOCKS, MLP, dropped_classes

Model = TypeVar("Model", bound=nn.Module)
# Settings of transformers' configurations with one value a block.
PER_BLOCK = ("layer_types", "no_rope_layers")


def drop_sublayers(
    model: Model,
    *,
    attn: Iterable[int] = (),
    mlp: Iterable[int] = (),
    blocks: Iterable[int] = (),
    in_place: bool = False,
) -> Model:
    """A model without the named sublayers, which generates with a cache and saves like any other.

    A block that loses both of its sublayers is removed: its model is an ordinary one with fewer layers. A model
    that keeps half a block is saved with the type `dropped_<type>` (see `dropped_models`).

    Args:
        model: a causal language model of a known architecture, or a BERT encoder (in memory only: its class and
            configuration stay as they are).
        attn: blocks that lose their attention, counted from 0 in `model`.
        mlp: blocks that lose their MLP.
        blocks: blocks that lose both.
        in_place: change `model` itself, which needs no second copy in memory.

    Returns:
        the smaller model. No module is shared with `model`, which stays as it is unless `in_place`.

    Raises:
        UnknownArchitectureError: naming the model type.
        ConfigError: an index that the model does not have, or nothing of a kind is left.
    """
    layout, count = layout_of(model), len(blocks_of(model))
    whole = _checked("blocks", blocks, count)
    gone: dict[Sublayer, set[int]] = {
        "attn": _checked("attn", attn, count) | whole,
        "mlp": _checked("mlp", mlp, count) | whole,
    }
    for index, block in enumerate(blocks_of(model)):
        gone["attn"] |= {index} if is_removed(block, layout, "attn") else set()
        gone["mlp"] |= {index} if is_removed(block, layout, "mlp") else set()
    for kind, layers in gone.items():
        if len(layers) >= count:
            raise ConfigError(f"{kind}: {len(layers)} of {count} layers would go; leave at least one")
    if not in_place:
        model = _copy_without(model, layout, gone)
    else:
        _remove(model, layout, gone)
    return model if not layout.final_norm else _as_saved_type(model, layout, gone)


def _checked(kind: str, layers: Iterable[int], count: int) -> set[int]:
    if not isinstance(layers, Iterable):
        raise ConfigError(f"{kind} {layers!r}: give a list of layers")
    given = list(layers)
    for layer in given:
        if not isinstance(layer, int) or isinstance(layer, bool) or not 0 <= layer < count:
            raise ConfigError(f"{kind}: {layer!r} is no layer of this model; it has 0 to {count - 1}")
    return set(given)


def _remove(model: nn.Module, layout: Layout, gone: dict[Sublayer, set[int]]) -> None:
    for kind, layers in gone.items():
        for layer in layers:
            block = blocks_of(model)[layer]
            if not is_removed(block, layout, kind):
                remove_sublayer(block, layout, kind)


def _copy_without(model: Model, layout: Layout, gone: dict[Sublayer, set[int]]) -> Model:
    """A deep copy in which the dropped modules are never copied."""
    memo: dict[int, Any] = {}
    for kind, layers in gone.items():
        for layer in layers:
            block = blocks_of(model)[layer]
            for place in (*layout.modules(kind), *layout.norms(kind)):
                memo[id(block.get_submodule(place))] = nn.Identity()
    twin = copy.deepcopy(model, memo)
    for kind, layers in gone.items():
        for layer in layers:
            remove_sublayer(blocks_of(twin)[layer], layout, kind)
    return twin


def _as_saved_type(model: Model, layout: Layout, gone: dict[Sublayer, set[int]]) -> Model:
    """Take empty blocks out, and give the model the class and configuration that its folder will have."""
    config: Any = model.config
    dense_type = config.model_type
    names = list(getattr(config, KEPT_BLOCKS, None) or range(len(blocks_of(model))))
    empty = gone["attn"] & gone["mlp"] if _blocks_can_go(config) else set()
    kept = [layer for layer in range(len(blocks_of(model))) if layer not in empty]
    if empty:
        _take_out(model, layout, kept)
    if len(kept) < len(names) or hasattr(config, KEPT_BLOCKS):
        setattr(config, KEPT_BLOCKS, [names[layer] for layer in kept])
    attention = [i for i, layer in enumerate(kept) if layer in gone["attn"]]
    mlp = [i for i, layer in enumerate(kept) if layer in gone["mlp"]]
    if attention or mlp:
        config_class, model_class = dropped_classes(dense_type)
        # All modules share one configuration object, so it changes its class instead of being replaced.
        if not isinstance(config, config_class):
            config.__class__ = config_class
        config.mark(attention, mlp)
        model.__class__ = model_class
    elif hasattr(config, ATTENTION):
        config_class, model_class = type(config).__mro__[2], type(model).__mro__[2]
        for name in (ATTENTION, MLP, "model_type"):
            config.__dict__.pop(name, None)
        config.__class__, model.__class__ = config_class, model_class
    config.architectures = [type(model).__name__]
    return model


def _blocks_can_go(config: Any) -> bool:
    """GPT-2 may scale a block's attention by the block's number, which must then not change."""
    return not getattr(config, "scale_attn_by_inverse_layer_idx", False)


def _take_out(model: nn.Module, layout: Layout, kept: list[int]) -> None:
    from operator import attrgetter

    from methods.common.linear_layers import BLOCKS

    config: Any = model.config
    place = BLOCKS[config.model_type]
    owner, _, name = place.rpartition(".")
    parent = attrgetter(owner)(model)
    blocks = list(getattr(parent, name))
    for new, old in enumerate(kept):
        for module in blocks[old].modules():
            if getattr(module, "layer_idx", None) == old:
                module.layer_idx = new
    setattr(parent, name, nn.ModuleList(blocks[old] for old in kept))
    for key in PER_BLOCK:
        values = getattr(config, key, None)
        if isinstance(values, list) and len(values) == len(blocks):
            setattr(config, key, [values[old] for old in kept])
    config.num_hidden_layers = len(kept)
