"""Settings: what a form shows, and what is refused before any work."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from tasks.prepare.config import OwnTask, PrepareSettings, TaskSetSettings


def test_every_field_has_a_description_and_no_untagged_union() -> None:
    schema = PrepareSettings.model_json_schema()
    for model in [schema, *schema["$defs"].values()]:
        for name, field in model["properties"].items():
            assert field.get("description"), name
            assert "anyOf" not in field, name
            assert field.get("additionalProperties") is not True, name


def test_the_same_name_twice_is_refused() -> None:
    own = OwnTask(name="csqa", source="x.jsonl")
    with pytest.raises(ValidationError, match="csqa is given twice"):
        TaskSetSettings(bundled=("csqa",), own=(own,))


def test_no_task_at_all_is_refused() -> None:
    with pytest.raises(ValidationError, match="no task is chosen"):
        TaskSetSettings(bundled=(), own=())


@pytest.mark.parametrize("name", ["", "Big", "../up", "a b", "x" * 41])
def test_a_task_name_is_a_plain_folder_name(name: str) -> None:
    with pytest.raises(ValidationError):
        OwnTask(name=name, source="x.jsonl")


def test_columns_must_say_what_the_answer_is() -> None:
    with pytest.raises(ValidationError, match="both empty"):
        OwnTask(name="a", source="x.jsonl", completion_column="")
    with pytest.raises(ValidationError, match="answer_column is empty"):
        OwnTask(name="a", source="x.jsonl", choices_column="c", answer_column="")


def test_settings_import_nothing_heavy() -> None:
    code = (
        "import sys, tasks.prepare.config, tasks.evaluate.config; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'prefect', 'mlflow', 'lm_eval') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
