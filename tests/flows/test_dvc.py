"""The lifecycle as DVC stages, in a git and DVC repository of its own, with a tiny model and two toy tasks.

One run of the `lifecycle` flow comes first; `dvc repro` must then find its work done and end with the same numbers.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.registry import FLOWS
from tasks.prepare.fetch import SETS
from tests.servers import prefect_server
from tests.tiny_models import tiny_llama, toy_task, toy_text

ROOT = Path(__file__).parents[2]
STAGES = ["settings", "prepare", "finetune", "merge", "compress", "evaluate"]
pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Project:
    """A copy of the project.

    Attributes:
        root: the repository.
        environment: of its commands: a work folder of its own, a Prefect server that runs.
    """

    root: Path
    environment: dict[str, str]

    def run(self, *command: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command; its exit status must be `status` (None: anything but 0)."""
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )
        expected = done.returncode == status if status is not None else done.returncode != 0
        assert expected, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
        return done

    def dvc(self, *arguments: str, status: int | None = 0) -> str:
        return self.run(sys.executable, "-m", "dvc", *arguments, status=status).stdout

    def stages_run(self, *arguments: str) -> list[str]:
        """The stages that a DVC command ran, in their order."""
        return re.findall(r"^Running stage '([^']+)'", self.dvc(*arguments), re.MULTILINE)

    def outputs(self) -> dict[str, int]:
        """Each finished step of the work folder and when it was made."""
        work = Path(self.environment["SEEDLOOM_WORK_DIR"])
        return {str(path): path.stat().st_mtime_ns for path in work.glob("outputs/*/*/manifest.json")}

    def metrics(self) -> bytes:
        return (self.root / "reports" / "lifecycle" / "metrics.json").read_bytes()

    def commit(self, why: str) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "--quiet", "--message", why)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server that all stages share; a temporary one each would cost ten seconds a stage."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield url


