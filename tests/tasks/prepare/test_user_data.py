"""A person's own data: every format gives the same examples, every mistake is one line with file, line and column."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from methods.common.errors import DataError
from tasks.prepare.config import OwnTask
from tasks.prepare.user_data import check_own_task, own_examples, read_rows

ROWS = [
    {"q": f"Which is {i}?", "options": [f"number {i}", "none, of them"], "right": i % 2} for i in range(6)
]


def task(source: Path | str, **changes: Any) -> OwnTask:
    columns = {"prompt_column": "q", "choices_column": "options", "answer_column": "right"}
    return OwnTask.model_validate({"name": "t", "source": str(source), **columns, **changes})


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write(kind: str, folder: Path) -> Path:
    path = folder / f"data.{kind}"
    if kind == "jsonl":
        jsonl(path, ROWS)
    elif kind == "parquet":
        pd.DataFrame(ROWS).to_parquet(path)
    elif kind == "csv":
        with path.open("w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["q", "options", "right"])
            writer.writerows([row["q"], json.dumps(row["options"]), row["right"]] for row in ROWS)
    elif kind == "saved":
        Dataset.from_list(ROWS).save_to_disk(str(path))
    else:
        DatasetDict({"train": Dataset.from_list(ROWS), "other": Dataset.from_list(ROWS[:1])}).save_to_disk(
            str(path)
        )
    return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv", "saved", "saved splits"])
def test_every_format_gives_the_same_examples(kind: str, tmp_path: Path) -> None:
    chosen = task(write(kind, tmp_path))
    check_own_task(chosen)
    examples = own_examples(chosen)
    assert [e.context for e in examples] == [row["q"] for row in ROWS]
    assert [e.choices for e in examples] == [tuple(f" {c}" for c in row["options"]) for row in ROWS]
    assert [e.gold for e in examples] == [row["right"] for row in ROWS]


def test_folders_and_globs_read_files_in_order(tmp_path: Path) -> None:
    jsonl(tmp_path / "b.jsonl", ROWS[3:])
    jsonl(tmp_path / "a.jsonl", ROWS[:3])
    wanted = [row["q"] for row in ROWS]
    assert [e.context for e in own_examples(task(tmp_path))] == wanted
    assert [e.context for e in own_examples(task(f"{tmp_path}/*.jsonl"))] == wanted


def test_the_same_example_twice_counts_once(tmp_path: Path) -> None:
    assert len(own_examples(task(jsonl(tmp_path / "a.jsonl", ROWS + ROWS)))) == len(ROWS)


@pytest.mark.parametrize(
    ("form", "answer"), [("index", 1), ("index", "1"), ("index-from-1", 2), ("letter", "b"), ("text", "blue")]
)
def test_answers_can_be_given_in_each_form(form: str, answer: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"q": "Sky?", "options": ["red", "blue"], "right": answer}])
    assert own_examples(task(path, answer_format=form))[0].gold == 1


def test_hub_layout_of_choices_is_understood(tmp_path: Path) -> None:
    options = {"text": ["red", "blue"], "label": ["A", "B"]}
    path = jsonl(tmp_path / "a.jsonl", [{"q": "Sky?", "options": options, "right": "B"}])
    assert own_examples(task(path, answer_format="letter"))[0].choices == (" red", " blue")


def test_completions_are_one_choice_with_one_space(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Say", "completion": "yes"},
        {"prompt": "Say ", "completion": "no"},
        {"prompt": "Say:", "completion": "\nmaybe"},
    ]
    chosen = OwnTask(name="t", source=str(jsonl(tmp_path / "a.jsonl", rows)))
    assert [e.context + e.choices[0] for e in own_examples(chosen)] == ["Say yes", "Say no", "Say:\nmaybe"]


GOOD = {"q": "Sky?", "options": ["red", "blue"], "right": 1}


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"q": "Sky?", "options": ["red", "blue"]}, ["no column 'right'", "it has q, options"]),
        (GOOD | {"q": 3}, ["column 'q'", "int, not text"]),
        (GOOD | {"q": "  "}, ["column 'q' is empty"]),
        (GOOD | {"q": None}, ["column 'q'", "NoneType"]),
        (GOOD | {"options": "red"}, ["column 'options'", "JSON list"]),
        (GOOD | {"options": ["red"]}, ["column 'options'", "at least two"]),
        (GOOD | {"options": ["red", ""]}, ["column 'options'", "non-empty"]),
        (GOOD | {"options": ["red", "red"]}, ["column 'options'", "twice"]),
        (GOOD | {"right": 2}, ["column 'right' holds 2", "answer_format"]),
        (GOOD | {"right": -1}, ["column 'right' holds -1"]),
        (GOOD | {"right": True}, ["column 'right' holds True"]),
        (GOOD | {"right": "B"}, ["column 'right' holds 'B'"]),
        ([1], ["JSON list", "one JSON object per line"]),
    ],
)
def test_a_wrong_row_names_file_line_and_column(row: Any, parts: list[str], tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [GOOD, row])
    with pytest.raises(DataError) as caught:
        own_examples(task(path))
    message = str(caught.value)
    assert "a.jsonl, line 2" in message
    assert "\n" not in message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.jsonl", b'{"q": 1', "line 1: is not JSON"),
        ("a.jsonl", b"", "holds no rows"),
        ("a.jsonl", b"\xff\xfe\x00", "not UTF-8"),
        ("a.csv", b"q,options,right\n", "holds no rows"),
        ("a.csv", b'q,options,right\nSky?,"[""a"",""b""]"\n', "line 2: has another number of cells"),
        ("a.csv", b'q,options,right\n"Sky?,1,2\n', "is not CSV"),
        ("a.parquet", b"PAR1 nonsense", "not a whole Parquet file"),
        ("a.txt", b"hello", "is not one of .jsonl"),
    ],
)
def test_a_damaged_file_is_named(name: str, content: bytes, part: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        check_own_task(task(tmp_path / name))
    assert name in str(caught.value)
    assert part in str(caught.value)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        own_examples(task(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="there is no such file"):
        own_examples(task(f"{tmp_path}/*.jsonl"))
    with pytest.raises(DataError, match="nobody/no-data: is no file or folder here"):
        own_examples(task("nobody/no-data"))


def test_a_missing_split_or_damaged_data_set_is_named(tmp_path: Path) -> None:
    path = write("saved splits", tmp_path)
    with pytest.raises(DataError, match="no split 'dev'; it has train, other"):
        own_examples(task(path, hub_split="dev"))
    saved = write("saved", tmp_path)
    next(saved.glob("*.arrow")).write_bytes(b"nonsense")
    with pytest.raises(DataError, match="not a whole saved data set"):
        own_examples(task(saved))


def test_a_list_of_objects_in_a_json_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("\n" + json.dumps(ROWS, indent=1))
    chosen = task(path)
    check_own_task(chosen)
    assert [e.context for e in own_examples(chosen)] == [row["q"] for row in ROWS]
    jsonl(path, ROWS)  # one a line, as ever
    assert len(own_examples(chosen)) == len(ROWS)
    path.write_text(json.dumps([ROWS[0], 3]))
    with pytest.raises(DataError, match=r"a\.json, item 2: is a JSON int"):
        own_examples(chosen)
    path.write_text("[{]")
    with pytest.raises(DataError, match=r"a\.json: is not JSON .*; write a list of objects, or one a line$"):
        own_examples(chosen)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_capital_suffixes_are_the_same_formats(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path).rename(tmp_path / f"DATA.{kind.upper()}")
    assert len(own_examples(task(path))) == len(ROWS)
    assert len(own_examples(task(tmp_path))) == len(ROWS)


def test_a_long_csv_cell(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"prompt,completion\n{'x' * 140_000},yes\n")
    assert len(own_examples(OwnTask(name="t", source=str(path)))[0].context) == 140_000


@pytest.mark.parametrize("place", ["q", "options"])
def test_half_a_character_is_named(place: str, tmp_path: Path) -> None:
    row = GOOD | {place: "a\ud83d" if place == "q" else ["red\ud83d", "blue"]}
    path = jsonl(tmp_path / "a.jsonl", [GOOD, row])
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: holds half a character \(\\ud83d, "):
        own_examples(task(path))


@pytest.mark.parametrize("answer", [1.0, "1.0", "1"])
def test_whole_numbers_with_a_point_are_positions(answer: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [GOOD | {"right": answer}])
    assert own_examples(task(path))[0].gold == 1
    jsonl(path, [GOOD | {"right": 0.5}])
    with pytest.raises(DataError, match=r"holds 0\.5"):
        own_examples(task(path))


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_the_place_of_a_byte_that_is_not_utf8_is_the_files(suffix: str, tmp_path: Path) -> None:
    good = (
        b'{"q": "' + "ü".encode() * 9_000 + b'"}\n' if suffix == "jsonl" else b"q,right\n" + b"a,1\n" * 9_000
    )
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(good + b"ab\xff\n")
    line = len(good.splitlines()) + 1
    with pytest.raises(DataError, match=rf"line {line}: .*\(byte {len(good) + 2} of the file\)"):
        list(read_rows(str(path), "", ""))
