"""Settings of the study of `rope_psd`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct, Seeds

Part = Literal["main", "ablation", "variants", "grid", "real"]


class RopePSDStudy(Config):
    """The paper's claims on small models trained here, and on a real one."""

    data: str = Field(
        "data/kjv/kjv.jsonl",
        min_length=1,
        description="Folder, file or glob of text (.txt, .md, .rst, or .jsonl with a column text), a bundled source "
        "such as 'bundled:squad-passages', or a hub data set id",
    )
    profile: Literal["default", "full"] = Field(
        "default", description="default: the parts below within minutes; full: every part"
    )
    parts: Annotated[tuple[Part, ...], Distinct] = Field(
        ("main", "ablation"),
        min_length=1,
        description="main: the method, plain training and PoSE; ablation: views that the paper rejects; variants: "
        "cyclic views, LongCE, the other direction; grid: weights and gaps; real: view gaps of a given model under the "
        "method, plain training and PoSE",
    )
    seeds: Seeds = Field((0, 1, 2), min_length=3, description="Seeds of base, rows and gaps")
    context: int = Field(
        64, ge=32, le=65_536, description="Tokens of the base's rows; the adaptation's have twice as many"
    )
    layers: int = Field(2, ge=2, le=1_000, description="Blocks of the small models")
    width: int = Field(64, ge=8, le=65_536, description="Width of the small models; two heads")
    copy_steps: int = Field(
        600, ge=0, le=1_000_000, description="Steps in which the base learns to copy random tokens"
    )
    base_steps: int = Field(
        400, ge=1, le=1_000_000, description="Further steps of the base on text and facts"
    )
    steps: int = Field(120, ge=1, le=1_000_000, description="Steps of an adaptation")
    rate: float = Field(1e-3, gt=0, le=1, description="Peak learning rate of an adaptation")
    depths: int = Field(9, ge=3, le=101, description="Places of the evidence that are asked for")
    prompts: int = Field(40, ge=2, le=10_000, description="Prompts at each place")
    real_model: str = Field(
        "bundled:smollm2-135m",
        min_length=1,
        description="Model of the part real: a bundled one, a folder, or a hub id",
    )
    real_text: str = Field(
        "bundled:squad-passages", min_length=1, description="Text of the part real; sources as for data"
    )
    real_context: int = Field(128, ge=8, le=1_048_576, description="Tokens of a row in the part real")
    real_steps: int = Field(40, ge=1, le=1_000_000, description="Steps in the part real, one row each")
    real_rate: float = Field(3e-5, gt=0, le=1, description="Peak learning rate in the part real")
    real_rows: int = Field(8, ge=1, le=100_000, description="Held-out rows in the part real")
    processes: int = Field(2, ge=1, le=256, description="Trainings at the same time, each on one core")
