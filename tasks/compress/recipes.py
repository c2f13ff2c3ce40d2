"""Compression recipes: what a user chooses, and the registry that leads from a choice to the work.

A recipe is a settings model with a `kind` of its own and the place of its compressor. A paper of this project
adds its recipe to `BUILT_IN`; another package names its recipe class as an entry point:

    [project.entry-points."seedloom.compressors"]
    mykind = "mypackage.recipes:MyRecipe"

Imports nothing heavy: the compressor is imported when it is used.
"""

from __future__ import annotations

import functools
import operator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator

from methods.common.errors import ConfigError
from methods.common.reading_limit import longest_input
from tasks.config import Config

ENTRY_POINTS = "seedloom.compressors"
# A compressor that trains leaves its curve in this file of its folder: a JSON row a step, with the key `step`.
HISTORY = "distillation.jsonl"


class Compressor(Protocol):
    """The work behind a recipe: read the model folder, write the compressed one."""

    def __call__(
        self, out: Path, *, recipe: Any, model: Path, calibration: Path | None, seed: int
    ) -> dict[str, Any]:
        """Write a model folder with its tokenizer into the folder `out`, and describe it.

        Args:
            out: an empty folder, or, for a recipe that `resumes`, what a killed attempt left.
            recipe: the recipe, of the class that names this compressor.
            model: a checked folder: safetensors with finite weights, no foreign code.
            calibration: folder of a text data set; None when there is none.
            seed: of every random choice; the same inputs give the same bytes.

        Returns:
            what goes into `compression.json` beside the recipe and the sizes; JSON values, no times, no
            paths. `format` says how the weights are stored: `dense` for a folder that transformers loads as
            it is; `size/nominal_bytes` is what the weights would take in the format that the method means;
            measured seconds stand under `timings`.
        """


class CompressionRecipe(Config):
    """Base of all recipes. A subclass sets `kind` (a Literal with that default) and `compressor`."""

    compressor: ClassVar[str]
    uses_calibration: ClassVar[bool] = False
    # The compressor goes on from what a killed attempt left in `out`; else it finds the folder empty.
    resumes: ClassVar[bool] = False

    kind: str

    @property
    def label(self) -> str:
        """A short name, unique among different settings as far as people compare them; safe in file names."""
        return self.kind

    def check_model(self, config: dict[str, Any]) -> None:
        """Refuse a model by its config.json, before any work starts. Raises DataError or ConfigError."""


SEQUENCES: int = Field(
    default=16,
    ge=1,
    le=4_096,
    description="Sequences of calibration text; fewer are used when the text ends",
)
LENGTH: int = Field(default=256, ge=8, le=32_768, description="Length of a calibration sequence in tokens")


def calibration_suffix(recipe: Any) -> str:
    """What a label adds when the calibration is not the usual one."""
    size = (recipe.calibration_sequences, recipe.calibration_length)
    fields = type(recipe).model_fields
    usual = (fields["calibration_sequences"].default, fields["calibration_length"].default)
    return "" if size == usual else f"-c{size[0]}x{size[1]}"


def check_calibration_length(config: dict[str, Any], length: int) -> None:
    """Refuse sequences that the model cannot read. Raises ConfigError."""
    limit = longest_input(config)
    if limit and length > limit:
        raise ConfigError(
            f"calibration_length {length}: the model reads at most {limit} tokens; set that or less"
        )


class CalibratedRecipe(CompressionRecipe):
    """What the recipes share that read calibration text through the model."""

    uses_calibration: ClassVar[bool] = True

    calibration_sequences: int = SEQUENCES
    calibration_length: int = LENGTH

    @property
    def label(self) -> str:
        return super().label + calibration_suffix(self)

    def check_model(self, config: dict[str, Any]) -> None:
        super().check_model(config)
        check_calibration_length(config, self.calibration_length)


