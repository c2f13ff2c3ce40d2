"""What a reader of archives can be told: the bound was violated, or the bytes are no archive."""

from __future__ import annotations

from methods.common.errors import DataError


class MismatchError(DataError):
    """The decoder's model is farther from the encoder's than the declared bound, or is another model.

    Attributes:
        chunk: number of the chunk, from 0; -1 when the content as a whole is meant.
        token: number of the token in its chunk at which it was noticed; -1 at the chunk's end.
    """

    def __init__(self, message: str, chunk: int = -1, token: int = -1) -> None:
        super().__init__(message)
        self.chunk = chunk
        self.token = token


class FormatError(DataError):
    """Not an archive of this format, of a later version, cut short, or changed since it was written."""


class ModelMismatchWarning(UserWarning):
    """The model is not the one that the archive was written with; decoding is tried and verified all the same."""
