"""What llm-compressor makes of a tiny model; run it in an environment of its own (its pins differ from ours).

python -m venv /tmp/peer && /tmp/peer/bin/pip install llmcompressor==0.14.0.1
python -c "from tests.methods.pruning_representations.tiny import tiny; tiny().save_pretrained('/tmp/tiny')"
/tmp/peer/bin/python tests/methods/pruning_representations/recorded/make_llmcompressor.py /tmp/tiny
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.pruning import SparseGPTModifier, WandaPruningModifier
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

# The tokens of tests.methods.pruning_representations.tiny.tokens(8, 12).
IDS = torch.randint(3, 61, (8, 12), generator=torch.Generator().manual_seed(0)).tolist()


def main(folder: str) -> None:
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(61)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0")
    found: dict[str, Any] = {"versions": {"llmcompressor": "0.14.0.1", "torch": torch.__version__}}
    for kind, modifier in (("wanda", WandaPruningModifier), ("sparsegpt", SparseGPTModifier)):
        for pattern in ("0:0", "2:4"):
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            oneshot(
                model=model,
                tokenizer=tokenizer,
                dataset=Dataset.from_dict({"input_ids": IDS, "attention_mask": [[1] * 12] * 8}),
                recipe=modifier(sparsity=0.5, mask_structure=pattern, targets=["Linear"], ignore=["lm_head"]),
                num_calibration_samples=len(IDS),
                max_seq_length=12,
                shuffle_calibration_samples=False,
                pipeline="sequential",
            )
            weights = {
                name: parameter.detach()
                for name, parameter in model.named_parameters()
                if name.endswith("_proj.weight")
            }
            found[f"{kind} {pattern}"] = {
                "masks": {
                    name: base64.b64encode(np.packbits((w != 0).numpy().ravel()).tobytes()).decode()
                    for name, w in weights.items()
                },
                "norms": {name: round(float(w.norm()), 5) for name, w in weights.items()},
            }
    Path(__file__).with_name("llmcompressor.json").write_text(
        json.dumps(found, indent=1, sort_keys=True) + "\n"
    )


if __name__ == "__main__":
    main(sys.argv[1])
