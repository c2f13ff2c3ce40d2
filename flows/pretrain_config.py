"""Settings of the flow `pretrain`."""

from flows.steps_config import LAST, path
from tasks.pretrain.config import PretrainSettings


class PretrainConfig(PretrainSettings):
    """Train a base model from scratch on your text: tokenizer, packed rows, training with checkpoints."""

    output: str = path("pretrained", "Folder to write: the model with its tokenizer", LAST)
