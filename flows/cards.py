"""The papers' cards: `seeds/<slug>/card.md`, YAML front matter and text, and the README's table made from them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from flows.registry import FLOWS
from methods.common.errors import DataError
from tasks.config import Config

BEGIN, END = "<!-- papers:begin -->", "<!-- papers:end -->"
COLUMNS = ("Paper", "What it does for you", "Method", "Flow", "Claims that held")


class Paper(Config):
    """The publication."""

    authors: str = Field(min_length=1, description="As the paper gives them; 'et al.' after the third")
    venue: str = Field(min_length=1, description="Where and when it appeared")
    arxiv: str = Field(
        "", pattern=r"^(\d{4}\.\d{4,5}(v\d+)?)?$", description="arXiv id; empty when it has none"
    )


class Claim(Config):
    """One claim of the paper against what the study measured."""

    claim: str = Field(min_length=1, description="What the paper says, in one sentence")
    bar: str = Field(min_length=1, description="What must be measured for the claim to hold")
    measured: int | float | str = Field(
        description="The number, or the numbers in words; empty when not tested"
    )
    metric: str = Field(
        "", description="Key of metrics.json that holds `measured`, groups joined by '/'; empty: not checked"
    )
    spread: str = Field(
        "", description="Spread over seeds, with its kind (standard deviation, range, interval)"
    )
    seeds: int = Field(0, ge=0, description="How many seeds the number is the mean of; 0 when not tested")
    held: bool | Literal["not_tested"] = Field(description="true, false or not_tested")
    command: str = Field(min_length=1, description="What measures it")

    @model_validator(mode="after")
    def _consistent(self) -> "Claim":
        if self.held == "not_tested":
            if self.measured != "":
                raise ValueError(f"held is not_tested, but measured = {self.measured!r}; empty it or decide")
        elif self.measured == "" or self.seeds == 0:
            raise ValueError("held is given without `measured` and `seeds`; add both, or say not_tested")
        elif self.metric and isinstance(self.measured, str):
            raise ValueError(f"metric {self.metric!r} needs a number as `measured`")
        return self


class Card(Config):
    """The front matter of a card."""

    slug: str = Field(pattern=r"^[a-z0-9_]+$", description="Name of its folders in seeds/ and methods/")
    title: str = Field(min_length=1, description="Title of the paper")
    paper: Paper = Field(description="Authors, venue, arXiv id")
    problem: str = Field(min_length=1, max_length=200, description="What it solves for a user, in one line")
    module: str = Field(pattern=r"^methods\.[a-z0-9_.]+$", description="The Python package of the method")
    flow: str = Field(min_length=1, description="Name of its study flow, as `seedloom list` shows it")
    families: tuple[str, ...] = Field(min_length=1, description="Kinds of models or data it is for")
    claims: tuple[Claim, ...] = Field(
        min_length=1, description="Every claim of the paper, those that fail too"
    )
    peers: tuple[str, ...] = Field(
        (), description="Libraries and methods it was compared with in the same run"
    )
    hardware: str = Field(min_length=1, description="What the study ran on")
    minutes: float = Field(gt=0, description="Duration of the study in minutes")

    @property
    def held(self) -> str:
        """How many of its claims held, for the table."""
        tested = [claim for claim in self.claims if claim.held != "not_tested"]
        if not tested:
            return "not tested yet"
        text = f"{sum(claim.held is True for claim in tested)} of {len(tested)}"
        left = len(self.claims) - len(tested)
        return f"{text} ({left} not tested)" if left else text


@dataclass(frozen=True)
class Seed:
    """A paper's folder: its card, the card's text and the study's metrics."""

    folder: Path
    card: Card
    text: str
    metrics: dict[str, Any] | None


def load_seed(folder: Path) -> Seed:
    """Read a paper's folder.

    Raises:
        DataError: one line a mistake in the card, or metrics.json is damaged.
    """
    import frontmatter
    import yaml

    path = folder / "card.md"
    try:
        post = frontmatter.loads(path.read_text())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 2}" if mark else ""
        raise DataError(f"{path}: the front matter is not YAML{where}; correct it") from error
    if not post.metadata:
        raise DataError(f"{path}: no front matter; the card starts with settings between two lines of ---")
    try:
        card = Card.model_validate(post.metadata)
    except ValidationError as error:
        lines = []
        for item in error.errors():
            place = ".".join(str(part) for part in item["loc"])
            message = item["msg"].removeprefix("Value error, ")
            shown = "" if item["type"] in ("missing", "value_error") else f" = {item['input']!r}"
            lines.append(f"{path}: {place}{shown}: {message[0].lower()}{message[1:]}")
        raise DataError("\n".join(lines)) from error
    return Seed(folder, card, post.content, _read_metrics(folder))


