"""Fixtures for every test: a work folder of its own, no network, one thread."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1"})

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process runs a whole file, and one process all that share `seedloom up`: fixtures are made once.

    Files that drive servers are the longest, so they start first; the test that ends the shared
    `seedloom up` comes last.
    """
    for item in items:
        shared = "up" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("up" if shared else item.nodeid.partition("::")[0]))
    items.sort(
        key=lambda item: (
            item.get_closest_marker("ends_up") is not None,
            not item.nodeid.startswith(("tests/flows", "tests/ui")),
        )
    )
