"""Safe by default: nothing from outside is unpickled, no code of a model is run, no path of this machine leaks."""

import ast
import json
import pickle
import subprocess
from pathlib import Path

import pytest

from methods.common.errors import DataError
from tasks.prepare.config import ModelSettings
from tasks.prepare.models import check_model_source, materialise_model
from tests.tiny_models import tiny_llama

ROOT = Path(__file__).parent.parent
SOURCES = [p for part in ("methods", "tasks", "flows") for p in sorted((ROOT / part).rglob("*.py"))]


class Bomb:
    """Unpickling it would leave a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.mark,))


def settings(folder: Path) -> ModelSettings:
    return ModelSettings(source=str(folder))


def test_a_pickle_checkpoint_is_refused_unopened(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    with pytest.raises(DataError, match="safetensors") as caught:
        materialise_model(settings(folder), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "mark").exists()


def test_a_pickle_beside_safetensors_is_left_alone(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    materialise_model(settings(folder), tmp_path / "out")
    assert not (tmp_path / "mark").exists()
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()


def test_a_model_that_wants_its_own_code_is_refused(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_evil.Evil"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_evil.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'mark')!r}).touch()\n"
    )
    with pytest.raises(DataError, match="code"):
        check_model_source(settings(folder))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_unsafe_call_in_the_sources(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        if not isinstance(node, ast.Call):
            continue
        given = {k.arg: k.value for k in node.keywords}
        name = ast.unparse(node.func)
        where = f"{source.name}:{node.lineno}"
        if name in ("torch.load", "torch.serialization.load"):
            flag = given.get("weights_only")
            assert isinstance(flag, ast.Constant), where
            assert flag.value is True, where
        if "trust_remote_code" in given:
            flag = given["trust_remote_code"]
            assert isinstance(flag, ast.Constant), where
            assert flag.value is False, where
        assert name not in ("pickle.load", "pickle.loads", "eval", "exec", "os.system", "yaml.load"), where
        assert not (name.startswith("subprocess") and "shell" in given), where


def test_no_path_of_a_machine_in_tracked_files() -> None:
    found = subprocess.run(
        ["git", "grep", "-nE", r"(^|[^A-Za-z])/(home|root|Users)/[a-z]"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    lines = [line for line in found.stdout.splitlines() if not line.startswith("tests/test_security.py")]
    assert lines == []