class PatternRecipe(CompressionRecipe):
    """What the recipes that set weights to zero share."""

    compressor: ClassVar[str] = "tasks.compress.prune:prune_model"

    pattern: Literal["unstructured", "2:4", "4:8"] = Field(
        default="unstructured",
        description="Where zeros may lie: anywhere, or 2 of every 4 (4 of every 8) consecutive inputs",
    )
    sparsity: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="Share of the linear layers' weights set to zero; 2:4 and 4:8 need 0.5",
    )

    @model_validator(mode="after")
    def _sparsity_fits_pattern(self) -> Self:
        if self.pattern != "unstructured" and self.sparsity != 0.5:
            raise ValueError(
                f"sparsity {self.sparsity:g} contradicts pattern {self.pattern}, which removes exactly 0.5; "
                "set sparsity to 0.5 or pattern to 'unstructured'"
            )
        return self

    @property
    def label(self) -> str:
        where = (
            f"{100 * self.sparsity:g}pct"
            if self.pattern == "unstructured"
            else self.pattern.replace(":", "of")
        )
        return f"{self.kind}-{where}"

    def check_model(self, config: dict[str, Any]) -> None:
        from tasks.compress.prune import check_architecture

        check_architecture(config)


class PruneRecipe(PatternRecipe):
    """What the recipes share that choose weights by a score."""

    compare: Literal["layer", "row"] = Field(
        default="layer",
        description="Which weights compete when the pattern is unstructured: all of a layer, or those of one output",
    )

    @property
    def label(self) -> str:
        usual = type(self).model_fields["compare"].default
        return super().label + ("" if self.compare == usual else f"-by-{self.compare}")


class MagnitudeRecipe(PruneRecipe):
    """Magnitude pruning: the smallest weights go; needs no data."""

    model_config = ConfigDict(title="Magnitude pruning")

    kind: Literal["magnitude"] = Field(default="magnitude", description="Magnitude pruning")


class WandaRecipe(CalibratedRecipe, PruneRecipe):
    """Wanda: weights that are small, or whose input is, go; needs calibration text."""

    model_config = ConfigDict(title="Wanda pruning")

    kind: Literal["wanda"] = Field(default="wanda", description="Pruning by weights and activations (Wanda)")
    compare: Literal["layer", "row"] = Field(
        default="row",
        description="Which weights compete when the pattern is unstructured: those of one output, or all of a layer",
    )


class SparseGPTRecipe(CalibratedRecipe, PatternRecipe):
    """SparseGPT: weights go one column after the other, the remaining ones make up for them; needs calibration text."""

    model_config = ConfigDict(title="SparseGPT pruning")

    kind: Literal["sparsegpt"] = Field(
        default="sparsegpt", description="Pruning that corrects the remaining weights (SparseGPT)"
    )
    damping: float = Field(
        default=0.01,
        gt=0,
        le=10,
        description="Share of the mean second moment of the inputs added to each, against noise in the calibration",
    )

    @property
    def label(self) -> str:
        usual = type(self).model_fields["damping"].default
        return super().label + ("" if self.damping == usual else f"-damping{self.damping:g}")


class DropRecipe(CompressionRecipe):
    """Whole sublayers go, those that change their input least: fewer weights, faster, a smaller cache; needs text."""

    model_config = ConfigDict(title="Dropping attention, MLP or whole blocks")
    compressor: ClassVar[str] = "tasks.compress.drop:drop_model"
    uses_calibration: ClassVar[bool] = True

    kind: Literal["drop"] = Field(default="drop", description="Dropping sublayers")
    sublayer: Literal["attn", "mlp", "block"] = Field(
        default="attn", description="What goes: attention (and its cache), MLP, or both of a block"
    )
    layers: int = Field(default=4, ge=1, le=10_000, description="How many of them go")
    criterion: Literal["cosine", "kl_estimate", "block_influence"] = Field(
        default="cosine",
        description="Which go first: those whose output changes the hidden state least (cosine, for blocks also called "
        "block_influence), or those with the least predicted change of the next token's probabilities",
    )
    iterative: bool = Field(
        default=False, description="Rank again after each drop, at as many times the cost"
    )
    calibration_sequences: int = SEQUENCES
    calibration_length: int = LENGTH

    @model_validator(mode="after")
    def _criterion_fits(self) -> Self:
        if self.criterion == "block_influence" and self.sublayer != "block":
            raise ValueError(
                f"criterion block_influence ranks blocks, not {self.sublayer}; set sublayer to block or criterion to "
                "cosine"
            )
        return self

    @property
    def label(self) -> str:
        parts = ["drop", self.sublayer, str(self.layers)]
        if self.criterion == "kl_estimate":
            parts.append("by-kl")
        if self.iterative:
            parts.append("iterative")
        return "-".join(parts) + calibration_suffix(self)

    def check_model(self, config: dict[str, Any]) -> None:
        from tasks.compress.drop import check_layers

        check_layers(config, self)
        check_calibration_length(config, self.calibration_length)


