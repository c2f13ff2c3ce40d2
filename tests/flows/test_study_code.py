"""Which code a study depends on: what its flow imports, wherever the import stands, and nothing of other papers."""

import json
from pathlib import Path

import pytest

from flows.registry import FLOWS
from flows.study_code import used_files, write_records

ROOT = Path(__file__).parents[2]
STUDIES = [flow for flow in FLOWS if flow.paper]


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_imports_are_followed_wherever_they_stand(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "flows/studies/demo.py": "from tasks.study import demo\nimport flows.pipeline\nimport torch\n",
            "flows/pipeline.py": "import tasks.other\n",
            "tasks/study/__init__.py": "",
            "tasks/study/demo.py": "def work():\n    from tasks.helper import run\n    return 'tasks.named.x:go'\n",
            "tasks/helper.py": "from methods.demo import thing\n",
            "tasks/named/x.py": "",
            "tasks/other.py": "",
            "methods/demo/__init__.py": "LAZY = {'thing': 'inner'}\n",
            "methods/demo/inner.py": "from methods.common.small import one\n",
            "methods/common/small.py": "one = 1\n",
            "methods/foreign/__init__.py": "",
        },
    )
    assert used_files("flows.studies.demo", tmp_path) == [
        "flows/studies/demo.py",
        "methods/common/small.py",
        "methods/demo/__init__.py",
        "methods/demo/inner.py",
        "tasks/helper.py",
        "tasks/named/x.py",
        "tasks/study/demo.py",
    ]


def test_a_record_changes_with_the_code_it_names_and_with_no_other(tmp_path: Path) -> None:
    files = {f"{flow.module.replace('.', '/')}.py": "" for flow in STUDIES}
    first, other = STUDIES[0], STUDIES[1]
    files |= {f"{first.module.replace('.', '/')}.py": "import tasks.a\n", "tasks/a.py": "x = 1\n"}
    write(tmp_path, files)
    before = {name: (tmp_path / "out" / f"{name}.json") for name in write_records(tmp_path / "out", tmp_path)}
    texts = {name: path.read_text() for name, path in before.items()}
    (tmp_path / "tasks/a.py").write_text("x = 2\n")
    write_records(tmp_path / "out", tmp_path)
    assert before[first.name].read_text() != texts[first.name]
    assert before[other.name].read_text() == texts[other.name]
    assert list(json.loads(texts[first.name])) == sorted(json.loads(texts[first.name]))


@pytest.mark.parametrize("flow", STUDIES, ids=lambda flow: flow.name)
def test_each_study_depends_on_its_own_parts(flow: object) -> None:
    assert isinstance(flow, type(STUDIES[0]))
    found = used_files(flow.module, ROOT)
    assert f"{flow.module.replace('.', '/')}.py" in found
    assert any(name.startswith(f"methods/{flow.paper}/") for name in found)
    assert any(name.startswith("tasks/study/") for name in found)
    assert not any(name.startswith(("tests/", "flows/servers/")) for name in found)


def test_the_study_of_span_norm_follows_the_text_and_the_packing() -> None:
    found = used_files("flows.studies.span_norm", ROOT)
    assert {"tasks/pretrain/corpus.py", "tasks/prepare/text.py", "tasks/prepare/user_data.py"} <= set(found)
    assert not any(name.startswith("methods/littlebit2/") for name in found)
