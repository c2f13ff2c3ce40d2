"""Where each scheme puts its norms and how it starts: names, final norm, initialisation, constants."""

from __future__ import annotations

import math
from dataclasses import dataclass

from methods.common.errors import ConfigError

RESIDUAL_RULES = ("inv_sqrt_depth", "inv_sqrt_2depth", "inv_depth", "deepnorm", "none")


@dataclass(frozen=True)
class Scheme:
    """One placement of the norms.

    Attributes:
        label: its name as people write it.
        rule: the block's equations, a method of `NormResidualBlock`; `mixed` picks one by the block's place.
        final_norm: whether a norm stands between the last block and the head.
        residual_init: the start that its authors use.
        source: where its equations come from.
    """

    label: str
    rule: str
    final_norm: bool
    residual_init: str
    source: str


SCHEMES: dict[str, Scheme] = {
    "span": Scheme("SpanNorm", "span", False, "inv_sqrt_depth", "SpanNorm, arXiv 2601.22580"),
    "prenorm": Scheme("PreNorm", "prenorm", True, "inv_sqrt_2depth", "GPT-2, Llama"),
    "postnorm": Scheme("PostNorm", "postnorm", False, "inv_sqrt_2depth", "Vaswani et al. 2017"),
    "deepnorm": Scheme(
        "DeepNorm", "deepnorm", False, "deepnorm", "DeepNet, arXiv 2203.00555, decoder-only row"
    ),
    "sandwich": Scheme("Sandwich/Peri-LN", "sandwich", True, "none", "CogView, Peri-LN, arXiv 2502.02732"),
    "mix_ln": Scheme("Mix-LN", "mixed", True, "none", "Mix-LN, arXiv 2412.13795"),
    "lns": Scheme("LayerNorm Scaling", "lns", True, "none", "LayerNorm Scaling, arXiv 2502.05795"),
    "hybrid": Scheme("HybridNorm", "hybrid", False, "inv_sqrt_2depth", "HybridNorm, arXiv 2503.04598"),
    "hybrid_star": Scheme("HybridNorm*", "mixed", False, "inv_sqrt_2depth", "HybridNorm*, arXiv 2503.04598"),
    "siamese": Scheme("SiameseNorm", "siamese", False, "none", "SiameseNorm, arXiv 2602.08064"),
}
ALIASES = {"peri": "sandwich", "pre": "prenorm", "post": "postnorm", "spannorm": "span"}
STARTS = {
    "inv_sqrt_depth": "1/√L",
    "inv_sqrt_2depth": "1/√2L",
    "inv_depth": "1/L",
    "deepnorm": "its own start",
    "none": "unscaled",
}
QKV_NORM = ("hybrid", "hybrid_star")  # their attention norms queries, keys and values of each head


def canonical(scheme: str) -> str:
    """The scheme's own name. Raises ConfigError listing the schemes."""
    name = ALIASES.get(scheme, scheme)
    if name not in SCHEMES:
        raise ConfigError(
            f"norm_scheme={scheme!r}: choose one of {', '.join(SCHEMES)} (peri is another name for sandwich)"
        )
    return name


def shown(candidate: str) -> str:
    """`scheme/start` as people read it; what further parts say follows: `span/none/warmup100`."""
    scheme, start, *more = candidate.split("/")
    words = [
        f"{part.removeprefix('warmup')} warm-up steps" if part.startswith("warmup") else part for part in more
    ]
    return ", ".join([SCHEMES[canonical(scheme)].label, STARTS.get(start, start), *words])


def block_rule(scheme: str, layer: int, layers: int, mix_share: float = 0.25) -> str:
    """The equations of one block; Mix-LN and HybridNorm* change them with depth."""
    name = canonical(scheme)
    if not 0 <= mix_share <= 1:
        raise ConfigError(f"mix_share={mix_share}: give a share between 0 and 1")
    if name == "mix_ln":
        return "postnorm" if layer < int(mix_share * layers) else "prenorm"
    if name == "hybrid_star":
        return "hybrid_first" if layer == 0 else "hybrid"
    return SCHEMES[name].rule


def residual_factor(rule: str | float, layers: int) -> float:
    """The factor on the weights that write into the residual stream, for `layers` blocks.

    Brief: s = O(L^-1/2) is what bounds the gradient ratio at every depth (section 2.2). `deepnorm` is
    beta = (8 L)^(-1/4), which also applies to the value and the feed-forward input projections.

    Raises:
        ConfigError: unknown rule, a factor that is not above 0, or fewer than one block.
    """
    if layers < 1:
        raise ConfigError(f"num_hidden_layers={layers}: give at least 1")
    if isinstance(rule, bool) or not isinstance(rule, int | float | str):
        raise ConfigError(
            f"residual_init={rule!r}: give one of {', '.join(RESIDUAL_RULES)} or a number above 0"
        )
    if isinstance(rule, int | float):
        if not (math.isfinite(rule) and rule > 0):
            raise ConfigError(f"residual_init={rule}: give a number above 0, e.g. {layers**-0.5:.3g}")
        return float(rule)
    factors = {
        "inv_sqrt_depth": layers**-0.5,
        "inv_sqrt_2depth": (2 * layers) ** -0.5,
        "inv_depth": 1 / layers,
        "deepnorm": (8 * layers) ** -0.25,
        "none": 1.0,
    }
    if rule not in factors:
        raise ConfigError(
            f"residual_init={rule!r}: choose one of {', '.join(RESIDUAL_RULES)} or a number above 0"
        )
    return factors[rule]


def deepnorm_alpha(layers: int) -> float:
    """(2 L)^(1/4): the factor of DeepNorm's skip for a decoder of L blocks (arXiv 2203.00555, table 1)."""
    return (2 * layers) ** 0.25
