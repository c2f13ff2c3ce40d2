"""The README of a pre-trained model's folder: what it is, and how it is loaded where the library does not know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.pretrain.config import ModelShape

TEXT = """---
library_name: transformers
tags: [spannorm, {scheme}]
---

# A language model trained from scratch

{kind} of {parameters:,} parameters: {layers} blocks of width {width}, norm placement `{scheme}`, {vocabulary:,} tokens,
rows of {context} tokens. Trained for {steps:,} steps on `{source}`; {loss:.4f} nats a token and {bits:.4f} bits a byte
on its held-out end. `pretrain.json` has every setting, `trace.jsonl` the curves.

## Loading

The model type `spannorm` comes with Seedloom; transformers alone, of any version, does not know it:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

from methods.span_norm import register  # pip install the Seedloom repository

register()
model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```

The flows of Seedloom (`lifecycle`, `finetune`, `compress`, `evaluate`) take the folder as it is.
"""


def model_card(shape: ModelShape, summary: Mapping[str, Any], corpus: Mapping[str, Any]) -> str:
    """The text of README.md; the same for the same training."""
    kind = "A dense model"
    if shape.experts:
        kind = (
            f"A mixture-of-experts model ({shape.experts} experts a block, {shape.experts_per_token} a token)"
        )
    return TEXT.format(
        scheme=shape.norm_scheme,
        kind=kind,
        parameters=summary["parameters"],
        layers=shape.layers,
        width=shape.width,
        vocabulary=corpus["vocabulary"],
        context=corpus["context"],
        steps=summary["kept_step"],
        source=corpus["source"],
        loss=summary["validation_loss"],
        bits=summary["bits_per_byte"],
    )
