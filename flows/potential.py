"""A potential on a person's own structures: trained, tested, tried in dynamics, and written for ASE."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

from prefect import flow

from flows.pipeline import open_run
from flows.potential_config import PotentialFlowConfig
from flows.stages import only
from flows.task_runner import start
from methods.common.errors import ConfigError
from tasks.atoms.config import PotentialSettings
from tasks.atoms.read import check_source, sources_of
from tasks.atoms.steps import train_potential
from tasks.output_folder import check_output, write_output
from tasks.prepare.steps import source_fingerprint
from tasks.report.potential import figures, potential_table, tables
from tasks.report.publish import Report, publish, report_folder
from tasks.tracking import candidate_run, log_metrics


def check(config: PotentialFlowConfig) -> None:
    """Refuse structures that are not there, packages that are missing, an output folder with other files."""
    for package in ("e3nn", "ase"):
        if find_spec(package) is None:
            raise ConfigError(f"{package} is not installed; pip install 'seedloom[atoms]'")
    if config.node_lmax > config.lmax:
        raise ConfigError(f"node_lmax={config.node_lmax}: must be at most lmax={config.lmax}")
    check_source(config.atoms)
    check_output(Path(config.output), [Path(source) for source in sources_of(config.atoms)])


@flow(
    name="potential",
    description="Train an interatomic potential on your structures, and try it in dynamics.",
)
def potential(config: PotentialFlowConfig = PotentialFlowConfig()) -> Report:
    check(config)
    with open_run("potential", config) as ctx:
        inputs = {
            "atoms": config.atoms,
            "settings": only(PotentialSettings, config),
            "fingerprint": "".join(source_fingerprint(source) for source in sources_of(config.atoms)),
        }
        done = start(train_potential, ctx, "train", inputs).result()
        facts = json.loads((done.path / "facts.json").read_text(encoding="utf-8"))
        output = write_output(
            Path(config.output), lambda place: shutil.copytree(done.path / "model", place, dirs_exist_ok=True)
        )
        run_id = candidate_run(ctx, config.architecture)
        log_metrics(ctx, run_id, {f"test/{name}": value for name, value in facts["test"].items()})
        ctx.client.set_terminated(run_id)
        shown, metrics = potential_table(facts)
        return publish(
            ctx,
            "Potential",
            report_folder(ctx, config.report.folder),
            metrics,
            shown,
            tables(facts),
            figures(facts),
            [],
            notes=f"Written to `{output}`; `atoms.calc = TaceCalculator({str(config.output)!r})` of `methods.tace` "
            "uses it.",
        )
