"""Settings of the steer step. Imports nothing heavy."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from tasks.config import Config, Distinct

PolicyName = Literal["plain", "resample", "random", "steer", "always", "mean", "caa", "iti"]


class QuestionSettings(Config):
    """Questions with answers that can be checked, in parts that share nothing."""

    source: str = Field(
        default="bundled:sums",
        min_length=1,
        description="File or folder of rows (.jsonl, .csv, .parquet), a hub data set, or a bundled one: "
        "'bundled:sums', 'bundled:arithmetic', 'bundled:gsm8k'",
    )
    hub_config: str = Field(
        default="", description="Configuration of a hub data set; empty takes its default"
    )
    hub_split: str = Field(default="train", min_length=1, description="Split of a hub or saved data set")
    question_column: str = Field(default="question", min_length=1, description="Column of the questions")
    answer_column: str = Field(default="answer", min_length=1, description="Column of the right answers")
    group_column: str = Field(
        default="",
        description="Column of what questions share (a template): a group stays in one part and is one unit of the "
        "intervals; empty: every question is its own",
    )
    template: str = Field(
        default="What is 3 + 4 + 2?\n3 + 4 = 7\n7 + 2 = 9\n\n"
        "What is 5 + 6 + 3?\n5 + 6 = 11\n11 + 3 = 14\n\n{question}\n",
        min_length=1,
        description="What the model reads, with {question} in its place: worked examples for a base model; for a chat "
        "model '{question} Think step by step, one sentence a line, and end with the answer.'",
    )
    chat: bool = Field(default=False, description="Ask through the tokenizer's chat template when it has one")
    check: Literal["number", "words"] = Field(
        default="number",
        description="number: the last number (or box) of the answer counts; words: its last line",
    )
    train: int = Field(default=48, ge=2, le=1_000_000, description="Questions that the steering is fitted on")
    test: int = Field(
        default=48, ge=2, le=1_000_000, description="Other questions, which the policies are compared on"
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Seed of the choice of questions")

    @field_validator("template")
    @classmethod
    def _has_a_place(cls, value: str) -> str:
        if "{question}" not in value:
            raise ValueError("has no {question}; write it where the question stands")
        return value


def _regular_expression(value: str) -> str:
    try:
        found = re.search(value, "")
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression ({error})") from None
    if found:
        raise ValueError(f"{value!r} is found in an empty text and would end after every token")
    return value


RegularExpression = Annotated[str, AfterValidator(_regular_expression)]


class DrawSettings(Config):
    """How answers are drawn."""

    temperature: float = Field(
        default=0.6, ge=0, le=10, description="Of completions and answers; 0 is greedy"
    )
    top_p: float = Field(default=0.95, gt=0, le=1, description="Smallest set of tokens with this probability")
    top_k: int = Field(default=20, ge=0, le=1_000_000, description="Most likely tokens; 0 takes all")
    max_new_tokens: int = Field(default=64, ge=1, le=1_048_576, description="Tokens of an answer at most")
    delimiter: RegularExpression = Field(
        default=r"\n",
        min_length=1,
        description="Regular expression that ends a sentence; the paper's is '\\.\\n'",
    )
    max_sentence_tokens: int = Field(
        default=256, ge=1, le=1_048_576, description="A sentence ends after so many tokens at the latest"
    )
    stop: RegularExpression = Field(
        default=r"\n\n",
        min_length=1,
        description="Regular expression that ends an answer, for models that would go on with the next question; "
        "'none': only the end-of-text token does",
    )
    entropy: Literal["full", "topk"] = Field(
        default="full", description="Entropy over the whole vocabulary, or over the 20 most likely tokens"
    )
    batch_size: int = Field(default=32, ge=1, le=65_536, description="Answers that are drawn side by side")


class SteerSettings(Config):
    """How the steering is fitted and used."""

    questions: QuestionSettings = Field(default=QuestionSettings(), description="Questions and answers")
    draw: DrawSettings = Field(default=DrawSettings(), description="How answers are drawn")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format of the model; 'auto' takes bfloat16 where the processor computes with it. Entropies "
        "and edits are float32 at least",
    )
    quantile: float = Field(
        default=0.8,
        gt=0,
        lt=1,
        description="Share of the training sentences below the entropy threshold gamma",
    )
    forks: int = Field(
        default=6, ge=2, le=1_000, description="Next sentences drawn at a doubtful place; paper: 10"
    )
    completions: int = Field(
        default=3, ge=1, le=100, description="Completions a fork, which must agree; paper: 10"
    )
    max_contexts: int = Field(
        default=3_000, ge=1, le=1_000_000, description="Contexts with right and wrong forks in use at most"
    )
    clusters: int = Field(
        default=1, ge=1, le=100, description="Patterns a head; paper: 5, released scripts: 1"
    )
    heads: int = Field(default=32, ge=1, le=100_000, description="Attention heads that are steered")
    alpha: float = Field(default=3.0, ge=0, le=1_000, description="Largest step along a direction")
    alpha_unit: Literal["sigma", "raw"] = Field(
        default="sigma",
        description="sigma: standard deviations of the right forks, which carries over between models; raw: activation "
        "units, paper: 3",
    )
    cluster: Literal["sum", "nearest"] = Field(
        default="sum", description="Steps of every pattern, or of the one that asks for most"
    )
    rank: Literal["probe", "fdr"] = Field(
        default="probe", description="Heads are chosen by probe accuracy or by Fisher ratio"
    )
    direction: Literal["lda", "mean"] = Field(
        default="lda", description="Fisher's direction, or difference of means"
    )
    tau_decay: int = Field(
        default=0, ge=0, le=1_000_000, description="Last sentence that may be steered; 0 steers to the end"
    )
    scope: Literal["fork", "sentence"] = Field(
        default="fork", description="Edit the last token before the sentence, or every token of it"
    )
    policies: Annotated[tuple[PolicyName, ...], Distinct] = Field(
        default=("plain", "resample", "random", "steer"),
        min_length=1,
        description="What answers the test questions: plain; resample (gate and rollback without an edit), which every "
        "claim needs; random directions; steer; always (no gate); mean (difference of means); caa; iti",
    )
    seed: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Seed of answers, forks, K-means and the split"
    )
