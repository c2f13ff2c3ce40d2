"""Recipes as settings: bounds, contradictions, the form's schema, and the registry that others extend."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field, ValidationError

from methods.common.errors import ConfigError, DataError
from tasks.compress import recipes
from tasks.compress.config import CompressSettings
from tasks.compress.recipes import (
    CompressionRecipe,
    DropRecipe,
    MagnitudeRecipe,
    PruneRecipe,
    SparseGPTRecipe,
    WandaRecipe,
    compressor_for,
    recipe_class,
    recipe_classes,
)


class OtherRecipe(CompressionRecipe):
    """Somebody else's compressor."""

    compressor: ClassVar[str] = "tests.tasks.compress.other:work"
    kind: Literal["other"] = Field(default="other", description="Other")
    bits: float = Field(default=1.0, gt=0, description="Bits per weight")


class TwinRecipe(PruneRecipe):
    """Has the fields of magnitude."""

    kind: Literal["twin"] = Field(default="twin", description="Twin")


def test_defaults_are_both_methods_in_both_patterns() -> None:
    labels = [recipe.label for recipe in CompressSettings().recipes]
    assert labels == ["magnitude-50pct", "magnitude-2of4", "wanda-50pct", "wanda-2of4"]


def test_labels_tell_settings_apart_and_drop_refuses_what_does_not_fit() -> None:
    recipes = (
        SparseGPTRecipe(),
        SparseGPTRecipe(pattern="4:8"),
        DropRecipe(),
        DropRecipe(sublayer="mlp", layers=2),
        DropRecipe(criterion="kl_estimate", iterative=True),
        DropRecipe(calibration_sequences=8),
    )
    assert [recipe.label for recipe in recipes] == [
        "sparsegpt-50pct",
        "sparsegpt-4of8",
        "drop-attn-4",
        "drop-mlp-2",
        "drop-attn-4-by-kl-iterative",
        "drop-attn-4-c8x256",
    ]
    again = CompressSettings.model_validate_json(CompressSettings(recipes=recipes).model_dump_json())
    assert again.recipes == recipes
    with pytest.raises(
        ValidationError, match="block_influence ranks blocks, not attn; set sublayer to block"
    ):
        DropRecipe(criterion="block_influence")
    llama = {"model_type": "llama", "num_hidden_layers": 4, "max_position_embeddings": 512}
    DropRecipe(layers=3).check_model(llama)
    DropRecipe(layers=3).check_model(llama | {"model_type": "dropped_llama"})
    with pytest.raises(ConfigError, match="layers 4: the model has 4 with attn; drop fewer"):
        DropRecipe().check_model(llama)
    with pytest.raises(DataError, match="model_type 't5' has no known attention and MLP"):
        DropRecipe().check_model({"model_type": "t5"})
    with pytest.raises(ConfigError, match="calibration_length 600: the model reads at most 512"):
        SparseGPTRecipe(calibration_length=600).check_model(llama)


def test_settings_survive_json_with_their_kinds() -> None:
    settings = CompressSettings(
        recipes=(WandaRecipe(pattern="4:8", calibration_sequences=3), MagnitudeRecipe(sparsity=0.3))
    )
    again = CompressSettings.model_validate_json(settings.model_dump_json())
    assert again == settings
    assert [type(recipe) for recipe in again.recipes] == [WandaRecipe, MagnitudeRecipe]


@pytest.mark.parametrize("sparsity", [0, 1, -0.5, 2, float("nan")])
def test_sparsity_lies_between_0_and_1(sparsity: float) -> None:
    with pytest.raises(ValidationError, match="sparsity"):
        WandaRecipe(sparsity=sparsity)


def test_sparsity_that_contradicts_the_pattern() -> None:
    with pytest.raises(
        ValidationError, match=r"sparsity 0\.6 contradicts pattern 2:4, which removes exactly 0\.5"
    ):
        MagnitudeRecipe(sparsity=0.6, pattern="2:4")


def test_unknown_kind_and_unknown_field_are_named() -> None:
    with pytest.raises(ValidationError, match=r"'sparse' .*expected tags: 'magnitude', 'wanda'"):
        CompressSettings.model_validate({"recipes": [{"kind": "sparse"}]})
    with pytest.raises(ConfigError, match=r"kind 'sparse': no such compressor; known are magnitude, wanda"):
        recipe_class("sparse")
    with pytest.raises(ValidationError, match=r"sparsety\n.*not permitted"):
        CompressSettings.model_validate({"recipes": [{"kind": "wanda", "sparsety": 0.5}]})


