"""A person's own data as examples: JSONL, CSV and Parquet files, saved data sets, hub data sets.

Every mistake is one line that names the file, the line, the column and the remedy.
"""

from __future__ import annotations

import csv
import glob
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from methods.common.errors import DataError
from tasks.prepare.bundled_tasks import Example, normalise
from tasks.prepare.config import OwnTask

FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
CELL_LIMIT = 2**31 - 1  # characters; csv's own limit is 131,072
# One row with where it stands, for messages: ("data.jsonl, line 3", {...}).
Row = tuple[str, dict[str, Any]]


def check_own_task(task: OwnTask) -> None:
    """Refuse data that cannot be used, before any work starts: reads the first row of each source.

    Raises:
        DataError: see `read_rows` and `own_examples`.
    """
    for source in filter(None, (task.source, task.test_source)):
        if source_kind(source) == "hub":
            continue  # looked up when it is fetched
        where, row = next(read_rows(source, task.hub_config, task.hub_split))
        _to_example(task, where, row)


def own_examples(task: OwnTask, *, test: bool = False) -> list[Example]:
    """The distinct examples of a person's task, in the order of the data.

    Raises:
        DataError: an unreadable, empty or mistyped source; a missing or wrong column.
    """
    seen: dict[str, Example] = {}
    for where, row in read_rows(task.test_source if test else task.source, task.hub_config, task.hub_split):
        example = _to_example(task, where, row)
        seen.setdefault(example.id, example)
    return list(seen.values())


def source_name(source: str) -> str:
    """A source as a folder that is passed on may name it: a hub id as it is, of a path its last part.

    That says nothing about this machine, and is the same however the path was written.
    """
    path = Path(source).expanduser()
    on_disk = path.exists() or glob.has_magic(source) or path.is_absolute()
    return path.resolve().name if on_disk else source


def source_kind(source: str) -> str:
    """'saved' (a folder of `save_to_disk`), 'files' (a file, a glob, a folder of files) or 'hub'.

    Raises:
        DataError: the source looks like a path, and nothing is there.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return "saved" if _is_saved(path) else "files"
    if path.exists() or glob.has_magic(source):
        return "files"
    if path.suffix or source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise DataError(f"data {source}: there is no such file or folder")
    return "hub"


def read_rows(source: str, hub_config: str, hub_split: str) -> Iterator[Row]:
    """The rows of any source, each with where it stands.

    Raises:
        DataError: nothing is there, no rows, or a line that cannot be read.
    """
    kind = source_kind(source)
    if kind == "files":
        rows: Iterator[Row] = (row for path in source_files(source) for row in _file_rows(path))
    elif kind == "saved":
        rows = _table_rows(load_saved(Path(source).expanduser(), hub_split), source)
    else:
        rows = _table_rows(load_hub(source, hub_config, hub_split), source)
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise DataError(f"data {source}: holds no rows; give data with at least one example")


def source_files(source: str, suffixes: tuple[str, ...] = FILE_SUFFIXES) -> list[Path]:
    """The files that a path, a folder (without what is hidden in it) or a glob means, sorted by name.

    Raises:
        DataError: no file matches, or a file of an unknown kind.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        found = (item for item in path.rglob("*") if item.suffix.lower() in suffixes and item.is_file())
        files = sorted(item for item in found if not _is_hidden(item.relative_to(path)))
    elif path.is_file():
        files = [path]
    else:
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not files:
        raise DataError(
            f"data {source}: there is no such file; a folder or glob must match {', '.join(suffixes)}"
        )
    for item in files:
        if item.suffix.lower() not in suffixes:
            raise DataError(f"data {item}: is not one of {', '.join(suffixes)}")
    return files


def _is_hidden(path: Path) -> bool:
    """Whether a file or a folder above it is hidden: checkpoints of notebooks, markers of tools, version control."""
    return any(part.startswith(".") for part in path.parts)


def _is_saved(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def load_saved(path: Path, split: str) -> Any:
    """A folder of `save_to_disk`; of several splits the one named. Raises DataError."""
    from datasets import DatasetDict, load_from_disk

    try:
        data = load_from_disk(str(path))
    except Exception as error:
        raise DataError(
            f"data {path}: is not a whole saved data set ({type(error).__name__}); save it again"
        ) from error
    if isinstance(data, DatasetDict):
        if split not in data:
            raise DataError(f"data {path}: has no split {split!r}; it has {', '.join(data)}")
        return data[split]
    return data


def load_hub(source: str, config: str, split: str) -> Any:
    """A split of a hub data set. Raises DataError."""
    from datasets import load_dataset

    try:
        return load_dataset(source, config or None, split=split)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:160]
        raise DataError(
            f"data {source}: is no file or folder here, and the hub did not give split {split!r} "
            f"({type(error).__name__}: {reason})"
        ) from error


def _table_rows(table: Any, source: str) -> Iterator[Row]:
    for number, row in enumerate(table, start=1):
        yield f"{source}, row {number}", row


def _file_rows(path: Path) -> Iterator[Row]:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    try:
        yield from _csv_rows(path) if suffix == ".csv" else _json_rows(path)
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


