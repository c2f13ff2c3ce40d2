"""Questions over real facts of countries (the package countryinfo): two and three steps through a knowledge graph.

Every fact is a node of its own between its two entities, so that a step of the question is two hops. A question's graph
is what a retriever would hand on: the facts on its paths and others nearby.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

RELATIONS = ("capital", "borders", "currency", "language", "subregion")
KINDS = ("country", *(name for name in RELATIONS if name != "borders"))
# Where a question starts, and the steps from there; ~ goes against the fact.
TEMPLATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "capitals of its neighbours": ("country", ("borders", "capital")),
    "currency where it is the capital": ("capital", ("~capital", "currency")),
    "languages next to where it is the capital": ("capital", ("~capital", "borders", "language")),
    "capitals next to where it is the capital": ("capital", ("~capital", "borders", "capital")),
    "subregions that pay with it": ("currency", ("~currency", "subregion")),
    "currencies next to where it is spoken": ("language", ("~language", "borders", "currency")),
}
MOST_FACTS = 40
MOST_ANSWERS = 6
Entity = tuple[str, str]
Fact = tuple[Entity, str, Entity]


@dataclass(frozen=True)
class Facts:
    """Facts and, for each entity, those that it stands in."""

    all: tuple[Fact, ...]
    of: dict[Entity, tuple[Fact, ...]]

    def step(self, entity: Entity, relation: str) -> list[tuple[Fact, Entity]]:
        """What an entity leads to by a relation; `borders` goes both ways, `~` backwards."""
        name, back = relation.lstrip("~"), relation.startswith("~")
        found = []
        for fact in self.of.get(entity, ()):
            first, kind, second = fact
            if kind != name:
                continue
            if name == "borders":
                found.append((fact, second if first == entity else first))
            elif (second if back else first) == entity:
                found.append((fact, first if back else second))
        return found


@lru_cache(maxsize=1)
def facts() -> Facts:
    """Capitals, borders, currencies, languages and subregions of every country that has them."""
    from countryinfo import all_countries

    listed = all_countries()
    code = {c.iso()["alpha3"]: ("country", c.name()) for c in listed if c.iso().get("alpha3")}
    found: set[Fact] = set()
    for country in listed:
        own: Entity = ("country", country.name())
        capital, subregion = country.capital(), country.subregion()
        if capital:
            found.add((own, "capital", ("capital", str(capital))))
        if subregion:
            found.add((own, "subregion", ("subregion", str(subregion))))
        found |= {(own, "currency", ("currency", str(c))) for c in country.currencies() or []}
        found |= {(own, "language", ("language", str(c))) for c in country.languages() or []}
        for neighbour in country.borders() or []:
            if neighbour in code:
                first, second = sorted([own, code[neighbour]])
                found.add((first, "borders", second))
    ordered = tuple(sorted(found))
    of: dict[Entity, list[Fact]] = {}
    for fact in ordered:
        for entity in {fact[0], fact[2]}:
            of.setdefault(entity, []).append(fact)
    return Facts(ordered, {entity: tuple(held) for entity, held in of.items()})


def paths(start: Entity, steps: tuple[str, ...]) -> tuple[set[Entity], set[Fact]]:
    """The answers and the facts on the way to them; a path does not come back to where it began."""
    reached: dict[Entity, set[Fact]] = {start: set()}
    seen = {start}
    for relation in steps:
        after: dict[Entity, set[Fact]] = {}
        for entity, used in reached.items():
            for fact, other in facts().step(entity, relation):
                if other not in seen:
                    after.setdefault(other, set()).update(used | {fact})
        seen |= set(after)
        reached = after
    return set(reached), set().union(*reached.values()) if reached else set()


@lru_cache(maxsize=1)
def possible() -> tuple[tuple[str, Entity], ...]:
    """Every (template, start) that has an answer and not too many."""
    entities = sorted(facts().of)
    found = []
    for template, (kind, steps) in TEMPLATES.items():
        starts = [entity for entity in entities if entity[0] == kind]
        found += [(template, e) for e in starts if 1 <= len(paths(e, steps)[0]) <= MOST_ANSWERS]
    return tuple(found)


def questions(counts: tuple[int, int, int], seed: int) -> list[list[Data]]:
    """Train, validation and test questions; none of them stands in two parts."""
    generator = np.random.default_rng(seed)
    pool = possible()
    order = generator.permutation(len(pool))
    ends = np.cumsum(np.asarray(counts) * min(1.0, len(pool) / sum(counts))).astype(int)
    parts = np.split(order[: ends[-1]], ends[:-1])
    return [[question(pool[i][0], pool[i][1], generator) for i in part] for part in parts]


def question(template: str, start: Entity, generator: np.random.Generator) -> Data:
    """A question as a graph: y is 1 at answers, 0 at other entities, -1 at facts."""
    answers, needed = paths(start, TEMPLATES[template][1])
    chosen = retrieved(start, needed, generator)
    entities = sorted({e for first, _, second in chosen for e in (first, second)})
    place = {entity: i for i, entity in enumerate(entities)}
    size = len(entities) + len(chosen)
    x = np.zeros((size, len(KINDS) + len(RELATIONS) + 1 + len(TEMPLATES)), dtype=np.float32)
    y = np.full(size, -1)
    edges = []
    for entity, i in place.items():
        x[i, KINDS.index(entity[0])] = 1
        y[i] = int(entity in answers)
    for i, (first, relation, second) in enumerate(chosen, len(entities)):
        x[i, len(KINDS) + RELATIONS.index(relation)] = 1
        edges += [(place[first], i), (i, place[second])]
    x[place[start], len(KINDS) + len(RELATIONS)] = 1
    x[:, len(KINDS) + len(RELATIONS) + 1 + list(TEMPLATES).index(template)] = 1
    shuffle = generator.permutation(size)
    pairs = shuffle[np.array(edges)].T
    back = np.argsort(shuffle)
    return Data(
        x=torch.as_tensor(x[back]),
        edge_index=torch.as_tensor(np.concatenate([pairs, pairs[::-1]], 1)),
        y=torch.as_tensor(y[back]),
    )


def retrieved(start: Entity, needed: set[Fact], generator: np.random.Generator) -> list[Fact]:
    """The needed facts and others, breadth first from the start, up to MOST_FACTS."""
    chosen, border, seen = set(needed), [start], {start}
    border += sorted({e for first, _, second in needed for e in (first, second)} - seen)
    seen |= set(border)
    while border and len(chosen) < MOST_FACTS:
        after: list[Any] = []
        for entity in border:
            held = facts().of.get(entity, ())
            for i in generator.permutation(len(held))[:4]:
                if len(chosen) >= MOST_FACTS:
                    break
                first, _, second = held[i]
                chosen.add(held[i])
                other = second if first == entity else first
                if other not in seen:
                    seen.add(other)
                    after.append(other)
        border = after
    return sorted(chosen)
