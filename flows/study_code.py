"""Which code a study uses: the files that its flow imports, directly or through others, with their digests.

DVC's stages of the studies depend on one such record each, so that a study runs again when its own code changed and
not when another paper's did. Imports inside of functions count; a package of `methods` counts as a whole, since it
gives its names out on demand.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from flows.registry import FLOWS

ROOTS = ("flows", "tasks", "methods")
# How work is run, kept and shown, not what comes out of it; each study has its own settings, steps and report.
MACHINERY = (
    "flows.interrupts",
    "flows.pipeline",
    "flows.registry",
    "flows.servers",
    "flows.stages",
    "flows.task_runner",
    "tasks.notices",
    "tasks.output_folder",
    "tasks.quiet",
    "tasks.reference",
    "tasks.report.publish",
    "tasks.settings",
    "tasks.step",
    "tasks.tracking",
    "tasks.workspace",
)
# Functions and modules that settings name: "tasks.compress.prune:wanda_model".
NAMED = re.compile(r"(?:flows|tasks|methods)(?:\.\w+)+(?::\w+)?")


def write_records(folder: Path, root: Path) -> list[str]:
    """Write `folder`/FLOW.json for the flow of each paper: file -> sha256, in the order of names.

    Args:
        folder: made when it is not there.
        root: of the source tree.

    Returns:
        the flows' names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [flow.name for flow in FLOWS if flow.paper]
    modules = {flow.name: flow.module for flow in FLOWS}
    for name in names:
        record = {path: _digest(root / path) for path in used_files(modules[name], root)}
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return names


def used_files(module: str, root: Path) -> list[str]:
    """The files below `root` that importing and running `module` can reach, without the machinery, sorted."""
    found: set[Path] = set()
    waiting = list(_files_of(module, root))
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in _imports(path):
            if not any(name == part or name.startswith(f"{part}.") for part in MACHINERY):
                waiting += _files_of(name, root)
    return sorted(path.relative_to(root).as_posix() for path in found)


def _files_of(name: str, root: Path) -> Iterator[Path]:
    """The file of a module; of a method the whole package. A name in a module stands for the module."""
    parts = name.split(".")
    if parts[0] == "methods" and len(parts) > 1 and parts[1] != "common":
        yield from (root / "methods" / parts[1]).rglob("*.py")
        return
    for length in range(len(parts), 0, -1):
        place = root.joinpath(*parts[:length])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                yield path
                return


def _imports(path: Path) -> Iterator[str]:
    """Dotted names of this project's modules that a file mentions: in imports anywhere, and in strings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.fullmatch(node.value):
            names = [node.value.partition(":")[0]]
        yield from (name for name in names if name.split(".")[0] in ROOTS)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
