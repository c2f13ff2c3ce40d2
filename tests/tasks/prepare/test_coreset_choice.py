"""Training examples by a coreset: small groups get more than their share, the other parts stay as they were."""

import random
from pathlib import Path

import pytest

from methods.common.errors import DataError
from tasks.prepare.bundled_tasks import Example
from tasks.prepare.config import OwnTask, TaskSetSettings
from tasks.prepare.coreset_choice import spread_first
from tasks.prepare.task_sets import build_task_sets, split_examples

SIZES = (700, 200, 70, 20, 10)  # of groups of texts, each with words of its own


def pool() -> list[Example]:
    draw, made = random.Random(0), []
    for group, size in enumerate(SIZES):
        words = [f"w{group}x{j}" for j in range(20)]
        for i in range(size):
            text = " ".join(["the question of", *draw.sample(words, 6), f"topic{group}"])
            made.append(Example(text, (" yes",), 0, f"{group}-{i}"))
    draw.shuffle(made)
    return made


def small(examples: list[Example]) -> int:
    """How many are of the two smallest groups; 3 in 100 in all."""
    return sum(example.group[0] in "34" for example in examples)


def test_small_groups_get_more_than_their_share() -> None:
    examples, found = pool(), []
    for seed in range(10):
        chosen = spread_first(examples, 100, seed)
        assert sorted(e.id for e in chosen) == sorted(e.id for e in examples)
        found.append(small(chosen[:100]))
        assert all(any(e.group[0] == str(g) for e in chosen[:100]) for g in range(3))
    assert 4.5 <= sum(found) / 10 <= 7
    assert spread_first(examples, 1000, 0) == examples
    assert len(spread_first(examples[:3], 1, 0)) == 3


def test_only_training_is_chosen_so() -> None:
    sizes = TaskSetSettings(train_examples=100, stop_examples=20, select_examples=20, test_examples=20)
    plain = split_examples(pool(), None, sizes, name="t")
    spread = split_examples(pool(), None, sizes, name="t", training="coreset")
    assert {part: spread[part] for part in ("stop", "select", "test")} == {
        part: plain[part] for part in ("stop", "select", "test")
    }
    assert len(spread["train"]) == 100
    assert spread["train"] != plain["train"]
    shuffled = pool()
    random.Random(1).shuffle(shuffled)
    assert split_examples(shuffled, None, sizes, name="t", training="coreset") == spread


def test_texts_without_words_are_told() -> None:
    empty = [Example("? " * (i + 1), ("!",), 0, str(i)) for i in range(10)]
    with pytest.raises(DataError, match="training=coreset: the texts hold no words"):
        spread_first(empty, 3, 0)


def test_a_users_data(tmp_path: Path) -> None:
    lines = "".join(f'{{"prompt": "{e.context}", "completion": "yes"}}\n' for e in pool())
    (tmp_path / "own.jsonl").write_text(lines)
    task = OwnTask(name="own", source=str(tmp_path / "own.jsonl"), training="coreset")
    settings = TaskSetSettings(bundled=(), own=(task,), train_examples=60)
    summary = build_task_sets(settings, tmp_path / "out")
    assert summary["own"]["counts"]["train"] == 60
