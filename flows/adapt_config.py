"""Settings of the flow `adapt`."""

from flows.steps_config import LAST, path
from tasks.adapt.config import AdaptSettings


class AdaptConfig(AdaptSettings):
    """Train a model on longer text so that it answers wherever the evidence stands."""

    model: str = path("prepared/model", "Folder of the model, as the prepare or pretrain flow writes it", 0)
    output: str = path("adapted", "Folder to write: the model with its tokenizer", LAST)
