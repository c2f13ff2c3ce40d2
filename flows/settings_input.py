"""Settings from the command line and from params.yaml, by the same models as the forms."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from methods.common.errors import ConfigError
from tasks.config import Config

TRUTHS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def read_block(location: str) -> dict[str, Any]:
    """The block of a params file: `FILE` or `FILE:dotted.name`.

    Raises:
        ConfigError: when the file or the block is missing, or is no mapping.
    """
    from ruamel.yaml import YAML, YAMLError

    file, _, name = location.partition(":")
    path = Path(file)
    try:
        block = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"--params: {path} is not UTF-8 text; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(
            f"--params: {path} cannot be read ({error.strerror}); give an existing YAML file"
        ) from error
    except YAMLError as error:
        line = str(error).splitlines()[0]
        raise ConfigError(f"--params: {path} is not YAML ({line}); correct the file") from error
    for part in filter(None, name.split(".")):
        if not isinstance(block, dict) or part not in block:
            known = ", ".join(block) if isinstance(block, dict) else "none"
            raise ConfigError(f"--params: {path} has no block {name!r}; blocks there: {known}")
        block = block[part]
    if not isinstance(block, dict):
        raise ConfigError(f"--params: {location} is not a block of named settings")
    return block


def config_from(
    model: type[Config], arguments: Sequence[str], flow: str, block: dict[str, Any] | None = None
) -> Config:
    """Build a flow's settings: options win over the block, the block over the defaults.

    Raises:
        ConfigError: one line a wrong value: field, value, remedy.
        SystemExit: 0 after `--help`.
    """

    class CommandLine(model, BaseSettings):  # type: ignore[valid-type, misc]
        __doc__ = model.__doc__
        model_config = SettingsConfigDict(
            cli_prog_name=f"seedloom run {flow}",
            cli_exit_on_error=False,
            cli_implicit_flags=True,
            cli_hide_none_type=True,
            nested_model_default_partial_update=True,
        )

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            # The environment holds machine settings only; it must not leak into a flow's settings.
            return (init_settings,)

    try:
        given = CommandLine(_cli_parse_args=flags(model, arguments, flow), **(block or {}))
    except ValidationError as error:
        raise ConfigError(explain(error, flow)) from error
    except SettingsError as error:
        raise ConfigError(unreadable(str(error), arguments, flow)) from error
    return model.model_validate(given.model_dump())


def unreadable(message: str, arguments: Sequence[str], flow: str) -> str:
    """One line about an option that could not be parsed: its name, its value and the remedy."""
    found = re.search(r'error parsing value for field "([^"]+)"', message)
    if found is None:
        return f"{flow}: {message}; see `seedloom run {flow} --help`"
    name = found.group(1)
    given = " ".join(arguments).split(f"--{name}", 1)[-1].lstrip("= ").split(" --")[0]
    return f"{flow}: {name} = {given!r}: cannot be read; give values with commas between, such as 1,2,3"


def switches(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted names of the settings that are true or false."""
    for name, field in model.model_fields.items():
        if field.annotation is bool:
            yield f"{prefix}{name}"
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from switches(field.annotation, f"{prefix}{name}.")


def flags(model: type[BaseModel], arguments: Sequence[str], flow: str) -> list[str]:
    """The arguments, where a switch may have a value like every other field: `--field false` is `--no-field`.

    A value that begins with a minus and a digit belongs to the option before it, also when it is a list (-1,2).

    Raises:
        ConfigError: a switch's value is neither true nor false.
    """
    known, found, rest = set(switches(model)), [], list(arguments)
    while rest:
        option, equals, value = (argument := rest.pop(0)).partition("=")
        name = option.removeprefix("--")
        if not argument.startswith("--") or name not in known:
            if argument.startswith("--") and not equals and rest and re.match(r"-[\d.]", rest[0]):
                argument = f"{argument}={rest.pop(0)}"
            found.append(argument)
            continue
        if not equals:
            if not rest or rest[0].startswith("-"):
                found.append(argument)
                continue
            value = rest.pop(0)
        if value.lower() not in TRUTHS:
            raise ConfigError(f"{flow}: {name} = {value!r}: give true or false")
        found.append(f"--{name}" if TRUTHS[value.lower()] else f"--no-{name}")
    return found


def explain(error: ValidationError, flow: str) -> str:
    """One line a wrong value: the field, the value and what would be right."""
    lines = []
    places = [item["loc"] for item in error.errors()]
    for item in error.errors():
        # A list that lost its wrong item is then too short: the item is the mistake.
        if any(place[: len(item["loc"])] == item["loc"] != place for place in places):
            continue
        name = ".".join(str(part) for part in item["loc"]) or "settings"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            lines.append(f"{flow}: {name} is not a setting; see `seedloom run {flow} --help`")
        elif item["type"] == "missing":
            lines.append(f"{flow}: {name} is missing; give it a value (--{name} VALUE)")
        elif item["type"] == "value_error":
            lines.append(f"{flow}: {message}" if name == "settings" else f"{flow}: {name}: {message}")
        else:
            lines.append(f"{flow}: {name} = {item['input']!r}: {message[0].lower()}{message[1:]}")
    return "\n".join(dict.fromkeys(lines))
