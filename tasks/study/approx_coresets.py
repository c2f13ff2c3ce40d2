"""The study of `approx_coresets` as steps: the points, full-data solutions, and rows that are kept one by one.

Each finished row lies in the step's folder; a part that was killed measures only what is missing.
"""

from __future__ import annotations

import json
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from methods.approx_coresets import study
from methods.approx_coresets.study import Row
from methods.common.errors import ConfigError, DataError
from tasks.reference import Reference
from tasks.step import step
from tasks.study import approx_coresets_peers as peers_script
from tasks.study.approx_coresets_config import ApproxCoresetsStudy

logger = logging.getLogger("seedloom")
VERSION = "1"
DEFAULT_DATA = str(ApproxCoresetsStudy.model_fields["data"].default)
COMPONENTS = 50  # of the digits
FULL_RUNS, EACH = 6, 10  # full-data solutions; solutions a kind in the bank
OTHERS = (
    "two",
    "lightweight",
    "uniform",
    "group",
    "residual",
    "voronoi",
    "sampled_means",
    "four_term_lloyd1",
    "four_term_2k",
    "four_term_parallel",
    "four_term_random",
)
LINE_METHODS = ("four_term", "four_term_lloyd1", "uniform")
THESIS = (
    "four_term",
    "group",
    "lightweight",
    "uniform",
    "residual",
    "voronoi",
    "birch",
    "tree",
    "tree_means",
    "sampled_means",
)
THESIS_ROWS = 10_000
PEERS = ("coresets", "bico")
# Parts that read the data, and those that bring their own.
ON_DATA = ("real", "audit", "stream", "thesis", "solvers", "peers")
PATIENCE_SECONDS = 600


def check_study(config: ApproxCoresetsStudy) -> None:
    """Refuse data that is not there and peers without their Python.

    Raises:
        ConfigError, DataError: one line that names the field and the remedy.
    """
    source = Path(config.data).expanduser()
    if any(part in ON_DATA for part in parts_of(config)) and not source.exists():
        remedy = (
            "`dvc repro data@mnist60k` makes it, or name rows" if config.data == DEFAULT_DATA else "name rows"
        )
        raise ConfigError(f"data={config.data}: is not there; {remedy} of your own")
    if "peers" in parts_of(config):
        if not config.peers_python:
            raise ConfigError(
                "peers_python is empty: name the Python of an environment with coresets and bico"
            )
        if not Path(config.peers_python).expanduser().is_file():
            raise ConfigError(f"peers_python={config.peers_python}: there is no such file")


def parts_of(config: ApproxCoresetsStudy) -> tuple[str, ...]:
    """The parts to do; the full profile does all, the peers when their Python is given."""
    if config.profile == "default":
        return config.parts
    rest = ("peers",) if config.peers_python else ()
    return ("line", "skewed", "hard", "metric", "real", "audit", "stream", "thesis", "solvers", *rest)


def seeds_of(config: ApproxCoresetsStudy) -> tuple[int, ...]:
    if config.profile == "default":
        return config.seeds
    return (*config.seeds, *(max(config.seeds) + 1 + seed for seed in range(len(config.seeds))))


def load_rows(source: Path) -> np.ndarray:
    """The rows that the study summarises, `(n, d)` in double precision; digits as 50 principal components.

    Raises:
        DataError: an unreadable file, or one without a table of finite numbers.
    """
    if source.is_dir():
        source = source / "digits.npz"
    try:
        if source.suffix == ".npz":
            from sklearn.decomposition import PCA

            with np.load(source, allow_pickle=False) as arrays:
                pixels = arrays["images"].reshape(len(arrays["images"]), -1) / 255.0
            return np.asarray(PCA(COMPONENTS, svd_solver="covariance_eigh").fit_transform(pixels))
        if source.suffix == ".npy":
            found = np.load(source, allow_pickle=False)
        else:
            import pandas as pd

            read = pd.read_parquet if source.suffix == ".parquet" else pd.read_csv
            found = read(source).select_dtypes("number").to_numpy()
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"data={source}: cannot be read ({error}); give a .npy, .csv or .parquet of numbers"
        ) from error
    found = np.asarray(found, dtype=np.float64)
    if found.ndim != 2 or not found.size or not np.isfinite(found).all():
        raise DataError(f"data={source}: shape {found.shape}; give a table of finite numbers, a row a point")
    return found


def colours() -> np.ndarray:
    """Every pixel of scikit-learn's photograph of a flower as red, green, blue in 0..1."""
    from sklearn.datasets import load_sample_image

    return np.asarray(load_sample_image("flower.jpg").reshape(-1, 3) / 255.0)


def write_points(out: Path, source: Path) -> dict[str, Any]:
    """`points.npy`: the rows of the data as a matrix."""
    with threadpool_limits(1):
        X = load_rows(source)
    np.save(out / "points.npy", X)
    return {"rows": int(X.shape[0]), "columns": int(X.shape[1])}


