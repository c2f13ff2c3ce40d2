"""MLflow by value: parents and children from threads, fates of runs, dead writers."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.candidates import Candidate
from tasks.config import Config
from tasks.settings import settings
from tasks.tracking import (
    candidate_run,
    children,
    client_for,
    experiment_id,
    flatten,
    flow_run,
    log_metrics,
    log_trace,
)


class Plain(Config):
    rate: float = 0.5


def runs_in_store() -> list:
    client = client_for(settings().tracking_uri)
    return list(client.search_runs([experiment_id(client, settings().experiment)]))


def test_children_from_threads_hang_under_their_parent(work: Path) -> None:
    with flow_run("demo", Plain()) as ctx:

        def one(i: int) -> str:
            run = candidate_run(ctx, f"candidate/{i % 4}")
            log_metrics(ctx, run, {"test/score": float(i)})
            return run

        with ThreadPoolExecutor(4) as pool:
            ids = list(pool.map(one, range(16)))
        assert len(set(ids)) == 4
        assert {child.info.run_id for child in children(ctx)} == set(ids)
    runs = runs_in_store()
    assert len(runs) == 5
    assert {run.info.status for run in runs} == {"FINISHED"}
    parent = ctx.client.get_run(ctx.parent_run_id)
    assert parent.data.params == {"rate": "0.5"}
    assert parent.data.tags["seedloom.flow"] == "demo"


def test_a_failing_flow_closes_its_runs(work: Path) -> None:
    def fail() -> None:
        with flow_run("demo", Plain()) as ctx:
            candidate_run(ctx, "a")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert {run.info.status for run in runs_in_store()} == {"FAILED"}


def test_an_interrupted_flow_is_killed_not_failed(work: Path) -> None:
    def interrupt() -> None:
        with flow_run("demo", Plain()):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert {run.info.status for run in runs_in_store()} == {"KILLED"}


def test_runs_of_a_killed_process_are_closed_by_the_next_flow(work: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal
        from tasks.config import Config
        from tasks.tracking import flow_run, candidate_run
        class Plain(Config):
            rate: float = 0.5
        with flow_run("demo", Plain()) as ctx:
            candidate_run(ctx, "a")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "SEEDLOOM_WORK_DIR": str(work)}, check=False
    )
    assert done.returncode == -9
    assert {run.info.status for run in runs_in_store()} == {"RUNNING"}
    with flow_run("demo", Plain()):
        statuses = sorted(run.info.status for run in runs_in_store())
    assert statuses == ["KILLED", "KILLED", "RUNNING"]


def test_the_environment_cannot_redirect_a_run(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with flow_run("demo", Plain()) as first:
        pass
    monkeypatch.setenv("MLFLOW_RUN_ID", first.parent_run_id)
    with flow_run("demo", Plain()) as second:
        assert second.parent_run_id != first.parent_run_id
        assert candidate_run(second, "a") != first.parent_run_id


def test_curves_keep_their_steps(work: Path) -> None:
    with flow_run("demo", Plain()) as ctx:
        run = candidate_run(ctx, "a")
        log_trace(ctx, run, [{"step": i, "train/loss": 1.0 / (i + 1), "stop/score": None} for i in range(5)])
        history = ctx.client.get_metric_history(run, "train/loss")
    assert [m.step for m in history] == [0, 1, 2, 3, 4]
    assert ctx.client.get_metric_history(run, "stop/score") == []


def test_nested_settings_become_dotted_params() -> None:
    assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": "x" * 7000}) == {
        "a.b": "1",
        "a.c": "[1, 2]",
        "d": "x" * 6000,
    }


def test_a_candidate_of_another_folder_is_refused(tmp_path: Path) -> None:
    from methods.common.errors import DataError
    from tasks.candidates import load_candidates, save_candidates
    from tasks.reference import reference_to

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    candidate = Candidate(
        name="merge/ties", stage="merge", method="ties", reference=reference_to(model, "model")
    )
    folder = save_candidates([candidate], tmp_path / "out")
    assert load_candidates(folder)[0].reference.digest == candidate.reference.digest
    (folder / "ties" / "config.json").write_text("{ }")
    with pytest.raises(DataError, match="was changed"):
        load_candidates(folder)
    listing = (folder / "candidates.json").read_text().replace('"path": "ties"', '"path": "../model"')
    (folder / "candidates.json").write_text(listing)
    with pytest.raises(DataError, match="points outside"):
        load_candidates(folder)


@pytest.mark.parametrize("name", ["bob's model", 'the "best"', 'bob\'s "best"'])
def test_a_candidate_whose_name_has_quotation_marks(name: str, work: Path) -> None:
    with flow_run("demo", Plain()) as ctx:
        other = candidate_run(ctx, "bob")
        run = candidate_run(ctx, name)
        assert candidate_run(ctx, name) == run != other
        assert [child.info.run_name for child in children(ctx)] == ["bob", name]


def test_a_model_in_the_current_folder_is_called_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.candidates import load_candidates

    for kind, file in (("mine", "config.json"), ("adapter", "adapter_config.json")):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / file).write_text("{}")
        (folder / "inner").mkdir()
        monkeypatch.chdir(folder)
        assert load_candidates(Path())[0].name == kind
        monkeypatch.chdir(folder / "inner")
        assert load_candidates(Path(".."))[0].name == kind
