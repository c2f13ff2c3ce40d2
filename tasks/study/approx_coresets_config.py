"""Settings of the study of `approx_coresets`. Imports nothing heavy."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, Distinct, Seeds

Part = Literal["line", "skewed", "hard", "metric", "real", "audit", "stream", "thesis", "solvers", "peers"]


class ApproxCoresetsStudy(Config):
    """The paper's claims: exact optima, instances that tell methods apart, and curves over sizes on real data."""

    data: str = Field(
        "data/mnist60k",
        min_length=1,
        description="Rows to summarise: the fetched digits, or a .npy, .csv or .parquet file of your own numbers",
    )
    profile: Literal["default", "full"] = Field(
        "default", description="default: the parts below within minutes; full: every part, twice the seeds"
    )
    parts: Annotated[tuple[Part, ...], Distinct] = Field(
        ("line", "skewed", "hard", "metric", "real", "audit", "stream", "thesis", "solvers"),
        min_length=1,
        description="line: exact optima in one dimension; skewed: tiny clusters and a far one; hard: the authors' "
        "instance; metric: distances only; real: curves on real data; audit: good and bad solutions; stream: merge "
        "and reduce; thesis: distortion against rho; solvers: k-means and its mini-batch form on all rows; peers: "
        "other packages, needs `peers_python`",
    )
    n_clusters: int = Field(20, ge=2, le=10_000, description="Clusters k of the data above")
    multiples: Annotated[tuple[int, ...], Distinct] = Field(
        (5, 10, 20, 50, 100, 200), min_length=3, description="Sizes of the curves, in points per cluster"
    )
    seeds: Seeds = Field((0, 1, 2, 3, 4), min_length=3, description="Seeds of coreset and solver")
    peers_python: str = Field(
        "",
        description="Python of an environment with numpy<2, coresets 0.2 and bico 0.1.5 for the part `peers`; empty: "
        "without them",
    )
