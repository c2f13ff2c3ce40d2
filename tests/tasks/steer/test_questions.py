"""Questions from files and packages, in parts that share nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk
from pydantic import ValidationError

from methods.common.errors import DataError
from tasks.steer.config import DrawSettings, QuestionSettings
from tasks.steer.questions import as_problems, build_questions, check_questions, read_questions


def own(file: Path, rows: list[dict[str, Any]], **changes: Any) -> QuestionSettings:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return QuestionSettings.model_validate({"source": str(file), "train": 8, "test": 8} | changes)


def test_groups_stay_in_one_part_and_equal_questions_come_once(tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "answer": i, "template": f"t{i % 6}"} for i in range(60)]
    settings = own(tmp_path / "q.jsonl", rows + rows, group_column="template", train=20, test=20)
    record = build_questions(settings, tmp_path / "out")
    parts = {part: list(load_from_disk(str(tmp_path / "out" / part))) for part in ("train", "test")}
    groups = {part: {row["group"] for row in found} for part, found in parts.items()}
    assert not groups["train"] & groups["test"]
    assert record["counts"] == {"train": 20, "test": 20}
    assert record["repeated"] == 60
    ids = [row["id"] for found in parts.values() for row in found]
    assert len(set(ids)) == len(ids)


def test_the_choice_does_not_depend_on_the_order_and_follows_the_seed(tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "answer": i} for i in range(40)]
    found = []
    for name, given, seed in (("a", rows, 0), ("b", rows[::-1], 0), ("c", rows, 1)):
        build_questions(own(tmp_path / f"{name}.jsonl", given, seed=seed), tmp_path / name)
        found.append({row["id"] for row in load_from_disk(str(tmp_path / name / "test"))})
    assert found[0] == found[1] != found[2]


def test_worked_answers_end_with_the_number(tmp_path: Path) -> None:
    rows = [{"q": f"{i}?", "a": f"so 3 + {i}.\n#### 1,00{i}"} for i in range(8)]
    build_questions(own(tmp_path / "q.jsonl", rows, question_column="q", answer_column="a"), tmp_path / "out")
    assert {row["answer"] for row in read_questions(tmp_path / "out", "test")[0]} <= {
        f"1,00{i}" for i in range(8)
    }


@pytest.mark.bundled
@pytest.mark.parametrize(
    ("source", "check"),
    [("sums", "number"), ("arithmetic", "number"), ("gsm8k", "number"), ("arc_easy", "words")],
)
def test_bundled_questions(source: str, check: str, tmp_path: Path) -> None:
    settings = QuestionSettings(source=f"bundled:{source}", check=check)  # type: ignore[arg-type]
    check_questions(settings)
    assert build_questions(settings, tmp_path)["counts"] == {"train": 48, "test": 48}
    rows, _ = read_questions(tmp_path, "test")
    assert all(row["question"] and row["answer"] for row in rows)
    if source == "sums":
        for row in rows:
            assert eval(row["question"].removeprefix("What is ").rstrip("?")) == int(row["answer"])
    if source == "arc_easy":
        assert all(f"\n{row['answer']}. " in row["question"] for row in rows)


def test_a_chat_template_is_used_when_it_is_wanted(tmp_path: Path) -> None:
    class Chat:
        chat_template = "x"

        def apply_chat_template(self, messages: Any, **_: Any) -> list[int]:
            assert messages == [{"role": "user", "content": "1?\nThink."}]
            return [1, 2, 3]

    row = [{"question": "1?", "answer": "1", "group": "g"}]
    record = {"template": "{question}\nThink.", "chat": True}
    assert as_problems(row, record, Chat())[0].prompt == (1, 2, 3)
    assert as_problems(row, {**record, "chat": False}, Chat())[0].prompt == "1?\nThink."
    assert as_problems(row, {**record, "template": "{question}"}, object())[0].prompt == "1?"


def test_mistakes_are_told(tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "answer": i} for i in range(8)]
    with pytest.raises(
        DataError, match=r"line 1: has no 'wanted'; it has 'question', 'answer'. Set questions"
    ):
        check_questions(own(tmp_path / "a.jsonl", rows, answer_column="wanted"))
    with pytest.raises(
        DataError, match=r"line 1: the answer 'blue' is no number; set questions.check to words"
    ):
        check_questions(own(tmp_path / "b.jsonl", [{"question": "?", "answer": "blue"}]))
    with pytest.raises(DataError, match="there is no such file"):
        check_questions(QuestionSettings(source="nowhere.jsonl"))
    with pytest.raises(
        DataError, match=r"questions.source=bundled:nothing: is not known; give one of bundled:sums"
    ):
        check_questions(QuestionSettings(source="bundled:nothing"))
    with pytest.raises(ValueError, match=r"has no \{question\}; write it where"):
        QuestionSettings(template="Q:")
    with pytest.raises(DataError, match="1 different questions in 1 groups do not make two parts"):
        build_questions(own(tmp_path / "c.jsonl", rows[:1]), tmp_path / "out")
    with pytest.raises(DataError, match=r"1 different questions in 1 groups \(7 of 8 rows repeat another\)"):
        check_questions(own(tmp_path / "d.jsonl", rows[:1] * 8))
    with pytest.raises(DataError, match=r"d.jsonl, line 8: the answer 'blue' is no number"):
        check_questions(own(tmp_path / "d.jsonl", [*rows[:7], {"question": "?", "answer": "blue"}]))
    with pytest.raises(DataError, match="8 different questions in 1 groups do not make"):
        check_questions(own(tmp_path / "e.jsonl", [{**r, "g": 1} for r in rows], group_column="g"))
    with pytest.raises(DataError, match="holds no questions"):
        read_questions(tmp_path / "nowhere", "test")


@pytest.mark.parametrize("field", ["delimiter", "stop"])
def test_what_is_no_regular_expression_is_told(field: str) -> None:
    with pytest.raises(ValidationError, match=r"'\(' is no regular expression"):
        DrawSettings.model_validate({field: "("})
    with pytest.raises(ValidationError, match=r"'x\*' is found in an empty text"):
        DrawSettings.model_validate({field: "x*"})
