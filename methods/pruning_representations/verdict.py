"""Which kinds of tasks a compressed model will still do, from the probes alone, before any benchmark is run.

The paper's explanation as a rule: retrieval lives on hidden states, multiple choice on the order of a few tokens,
free text on the whole distribution at every step, where one other token changes all that follows. The bars are an
extension of this module, set on SmolLM2-135M with dropped sublayers; they say what to test first, not what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Retrieval: median cosine of the last states at equal inputs.
STATES_BAR = 0.9
# Multiple choice: share of questions on which both models prefer the same option.
CHOICE_BAR = 0.8
# A dense model that prefers one option in more questions than this answers by habit: agreement then says nothing.
HABIT_BAR = 0.9
# Free text: share of positions at which both models choose the same token after the same text.
SAFE_BAR, RISK_BAR = 0.9, 0.75


@dataclass(frozen=True)
class Survival:
    """One kind of task.

    Attributes:
        kind: what the model is used for.
        outlook: `keeps`, `at risk` or `fails`; `not judged` where the dense model itself says nothing.
        measured: the number that decides.
        reason: it in words, with its bar.
    """

    kind: str
    outlook: str
    measured: float
    reason: str


def task_verdict(
    decoding: Mapping[str, float], options: Mapping[str, float] | None = None
) -> tuple[Survival, ...]:
    """The outlook for each kind of task.

    Args:
        decoding: `StepTable.summary()` of a run with `teacher_forced`.
        options: `OptionTable.summary()`; without it nothing is said about multiple choice.
    """
    found = []
    if "forced/cos_h" in decoding:
        states = decoding["forced/cos_h"]
        found.append(
            Survival(
                "uses of hidden states",
                "keeps" if states >= STATES_BAR else "at risk",
                states,
                f"median cosine of the last states {states:.3f}, bar {STATES_BAR:g}",
            )
        )
    if options is not None:
        same, favourite = options["agreement"], options["favourite_share"]
        outlook = "keeps" if same >= CHOICE_BAR else "at risk"
        reason = f"same option in {100 * same:.0f} % of the questions, bar {100 * CHOICE_BAR:.0f} %"
        if favourite > HABIT_BAR:
            outlook = "not judged"
            reason = (
                f"the dense model prefers one letter in {100 * favourite:.0f} % of the questions, so that agreement "
                "says nothing"
            )
        found.append(Survival("multiple choice", outlook, same, reason))
    token = decoding["forced/agreement"]
    outlook = "keeps" if token >= SAFE_BAR else "at risk" if token >= RISK_BAR else "fails"
    run = round(1 / max(1 - token, 1e-3))
    found.append(
        Survival(
            "free text",
            outlook,
            token,
            f"same next token at {100 * token:.0f} % of the positions, so about {run} token{'s' * (run > 1)} until the "
            f"text differs; bars {100 * RISK_BAR:.0f} % and {100 * SAFE_BAR:.0f} %",
        )
    )
    return tuple(found)
