"""The rules of the house that a newcomer could break without noticing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
METHODS = sorted(p.parent.name for p in (ROOT / "methods").glob("*/__init__.py"))


@pytest.mark.parametrize("method", METHODS)
def test_importing_a_method_is_light(method: str) -> None:
    script = (
        f"import sys, methods.{method} as m\n"
        "print([n for n in ('prefect', 'mlflow', 'dvc', 'transformers', 'datasets') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("method", [m for m in METHODS if m != "common"])
def test_a_method_names_what_it_offers_and_has_it(method: str) -> None:
    module = __import__(f"methods.{method}", fromlist=["*"])
    assert module.__doc__
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name).__doc__, name


def test_no_heavy_module_at_the_start_of_the_command_line() -> None:
    script = (
        "import sys, flows.cli\n"
        "heavy = ('prefect', 'mlflow', 'dvc', 'torch', 'transformers', 'datasets', 'pandas', 'matplotlib')\n"
        "print([n for n in heavy if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_settings_models_are_light() -> None:
    script = (
        "import sys\n"
        "from flows.registry import FLOWS\n"
        "[flow.load_config() for flow in FLOWS]\n"
        "heavy = ('prefect', 'mlflow', 'dvc', 'torch', 'transformers', 'datasets')\n"
        "print([n for n in heavy if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
