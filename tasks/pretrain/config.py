"""Settings of the pretrain step. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.config import Config
from tasks.prepare.config import TextSource
from tasks.train.packed_config import PackedTrainingSettings

NormScheme = Literal[
    "span",
    "prenorm",
    "postnorm",
    "deepnorm",
    "sandwich",
    "mix_ln",
    "lns",
    "hybrid",
    "hybrid_star",
    "siamese",
]
ResidualInit = Literal["scheme", "inv_sqrt_depth", "inv_sqrt_2depth", "inv_depth", "deepnorm", "none"]


class CorpusSettings(TextSource):
    """The text, how it becomes tokens, and what is held out."""

    hub_split: str = Field(
        default="train", min_length=1, description="Split of a hub data set or of a saved folder"
    )
    tokenizer: Literal["bpe", "bytes"] = Field(
        default="bpe",
        description="Train a byte-level BPE tokenizer on the training part, or take single bytes",
    )
    vocabulary: int = Field(
        default=2_048,
        ge=260,
        le=1_000_000,
        description="Tokens of the BPE tokenizer; of no use with bytes",
    )
    context: int = Field(default=128, ge=2, le=1_048_576, description="Tokens of a training row")
    validation_share: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Share of the text, its end, that is held out; cut between documents where there are several",
    )


class ModelShape(Config):
    """Depth, width and where the norms stand."""

    norm_scheme: NormScheme = Field(
        default="span", description="Where the norms stand; 'prenorm' is what Llama has"
    )
    residual_init: ResidualInit = Field(
        default="scheme",
        description="Factor on the weights that write into the residual stream at the start; 'scheme' takes what the "
        "scheme's authors use (span: 1 / sqrt(layers))",
    )
    layers: int = Field(default=12, ge=1, le=2_000, description="Blocks")
    width: int = Field(default=128, ge=8, le=65_536, description="Width of the residual stream")
    heads: int = Field(default=4, ge=1, le=1_024, description="Attention heads; must divide width")
    ffn: int = Field(
        default=344, ge=8, le=1_000_000, description="Inner width of the gated feed-forward layer"
    )
    experts: int = Field(default=0, ge=0, le=4_096, description="Experts of a feed-forward layer; 0 is dense")
    experts_per_token: int = Field(
        default=2, ge=1, le=4_096, description="Experts that a token visits, when there are experts"
    )
    mup_base_width: int = Field(
        default=0,
        ge=0,
        le=65_536,
        description="Width at which the learning rate was tuned: wider models then scale it by themselves; 0 is off",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(
                f"heads {self.heads} must divide width {self.width} into heads of even size; change one"
            )
        if self.experts and self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is above experts {self.experts}; lower it"
            )
        return self


class PretrainSettings(PackedTrainingSettings):
    """How a base model is trained from scratch."""

    corpus: CorpusSettings = Field(
        default=CorpusSettings(), description="The text and its tokens", json_schema_extra={"position": 0}
    )
    shape: ModelShape = Field(
        default=ModelShape(), description="The model", json_schema_extra={"position": 1}
    )
    learning_rate: float = Field(
        default=1e-3,
        gt=0,
        le=1,
        description="Peak rate of AdamW; in the study of span_norm 'span' failed at 0.0057 with 24 blocks and at 0.002 "
        "with 48 and 1,500 steps, where 'prenorm' still trained: for it give half of prenorm's best rate",
    )
    weight_decay: float = Field(
        default=0.1, ge=0, le=1, description="Weight decay of the matrices; gains and embeddings have none"
    )
    validation_rows: int = Field(
        default=128, ge=1, le=1_000_000, description="Rows of the held-out text in use, spread over it"
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Seed of the weights and of the rows' order",
        json_schema_extra={"position": 80},
    )
