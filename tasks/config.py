"""The base of every settings model: one model is the form, the command line, the block in params.yaml and the log."""

import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# Fields without a position stand between those that a model moves to its start (0, 1, ...) and to its end (90, ...).
MIDDLE = 50


def title_of(model: type) -> str:
    """A class as a heading: `TaskSetSettings` becomes `Task set`."""
    name = re.sub(r"(Settings|Config)$", "", model.__name__) or model.__name__
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return words[0] + words[1:].lower() if " " in words else words


def bounds_of(schema: dict[str, Any]) -> str:
    """The bounds of a value in words, empty when it has none; browsers show a bound only after it was broken."""
    parts = []
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        parts.append(f"{low:,} to {high:,}")
    elif low is not None:
        parts.append(f"at least {low:,}")
    if "exclusiveMinimum" in schema:
        parts.append(f"above {schema['exclusiveMinimum']:,}")
    if high is not None and low is None:
        parts.append(f"at most {high:,}")
    if "exclusiveMaximum" in schema:
        parts.append(f"below {schema['exclusiveMaximum']:,}")
    if "items" in schema and (each := bounds_of(schema["items"])):
        parts.append(f"each {each}")
    if count := schema.get("minItems"):
        parts.append(f"at least {count} item{'s' * (count != 1)}")
    if (count := schema.get("maxItems")) is not None:
        parts.append(f"at most {count} item{'s' * (count != 1)}")
    return ", ".join(parts)


def make_form(schema: dict[str, Any], model: type) -> None:
    """Shape a model's JSON schema for the forms that Prefect draws from it.

    The fields keep the order of the model (`position` in a field's extra moves it), a group is headed by its
    field's name, bounds stand in the description, and the `kind` of a union's member is a choice of one.
    The forms switch between the members of an `anyOf`; of the `oneOf` of a tagged union they keep the first.
    """
    fields = schema.get("properties", {})
    ranks = {name: field.get("position", MIDDLE) for name, field in fields.items()}
    for rank, name in enumerate(sorted(fields, key=lambda name: ranks[name])):
        field = fields[name]
        field["position"] = rank
        field.setdefault("title", name.replace("_", " ").capitalize())
        if bounds := bounds_of(field):
            field["description"] = f"{field.get('description', '')} ({bounds})".strip()
        if "const" in field:
            field["enum"] = [field["const"]]
        if field.get("type") == "array":
            field.setdefault("minItems", 0)  # else the forms take an emptied list for the default one
        for union in (field, field.get("items", {})):
            if "oneOf" in union:
                union["anyOf"] = union.pop("oneOf")


class Config(BaseModel):
    """Frozen settings that refuse unknown fields and numbers that are none; defaults are checked like any value."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        model_title_generator=title_of,
        json_schema_extra=make_form,
    )


Items = TypeVar("Items", bound=tuple[Any, ...])


def distinct(values: Items) -> Items:
    """Refuse a list in which a value stands twice: the same work would count as more evidence."""
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ValueError(f"{twice[0]} is given twice; give each value once")
    return values


Distinct = AfterValidator(distinct)
# Seeds of replicates; a replicate that stands twice would make intervals narrower than they are.
Seeds = Annotated[tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...], Distinct]
