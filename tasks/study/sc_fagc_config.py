"""Settings of the study of `sc_fagc`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct

Part = Literal["digits", "ablations", "mnist10k", "mnist60k", "unequal"]


class ScFagcStudy(Config):
    """The paper's claims on digits, handwriting and shapes of unequal size, beside other clusterings."""

    data: str = Field(
        "data/mnist60k",
        min_length=1,
        description="Folder with digits.npz (arrays images and labels), as `seedloom fetch mnist60k` writes it",
    )
    parts: Annotated[tuple[Part, ...], Distinct] = Field(
        ("digits", "ablations", "unequal", "mnist10k", "mnist60k"),
        min_length=1,
        description="digits: 1,797 bundled ones; ablations: one part of the method changed, on them; unequal: moons "
        "and blobs whose sizes are given; mnist10k: pixels of 10,000 digits; mnist60k: all as 50 principal components",
    )
    seeds: int = Field(10, ge=3, le=1_000, description="Seeds of the small parts")
    handwriting_seeds: int = Field(
        10, ge=3, le=1_000, description="Seeds of mnist10k; its slow peers and mnist60k have three"
    )
