"""params.yaml: written from the models, checked by them, a person's values kept."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field
from ruamel.yaml import YAML
from typer.testing import CliRunner

from flows import params
from flows.cli import app
from flows.registry import FLOWS
from methods.common.errors import ConfigError
from tasks.config import Config


class Magnitude(Config):
    kind: Literal["magnitude"] = "magnitude"
    sparsity: float = Field(0.5, gt=0, lt=1, description="Share of zeros")


class Pattern(Config):
    kind: Literal["pattern"] = "pattern"
    pattern: Literal["2:4", "4:8"] = Field("2:4", description="Zeros of every few")


class Merge(Config):
    """How to merge."""

    methods: tuple[Literal["ties", "dare"], ...] = Field(
        ("ties",), min_length=1, description="Methods to try"
    )
    density: float = Field(0.2, gt=0, le=1, description="Share kept by TIES")
    rate: float = Field(2e-5, gt=0, description="Learning rate")


class Demo(Config):
    """A demo flow.

    Its second paragraph is for programmers.
    """

    merge: Merge = Field(Merge(), description="How experts are merged")
    recipes: tuple[Annotated[Magnitude | Pattern, Field(discriminator="kind")], ...] = Field(
        (Magnitude(), Pattern()), description="Recipes to try"
    )
    note: str = Field("", description="A note")


MODELS: dict[str, type[Config]] = {"demo": Demo}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    params.write(path, MODELS)
    return path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_a_fresh_file_holds_the_defaults_and_is_accepted(file: Path) -> None:
    assert params.check(file, MODELS) == []
    assert Demo.model_validate(params.read(file)["demo"]) == Demo()


def test_descriptions_bounds_and_choices_stand_above_the_values(file: Path) -> None:
    text = file.read_text()
    assert "# A demo flow.\ndemo:" in text
    assert "second paragraph" not in text
    assert "    # Share kept by TIES (above 0, at most 1)\n    density: 0.2\n" in text
    assert "# Methods to try (at least 1 item) (any of ties, dare)" in text
    assert "#   kind magnitude:\n  #     sparsity: Share of zeros (above 0, below 1); default 0.5" in text


def test_old_yaml_readers_see_the_same_values(file: Path) -> None:
    """YAML 1.1 would read a bare 2:4 as 124 and a bare 2e-05 as text."""
    import yaml

    assert yaml.safe_load(file.read_text()) == YAML(typ="safe").load(file.read_text())


def test_writing_again_changes_nothing(file: Path) -> None:
    before = file.read_bytes()
    update = params.write(file, MODELS)
    assert file.read_bytes() == before
    assert (update.added, update.dropped, update.changed) == ((), (), ())


def test_writing_keeps_a_persons_values_and_adds_and_drops(file: Path) -> None:
    edit(file, "density: 0.2", "density: 0.45")
    edit(file, "    rate: 2.0e-05\n", "")
    edit(file, "note: ''", "note: mine\n  leftover: 3")
    update = params.write(file, MODELS)
    assert update.added == ("demo.merge.rate",)
    assert update.dropped == ("demo.leftover",)
    assert update.changed == ("demo.merge.density", "demo.note")
    kept = Demo.model_validate(params.read(file)["demo"])
    assert kept == Demo(merge=Merge(density=0.45), note="mine")


def test_writing_over_a_wrong_value_is_refused_and_leaves_the_file(file: Path) -> None:
    edit(file, "density: 0.2", "density: 7")
    before = file.read_bytes()
    with pytest.raises(
        ConfigError, match=r"demo\.merge\.density = 7: input should be less than or equal to 1"
    ):
        params.write(file, MODELS)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("density: 0.2", "density: 0", "demo.merge.density = 0: input should be greater than 0"),
        ("density: 0.2", "density: much", "demo.merge.density = 'much': input should be a valid number"),
        (
            "methods: [ties]",
            "methods: [tie]",
            "demo.merge.methods.0 = 'tie': input should be 'ties' or 'dare'",
        ),
        ("sparsity: 0.5", "sparsity: 1.5", "demo.recipes.0.magnitude.sparsity = 1.5: input should be less"),
        ("sparsity: 0.5", "sparsty: 0.5", "demo.recipes.0.magnitude.sparsty: no such setting"),
        ("note: ''", "nota: ''", "demo.nota: no such setting; correct its name"),
        ("note: ''", "", "demo.note: the setting is missing; `seedloom params --write` adds it"),
        ("demo:", "demos:", "demos: no flow has this block; blocks are demo"),
    ],
)
def test_each_mistake_is_one_line(file: Path, old: str, new: str, says: str) -> None:
    lines_before = len(file.read_text().splitlines())
    text = file.read_text()
    place = text.index(f" {old}" if old != "demo:" else f"\n{old}")
    file.write_text(text[:place] + text[place:].replace(old, new, 1))
    assert len(file.read_text().splitlines()) == lines_before
    lines = params.check(file, MODELS)
    assert any(line.startswith(f"{file}: {says}") for line in lines), lines
    assert all("\n" not in line for line in lines)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    with pytest.raises(ConfigError, match="does not exist; `seedloom params --write` writes it"):
        params.check(path, MODELS)
    path.write_text("demo: [1,\n")
    with pytest.raises(ConfigError, match="is not YAML at line"):
        params.check(path, MODELS)
    path.write_text("- 1\n")
    with pytest.raises(ConfigError, match="one block of settings a flow"):
        params.check(path, MODELS)


def test_the_projects_own_file_fits_every_flow() -> None:
    root = Path(__file__).parents[2]
    assert params.check(root / "params.yaml") == []
    steps = {"prepare", "finetune", "merge", "compress", "evaluate"}
    assert set(params.blocks()) == {flow.name for flow in FLOWS} - steps


def test_the_projects_own_file_holds_the_defaults() -> None:
    """Whoever clones the project gets what the forms show; experiments belong on a branch."""
    given = params.read(Path(__file__).parents[2] / "params.yaml")
    for name, model in params.blocks().items():
        assert model.model_validate(given[name]) == model(), (
            "delete params.yaml, then `seedloom params --write`"
        )


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    assert runner.invoke(app, ["params"]).exit_code == 2
    written = runner.invoke(app, ["params", "--write"])
    assert written.exit_code == 0
    assert "added   lifecycle" in written.output
    assert runner.invoke(app, ["params", "--check"]).output == "params.yaml fits the settings of every flow\n"
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("architecture: causal-lm", "architecture: mlp", 1))
    refused = runner.invoke(app, ["params", "--check"])
    assert refused.exit_code == 2
    assert refused.output.startswith(
        "error: params.yaml: lifecycle.prepare.model.architecture = 'mlp': input"
    )
    assert len(refused.output.splitlines()) == 1


def test_writing_over_a_file_of_something_else_is_refused(file: Path) -> None:
    file.write_text(file.read_text() + "mine:\n  important: 3\n")
    before = file.read_bytes()
    with pytest.raises(
        ConfigError, match="mine: no flow has this block, and writing the file anew would drop it"
    ):
        params.write(file, MODELS)
    assert file.read_bytes() == before
