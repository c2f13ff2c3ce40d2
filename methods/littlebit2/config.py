"""What a user chooses about the compression of a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from methods.common.checks import check_choice, check_flag, check_number, check_whole
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
        check_number("bpp", self.bpp, above=0)
        for name, kind in (
            ("init", Init),
            ("scales", Scales),
            ("itq_target", Target),
            ("polar", Polar),
            ("svd", Solver),
        ):
            check_choice(name, getattr(self, name), kind)
        for name, least in (("n_iter", 0), ("restarts", 1), ("refit", 0), ("min_rank", 1), ("multiple", 1)):
            check_whole(name, getattr(self, name), least)
        check_whole("seed", self.seed)
        check_number("kv_factor", self.kv_factor, above=0)
        check_flag("residual", self.residual)
        check_flag("strict", self.strict)
        for name in ("include", "exclude"):
            object.__setattr__(self, name, _name_parts(name, getattr(self, name)))

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
        return cls(**values)


def _name_parts(field: str, value: Any) -> tuple[str, ...]:
    """A single string would be taken for its letters, each of which is a part of almost every name."""
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) and part for part in value):
        raise ConfigError(f"{field} {value!r}: give a tuple of parts of layer names, such as ('q_proj',)")
    return tuple(value)