def _read_metrics(folder: Path) -> dict[str, Any] | None:
    """The study's metrics; those of a bench in a folder of its own stand under the folder's name."""
    found: dict[str, Any] = {}
    for file in [folder / "metrics.json", *sorted(folder.glob("*/metrics.json"))]:
        if not file.exists():
            continue
        try:
            metrics = json.loads(file.read_text())
        except json.JSONDecodeError as error:
            raise DataError(f"{file} is damaged; run the study again") from error
        found |= metrics if file.parent == folder else {file.parent.name: metrics}
    return found or None


def load_seeds(root: Path) -> list[Seed]:
    """Every paper that has a card, by slug.

    Raises:
        DataError: as `load_seed`.
    """
    return [load_seed(path.parent) for path in sorted((root / "seeds").glob("*/card.md"))]


def check_seed(seed: Seed) -> list[str]:
    """One line for each way in which a card disagrees with its folder, its flow or its measurements."""
    card, path = seed.card, seed.folder / "card.md"
    lines = []
    if card.slug != seed.folder.name:
        lines.append(f"{path}: slug is {card.slug!r}, the folder is {seed.folder.name!r}; make them equal")
    flow = next((flow for flow in FLOWS if flow.name == card.flow), None)
    if flow is None or flow.paper != card.slug:
        lines.append(f"{path}: flow {card.flow!r} is no study of {card.slug!r} in flows/registry.py")
    if not card.module.startswith(f"methods.{card.slug}"):
        lines.append(f"{path}: module {card.module!r} is not methods.{card.slug}")
    if not seed.text.strip():
        lines.append(f"{path}: no text; say how to use it on one's own data, what did not reproduce and why")
    for number, claim in enumerate(card.claims):
        if claim.metric and claim.held != "not_tested":
            lines += [f"{path}: claims.{number}: {problem}" for problem in _compare(claim, seed)]
    return lines


def _compare(claim: Claim, seed: Seed) -> list[str]:
    """The card's number must be the file's, rounded to as many digits as the card gives."""
    file = seed.folder / "metrics.json"
    if seed.metrics is None:
        return [f"names the metric {claim.metric!r}, but {file} does not exist; run the study"]
    found = _lookup(seed.metrics, claim.metric)
    if not isinstance(found, int | float) or isinstance(found, bool):
        return [f"metric {claim.metric!r} is no number in {file}"]
    fraction = str(claim.measured).partition(".")[2]
    if found == claim.measured or ("e" not in fraction and round(found, len(fraction)) == claim.measured):
        return []
    return [f"measured = {claim.measured}, but {file} has {claim.metric} = {found:.6g}; correct the card"]


def _lookup(metrics: Any, key: str) -> Any:
    """A value by its key; names may hold '/' themselves, so every split is tried, longest name first."""
    if not isinstance(metrics, dict):
        return None
    if key in metrics:
        return metrics[key]
    parts = key.split("/")
    for count in range(len(parts) - 1, 0, -1):
        name = "/".join(parts[:count])
        if name in metrics and (found := _lookup(metrics[name], "/".join(parts[count:]))) is not None:
            return found
    return None


def table(seeds: Sequence[Seed]) -> str:
    """The README's table of papers."""
    rows = [
        (
            f"[{card.title}](seeds/{card.slug}/card.md)"
            + (
                f" ([{card.paper.arxiv}](https://arxiv.org/abs/{card.paper.arxiv}))"
                if card.paper.arxiv
                else ""
            ),
            card.problem,
            f"`{card.module}`",
            f"`{card.flow}`",
            card.held,
        )
        for card in (seed.card for seed in seeds)
    ]
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def with_table(readme: str, seeds: Sequence[Seed]) -> str:
    """The README with the table between its markers; without papers, nothing stands there.

    Raises:
        DataError: the markers are missing or out of order.
    """
    begin, end = readme.find(BEGIN), readme.find(END)
    if begin < 0 or end < begin:
        raise DataError(f"README.md: no {BEGIN} with {END} below it; add both where the table shall stand")
    between = f"\n{table(seeds)}" if seeds else "\n"
    return readme[: begin + len(BEGIN)] + between + readme[end:]


def check(root: Path) -> list[str]:
    """One line for each disagreement between cards, metrics and README; nothing when they agree."""
    try:
        seeds = load_seeds(root)
        readme = (root / "README.md").read_text()
        fresh = with_table(readme, seeds)
    except DataError as error:
        return str(error).splitlines()
    lines = [line for seed in seeds for line in check_seed(seed)]
    if fresh != readme:
        lines.append(
            "README.md: the table of papers differs from the cards; `seedloom cards --write` renews it"
        )
    return lines


def write(root: Path) -> bool:
    """Renew the README's table; says whether it changed.

    Raises:
        DataError: a card or the README cannot be read.
    """
    path = root / "README.md"
    readme = path.read_text()
    fresh = with_table(readme, load_seeds(root))
    if fresh != readme:
        path.write_text(fresh)
    return fresh != readme