def not_utf8(path: Path) -> DataError:
    """The error of a file that is not UTF-8: with the line and the byte of the file where it stops to be."""
    offset = 0
    with path.open("rb") as handle:
        for number, line in enumerate(handle, start=1):  # no character of several bytes holds a line's end
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return DataError(
                    f"{path}, line {number}: is not UTF-8 text (byte {offset + error.start} of the file); "
                    "save it as UTF-8"
                )
            offset += len(line)
    return DataError(f"{path}: is not UTF-8 text; save it as UTF-8")


def _json_rows(path: Path) -> Iterator[Row]:
    """One object a line, or, in a .json file, one list of objects."""
    with path.open(encoding="utf-8-sig") as handle:
        if path.suffix.lower() == ".json" and _starts_a_list(handle):
            yield from _list_rows(path, handle.read())
            return
        for number, line in enumerate(handle, start=1):
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise DataError(
                        f"{where}: is not JSON ({error}); write one JSON object per line"
                    ) from error
                yield where, _json_row(where, row)


def _starts_a_list(handle: TextIO) -> bool:
    first = ""
    while not first and (line := handle.readline()):
        first = line.strip()[:1]
    handle.seek(0)
    return first == "["


def _list_rows(path: Path, text: str) -> Iterator[Row]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error}); write a list of objects, or one a line") from error
    for number, row in enumerate(rows, start=1):
        where = f"{path}, item {number}"
        yield where, _json_row(where, row)


def _json_row(where: str, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{where}: is a JSON {type(row).__name__}; write one JSON object per line")
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DataError(
            f"{where}: holds half a character (\\u{ord(half):04x}, a lone surrogate); write the whole character"
        ) from error
    return row


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(CELL_LIMIT)
    with path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle, strict=True)
        try:
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    raise DataError(
                        f"{where}: has another number of cells than the header; quote cells with commas"
                    )
                yield where, row
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num}: is not CSV ({error}); quote its cells"
            ) from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is not a whole Parquet file; write it again") from error
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{path}, row {number}", row


def _to_example(task: OwnTask, where: str, row: dict[str, Any]) -> Example:
    prompt = _text(where, row, task.prompt_column)
    if not task.choices_column:
        completion = _text(where, row, task.completion_column)
        return Example(prompt, (_joined(prompt, completion),), 0, normalise(prompt))
    choices = _choices(where, row, task.choices_column)
    gold = _gold(where, row, task, choices)
    return Example(prompt, tuple(_joined(prompt, choice) for choice in choices), gold, normalise(prompt))


def _joined(prompt: str, answer: str) -> str:
    """The continuation with the space that parts it from the prompt, unless one of them brings it."""
    return answer if answer[0].isspace() or (prompt and prompt[-1].isspace()) else f" {answer}"


def _text(where: str, row: dict[str, Any], column: str) -> str:
    value = _value(where, row, column)
    if not isinstance(value, str):
        raise DataError(f"{where}: column {column!r} holds {type(value).__name__}, not text")
    if not value.strip():
        raise DataError(f"{where}: column {column!r} is empty; fill or remove the row")
    return value


def _value(where: str, row: dict[str, Any], column: str) -> Any:
    if column not in row:
        raise DataError(f"{where}: has no column {column!r}; it has {', '.join(map(str, row))}")
    return row[column]


def _choices(where: str, row: dict[str, Any], column: str) -> list[str]:
    value = _value(where, row, column)
    if isinstance(value, str):  # CSV has no lists: a JSON list in the cell
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f'{where}: column {column!r} is not a JSON list such as ["yes", "no"]') from error
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        value = value["text"]  # the layout of ARC, OpenBookQA and CommonsenseQA on the hub
    if not isinstance(value, list) or not all(isinstance(choice, str) and choice.strip() for choice in value):
        raise DataError(f"{where}: column {column!r} must be a list of non-empty texts")
    if len(value) < 2:
        raise DataError(f"{where}: column {column!r} has {len(value)} choice; give at least two")
    if len(set(value)) < len(value):
        raise DataError(f"{where}: column {column!r} has the same choice twice")
    return value


def _gold(where: str, row: dict[str, Any], task: OwnTask, choices: list[str]) -> int:
    column, form = task.answer_column, task.answer_format
    value = _value(where, row, column)
    gold = -1
    if form == "text":
        gold = choices.index(value) if value in choices else -1
    elif form == "letter":
        if isinstance(value, str) and len(value.strip()) == 1:
            gold = ord(value.strip().upper()) - ord("A")
    elif (number := _whole_number(value)) is not None:
        gold = number - (form == "index-from-1")
    if isinstance(value, bool) or not 0 <= gold < len(choices):
        raise DataError(
            f"{where}: column {column!r} holds {value!r}, which is no {form} of {len(choices)} choices; "
            "mend the row or set answer_format"
        )
    return gold


def _whole_number(value: Any) -> int | None:
    """3, "3", 3.0 and "3.0": pandas makes numbers with a point of a column that has an empty cell."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.0+)?", value.strip()):
        return int(float(value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None
