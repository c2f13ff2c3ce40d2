"""A claim against what was measured."""

from tasks.config import Config


class Verdict(Config):
    """Whether a claim held in this run.

    Attributes:
        claim: the sentence that was tested.
        held: what the numbers say.
        measured: the numbers, with their spread, as a person reads them.
    """

    claim: str
    held: bool
    measured: str

    @property
    def word(self) -> str:
        return "held" if self.held else "not held"
