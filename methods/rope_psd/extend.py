"""Longer windows: a higher base of the rotary frequencies before training (ABF), and YaRN behind it."""

from __future__ import annotations

from typing import Any

from torch import nn

from methods.common.errors import ConfigError
from methods.common.packed_scoring import unwrapped
from methods.rope_psd.rope_models import check_rope, rope_parameters, rotary_modules


def set_rope(
    model: nn.Module,
    *,
    theta: float | None = None,
    yarn_factor: float | None = None,
    window: int | None = None,
) -> None:
    """Give a model other rotary frequencies, in its configuration and in its modules, in place.

    Args:
        model: a transformers model with one set of rotary settings.
        theta: the base (ABF: adjusted base frequency); None keeps it.
        yarn_factor: YaRN: how many times longer than `window` the sequences may be; 1 takes YaRN away again; None
            leaves the kind as it is.
        window: tokens that the model was trained on; None takes max_position_embeddings. With YaRN,
            max_position_embeddings becomes window x factor; without, `window` itself where given.

    Raises:
        TypeError, ConfigError, NotImplementedError: as `check_rope`.
        ConfigError: a value out of bounds, or one set of frequencies a kind of layer.
    """
    check_rope(model)
    config: Any = unwrapped(model).config
    found = rope_parameters(config)
    if len(found) > 1:
        raise ConfigError(
            "rope_parameters: this model has one set a kind of layer; set its configuration by hand"
        )
    if theta is not None and not theta > 1:
        raise ConfigError(f"rope_theta={theta}: give a base above 1, such as 8e6")
    if yarn_factor is not None and not yarn_factor >= 1:
        raise ConfigError(f"yarn_factor={yarn_factor}: give 1 (off) or more")
    if window is not None and window < 1:
        raise ConfigError(f"window={window}: give at least 1 token")
    settings = dict(found[0])
    if theta is not None:
        settings["rope_theta"] = float(theta)
    trained = int(
        window or settings.get("original_max_position_embeddings") or config.max_position_embeddings
    )
    if yarn_factor is not None:
        base = {"rope_theta": settings["rope_theta"]} | (
            {"partial_rotary_factor": settings["partial_rotary_factor"]}
            if "partial_rotary_factor" in settings
            else {}
        )
        if yarn_factor > 1:
            settings = base | {
                "rope_type": "yarn",
                "factor": float(yarn_factor),
                "original_max_position_embeddings": trained,
            }
        else:
            settings = base | {"rope_type": "default"}
        config.max_position_embeddings = round(trained * max(1.0, yarn_factor))
    elif window is not None:
        config.max_position_embeddings = window
    config.rope_parameters = settings
    inner = unwrapped(model)
    for name, module in rotary_modules(inner):
        device = next(module.buffers()).device
        parent, _, last = name.rpartition(".")
        made = type(module)(config=config)
        setattr(inner.get_submodule(parent), last, made.to(device))
