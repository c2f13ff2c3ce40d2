"""Forks: other next sentences at the places of doubt, labelled by how consistently they lead to the right answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from methods.common.errors import ConfigError, DataError
from methods.dynasteer.decoding import Policy, decode
from methods.dynasteer.gate import EntropyGate
from methods.dynasteer.sampling import GenConfig, end_tokens
from methods.dynasteer.trajectories import Problem, Trajectory, Verifier, number_is_right

TRUTH, FALLACY, MIXED = 1, 0, -1
FORK_STREAM, LABEL_STREAM = 1, 2


class NoContrastError(DataError, RuntimeError):
    """No context has a Truth and a Fallacy fork, so there is no direction between them."""


@dataclass(frozen=True)
class ForkSet:
    """A context with its forks.

    Attributes:
        problem: number of the problem.
        sentence: number of the sentence in its answer, from 1.
        entropy: mean entropy of the sentence that stood there.
        prefix: token ids before the sentence.
        forks: token ids of the sentences drawn, each once.
        rights: how many of a fork's completions were right.
        completions: how many each has.
    """

    problem: int
    sentence: int
    entropy: float
    prefix: list[int]
    forks: list[list[int]]
    rights: list[int]
    completions: int

    @property
    def labels(self) -> list[int]:
        """1 Truth (all completions right), 0 Fallacy (all wrong), -1 mixed."""
        return [TRUTH if r == self.completions else FALLACY if r == 0 else MIXED for r in self.rights]

    @property
    def contrastive(self) -> bool:
        return {TRUTH, FALLACY} <= set(self.labels)


def contrastive(forks: Sequence[ForkSet], most: int | None = None, seed: int = 42) -> list[ForkSet]:
    """The contexts with both kinds of forks; at most `most`, chosen at random by `seed`, in their order.

    Raises:
        NoContrastError: there is none; the counts say why.
    """
    found = [fork_set for fork_set in forks if fork_set.contrastive]
    if not found:
        labels = [label for fork_set in forks for label in fork_set.labels]
        counts = {
            word: labels.count(label) for word, label in (("right", 1), ("wrong", 0), ("not unanimous", -1))
        }
        told = ", ".join(f"{count} {word}" for word, count in counts.items())
        raise NoContrastError(
            f"no context has a Truth and a Fallacy fork ({len(forks)} contexts; forks: {told}); give more problems, "
            "problems that the model solves now and then, more forks, or fewer label completions"
        )
    if most is not None and len(found) > most:
        kept = np.sort(np.random.default_rng(seed).permutation(len(found))[:most])
        found = [found[i] for i in kept]
    return found


def build_forks(
    model: Any,
    tokenizer: Any,
    trajectories: Sequence[Trajectory],
    gate: EntropyGate,
    problems: Sequence[Problem],
    verifier: Verifier = number_is_right,
    n_forks: int = 10,
    n_label: int = 3,
    config: GenConfig | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> list[ForkSet]:
    """Draw next sentences at each sentence above gamma, and complete each fork to the end.

    Forks are drawn at temperature 1 from all tokens; equal ones count once. Completions are drawn as `config` says.
    The numbers behind them are named by problem, sentence, fork and completion, so a part of the trajectories gives
    its part of the forks.

    Args:
        model, tokenizer: what wrote the trajectories.
        trajectories: of the training problems only.
        gate: where to draw; `ALWAYS` draws at every sentence.
        problems: the trajectories' problems, by number.
        verifier: decides whether a completion is right.
        n_forks: sentences drawn a context.
        n_label: completions of a fork.
        config: of the completions.
        on_done: called with (texts written, all known so far).

    Raises:
        ConfigError: fewer than 2 forks or 1 completion, problems that are missing, or entropies of another kind.
    """
    if n_forks < 2 or n_label < 1:
        raise ConfigError(f"n_forks={n_forks}, n_label={n_label}: give at least 2 forks and 1 completion")
    most = max((trajectory.problem for trajectory in trajectories), default=-1)
    if most >= len(problems):
        raise ConfigError(
            f"problems: {len(problems)} are given, a trajectory answers number {most} (from 0); give all the problems "
            "that collect_trajectories was given, in their order"
        )
    config = config or GenConfig()
    gate.check(config)
    places = [
        (trajectory, number, sentence.entropy)
        for trajectory in trajectories
        for number, sentence in enumerate(trajectory.sentences, start=1)
        if gate.triggers(sentence.entropy)
    ]
    drawing = replace(config, temperature=1.0, top_p=1.0, top_k=0, seed=_stream(config.seed, FORK_STREAM))
    prefixes = [trajectory.prefix(number) for trajectory, number, _ in places]
    asked = [
        (place, prefix, _key(places[place][0].problem, places[place][1], fork))
        for place, prefix in enumerate(prefixes)
        for fork in range(n_forks)
    ]
    drawn = decode(
        model,
        tokenizer,
        [prefix for _, prefix, _ in asked],
        drawing,
        Policy(),
        keys=[key for *_, key in asked],
        sentences=1,
    )
    forks: list[dict[tuple[int, ...], None]] = [{} for _ in places]
    for (place, _, _), decoded in zip(asked, drawn, strict=True):
        forks[place].setdefault(tuple(decoded.ids))
    rights = _label(model, tokenizer, places, prefixes, forks, problems, verifier, n_label, config, on_done)
    return [
        ForkSet(
            trajectory.problem,
            number,
            entropy,
            prefix,
            [list(fork) for fork in forks[place]],
            rights[place],
            n_label,
        )
        for place, ((trajectory, number, entropy), prefix) in enumerate(zip(places, prefixes, strict=True))
    ]


def _label(
    model: Any,
    tokenizer: Any,
    places: Sequence[tuple[Trajectory, int, float]],
    prefixes: Sequence[list[int]],
    forks: Sequence[dict[tuple[int, ...], None]],
    problems: Sequence[Problem],
    verifier: Verifier,
    n_label: int,
    config: GenConfig,
    on_done: Callable[[int, int], None] | None,
) -> list[list[int]]:
    """How many completions of each fork are right; a fork that ends the answer needs none."""
    ends = end_tokens(model, tokenizer)
    stop = re.compile(config.stop) if config.stop else None
    rights = [[0] * len(found) for found in forks]
    asked: list[tuple[int, int, list[int], int]] = []
    for place, (trajectory, number, _) in enumerate(places):
        for which, fork in enumerate(forks[place]):
            said = str(tokenizer.decode([prefixes[place][-1], *fork])) if stop is not None else ""
            if fork[-1] in ends or (stop is not None and stop.search(said)):
                text = _text(tokenizer, trajectory, [*prefixes[place], *fork])
                rights[place][which] = n_label * verifier(text, problems[trajectory.problem])
            else:
                keys = (_key(trajectory.problem, number, which, extra) for extra in range(n_label))
                asked.extend((place, which, [*prefixes[place], *fork], key) for key in keys)
    # Texts of like lengths side by side.
    asked.sort(key=lambda job: len(job[2]))
    done = decode(
        model,
        tokenizer,
        [ids for *_, ids, _ in asked],
        replace(config, seed=_stream(config.seed, LABEL_STREAM)),
        Policy(),
        keys=[key for *_, key in asked],
        on_done=on_done,
    )
    for (place, which, ids, _), decoded in zip(asked, done, strict=True):
        trajectory = places[place][0]
        text = _text(tokenizer, trajectory, [*ids, *decoded.ids])
        rights[place][which] += verifier(text, problems[trajectory.problem])
    return rights


def _text(tokenizer: Any, trajectory: Trajectory, ids: list[int]) -> str:
    return str(tokenizer.decode(ids[len(trajectory.prompt) :], skip_special_tokens=True))


def _stream(seed: int, stream: int) -> int:
    """Another stream of numbers than the answers'."""
    return 3 * seed + 1_000_003 * stream


def _key(problem: int, sentence: int, fork: int, completion: int = 0) -> int:
    return ((problem * 10_007 + sentence) * 1_009 + fork) * 103 + completion
