"""Settings from options and from params.yaml: the same models, one line a mistake."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from flows.registry import FLOWS
from flows.settings_input import config_from, read_block
from methods.common.errors import ConfigError
from tasks.config import Config


class Magnitude(Config):
    kind: Literal["magnitude"] = "magnitude"
    sparsity: float = Field(0.5, gt=0, lt=1, description="share")


class Wanda(Config):
    kind: Literal["wanda"] = "wanda"
    tokens: int = Field(10, ge=1, description="tokens")


class Group(Config):
    rate: float = Field(1e-3, gt=0, le=1, description="learning rate")
    steps: int = Field(10, ge=1, description="steps")
    quick: bool = Field(False, description="fast")


class Numbers(Config):
    """A flow with a list of numbers."""

    numbers: tuple[Annotated[int, Field(ge=0)], ...] = Field((1,), description="numbers")
    name: str = Field("x", description="name")
    quick: bool = Field(False, description="fast")


class Demo(Config):
    """A demo flow."""

    group: Group = Field(Group(), description="group")
    methods: tuple[Literal["ties", "dare"], ...] = Field(("ties",), min_length=1, description="methods")
    recipes: tuple[Annotated[Magnitude | Wanda, Field(discriminator="kind")], ...] = Field(
        (Magnitude(),), description="recipes"
    )
    name: str = Field("x", min_length=1, description="name")

    @model_validator(mode="after")
    def _fits(self) -> "Demo":
        if self.name == "taken":
            raise ValueError("name 'taken' is in use; choose another")
        return self


def test_defaults_need_no_options() -> None:
    assert config_from(Demo, [], "demo") == Demo()


def test_options_reach_nested_fields_and_leave_the_rest() -> None:
    given = config_from(
        Demo, ["--group.rate", "0.1", "--group.quick", "--methods", "dare,ties", "--name", "y"], "demo"
    )
    assert given == Demo(group=Group(rate=0.1, quick=True), methods=("dare", "ties"), name="y")


def test_tagged_recipes_are_given_as_json() -> None:
    given = config_from(Demo, ["--recipes", '[{"kind": "wanda", "tokens": 3}]'], "demo")
    assert given == Demo(recipes=(Wanda(tokens=3),))


def test_options_win_over_the_block_and_the_block_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("demo:\n  group:\n    rate: 0.2\n    steps: 7\n  name: z\n")
    block = read_block(f"{file}:demo")
    given = config_from(Demo, ["--group.rate", "0.3"], "demo", block)
    assert given == Demo(group=Group(rate=0.3, steps=7), name="z")
    assert read_block(f"{file}:demo.group") == {"rate": 0.2, "steps": 7}


def test_the_environment_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "from-the-shell")
    monkeypatch.setenv("GROUP", '{"rate": 0.9}')
    assert config_from(Demo, [], "demo") == Demo()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--group.rate", "7"], "demo: group.rate = '7': input should be less than or equal to 1"),
        (["--group.steps", "many"], "demo: group.steps = 'many': input should be a valid integer"),
        (["--methods", "tise"], "demo: methods.0 = 'tise': input should be 'ties' or 'dare'"),
        (["--recipes", '[{"kind": "wnda"}]'], "recipes.0"),
        (["--name", "taken"], "demo: name 'taken' is in use; choose another"),
        (["--nmae", "y"], "--nmae"),
        (["stray"], "stray"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(Demo, arguments, "demo")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_wrong_values_are_two_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(Demo, ["--group.rate", "7", "--group.steps", "0"], "demo")
    assert len(str(caught.value).splitlines()) == 2


def test_an_unknown_field_in_the_block_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"group\.lr is not a setting"):
        config_from(Demo, [], "demo", {"group": {"lr": 1}})


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("demo: 3", "demo", "is not a block"),
        ("demo: {}", "other", "has no block 'other'; blocks there: demo"),
        ("a: [", "a", "is not YAML"),
        (None, "a", "cannot be read"),
    ],
)
def test_an_unusable_params_file_is_named(tmp_path: Path, text: str | None, name: str, says: str) -> None:
    file = tmp_path / "params.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_block(f"{file}:{name}")


def test_a_list_that_begins_with_a_minus_reaches_its_field() -> None:
    """The option parser takes -1,2 for options of its own."""
    for arguments in (["--numbers", "-1,2"], ["--numbers=-1,2"]):
        with pytest.raises(ConfigError, match=r"demo: numbers\.0 = -1: input should be greater than"):
            config_from(Numbers, arguments, "demo")


def test_a_list_that_cannot_be_read_is_named_with_its_value() -> None:
    with pytest.raises(
        ConfigError, match=r"^demo: numbers = '1,nan': cannot be read; give values with commas"
    ):
        config_from(Numbers, ["--name", "y", "--numbers", "1,nan", "--quick"], "demo")


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[type[BaseModel], str, str]]:
    """Every setting of a model and of the groups in it: the model that holds it, its name, its dotted name."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from settings_of(kind, f"{prefix}{name}.")
        else:
            yield model, name, prefix + name


LISTS = [
    pytest.param(holder, name, id=f"{flow.name}:{dotted}")
    for flow in FLOWS
    for holder, name, dotted in settings_of(flow.load_config())
    if isinstance(holder.model_fields[name].get_default(), tuple) and holder.model_fields[name].get_default()
]


@pytest.mark.parametrize(("holder", "name"), LISTS)
def test_no_list_of_any_flow_takes_a_value_twice(holder: type[BaseModel], name: str) -> None:
    """Seeds, rates, methods, files: the same work would be done twice and count as more evidence."""
    values = list(holder.model_fields[name].get_default())
    with pytest.raises(ValidationError, match=r"twice|only once|differ"):
        holder.model_validate({name: [*values, values[0]]})
    if name.endswith("seeds"):
        with pytest.raises(ValidationError, match="greater than or equal to 0"):
            holder.model_validate({name: [-1, *values]})


def test_help_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        config_from(Demo, ["--help"], "demo")
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert "--group.rate" in shown
    assert "learning rate" in shown


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--group.quick"], True),
        (["--group.quick", "true"], True),
        (["--group.quick=True"], True),
        (["--no-group.quick"], False),
        (["--group.quick", "false"], False),
        (["--group.quick=no"], False),
        (["--group.quick", "0", "--name", "false"], False),
        (["--name", "false", "--group.quick", "--group.steps", "3"], True),
    ],
)
def test_a_switch_takes_a_value_like_every_field(arguments: list[str], value: bool) -> None:
    given = config_from(Demo, arguments, "demo", {"group": {"quick": not value}})
    assert given.group.quick is value
    assert given.name in ("x", "false")


def test_a_switch_with_another_value_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^demo: group\.quick = 'maybe': give true or false$"):
        config_from(Demo, ["--group.quick", "maybe"], "demo")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_a_number_that_is_none_is_refused(value: str) -> None:
    class Free(Config):
        alpha: float = Field(1.0, gt=0, description="scale")
        shift: float = Field(0.0, description="no bounds")

    for field in ("alpha", "shift"):
        with pytest.raises(ConfigError, match=rf"^demo: {field} = .*: input should be a finite number$"):
            config_from(Free, [f"--{field}={value}"], "demo")
        with pytest.raises(ConfigError, match="input should be a finite number"):
            config_from(Free, [], "demo", {field: float(value)})