class LittleBitRecipe(CompressionRecipe):
    """LittleBit-2: below one bit a weight, as products of two sign matrices; distillation needs calibration text."""

    model_config = ConfigDict(title="LittleBit-2, below one bit a weight")
    compressor: ClassVar[str] = "tasks.compress.littlebit2:littlebit2_model"
    resumes: ClassVar[bool] = True

    kind: Literal["littlebit2"] = Field(
        default="littlebit2", description="Binary low-rank factors (LittleBit-2)"
    )
    bpp: float = Field(
        default=0.55,
        gt=0,
        le=4,
        description="Bits per weight of the linear layers, scales counted; embeddings and head keep their format",
    )
    init: Literal["joint_itq", "random_rotation", "svd", "admm"] = Field(
        default="joint_itq",
        description="Where distillation starts: rotated to fit signs (the paper), rotated at random, not rotated, or "
        "fitted by ADMM (closer to the weights, slower)",
    )
    residual: bool = Field(
        default=False, description="Share the bits between a first product and one for what it leaves"
    )
    iterations: int = Field(
        default=50, ge=0, le=10_000, description="Updates of the rotation, or sweeps of ADMM"
    )
    kv_factor: float = Field(
        default=1.0, gt=0, le=16, description="Factor of the rank of key and value projections"
    )
    strict: bool = Field(
        default=False,
        description="Refuse a target that a small layer cannot reach, instead of using its smallest rank",
    )
    distill_tokens: int = Field(
        default=16_384,
        ge=0,
        le=10_000_000_000,
        description="Tokens of calibration text to distil on, repeated when the text is shorter; 0 leaves the model "
        "as factorised, which writes no usable text",
    )
    distill_length: int = Field(
        default=128, ge=8, le=32_768, description="Tokens of a sequence in distillation"
    )
    distill_batch: int = Field(default=4, ge=1, le=4_096, description="Sequences of a distillation step")
    distill_rate: float = Field(
        default=2e-3, gt=0, le=1, description="Peak learning rate of the distillation (AdamW, cosine)"
    )
    distill_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format of the matrix products in distillation; 'auto' takes bfloat16 where it is fast",
    )
    hidden_weight: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the hidden states' error against that of the answers per token (the paper: 10 "
        "against their sum over a sequence); a few huge activations, as in SmolLM2, make it drown the answers",
    )
    gradient: Literal["smooth_sign", "clipped"] = Field(
        default="smooth_sign", description="Gradient that stands in for that of the sign"
    )
    storage: Literal["packed", "dense"] = Field(
        default="packed",
        description="packed: bits, read by this project and by transformers once it is imported; dense: the weights "
        "that they stand for, as large as the original, for other software",
    )

    @property
    def uses_calibration(self) -> bool:  # type: ignore[override]
        return self.distill_tokens > 0

    @property
    def label(self) -> str:
        parts = [f"littlebit2-{self.bpp:g}bit"]
        if self.init != "joint_itq":
            parts.append(self.init.replace("_", "-"))
        if self.residual:
            parts.append("residual")
        parts += self._changed({"iterations": "{}it", "kv_factor": "kv{:g}"})
        if self.distill_tokens:
            shown = {
                "distill_tokens": "{}tok",
                "distill_length": "len{}",
                "distill_batch": "batch{}",
                "distill_rate": "lr{:g}",
                "hidden_weight": "hidden{:g}",
                "gradient": "{}",
                "distill_dtype": "{}",
            }
            parts += self._changed(shown)
        else:
            parts.append("undistilled")
        if self.storage == "dense":
            parts.append("dense")
        return "-".join(parts)

    def _changed(self, shown: dict[str, str]) -> list[str]:
        """How a label names the fields that are not as usual."""
        fields = type(self).model_fields
        return [
            text.format(getattr(self, name))
            for name, text in shown.items()
            if getattr(self, name) != fields[name].default
        ]

    def check_model(self, config: dict[str, Any]) -> None:
        from tasks.compress.littlebit2 import check_layers

        check_layers(config, self)
        limit = longest_input(config)
        if self.distill_tokens and limit and self.distill_length > limit:
            raise ConfigError(
                f"distill_length {self.distill_length}: the model reads at most {limit} tokens; set that or less"
            )


