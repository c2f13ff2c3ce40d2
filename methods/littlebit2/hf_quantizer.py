"""What transformers needs to read the packed format: a configuration and a quantizer, registered once."""

from __future__ import annotations

from typing import Any

import torch
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from methods.common.errors import DataError
from methods.common.linear_layers import oriented_weight
from methods.littlebit2.layer import LittleBitLinear

METHOD = "littlebit2"


class LittleBitQuantizationConfig(QuantizationConfigMixin):
    """The section `quantization_config` of config.json.

    Args:
        layers: name of each packed layer -> [branches, outputs, rank, inputs].
        settings: what it was compressed with, for the record.
        format: version of the layout.
    """

    def __init__(
        self,
        layers: dict[str, list[int]] | None = None,
        settings: dict[str, Any] | None = None,
        format: int = 1,
        **_: Any,
    ) -> None:
        self.quant_method = METHOD  # type: ignore[assignment]
        self.format, self.settings, self.layers = format, settings or {}, layers or {}


class LittleBitQuantizer(HfQuantizer):
    """Replaces the named layers by packed ones before the weights are read."""

    requires_calibration = True  # packed folders only; `compress_model` makes them

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
        config: Any = self.quantization_config
        for name, (branches, outputs, rank, inputs) in config.layers.items():
            try:
                dense = model.get_submodule(name)
            except AttributeError as error:
                raise DataError(
                    f"{type(model).__name__} has no layer {name}, which config.json says is packed; compress anew"
                ) from error
            weight = getattr(dense, "weight", None)
            if weight is None or tuple(oriented_weight(dense).shape) != (outputs, inputs):
                raise DataError(
                    f"{name} is packed as {outputs}x{inputs}, which does not fit config.json's sizes; compress anew"
                )
            with torch.device("meta"):
                layer = LittleBitLinear(
                    inputs,
                    outputs,
                    rank,
                    branches=branches,
                    bias=getattr(dense, "bias", None) is not None,
                    dtype=None,
                )
                if layer.bias is not None:
                    layer.bias = torch.nn.Parameter(layer.bias.to(dense.bias.dtype), requires_grad=False)
            layer.conv1d = type(dense).__name__ == "Conv1D"
            model.set_submodule(name, layer)
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def register() -> None:
    """Add the format to transformers' tables; a second call does nothing."""
    if METHOD not in auto.AUTO_QUANTIZER_MAPPING:
        auto.register_quantization_config(METHOD)(LittleBitQuantizationConfig)
        auto.register_quantizer(METHOD)(LittleBitQuantizer)
