"""params.yaml: one block a flow, written from the flow's settings model and checked by it.

The steps of the lifecycle have no blocks of their own: `lifecycle.merge` is what the lifecycle flow, DVC's stage
`merge` and `seedloom run merge --params params.yaml:lifecycle.merge` all read.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from flows.registry import FLOWS, STEPS
from methods.common.errors import ConfigError
from tasks.config import Config

WIDTH = 110
HEADER = """\
Settings of the flows, one block a flow. The same models as the forms and the command line check them:
  seedloom params --check    is every value allowed, is a setting missing
  seedloom params --write    add new settings, drop old ones, keep your values
`dvc repro` runs again what depends on a changed value; `dvc exp run -S lifecycle.merge.seed=1` tries one value."""


def blocks() -> dict[str, type[Config]]:
    """The settings model of each block, in the order of the file."""
    return {flow.name: flow.load_config() for flow in FLOWS if not flow.config.startswith(f"{STEPS}:")}


@dataclass(frozen=True)
class Update:
    """What a rewrite did.

    Attributes:
        text: the new file.
        added: settings that the file did not have.
        dropped: settings that no model has any more.
        changed: settings that differ from their default, kept.
    """

    text: str
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    changed: tuple[str, ...]


def read(path: Path) -> dict[str, Any]:
    """The file as plain values.

    Raises:
        ConfigError: it is missing, or no mapping of blocks.
    """
    from ruamel.yaml import YAML, YAMLError

    try:
        loaded = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; `seedloom params --write` writes it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from error
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{path} is not YAML{where} ({problem}); correct the file") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or any(not isinstance(block, dict) for block in loaded.values()):
        raise ConfigError(
            f"{path} must hold one block of settings a flow; `seedloom params --write` writes them"
        )
    return loaded


def check(path: Path, models: Mapping[str, type[Config]] | None = None) -> list[str]:
    """One line for each wrong value, missing setting and setting that no model has; nothing when all is well."""
    known = blocks() if models is None else models
    given = read(path)
    lines = [
        f"{path}: {name}: no flow has this block; blocks are {', '.join(known)}"
        for name in given
        if name not in known
    ]
    for name, model in known.items():
        if name not in given:
            lines.append(f"{path}: {name}: the block is missing; `seedloom params --write` adds it")
            continue
        wrong = wrong_values(path, name, model, given[name])
        unknown = {tuple(place) for place in strangers(model, given[name])}
        lines += wrong
        lines += [
            f"{path}: {'.'.join((name, *place))}: no such setting; correct its name, or "
            "`seedloom params --write` drops it"
            for place in sorted(unknown)
        ]
        lines += [
            f"{path}: {'.'.join((name, *place))}: the setting is missing; `seedloom params --write` adds it"
            for place in absentees(model, given[name])
        ]
    return lines


def wrong_values(path: Path, name: str, model: type[Config], block: Mapping[str, Any]) -> list[str]:
    """One line a value that the model refuses; unknown names are told apart elsewhere."""
    try:
        model.model_validate(block)
    except ValidationError as error:
        lines = []
        for item in error.errors():
            if item["type"] == "extra_forbidden" and len(item["loc"]) and _is_plain(model, item["loc"][:-1]):
                continue
            place = ".".join((name, *(str(part) for part in item["loc"])))
            message = item["msg"].removeprefix("Value error, ")
            if item["type"] == "value_error":
                lines.append(f"{path}: {place}: {message}")
            elif item["type"] == "extra_forbidden":
                lines.append(f"{path}: {place}: no such setting; remove it or correct its name")
            elif item["type"] == "missing":
                lines.append(f"{path}: {place}: the setting is missing; give it a value")
            else:
                lines.append(f"{path}: {place} = {item['input']!r}: {message[0].lower()}{message[1:]}")
        return list(dict.fromkeys(lines))
    return []


def write(path: Path, models: Mapping[str, type[Config]] | None = None) -> Update:
    """Write the file anew, each value of the old one kept.

    Raises:
        ConfigError: the old file holds a value that its model refuses, or a block of no flow, one line each.
    """
    known = blocks() if models is None else models
    given = read(path) if path.exists() else {}
    if foreign := [name for name in given if name not in known]:
        raise ConfigError(
            f"{path}: {', '.join(map(str, foreign))}: no flow has this block, and writing the file anew would drop it; "
            "move it to another file, or name another one with --file"
        )
    wrong = [
        line
        for name, model in known.items()
        if name in given
        for line in wrong_values(path, name, model, given[name])
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))
    added, dropped, changed = [], [], []
    values: dict[str, Any] = {}
    for name, model in known.items():
        block = given.get(name, {})
        defaults = model().model_dump(mode="json")
        dropped += [".".join((name, *place)) for place in strangers(model, block)]
        added += [".".join((name, *place)) for place in absentees(model, block)] if name in given else [name]
        values[name] = _kept(model, defaults, block)
        changed += [".".join((name, *place)) for place in _differences(model, defaults, values[name])]
    update = Update(render(known, values), tuple(added), tuple(dropped), tuple(changed))
    path.write_text(update.text)
    return update


def _groups(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The fields that are groups of settings themselves."""
    return {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def _is_plain(model: type[BaseModel], place: tuple[int | str, ...]) -> bool:
    """Whether a place in the settings is a group, and not inside a list."""
    for part in place:
        found = _groups(model).get(str(part))
        if found is None:
            return False
        model = found
    return True


def strangers(model: type[BaseModel], block: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Names in the block that the model does not have."""
    groups = _groups(model)
    for name, value in block.items():
        if name not in model.model_fields:
            yield (str(name),)
        elif name in groups and isinstance(value, Mapping):
            yield from ((name, *rest) for rest in strangers(groups[name], value))


def absentees(model: type[BaseModel], block: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Settings of the model that the block does not have; a missing group is named once."""
    groups = _groups(model)
    for name in model.model_fields:
        if name not in block:
            yield (name,)
        elif name in groups and isinstance(block[name], Mapping):
            yield from ((name, *rest) for rest in absentees(groups[name], block[name]))


def _kept(model: type[BaseModel], defaults: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    groups = _groups(model)
    return {
        name: _kept(groups[name], defaults[name], block.get(name) or {})
        if name in groups
        else block.get(name, defaults[name])
        for name in _ordered(model)
    }


def _differences(
    model: type[BaseModel], defaults: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[tuple[str, ...]]:
    groups = _groups(model)
    for name, value in values.items():
        if name in groups:
            yield from ((name, *rest) for rest in _differences(groups[name], defaults[name], value))
        elif value != defaults[name]:
            yield (name,)


def _ordered(model: type[BaseModel]) -> list[str]:
    """Field names in the order of the form."""
    properties = model.model_json_schema()["properties"]
    return sorted(model.model_fields, key=lambda name: properties[name].get("position", 0))


def render(models: Mapping[str, type[BaseModel]], values: Mapping[str, Mapping[str, Any]]) -> str:
    """The file's text: each value below its description and bounds."""
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.representer import RoundTripRepresenter

    class Representer(RoundTripRepresenter):
        """YAML 1.1 readers take 2e-05 for text, and 2.0e-05 for a number."""

        def represent_float(self, value: Any) -> Any:
            text = repr(value)
            if re.fullmatch(r"-?\d+e-?\d+", text):
                return self.represent_scalar("tag:yaml.org,2002:float", text.replace("e", ".0e"))
            return super().represent_float(value)

    Representer.add_representer(float, Representer.represent_float)
    yaml = YAML()
    yaml.Representer = Representer
    yaml.width = 4096  # a value stays on its line
    yaml.indent(mapping=2, sequence=4, offset=2)
    sections = ["".join(f"# {line}\n" for line in HEADER.splitlines())]
    for name, model in models.items():
        schema = model.model_json_schema()
        block = CommentedMap({name: _commented(model, schema, schema.get("$defs", {}), values[name], 2)})
        summary = schema.get("description", "").split("\n\n")[0].replace("\n", " ")
        block.yaml_set_comment_before_after_key(name, before=_wrapped(summary, 0))
        stream = io.StringIO()
        yaml.dump(block, stream)
        sections.append("".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines()))
    return "\n".join(sections)


def _commented(
    model: type[BaseModel],
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    values: Mapping[str, Any],
    indent: int,
) -> Any:
    from ruamel.yaml.comments import CommentedMap

    groups = _groups(model)
    block = CommentedMap()
    for name in _ordered(model):
        field = schema["properties"][name]
        if name in groups:
            inner = _resolved(field, definitions)
            block[name] = _commented(groups[name], inner, definitions, values[name], indent + 2)
        else:
            block[name] = _styled(values[name])
        text = explain(field, definitions)
        if text:
            block.yaml_set_comment_before_after_key(name, before=_wrapped(text, indent), indent=indent)
    return block


def _styled(value: Any) -> Any:
    """Lists of plain values on one line, lists of groups one below the other, times of day that are none quoted."""
    from ruamel.yaml.comments import CommentedSeq
    from ruamel.yaml.scalarstring import SingleQuotedScalarString

    if isinstance(value, str):
        # YAML 1.1 readers take 2:4 for a number in base 60.
        return SingleQuotedScalarString(value) if re.fullmatch(r"\d+(:\d+)+", value) else value
    if isinstance(value, dict):
        return {name: _styled(item) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    sequence = CommentedSeq([_styled(item) for item in value])
    if not any(isinstance(item, dict) for item in value):
        sequence.fa.set_flow_style()
    return sequence


def _wrapped(text: str, indent: int) -> str:
    """Lines of a comment; the continuation of an indented line stands below its text."""
    lines = []
    for line in text.split("\n"):
        margin = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line,
            WIDTH - indent - 2,
            subsequent_indent=f"{margin}  " if margin else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _resolved(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = field.get("$ref") or next(
        (part["$ref"] for part in field.get("allOf", []) if "$ref" in part), ""
    )
    found: Mapping[str, Any] = definitions[reference.rpartition("/")[2]] if reference else field
    return found


def explain(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """A field's description (the model's schema has put its bounds there) with its choices.

    For a list of groups, what a group holds; for a list of groups of several kinds, what each kind holds.
    """
    text = str(field.get("description", ""))
    if allowed := choices(field, definitions):
        text = f"{text} ({allowed})".strip()
    if field.get("type") != "array":
        return text
    lines = [text]
    items = field.get("items", {})
    kinds = items.get("anyOf") or items.get("oneOf") or [items]
    for kind in kinds:
        shape = _resolved(kind, definitions)
        properties = shape.get("properties", {})
        margin = "  "
        if len(kinds) > 1 and "const" in properties.get("kind", {}):
            lines.append(f"  kind {properties['kind']['const']}:")
            margin = "    "
        for name, inner in properties.items():
            if "const" not in inner:
                default = f"; default {_short(inner['default'])}" if "default" in inner else ""
                lines.append(f"{margin}{name}: {explain(inner, definitions)}{default}")
    return "\n".join(line for line in lines if line)


def _short(value: Any) -> str:
    return "empty" if value in ("", [], ()) else str(value)


def choices(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """The values that a field accepts, in words, where the schema lists them."""
    shape = _resolved(field, definitions)
    if "const" not in shape and "enum" in shape:
        return "one of " + ", ".join(str(value) for value in shape["enum"])
    if shape.get("type") == "array":
        inner = _resolved(shape.get("items", {}), definitions)
        if "enum" in inner:
            return "any of " + ", ".join(str(value) for value in inner["enum"])
    return ""