@step("study-approx-coresets-points", kind="data", version=VERSION, timeout_seconds=3600)
def study_points(out: Path, *, source: Reference) -> dict[str, Any]:
    """The rows of the data as a matrix."""
    return write_points(out, source.expect("data"))


def write_reference(out: Path, points: Reference | None, name: str, k: int, runs: int) -> dict[str, Any]:
    """`bank.npz` and `costs.json`: solutions of a data set and their costs on all rows."""
    X = points_of(points, name)
    start = time.perf_counter()
    with threadpool_limits(1):
        bank, costs = study.reference(X, k, runs, EACH)
    np.savez(out / "bank.npz", **{key.replace("/", "|"): centres for key, centres in bank.items()})
    (out / "costs.json").write_text(json.dumps(costs, sort_keys=True))
    return {"best": min(costs.values()), "timings": {"solving": time.perf_counter() - start}}


@step("study-approx-coresets-reference", kind="data", version=VERSION, timeout_seconds=24 * 3600)
def study_reference(out: Path, *, points: Reference | None, name: str, k: int, runs: int) -> dict[str, Any]:
    """Full-data solutions and the bank of solutions of a data set, with their costs on all rows."""
    return write_reference(out, points, name, k, runs)


def points_of(points: Reference | None, name: str) -> np.ndarray:
    """The rows of a data set of the study by name."""
    if name == "colours":
        return colours()
    if name == "digits8":
        from sklearn.datasets import load_digits

        return np.asarray(load_digits().data, dtype=np.float64)
    assert points is not None
    X: np.ndarray = np.load(points.expect("data") / "points.npy")
    if name == "thesis":
        rows = np.random.default_rng(0).choice(len(X), min(len(X), THESIS_ROWS), replace=False)
        return np.asarray(X[np.sort(rows)])
    return X


def load_reference(reference: Reference) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    path = reference.expect("data")
    with np.load(path / "bank.npz", allow_pickle=False) as arrays:
        bank = {key.replace("|", "/"): arrays[key] for key in arrays.files}
    costs: dict[str, float] = json.loads((path / "costs.json").read_text())
    return {name: bank[name] for name in costs}, costs


# Clusters of the data sets that the study brings along.
OWN_SETS = {"colours": 16, "digits8": 10}


def sets_of(part: str) -> tuple[str, ...]:
    """The data sets that a part reads."""
    if part not in ON_DATA:
        return ()
    return ("data", *OWN_SETS) if part == "real" else ("thesis",) if part == "thesis" else ("data",)


@step("study-approx-coresets-part", kind="report", version=VERSION, timeout_seconds=7 * 24 * 3600)
def study_part(
    out: Path,
    *,
    part: str,
    settings: ApproxCoresetsStudy,
    points: Reference | None,
    banks: dict[str, Reference],
) -> dict[str, Any]:
    """One part's rows."""
    with threadpool_limits(1):
        rows, seconds = kept_rows(out, units_of(part, settings, points, banks))
    return {"rows": len(rows), "timings": {"measuring": seconds}}


def kept_rows(out: Path, units: Iterator[study.Unit]) -> tuple[list[Row], float]:
    """The rows of all units, from the file of an earlier attempt or measured now; and the seconds of all attempts."""
    file = out / "units.jsonl"
    done: dict[str, dict[str, Any]] = {}
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the line at which the attempt was killed
            done[record["unit"]] = record
    found: list[Row] = []
    seconds = 0.0
    for unit, measure in units:
        record = done.get(unit)
        if record is None:
            start = time.perf_counter()
            record = {"unit": unit, "rows": measure(), "seconds": time.perf_counter() - start}
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
            logger.info("%s: %.1f s", unit, record["seconds"])
        found += record["rows"]
        seconds += record["seconds"]
    (out / "rows.jsonl").write_text(
        "".join(json.dumps(r, sort_keys=True) + "\n" for r in found), encoding="utf-8"
    )
    file.unlink(missing_ok=True)  # it holds times: the output is the same for the same inputs
    return found, seconds


