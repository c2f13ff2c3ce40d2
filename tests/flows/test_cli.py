"""The command line: quick to answer, one line for a mistake; and `seedloom compare`."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest

from flows.compare import compare
from methods.common.errors import ConfigError
from tasks.config import Config
from tasks.settings import settings
from tasks.tracking import RunContext, candidate_run, flow_run, log_metrics, set_tags
from tests.flows.tiny_lifecycle import ROOT, environment, seedloom


def test_help_answers_in_half_a_second() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "flows.cli", "--help"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.5


def test_help_names_every_command() -> None:
    done = seedloom("--help", env=environment(Path("unused")), cwd=ROOT)
    for command in ("list", "run", "up", "compare", "doctor"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("up", "--prefect-port", "4999", "--mlflow-port", "4999"), "two different ports"),
        (("up", "--prefect-port", "70000"), "70000"),
        (("compare",), "no flow runs yet; start one with `seedloom run lifecycle`"),
        (("run", "lifecicle"), "did you mean 'lifecycle'?"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = seedloom(*arguments, env=environment(tmp_path / "work"), cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "work" / "mlflow.db").exists()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A store with a finished lifecycle that has a report, and an evaluation that is still running."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEEDLOOM_WORK_DIR", str(tmp_path_factory.mktemp("compared")))
        settings.cache_clear()
        ids = {}
        with flow_run("lifecycle", Config()) as ctx:
            ids["finished"] = ctx.parent_run_id
            add_candidates(ctx)
            shown = pd.DataFrame(
                {"candidate": ["base", "**merge/ties**"], "mean %": ["40.0 ± 3.1", "44.0 ± 3.2"]}
            )
            ctx.client.log_table(ctx.parent_run_id, shown, "table.json")
            set_tags(ctx, ctx.parent_run_id, {"seedloom.best": "merge/ties"})
        with flow_run("evaluate", Config()) as ctx:
            ids["running"] = ctx.parent_run_id
            add_candidates(ctx)
            yield ids
    settings.cache_clear()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The MLflow UI's address, as `seedloom up` tells it to the flows."""
    monkeypatch.setenv("SEEDLOOM_MLFLOW_URL", "http://127.0.0.1:5999")
    settings.cache_clear()
    yield "http://127.0.0.1:5999"
    monkeypatch.delenv("SEEDLOOM_MLFLOW_URL")
    settings.cache_clear()


def add_candidates(ctx: RunContext) -> None:
    for name, score in (("base", 0.40), ("merge/ties", 0.44)):
        run = candidate_run(ctx, name)
        log_metrics(ctx, run, {"test/mean/score": score, "test/mean/score_stderr": 0.1, "time/seconds": 3.0})


def test_compare_shows_the_reports_table_and_marks_the_best(
    compared: dict[str, str], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(["lifecycle"])
    out = capsys.readouterr().out
    assert "44.0 ± 3.2" in out
    best = next(line for line in out.splitlines() if "(best)" in line)
    assert best.startswith("merge/ties (best)")
    assert f"{address}/#/compare-runs?runs=" in out


def test_compare_shows_scores_of_a_run_without_a_report(
    compared: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    compare([])
    out = capsys.readouterr().out
    assert compared["running"] in out
    assert "running" in out
    assert "test/mean/score" in out
    assert "0.44" in out
    assert "stderr" not in out
    assert "time/" not in out
    assert "`seedloom up`" in out


def test_compare_puts_several_runs_into_one_table(
    compared: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    compare([compared["finished"][:6], "evaluate"])
    out = capsys.readouterr().out
    for words in (
        f"lifecycle {compared['finished'][:8]}",
        f"evaluate {compared['running'][:8]}",
        "40.0 ± 3.1",
        "0.44",
    ):
        assert words in out


def test_compare_names_the_newest_runs_when_one_is_not_known(compared: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=f"'absent' is not known; the newest are evaluate {compared['running'][:8]}"
    ):
        compare(["absent"])


def test_the_server_that_a_killed_run_left_is_ended(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.launch import end_orphan_servers

    script = (
        "import subprocess, sys\n"
        "given = {'PREFECT__SERVER_EPHEMERAL': '1', 'PREFECT_HOME': sys.argv[1]}\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(60)', 'prefect.server.api.server:create_app']\n"
        "print(subprocess.Popen(sleep, env=given, stdout=-3, stderr=-3).pid)"
    )
    left = {}
    for home in ("ours", "another's"):  # the middle process ends, so that init takes the sleeper over
        done = subprocess.run(
            [sys.executable, "-c", script, home], capture_output=True, text=True, check=True
        )
        left[home] = psutil.Process(int(done.stdout))
    try:
        if left["ours"].ppid() != 1:
            pytest.skip("this system hands orphans to another process than 1")
        monkeypatch.setenv("PREFECT_HOME", "ours")
        end_orphan_servers()
        assert psutil.wait_procs([left["ours"]], timeout=10)[1] == []
        assert left["another's"].is_running()
    finally:
        for process in left.values():
            if process.is_running():
                process.kill()