def test_labels_are_unique_and_tell_settings_apart() -> None:
    with pytest.raises(ValidationError, match="recipes must differ: wanda-50pct is given twice"):
        CompressSettings(recipes=(WandaRecipe(), WandaRecipe()))
    variants = [
        WandaRecipe(),
        WandaRecipe(compare="layer"),
        WandaRecipe(calibration_sequences=4),
        WandaRecipe(sparsity=0.25),
        MagnitudeRecipe(compare="row"),
        MagnitudeRecipe(pattern="4:8"),
        SparseGPTRecipe(),
        SparseGPTRecipe(damping=0.1),
    ]
    assert len({recipe.label for recipe in variants}) == len(variants)
    assert all("/" not in recipe.label and ":" not in recipe.label for recipe in variants)


def form_schema() -> dict[str, Any]:
    from prefect.utilities.callables import parameter_schema

    def flow(settings: CompressSettings = CompressSettings()) -> None: ...  # noqa: B008

    schema: dict[str, Any] = parameter_schema(flow).model_dump()
    return schema


def test_every_union_member_in_the_form_has_a_kind_of_its_own_and_described_fields() -> None:
    definitions = form_schema()["definitions"]
    items = definitions["CompressSettings"]["properties"]["recipes"]["items"]
    members = [definitions[member["$ref"].rpartition("/")[2]] for member in items["anyOf"]]
    assert [member["properties"]["kind"]["const"] for member in members] == list(recipe_classes())
    for member in members:
        assert member["additionalProperties"] is False
        for name, field in member["properties"].items():
            assert field["description"], name
            assert "default" in field, name
            assert field["type"] != "object", name
    assert "oneOf" not in json.dumps(definitions)


def test_the_forms_way_to_find_a_values_member_finds_the_right_one() -> None:
    """Both of Prefect's interfaces count common field names and take the first of equals."""
    definitions = form_schema()["definitions"]
    settings = definitions["CompressSettings"]["properties"]["recipes"]
    members = [definitions[member["$ref"].rpartition("/")[2]] for member in settings["items"]["anyOf"]]
    for value in settings["default"]:
        counts = [len(value.keys() & member["properties"].keys()) for member in members]
        assert members[counts.index(max(counts))]["properties"]["kind"]["const"] == value["kind"]


def with_entry_points(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    points = [
        EntryPoint(name=f"p{i}", value=value, group=recipes.ENTRY_POINTS) for i, value in enumerate(values)
    ]
    monkeypatch.setattr(
        recipes, "entry_points", lambda group: points if group == recipes.ENTRY_POINTS else []
    )
    recipe_classes.cache_clear()


@pytest.fixture(autouse=True)
def _fresh_registry() -> Any:
    yield
    recipe_classes.cache_clear()


def test_another_packages_recipe_is_known_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, f"{__name__}:OtherRecipe")
    assert recipe_class("other") is OtherRecipe
    # Fewer fields first: that order is what lets a form find the member of a value.
    assert list(recipe_classes()) == ["other", "magnitude", "wanda", "sparsegpt", "drop", "littlebit2"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("TwinRecipe", "compressor twin: has the same fields as magnitude"),
        ("CompressSettings", r"compressor p0 .* is no CompressionRecipe class"),
        ("Missing", r"compressor p0 .* cannot be imported"),
    ],
)
def test_an_entry_point_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    with_entry_points(monkeypatch, f"{__name__}:{value}")
    with pytest.raises(ConfigError, match=message):
        recipe_classes()


def test_a_kind_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, f"{__name__}:OtherRecipe", f"{__name__}:OtherRecipe")
    with pytest.raises(ConfigError, match="kind 'other' is taken"):
        recipe_classes()


def test_an_installed_package_extends_the_settings(tmp_path: Path) -> None:
    """From a real distribution on the path to a value of the union, in a fresh interpreter."""
    (tmp_path / "extra_pack.py").write_text(
        "from typing import ClassVar, Literal\n"
        "from pydantic import Field\n"
        "from tasks.compress.recipes import CompressionRecipe\n"
        "class Extra(CompressionRecipe):\n"
        "    compressor: ClassVar[str] = 'extra_pack:work'\n"
        "    kind: Literal['extra'] = Field(default='extra', description='Extra')\n"
        "def work(out, *, recipe, model, calibration, seed): return {'format': 'dense'}\n"
    )
    info = tmp_path / "extra_pack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-pack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[seedloom.compressors]\nextra = extra_pack:Extra\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from tasks.compress.config import CompressSettings\n"
        "from tasks.compress.recipes import compressor_for\n"
        "recipe = CompressSettings(recipes=[{'kind': 'extra'}]).recipes[0]\n"
        "print(type(recipe).__name__, compressor_for(recipe).__module__)\n"
        "print([n for n in ('torch', 'transformers', 'datasets', 'prefect') if n in sys.modules])\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.splitlines() == ["Extra extra_pack", "[]"]


def test_built_in_recipes_lead_to_their_work() -> None:
    for kind in ("magnitude", "wanda"):
        assert callable(compressor_for(recipe_class(kind)()))
