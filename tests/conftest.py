"""Fixtures for every test: a work folder of its own, no network, one thread."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1"})

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tasks.settings import Settings, settings

if TYPE_CHECKING:
    from tests.up import Up


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A work folder that this test owns; settings of the machine and of the shell stay out."""
    for name in list(os.environ):
        if name.startswith("SEEDLOOM_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "work"
    monkeypatch.setenv("SEEDLOOM_WORK_DIR", str(folder))
    monkeypatch.setitem(Settings.model_config, "env_file", None)
    settings.cache_clear()
    yield folder
    settings.cache_clear()


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Up]":
    """One `seedloom up` for all tests that need one."""
    from tests.up import start_up

    started = start_up(tmp_path_factory.mktemp("up"))
    yield started
    assert started.end() == 0, started.output


# Files whose tests share one `seedloom up`.
SHARE_UP = {
    "tests/flows/test_prefect_yaml.py",
    "tests/flows/test_serve.py",
    "tests/flows/test_task_runner.py",
    "tests/ui/test_run_form.py",
}


def unit_of(nodeid: str) -> str:
    """What one process runs as a whole: a file, or all files that share `seedloom up`; fixtures are made once."""
    file = nodeid.partition("::")[0]
    return "up" if file in SHARE_UP else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Units to processes: under pytest 9.2 the `--dist loadgroup` of pytest-xdist 3.8 groups nothing."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return ByUnit(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that drive servers are the longest, so they start first; the test that ends `seedloom up` comes last."""
    for item in items:
        if "up" in getattr(item, "fixturenames", ()) and unit_of(item.nodeid) != "up":
            raise pytest.UsageError(
                f"{item.nodeid} uses `up`: name its file in SHARE_UP of tests/conftest.py"
            )
    items.sort(
        key=lambda item: (
            item.get_closest_marker("ends_up") is not None,
            not item.nodeid.startswith(("tests/flows", "tests/ui")),
        )
    )
