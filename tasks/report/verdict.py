"""A claim against what was measured."""

from collections.abc import Sequence
from typing import Any

from methods.common.claims import Claim
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


def claim_metrics(claims: Sequence[Claim]) -> dict[str, Any]:
    """Each claim's numbers for metrics.json, by its name; `low` and `high` where its interval decides."""
    return {
        c.name: {
            "mean": c.mean,
            "spread": c.spread,
            "held": c.held,
            "values": list(c.values),
            **({} if c.held is None else {"bar": c.bar}),
            **(
                {"low": c.interval[0], "high": c.interval[1]}
                if c.rule == "interval" and len(c.values) > 1
                else {}
            ),
        }
        for c in claims
    }


def claim_verdicts(claims: Sequence[Claim]) -> list[Verdict]:
    """The claims that something decides, as people read them."""
    return [
        Verdict(claim=f"{c.name}: {c.text}", held=c.held, measured=_measured(c))
        for c in claims
        if c.held is not None
    ]


def _measured(claim: Claim) -> str:
    told = f"{claim.mean:.3g}"
    if len(claim.values) > 1:
        told += f" ± {claim.spread:.2g}"
    if claim.rule == "interval":
        told += f", 95 % interval {claim.interval[0]:.3g} to {claim.interval[1]:.3g}"
    told += f"; bar {claim.sense} {claim.bar:g}"
    return told + (f"; seeds {', '.join(f'{v:.3g}' for v in claim.values)}" if len(claim.values) > 1 else "")
