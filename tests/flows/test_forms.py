"""The run forms: what Prefect draws from each flow's settings, and what it would send back."""

from collections.abc import Iterator
from typing import Any

import pytest

from flows.registry import FLOWS, FlowEntry
from tasks.config import bounds_of, title_of

# Columns that nothing reads when another field is set; their default does no harm.
UNUSED_WHEN_EMPTY = {"OwnTask.completion_column", "OwnTask.answer_column"}
NAMES = [flow.name for flow in FLOWS]


@pytest.fixture(params=FLOWS, ids=NAMES, scope="module")
def flow(request: pytest.FixtureRequest) -> FlowEntry:
    entry: FlowEntry = request.param
    return entry


@pytest.fixture(scope="module")
def schema(flow: FlowEntry) -> dict[str, Any]:
    """The parameter schema that a deployment of the flow carries."""
    from prefect.utilities.callables import parameter_schema

    found: dict[str, Any] = parameter_schema(flow.load_flow().fn).model_dump()
    return found


def models(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: model for name, model in schema["definitions"].items() if "properties" in model}


def fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model, content in models(schema).items():
        for name, field in content["properties"].items():
            yield f"{model}.{name}", field


def members(union: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [schema["definitions"][member["$ref"].rpartition("/")[2]] for member in union["anyOf"]]


def unions(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in fields(schema):
        for place in (field, field.get("items", {})):
            if "anyOf" in place:
                yield name, place


def chosen_by_form(value: dict[str, Any], candidates: list[dict[str, Any]]) -> int:
    """The member that Prefect's form shows for a value: the first with the most names in common."""
    overlaps = [len(value.keys() & member["properties"].keys()) for member in candidates]
    return overlaps.index(max(overlaps))


def test_the_only_parameter_is_the_settings_model(schema: dict[str, Any], flow: FlowEntry) -> None:
    assert list(schema["properties"]) == ["config"]
    assert schema["properties"]["config"]["$ref"].endswith(flow.load_config().__name__)


def test_every_field_says_what_it_is(schema: dict[str, Any]) -> None:
    unclear = [name for name, field in fields(schema) if len(field.get("description", "")) < 8]
    assert unclear == []


def test_every_bound_stands_in_the_description(schema: dict[str, Any]) -> None:
    for name, field in fields(schema):
        assert bounds_of(field) in field["description"], name


def test_nothing_is_a_free_dict(schema: dict[str, Any]) -> None:
    for name, field in fields(schema):
        for place in (field, field.get("items", {})):
            assert place.get("type") != "object", f"{name} has no fields of its own: a form cannot draw it"
            assert "type" in place or "$ref" in place or "anyOf" in place or place is not field, name
    for name, model in models(schema).items():
        assert model["additionalProperties"] is False, name


def test_unions_are_tagged_and_told_apart_by_the_form(schema: dict[str, Any]) -> None:
    assert "oneOf" not in str(schema)
    for name, union in unions(schema):
        found = members(union, schema)
        kinds = [member["properties"]["kind"]["const"] for member in found]
        assert len(set(kinds)) == len(kinds), name
        for number, member in enumerate(found):
            fresh = dict.fromkeys(member["properties"])
            assert chosen_by_form(fresh, found) == number, f"{name}: the form would show another kind"


def test_an_emptied_field_cannot_silently_become_its_default(schema: dict[str, Any]) -> None:
    """Forms leave out an emptied text field and a list shorter than minItems (1 when none is given)."""
    for name, field in fields(schema):
        if field.get("type") == "array":
            assert "minItems" in field, name
        if field.get("type") == "string" and field.get("default"):
            never_empty = field.get("minLength") or field.get("enum") or field.get("pattern")
            assert never_empty or name in UNUSED_WHEN_EMPTY, (
                f"{name}: empty means something, but the form cannot send it; use a word such as 'none'"
            )


def test_the_forms_default_is_the_models_default(schema: dict[str, Any], flow: FlowEntry) -> None:
    model = flow.load_config()
    assert model.model_validate(schema["properties"]["config"]["default"]) == model()
    content = schema["definitions"][model.__name__]["properties"]
    sent = {name: field["default"] for name, field in content.items()}
    assert model.model_validate(sent) == model()


def test_fields_stand_in_the_models_order(schema: dict[str, Any]) -> None:
    for name, model in models(schema).items():
        positions = [field["position"] for field in model["properties"].values()]
        assert sorted(positions) == list(range(len(positions))), name


def test_inputs_come_first_and_the_output_last() -> None:
    from flows.steps_config import MergeConfig

    content = MergeConfig.model_json_schema()["properties"]
    order = sorted(content, key=lambda name: content[name]["position"])
    assert order[:3] == ["model", "experts", "tasks"]
    assert order[-1] == "output"


@pytest.mark.parametrize(
    ("schema_of_field", "words"),
    [
        ({"minimum": 1, "maximum": 1_000_000}, "1 to 1,000,000"),
        ({"exclusiveMinimum": 0, "maximum": 1}, "above 0, at most 1"),
        ({"minimum": 0, "exclusiveMaximum": 1}, "at least 0, below 1"),
        ({"type": "array", "minItems": 1, "items": {"minimum": 0}}, "each at least 0, at least 1 item"),
        ({"type": "array", "minItems": 0, "items": {}}, ""),
        ({"type": "string"}, ""),
    ],
)
def test_bounds_in_words(schema_of_field: dict[str, Any], words: str) -> None:
    assert bounds_of(schema_of_field) == words


def test_headings() -> None:
    names = {"TaskSetSettings": "Task set", "LifecycleConfig": "Lifecycle", "Config": "Config"}
    assert {name: title_of(type(name, (), {})) for name in names} == names
