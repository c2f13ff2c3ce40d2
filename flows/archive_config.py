"""Settings of the flow `archive`."""

from pydantic import Field

from flows.steps_config import LAST, path
from tasks.archive.config import ArchiveSettings


class ArchiveConfig(ArchiveSettings):
    """Compress files with a language model, and read them back by a second computation before anything is dropped."""

    source: str = path("prepared/text", "Folder or file to archive: a prepared corpus, a run's artefacts", 0)
    model: str = path(
        "prepared/model",
        "Folder of the model, an n-gram model's .safetensors file, or 'ngram:' and text that both sides have",
        1,
    )
    calibration: str = path(
        "prepared/text/calibration",
        "Text like what is archived, but other text; 'none' with a given bound",
        2,
    )
    output: str = path("archive", "Folder to write: archives, codec and manifest", LAST)
    drop_original: bool = Field(
        default=False,
        description="Delete the source once every computation has read it back unchanged",
        json_schema_extra={"position": LAST + 1},
    )