BUILT_IN: tuple[type[CompressionRecipe], ...] = (
    MagnitudeRecipe,
    WandaRecipe,
    SparseGPTRecipe,
    DropRecipe,
    LittleBitRecipe,
)


@functools.cache
def recipe_classes() -> dict[str, type[CompressionRecipe]]:
    """All known recipes by their kind, those with fewer fields first.

    Prefect's form finds the member of a union that a value belongs to by counting common field names, and
    takes the first of equals; with distinct sets of names in this order it always finds the right one.

    Raises:
        ConfigError: two recipes of the same kind or with the same field names, or an entry point that is no
            recipe.
    """
    classes = list(BUILT_IN)
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            loaded = point.load()
        except Exception as error:
            raise ConfigError(
                f"compressor {point.name} ({point.value}) cannot be imported: {error}"
            ) from error
        if not (isinstance(loaded, type) and issubclass(loaded, CompressionRecipe)):
            raise ConfigError(f"compressor {point.name} ({point.value}) is no CompressionRecipe class")
        classes.append(loaded)
    known: dict[str, type[CompressionRecipe]] = {}
    shapes: dict[frozenset[str], str] = {}
    for recipe in sorted(classes, key=lambda item: len(item.model_fields)):
        kind = recipe.model_fields["kind"].default
        if not isinstance(kind, str) or kind in known:
            raise ConfigError(
                f"compressor {recipe.__name__}: its kind {kind!r} is taken or is no Literal default"
            )
        names = frozenset(recipe.model_fields)
        if names in shapes:
            raise ConfigError(
                f"compressor {kind}: has the same fields as {shapes[names]}, so a form cannot tell them apart; "
                "give it a field of its own"
            )
        known[kind], shapes[names] = recipe, kind
    return known


def recipe_class(kind: str) -> type[CompressionRecipe]:
    """The recipe of a kind.

    Raises:
        ConfigError: naming the known kinds.
    """
    known = recipe_classes()
    if kind not in known:
        raise ConfigError(f"kind {kind!r}: no such compressor; known are {', '.join(known)}")
    return known[kind]


def compressor_for(recipe: CompressionRecipe) -> Compressor:
    """Import the work behind a recipe."""
    module, _, name = recipe.compressor.partition(":")
    loaded: Compressor = getattr(import_module(module), name)
    return loaded


class _AnyOf:
    """Forms of Prefect's first interface render `anyOf`, not the `oneOf` that pydantic writes for a tagged
    union."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        if "oneOf" in schema:
            schema["anyOf"] = schema.pop("oneOf")
        return schema


if TYPE_CHECKING:
    Recipe = MagnitudeRecipe | WandaRecipe | SparseGPTRecipe | DropRecipe | LittleBitRecipe
else:
    Recipe = Annotated[
        functools.reduce(operator.or_, recipe_classes().values()), Field(discriminator="kind"), _AnyOf()
    ]
