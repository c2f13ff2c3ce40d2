"""Wrong settings of the machine: one line and exit status 2 before any work, never minutes of waiting."""

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows import doctor
from flows.cli import app, one_line_errors
from flows.launch import find_server
from flows.servers.tracking import check_tracking
from methods.common.errors import ConfigError
from tasks.settings import settings

NOWHERE = "http://127.0.0.1:9"


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("WORKERS", "abc", "SEEDLOOM_WORKERS=abc: input should be a valid integer"),
        ("WORKERS", "0", "SEEDLOOM_WORKERS=0: input should be greater than or equal to 1"),
        ("TASK_RUNNER", "foo", "SEEDLOOM_TASK_RUNNER=foo: input should be 'threads', 'dask' or 'ray'"),
        ("WORK_DIR", "a?b", "a '?' in the path"),
        ("WORK_DIR", "a%20b", "a '%' in the path"),
        ("MLFLOW_TRACKING_URI", "nonsense", "SEEDLOOM_MLFLOW_TRACKING_URI=nonsense: is no address"),
        ("MLFLOW_TRACKING_URI", "ftp://somewhere", "is no address of an MLflow store"),
        ("MLFLOW_TRACKING_URI", "http://", "is no address of an MLflow store"),
    ],
)
@pytest.mark.parametrize("command", [("run", "prepare"), ("doctor", "--quick"), ("compare",)])
def test_a_wrong_value_is_one_line(
    name: str, value: str, says: str, command: tuple[str, ...], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work.parent)
    monkeypatch.setenv(f"SEEDLOOM_{name}", value)
    settings.cache_clear()
    status, output = run(*command)
    assert status == 2
    assert says in output
    assert len(output.strip().splitlines()) == 1
    assert not work.exists()


@pytest.mark.parametrize("command", [("run", "prepare"), ("compare",)])
def test_a_tracking_server_that_does_not_answer(
    command: tuple[str, ...], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEDLOOM_MLFLOW_TRACKING_URI", NOWHERE)
    settings.cache_clear()
    start = time.monotonic()
    status, output = run(*command)
    assert status == 1
    assert f"SEEDLOOM_MLFLOW_TRACKING_URI={NOWHERE} does not answer" in output
    assert len(output.strip().splitlines()) == 1
    assert time.monotonic() - start < 30


def test_doctor_says_that_the_tracking_server_does_not_answer(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEDLOOM_MLFLOW_TRACKING_URI", NOWHERE)
    settings.cache_clear()
    (finding,) = doctor.check_runs()
    assert (finding.topic, finding.level) == ("MLflow store", "FAIL")
    assert finding.remedy == "start that server, or unset the variable"


@pytest.fixture
def closed_door() -> Iterator[str]:
    """A server that asks for a login."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_other_stores_and_servers_that_answer_pass(closed_door: str) -> None:
    for uri in (None, "sqlite:////tmp/x.db", "databricks", closed_door):
        check_tracking(uri)
    with pytest.raises(ConfigError, match=r"http://\[::1 is no address"):
        check_tracking("http://[::1")


def test_an_address_of_prefect_that_is_none(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "nonsense")
    with pytest.raises(ConfigError, match="PREFECT_API_URL=nonsense is no address"):
        find_server()


def test_what_mlflow_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    import click
    from mlflow.exceptions import MlflowException

    with pytest.raises(click.exceptions.Exit) as caught, one_line_errors():
        raise MlflowException("Cannot use a deleted experiment\nmore")
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err == "error: MLflow: Cannot use a deleted experiment\n"
    with pytest.raises(KeyError), one_line_errors():
        raise KeyError("a fault of ours")


@pytest.mark.parametrize("command", [("run", "prepare", "--params"), ("params", "--check", "--file")])
def test_a_params_file_that_is_not_utf8(command: tuple[str, ...], tmp_path: Path, work: Path) -> None:
    (tmp_path / "z.yaml").write_bytes("name: Zürich".encode("latin-1"))
    status, output = run(*command, str(tmp_path / "z.yaml"))
    assert status == 2
    assert "is not UTF-8 text; save it as UTF-8" in output
