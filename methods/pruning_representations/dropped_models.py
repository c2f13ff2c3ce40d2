"""Model classes with sublayers taken out, which save and load like any other of transformers.

The saved folder has the model type `dropped_<type>`. A process that does not know it (no `register` call)
refuses the folder with transformers' own "does not recognize this architecture": it can never fill the missing
weights with random numbers and go on. `register` adds the type to `AutoConfig` and `AutoModelForCausalLM`; no
code comes from the folder (`trust_remote_code` stays off).

Whole blocks need no class of their own: such a model is an ordinary one with fewer layers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from methods.common.errors import ConfigError
from methods.common.sublayers import SUBLAYERS, blocks_of, remove_sublayer, require_layout

PREFIX = "dropped_"
# Recorded in config.json: indices of this folder's blocks that lack the sublayer, and what the dense model called
# the blocks that are left.
ATTENTION, MLP, KEPT_BLOCKS = "dropped_attention", "dropped_mlp", "kept_blocks"


def dense_type(model_type: str) -> str | None:
    """`dropped_llama` -> `llama`; None for any other type."""
    known = model_type.startswith(PREFIX) and model_type.removeprefix(PREFIX) in SUBLAYERS
    return model_type.removeprefix(PREFIX) if known else None


@functools.cache
def dropped_classes(model_type: str) -> tuple[type[Any], type[Any]]:
    """The configuration and the causal model of `dropped_<model_type>`, known to the Auto classes afterwards.

    Args:
        model_type: of the dense model, e.g. `llama`.

    Raises:
        UnknownArchitectureError: no adapter for that type.
        ConfigError: an encoder, which has no causal language model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    layout = require_layout(model_type)
    if not layout.final_norm:
        raise ConfigError(f"model_type {model_type!r}: is an encoder; give a causal language model")
    dense_config: Any = CONFIG_MAPPING[model_type]
    dense_model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[dense_config]
    config_class = type(
        f"Dropped{dense_config.__name__}",
        (_DroppedConfig, dense_config),
        {"model_type": PREFIX + model_type, "__module__": __name__},
    )
    model_class = type(
        f"Dropped{dense_model.__name__}",
        (_DroppedModel, dense_model),
        {"config_class": config_class, "__module__": __name__},
    )
    globals()[config_class.__name__], globals()[model_class.__name__] = (
        config_class,
        model_class,
    )  # for pickle
    AutoConfig.register(PREFIX + model_type, config_class, exist_ok=True)
    AutoModelForCausalLM.register(config_class, model_class, exist_ok=True)
    return config_class, model_class


def register(model_type: str | None = None) -> None:
    """Teach the Auto classes to load dropped models.

    Args:
        model_type: `llama` or `dropped_llama`; None registers every known one, which imports all their modules.
    """
    kinds = (
        [model_type.removeprefix(PREFIX)] if model_type else [k for k, v in SUBLAYERS.items() if v.final_norm]
    )
    for kind in kinds:
        dropped_classes(kind)


class _DroppedConfig:
    """What a dense configuration learns about the sublayers that are gone."""

    def __post_init__(self, **kwargs: Any) -> None:
        gone = {name: sorted(int(i) for i in kwargs.pop(name, ())) for name in (ATTENTION, MLP)}
        super().__post_init__(**kwargs)  # type: ignore[misc]
        self.mark(gone[ATTENTION], gone[MLP])

    def mark(self, attention: Sequence[int], mlp: Sequence[int]) -> None:
        """Record what is gone. In memory the model behaves, and is called, as its dense type."""
        self.dropped_attention, self.dropped_mlp = list(attention), list(mlp)
        self.__dict__["model_type"] = type(self).model_type.removeprefix(PREFIX)  # type: ignore[attr-defined]

    @property
    def kv_sharing_modes(self) -> list[str | None]:
        """Caches keep nothing for a layer of mode `reuse`: here one without attention."""
        return [
            "reuse" if layer in self.dropped_attention else None
            for layer in range(self.num_hidden_layers)  # type: ignore[attr-defined]
        ]


class _DroppedModel:
    """A causal language model that builds itself without the sublayers that its configuration lists."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        blocks, layout = blocks_of(self), require_layout(config.model_type)  # type: ignore[arg-type]
        for layer in config.dropped_attention:
            remove_sublayer(blocks[layer], layout, "attn")
        for layer in config.dropped_mlp:
            remove_sublayer(blocks[layer], layout, "mlp")