def copy_project(destination: Path) -> None:
    """What git would hold: tracked files and new ones, without ignored ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        wanted = name.split("/")[0] in ("methods", "tasks", "flows", ".dvc", "data") or "/" not in name
        if wanted and name != "dvc.lock" and (ROOT / name).is_file():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, destination / name)


def tiny_settings(file: Path) -> None:
    """Make the lifecycle of params.yaml small: the embedded example becomes a random Llama and toy tasks."""
    yaml = YAML()
    params = yaml.load(file.read_text())
    prepare = params["lifecycle"]["prepare"]
    prepare["model"]["source"] = "own/model"
    prepare["tasks"].update(
        {
            "bundled": [],
            "own": [
                {
                    "name": name,
                    "source": f"own/{name}.jsonl",
                    "prompt_column": "question",
                    "choices_column": "choices",
                }
                for name in ("plain", "turned")
            ],
            "train_examples": 48,
            "stop_examples": 12,
            "select_examples": 12,
            "test_examples": 12,
        }
    )
    prepare["text"].update({"source": "own/text.jsonl", "heldout_bytes": 1500, "calibration_bytes": 3000})
    finetune = params["lifecycle"]["finetune"]
    finetune.update({"max_steps": 6, "warmup": 1, "stop_every": 2, "batch_size": 4, "max_length": 64})
    finetune.update({"stop_examples": 12, "stoppings": ["merge_aware"], "rank": 2, "dtype": "float32"})
    params["lifecycle"]["compress"]["recipes"] = [{"kind": "magnitude", "pattern": "unstructured"}]
    params["lifecycle"]["merge"]["methods"] = ["average"]
    yaml.dump(params, file)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, server: str) -> Project:
    """A fresh clone with small settings and a remote, before anything ran."""
    folder = tmp_path_factory.mktemp("dvc")
    root = folder / "project"
    copy_project(root)
    tiny_llama(root / "own" / "model")
    toy_task(root / "own" / "plain.jsonl", count=120)
    toy_task(root / "own" / "turned.jsonl", shift=1, count=120)
    toy_text(root / "own" / "text.jsonl")
    tiny_settings(root / "params.yaml")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SEEDLOOM_", "DVC_"))
    }
    environment.update(
        {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PREFECT_API_URL": server,
            "SEEDLOOM_WORK_DIR": str(folder / "work"),
            "OMP_NUM_THREADS": "1",
            "DVC_NO_ANALYTICS": "1",
            **{
                f"GIT_{who}_{what}": "t@example.org"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
        }
    )
    made = Project(root, environment)
    made.run("git", "init", "--quiet", "--initial-branch", "main")
    made.dvc("remote", "add", "--local", "--default", "store", str(folder / "store"))
    made.commit("fresh clone")
    return made


@dataclass(frozen=True)
class Reproduced:
    """The project after the flow and then `dvc repro` ran."""

    project: Project
    by_flow: bytes
    before: dict[str, int]
    after: dict[str, int]
    ran: list[str]


@pytest.fixture(scope="module")
def reproduced(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    folder = tmp_path_factory.mktemp("flow")
    arguments = ["--params", "params.yaml:lifecycle", "--report.folder", str(folder)]
    project.run("seedloom", "run", "lifecycle", *arguments)
    before = project.outputs()
    ran = project.stages_run("repro", "evaluate")
    project.commit("results")
    return Reproduced(project, (folder / "metrics.json").read_bytes(), before, project.outputs(), ran)


def test_every_paper_is_an_item_and_every_named_code_exists() -> None:
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
    papers = {flow.paper for flow in FLOWS if flow.paper}
    assert set(stages["study"]["foreach"]) == papers
    items = stages["data"]["foreach"]
    # A study on what packages ship names the code that reads it.
    benches = stages["bench"]["foreach"]
    read = {item["data"] for item in [*stages["study"]["foreach"].values(), *benches.values()]}
    assert {f"data/{name}" for name in items} >= {name for name in read if name.startswith("data/")}
    assert [name for name in read if not name.startswith("data/") and not (ROOT / name).is_dir()] == []
    assert set(items) == set(SETS)
    named = [dep for name in STAGES for dep in stages[name]["deps"]]
    named += [item["code"] for item in items.values()]
    for stage in ("study", "bench"):
        assert "data/code/${key}.json" in stages[stage]["do"]["deps"]
    assert {item["paper"] for item in benches.values()} <= papers
    assert {*papers, *benches} == {flow.name for flow in FLOWS if flow.paper}
    code = [dep for dep in named if not dep.startswith(("data/", "${"))]
    assert [dep for dep in code if not (ROOT / dep).exists()] == []


def test_stages_repeat_no_work_of_the_flow_and_end_with_its_numbers(reproduced: Reproduced) -> None:
    assert reproduced.ran == STAGES
    assert reproduced.project.metrics() == reproduced.by_flow
    assert reproduced.after == reproduced.before
    candidates = json.loads(reproduced.by_flow)["candidates"]
    assert {"base", "expert/merge_aware/plain", "merge/average", "compressed/magnitude-50pct"} <= set(
        candidates
    )


def test_git_holds_no_data_and_dvc_no_times(reproduced: Reproduced) -> None:
    project = reproduced.project
    tracked = project.run("git", "ls-files", "data", "reports", "seeds").stdout.split()
    assert [name for name in tracked if name.startswith("data/")] == ["data/.gitignore"]
    assert "reports/lifecycle/metrics.json" in tracked
    assert "reports/lifecycle/plots/quality_vs_size.csv" in tracked
    assert not [name for name in project.dvc("ls", "-R", ".").split() if name.endswith("timings.json")]


def test_a_second_run_does_nothing(reproduced: Reproduced) -> None:
    assert "Data and pipelines are up to date." in reproduced.project.dvc("repro", "evaluate")
    assert reproduced.project.run("git", "status", "--porcelain").stdout == ""


def test_runs_in_mlflow_name_the_data_and_the_stage(reproduced: Reproduced) -> None:
    from mlflow.tracking import MlflowClient

    work = reproduced.project.environment["SEEDLOOM_WORK_DIR"]
    client = MlflowClient(f"sqlite:///{work}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    tags = {
        run.data.tags["seedloom.flow"]: run.data.tags
        for run in client.search_runs(experiments, "tags.`seedloom.flow` != ''", max_results=1000)
    }
    assert "dvc.digest" not in tags["lifecycle"]  # it ran before the first stage
    stages = {flow: found.get("dvc.stage") for flow, found in tags.items() if flow != "lifecycle"}
    assert stages == {name: name for name in STAGES[1:]}
    digests = [tags[name]["dvc.digest"] for name in STAGES[1:]]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    assert len(set(digests)) == len(digests)  # dvc.lock grows with each stage


def test_metrics_and_plots_are_shown(reproduced: Reproduced, tmp_path: Path) -> None:
    project = reproduced.project
    shown = json.loads(project.dvc("metrics", "show", "--json"))
    files: dict[str, Any] = shown[""]["data"]
    assert files["reports/lifecycle/metrics.json"]["data"] == json.loads(reproduced.by_flow)
    project.dvc("plots", "show", "--out", str(tmp_path))
    page = (tmp_path / "index.html").read_text()
    assert "mean accuracy over tasks, test part" in page
    assert "merge/average" in page
    assert "score on the stop part" in page
    assert "DVC_METRIC" not in page


def test_data_travel_through_a_remote(reproduced: Reproduced) -> None:
    project = reproduced.project
    project.dvc("push", "--quiet")
    shutil.rmtree(project.root / ".dvc" / "cache")
    shutil.rmtree(project.root / "data" / "lifecycle")
    project.dvc("pull", "--quiet", "--allow-missing")
    assert "Data and pipelines are up to date." in project.dvc("repro", "evaluate")
    assert (project.root / "data" / "lifecycle" / "merged" / "candidates.json").exists()


def test_a_wrong_value_is_refused_before_work_starts(reproduced: Reproduced) -> None:
    project, file = reproduced.project, reproduced.project.root / "params.yaml"
    text, outputs = file.read_text(), project.outputs()
    assert text.count("density: 0.2") == 1
    file.write_text(text.replace("density: 0.2", "density: 7"))
    try:
        done = project.run(sys.executable, "-m", "dvc", "repro", "evaluate", status=None)
        told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert told[0].startswith(
            "error: params.yaml: lifecycle.merge.density = 7: input should be less than or"
        )
        assert re.findall("Running stage '([^']+)'", done.stdout) == ["settings"]
        assert project.outputs() == outputs
    finally:
        file.write_text(text)
        project.dvc("checkout", "--quiet", "--force", "settings")


def test_one_changed_setting_runs_what_depends_on_it(reproduced: Reproduced) -> None:
    project = reproduced.project
    ran = project.stages_run(
        "exp", "run", "--set-param", "lifecycle.merge.methods=[task_arithmetic]", "evaluate"
    )
    assert ran == ["settings", "merge", "compress", "evaluate"]
    assert "# Merge methods to try" in (project.root / "params.yaml").read_text()
    changes = json.loads(project.dvc("metrics", "diff", "--json"))["reports/lifecycle/metrics.json"]
    name = "candidates.merge/average.size/bytes"
    assert changes[name]["old"] > 0
    assert "new" not in changes[name] or changes[name]["new"] is None
    assert any(change.startswith("candidates.merge/task_arithmetic") for change in changes)
