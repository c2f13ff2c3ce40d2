"""What a user chooses about the compression of a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from methods.common.errors import ConfigError
from methods.littlebit2.rotation import Polar, Target
from methods.littlebit2.spectrum import Solver

Init = Literal["joint_itq", "random_rotation", "svd", "admm"]
Scales = Literal["dual_svid", "latent_only"]


@dataclass(frozen=True)
class LittleBitConfig:
    """Settings of a factorisation.

    Args:
        bpp: nominal bits per weight of each layer (scales included, embeddings and head not counted).
        residual: a second branch of the same rank on what the first leaves; the bits are shared.
        init: `joint_itq` (the paper), `random_rotation`, `svd` (no rotation, LittleBit), or `admm` (double binary
            factorisation, a peer that fits the weight better but is slower).
        n_iter: updates of the rotation, or sweeps of ADMM.
        restarts: random starts of joint_itq and admm; the best is kept.
        scales: `dual_svid`; or `latent_only`, h = g = 1 and one magnitude a latent column, which shows what the outer
            scales are worth.
        refit: rounds of alternating least squares of h, l, g on the found signs; no part of the paper.
        min_rank: smallest rank; a target that would need less is missed, and the report says so.
        multiple: ranks are multiples of this.
        kv_factor: factor of the rank of layers named k_proj and v_proj.
        include, exclude: parts of layer names; only layers with one of `include` (when given) and none of `exclude`.
            The output head and embeddings are never taken.
        strict: refuse a target that a layer cannot reach, instead of using its smallest rank.
        itq_target: see `joint_itq`.
        polar: solver of the Procrustes step.
        svd: see `truncated_svd`.
        seed: of all random choices; each layer draws from its own generator.

    Raises:
        ConfigError: naming the field, its value and what is right.
    """

    bpp: float = 0.55
    residual: bool = False
    init: Init = "joint_itq"
    n_iter: int = 50
    restarts: int = 1
    scales: Scales = "dual_svid"
    refit: int = 0
    min_rank: int = 8
    multiple: int = 8
    kv_factor: float = 1.0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ("lm_head",)
    strict: bool = False
    itq_target: Target = "unit"
    polar: Polar = "svd"
    svd: Solver = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.bpp > 0:
            raise ConfigError(f"bpp {self.bpp}: give the bits a weight above 0, such as 0.55")
        for name, kind in (
            ("init", Init),
            ("scales", Scales),
            ("itq_target", Target),
            ("polar", Polar),
            ("svd", Solver),
        ):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(
                    f"{name} {getattr(self, name)!r}: choose one of {', '.join(get_args(kind))}"
                )
        for name, least in (("n_iter", 0), ("restarts", 1), ("refit", 0), ("min_rank", 1), ("multiple", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} {getattr(self, name)}: give at least {least}")
        if not self.kv_factor > 0:
            raise ConfigError(f"kv_factor {self.kv_factor}: give a factor above 0")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` is the inverse."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LittleBitConfig:
        """Raises ConfigError for a name that is no setting."""
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(
                f"{unknown[0]!r} is no setting of LittleBitConfig; known are {', '.join(sorted(known))}"
            )
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**given)
