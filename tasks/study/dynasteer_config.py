"""Settings of the study of `dynasteer`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct, Seeds
from tasks.steer.config import DrawSettings, QuestionSettings, SteerSettings

Part = Literal["planted", "world", "model"]
ARITHMETIC = (
    "Calculate 47 + 15.\n47 + 10 = 57\n57 + 5 = 62\n\n"
    "Calculate 23 * 4.\n20 * 4 = 80\n3 * 4 = 12\n80 + 12 = 92\n\n{question}\n"
)
WORD_PROBLEMS = (
    "Question: Tom has 3 bags of 4 apples. He eats 2. How many are left?\n"
    "Tom has 3 * 4 = 12 apples.\nAfter eating 2 there are 12 - 2 = 10.\nThe answer is 10.\n\n"
    "Question: {question}\n"
)
CHOICES = "Which of these is hot?\nA. ice\nB. fire\nC. snow\nD. rain\nAnswer: B\n\n{question}\nAnswer:"


class DynaSteerStudy(Config):
    """The paper's claims: a planted truth, a small reasoner that is trained here, and a real model."""

    profile: Literal["default", "full"] = Field(
        "default", description="default: the parts below within minutes; full: every part"
    )
    parts: Annotated[tuple[Part, ...], Distinct] = Field(
        ("planted", "world"),
        min_length=1,
        description="planted: the causal positive control; world: a reasoner trained here on solvers that err in two "
        "ways, with every baseline, control and ablation; model: the model below on its questions",
    )
    seeds: Seeds = Field(
        (0, 1, 2), min_length=3, description="Seeds of whole pipelines: reasoner, forks, fit, answers"
    )
    steps: int = Field(500, ge=1, le=1_000_000, description="Training steps of a reasoner")
    problems: int = Field(600, ge=20, le=1_000_000, description="Problems that forks are drawn for")
    select: int = Field(600, ge=10, le=1_000_000, description="Problems that the strength is chosen on")
    test: int = Field(2_000, ge=10, le=1_000_000, description="Problems that policies are compared on")
    laws: int = Field(
        1_000, ge=10, le=1_000_000, description="Problems for the gain by sentence and by entropy"
    )
    model: str = Field(
        "bundled:smollm2-135m",
        min_length=1,
        description="The real model: a folder, a hub id, or a bundled one",
    )
    steer: SteerSettings = Field(
        SteerSettings(
            questions=QuestionSettings(train=48, test=32),
            draw=DrawSettings(max_new_tokens=24),
            forks=4,
            completions=2,
            policies=("plain", "resample", "random", "steer"),
        ),
        description="Questions and settings of the real model; each seed has questions and draws of its own",
    )
    plain_questions: Annotated[tuple[QuestionSettings, ...], Distinct] = Field(
        (
            QuestionSettings(source="bundled:arithmetic", template=ARITHMETIC, test=48),
            QuestionSettings(source="bundled:gsm8k", template=WORD_PROBLEMS, test=48),
            QuestionSettings(source="bundled:arc_easy", template=CHOICES, check="words", test=48),
        ),
        description="Questions that the real model only answers plainly, to tell what it can do",
    )
    plain_tokens: int = Field(96, ge=1, le=1_048_576, description="Tokens of such an answer at most")