def units_of(
    part: str, config: ApproxCoresetsStudy, points: Reference | None, banks: Mapping[str, Reference]
) -> Iterator[study.Unit]:
    """What a part measures, each under a name of its own."""
    seeds, k = seeds_of(config), config.n_clusters
    more = range(4 * len(seeds))  # cheap parts take more seeds
    plain: dict[str, Callable[[], Iterator[study.Unit]]] = {
        "line": lambda: (
            (
                f"line {kind} z={z} seed={s}",
                lambda kind=kind, z=z, s=s, n=n: study.line_rows(
                    kind, z, s, LINE_METHODS, (50, 100, 200, 400), n
                ),
            )
            for kind in study.LINES
            for z, n in ((2, 2000), (1, 1000))
            for s in more
        ),
        "skewed": lambda: (
            (
                f"skewed seed={s}",
                lambda s=s: study.skewed_rows(
                    s, ("four_term", "two", "lightweight", "uniform", "group"), (210, 420, 1050, 2100)
                ),
            )
            for s in range(2 * len(seeds))
        ),
        "hard": lambda: (
            (
                f"hard alpha={alpha} seed={s}",
                lambda a=alpha, s=s: study.hard_rows(
                    10, a, s, ("four_term", "lightweight", "uniform", "group"), (100, 200, 500)
                ),
            )
            for alpha in (3, 4)
            for s in range(2 * len(seeds))
        ),
        "metric": lambda: ((f"metric seed={s}", lambda s=s: [_metric(s)]) for s in seeds),
    }
    if part in plain:
        yield from plain[part]()
        return
    if part == "solvers":
        X = points_of(points, "data")
        for s in seeds[:3]:
            yield f"solvers data seed={s}", lambda s=s: [study.solver_row(X, k, s, "data")]
        for s in range(2 * len(seeds)):
            yield f"solvers skewed seed={s}", lambda s=s: [_solvers_on_skewed(s)]
        return
    for name in sets_of(part):
        X, count = points_of(points, name), OWN_SETS.get(name, k)
        bank, costs = load_reference(banks[name])
        for method, sizes, chosen in _plan(part, name, config, count, len(X)):
            for size in sizes:
                for s in chosen:
                    yield (
                        f"{part} {name} {method} size={size} seed={s}",
                        lambda X=X, c=count, m=method, n=size, s=s, b=bank, t=costs, name=name: [
                            {**row, "data": name} for row in _measure(part, X, c, m, n, s, b, t, config)
                        ],
                    )


def _plan(
    part: str, name: str, config: ApproxCoresetsStudy, k: int, n: int
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Methods with their sizes and seeds."""
    seeds = seeds_of(config)
    sizes = tuple(m * k for m in config.multiples if m * k < n)
    middle = tuple(m * k for m in config.multiples if 20 <= m <= 100 and m * k < n) or sizes[:1]
    if part == "real":
        yield "four_term", sizes, seeds
        for method in OTHERS if name == "data" else ("lightweight", "uniform"):
            yield method, middle, seeds[:3]
        if name != "data":
            return
        # The peers' bar is over five seeds at the middle sizes.
        yield "voronoi", middle, seeds[3:]
    elif part == "audit":
        yield "four_term", middle, seeds[:3]
    elif part == "stream":
        yield "stream", (50 * k,) if 50 * k < n else sizes[-1:], seeds
    elif part == "thesis":
        for method in THESIS:
            yield method, (25 * k,) if 25 * k < n else sizes[-1:], seeds[:3]
        if config.peers_python:
            yield "bico", (25 * k,), seeds[:3]
    elif part == "peers":
        for peer in PEERS:
            yield peer, middle, seeds


def _measure(
    part: str,
    X: np.ndarray,
    k: int,
    method: str,
    size: int,
    state: int,
    bank: Mapping[str, np.ndarray],
    costs: Mapping[str, float],
    config: ApproxCoresetsStudy,
) -> list[Row]:
    if part == "audit":
        return [study.audit_row(X, k, size, state, bank, min(costs.values()))]
    if part == "stream":
        return [study.stream_row(X, k, size, 8, state, order) for order in (0, 1)]
    given = peer_summary(config.peers_python, method, X, k, size, state) if method in PEERS else None
    return [{**study.real_row(X, k, method, size, state, bank, costs, given), "part": part}]


def peer_summary(
    python: str, peer: str, X: np.ndarray, k: int, size: int, state: int
) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights by another package, in its own environment.

    Raises:
        DataError: it failed, with its last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        np.save(place / "X.npy", X)
        np.savez(place / "in.npz", points=str(place / "X.npy"), k=k, size=size, seed=state, peer=peer)
        command = [
            str(Path(python).expanduser()),
            peers_script.__file__,
            str(place / "in.npz"),
            str(place / "out.npz"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise DataError(f"peers_python={python}: {peer} failed ({said})")
        with np.load(place / "out.npz", allow_pickle=False) as arrays:
            return arrays["points"], arrays["weights"]


def _solvers_on_skewed(state: int) -> Row:
    X, labels = study.skewed_mixture(state)
    return study.solver_row(X, 21, state, "skewed", study.planted_cost(X, labels))


def _metric(state: int) -> Row:
    from scipy.spatial.distance import pdist, squareform

    digits = points_of(None, "digits8")[:1000]
    return study.metric_row(squareform(pdist(digits)), 10, (100, 200, 300), state)
