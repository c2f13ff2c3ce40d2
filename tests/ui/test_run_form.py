"""A newcomer's way through the browser: the run form, the run, its report, and MLflow's pages."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from flows.lifecycle_config import LifecycleConfig
from flows.registry import FLOWS
from flows.steps_config import CompressConfig
from tests.flows.tiny_lifecycle import tiny_settings
from tests.up import Up

pytestmark = [pytest.mark.ui, pytest.mark.server]
Picture = Callable[[Page, str], None]


def open_form(page: Page, up: Up, flow: str, parameters: dict[str, object] | None = None) -> None:
    """The run form of a flow, with values filled in as a link or a repeated run does."""
    query = f"?parameters={quote(json.dumps(parameters))}" if parameters else ""
    page.goto(f"{up.prefect}/v2/deployments/deployment/{up.deployment(flow)['id']}/run{query}")
    expect(page.get_by_role("button", name="Submit")).to_be_visible()
    expect(page.get_by_text("Enforce Parameter Schema")).to_be_visible()


def follow(page: Page, link: str) -> Page:
    """Click a link that may open a page of its own."""
    before = len(page.context.pages)
    target = page.get_by_role("link", name=link).first
    target.click()
    page.wait_for_timeout(500)
    return page.context.pages[-1] if len(page.context.pages) > before else page


# The lifecycle's form holds these; test_forms.py reads the schema of every flow.
IN_LIFECYCLE = {"prepare", "finetune", "merge", "compress"}


@pytest.mark.parametrize("flow", [flow.name for flow in FLOWS if flow.name not in IN_LIFECYCLE])
def test_the_form_shows_every_field(flow: str, page: Page, up: Up, picture: Picture) -> None:
    open_form(page, up, flow)
    schema = up.deployment(flow)["parameter_openapi_schema"]
    config = schema["definitions"][schema["properties"]["config"]["$ref"].rpartition("/")[2]]
    for field in config["properties"].values():
        name = f"{field['title']} (Optional)"
        expect(page.locator("label", has_text=name).first).to_be_visible()
        expect(page.get_by_text(field["description"]).first).to_be_visible()
    assert "[object Object]" not in page.locator("body").inner_text()
    picture(page, f"form-{flow}")


def test_the_form_refuses_a_value_out_of_bounds(page: Page, up: Up, picture: Picture) -> None:
    open_form(page, up, "merge")
    page.get_by_label("Density").fill("7")
    page.get_by_role("button", name="Submit").click()
    assert "1" in page.get_by_label("Density").evaluate("field => field.validationMessage")
    page.get_by_label("Density").fill("0.2")
    # HTML knows no "below 1"; the server refuses and the form says so beside the field.
    page.get_by_label("Drop Rate").fill("7")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_text(re.compile("maximum of 1|less than 1")).first).to_be_visible()
    picture(page, "form-refused")
    assert "/run" in page.url


def test_the_kind_of_a_recipe_can_be_changed(page: Page, up: Up) -> None:
    open_form(page, up, "compress")
    fields = page.locator("label", has_text="Calibration Sequences")
    before = sum(recipe.kind == "wanda" for recipe in CompressConfig().recipes)
    expect(fields).to_have_count(before)
    page.get_by_role("tab", name="Wanda pruning").first.click()
    expect(fields).to_have_count(before + 1)
    expect(page.get_by_role("tab", name="Wanda pruning").first).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Magnitude pruning").first.click()
    expect(fields).to_have_count(before)


def test_from_the_form_to_the_compared_candidates(
    page: Page, up: Up, tmp_path: Path, picture: Picture
) -> None:
    page.goto(up.prefect)
    page.wait_for_url(re.compile("/v2/dashboard"))
    page.get_by_role("link", name="Deployments").first.click()
    # The list shows some deployments a page; which page this one stands on is not what is tested.
    page.goto(f"{up.prefect}/v2/deployments/deployment/{up.deployment('lifecycle')['id']}")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    expect(page.get_by_label("Max Steps")).to_have_value(str(LifecycleConfig().finetune.max_steps))

    open_form(page, up, "lifecycle", {"config": tiny_settings(tmp_path / "inputs")})
    expect(page.get_by_label("Max Steps")).to_have_value("12")
    page.get_by_label("Max Steps").fill("9")
    picture(page, "run-form")
    # The page shows a link to the new run for a few seconds only; on a busy machine it has gone before it is seen.
    with page.expect_response(re.compile("/create_flow_run")) as created:
        page.get_by_role("button", name="Submit").click()
    assert created.value.ok, created.value.text()
    page.goto(f"{up.prefect}/v2/runs/flow-run/{created.value.json()['id']}")
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible(timeout=240_000)
    picture(page, "run-completed")

    page.get_by_role("tab", name="Artifacts").click()
    picture(page, "run-artifacts")
    page.get_by_role("link", name="lifecycle-report").first.click()
    expect(page.get_by_role("cell", name="merge/ties", exact=True)).to_be_visible()
    picture(page, "report")

    run = follow(page, "this run")
    expect(run.get_by_role("link", name="merge/ties")).to_be_visible()
    expect(run.get_by_role("link", name="expert/merge_aware/toy0")).to_be_visible()
    expect(run.get_by_text("Child runs")).to_be_visible()
    expect(run.get_by_text("Model training").first).to_be_visible()
    picture(run, "mlflow-run")
    assert up.mlflow in run.url
    if run is page:
        page.go_back()

    compared = follow(page, "its candidates side by side")
    expect(compared.get_by_text(re.compile(r"Comparing \d+ Runs"))).to_be_visible()
    table = compared.locator("body")
    for name in ("base", "expert/merge_aware/toy0", "merge/ties", "candidate.method", "test/mean/score"):
        expect(table.get_by_text(name, exact=True).first).to_be_visible()
    expect(compared.locator(".js-plotly-plot").first).to_be_visible()
    picture(compared, "mlflow-compare")
