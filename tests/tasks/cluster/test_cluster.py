"""The cluster step: labels with their sizes, the same each time, after a kill too; rows and shards."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from sklearn.datasets import make_blobs

from methods.common.errors import ConfigError, DataError
from tasks.cluster.assign import assign_rows
from tasks.cluster.cluster import cluster_features
from tasks.cluster.config import ClusterSettings, FeatureSettings
from tasks.cluster.features import build_features
from tasks.cluster.methods import BUILT_IN, KMeansConstrainedPeer, KMeansPeer, ScFagc, clusterer_of
from tasks.reference import Reference, reference_to
from tasks.report.cluster import SCORES, Clustering, cluster_table, figures, score_table, tables


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, y = make_blobs([140, 60, 40], centers=[[0, 0], [8, 0], [0, 8]], random_state=0)
    file = tmp_path_factory.mktemp("source") / "rows.csv"
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": y, "text": [f"t{i}" for i in range(240)]}).to_csv(
        file, index=False
    )
    return file


@pytest.fixture(scope="module")
def features(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    out = tmp_path_factory.mktemp("features") / "out"
    out.mkdir()
    build_features(FeatureSettings(source=str(source), label_column="kind"), out)
    return reference_to(out, "data")


METHODS: list[Any] = [
    ScFagc(n_clusters=4, n_init=2),
    ScFagc(n_clusters=4, n_init=2, hold="anchors", size_max=1.5),
    ScFagc(n_clusters=4, n_init=2, anchors="kmeans", n_anchors=48),
    ScFagc(n_clusters=1),
    KMeansPeer(n_clusters=4),
    KMeansPeer(n_clusters=4, batch_size=64),
    KMeansConstrainedPeer(n_clusters=4, restarts=1),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.kind}-{m.n_clusters}")
def test_labels_sizes_and_bytes(method: Any, features: Reference, tmp_path: Path) -> None:
    # What a killed attempt left does not reach the result.
    (tmp_path / "two/anchors.npy").parent.mkdir()
    (tmp_path / "two/anchors.npy").write_bytes(b"half")
    (tmp_path / "two/labels.npy").write_bytes(b"half")
    summaries = [
        cluster_features(tmp_path / name, method=method, features=features, seed=0) for name in ("one", "two")
    ]
    labels = np.load(tmp_path / "one/labels.npy")
    sizes = np.bincount(labels, minlength=method.n_clusters)
    assert len(labels) == 240
    least, most = method.bounds(240)
    if method.kind == "k_means_constrained" or getattr(method, "hold", "") == "samples":
        assert sizes.min() >= least
        assert sizes.max() <= most
    record = json.loads((tmp_path / "one/clusters.json").read_text())
    assert record["sizes"] == sizes.tolist()
    assert record["size/smallest"] == sizes.min()
    assert (record["silhouette"] is None) == (method.n_clusters == 1)
    assert record["truth/purity"] > (0.9 if method.n_clusters == 4 else 0.5)
    assert pd.read_csv(tmp_path / "one/clusters.csv").samples.tolist() == sizes.tolist()
    assert all("seconds" not in key for key in record)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    assert {k: v for k, v in summaries[0].items() if k != "timings"} == record


@pytest.mark.parametrize("shards", [False, True])
def test_rows_get_their_cluster(source: Path, features: Reference, tmp_path: Path, shards: bool) -> None:
    cluster_features(tmp_path / "labels", method=ScFagc(n_clusters=4, n_init=1), features=features, seed=0)
    labels = reference_to(tmp_path / "labels", "data")
    out = tmp_path / "out"
    out.mkdir()
    settings = FeatureSettings(source=str(source))
    summary = assign_rows(out, settings=settings, labels=labels, column="part", shards=shards)
    rows = pd.read_parquet(out / "assigned.parquet")
    assert rows.text.tolist() == [f"t{i}" for i in range(240)]
    assert rows.part.tolist() == np.load(tmp_path / "labels/labels.npy").tolist()
    assert (out / "shards").is_dir() == shards
    if shards:
        parts = [pd.read_parquet(file) for file in sorted((out / "shards").iterdir())]
        assert [len(part) for part in parts] == list(summary["shards"].values())
        assert [set(part.part) for part in parts] == [{0}, {1}, {2}, {3}]
        assert sum(map(len, parts)) == 240
    with pytest.raises(DataError, match="column 'text' is in the data already"):
        assign_rows(out, settings=settings, labels=labels, column="text", shards=False)


def test_a_source_that_changed_is_told(features: Reference, tmp_path: Path) -> None:
    cluster_features(tmp_path / "labels", method=KMeansPeer(n_clusters=2), features=features, seed=0)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="has 1 rows, 240 were clustered; run it again"):
        assign_rows(
            tmp_path,
            settings=FeatureSettings(source=str(tmp_path / "other.csv")),
            labels=reference_to(tmp_path / "labels", "data"),
            column="cluster",
            shards=False,
        )


def test_the_report_puts_methods_side_by_side(features: Reference, tmp_path: Path) -> None:
    found = []
    for i, method in enumerate((METHODS[0], KMeansPeer(n_clusters=3))):
        folder = tmp_path / str(i)
        facts = cluster_features(folder, method=method, features=features, seed=0)
        seconds = facts.pop("timings")["fit_seconds"]
        found.append(Clustering(name=facts["label"], folder=folder, facts=facts, seconds=seconds))
    shown, metrics = cluster_table(found)
    assert shown.method.tolist() == ["sc_fagc-4-n_init_2", "k_means-3"]
    assert shown.bounds.tolist() == ["48 to 72", "none"]
    assert len(shown.columns) <= 10  # a report's page holds no more
    scores = score_table(found)
    assert scores.columns.tolist() == ["method", *SCORES.values()]
    assert scores.accuracy[0] == f"{found[0].facts['truth/acc']:.3f}" == shown.accuracy[0]
    bare = [one.model_copy(update={"facts": {"bounds": [0, None]}}) for one in found]
    assert score_table(bare).empty
    assert metrics["candidates"]["k_means-3"]["size/largest"] > 100
    json.dumps(metrics, allow_nan=False)
    data = tables(found, features.path)
    assert data["sizes"].groupby("method").samples.sum().tolist() == [240, 240]
    assert len(data["map"]) == 240
    assert set(figures(found, features.path)) == {"sizes", "map"}


def test_mistakes_in_settings() -> None:
    with pytest.raises(ValidationError, match="methods must differ: k_means-10 is given twice"):
        ClusterSettings(methods=(KMeansPeer(), KMeansPeer()))
    more = ScFagc(hold="anchors", size_max=1.5, n_init=3)
    assert more.label == "sc_fagc-10-size_max_1.5-hold_anchors-n_init_3"
    assert ScFagc(n_anchors=300, anchors="kmeans").label == "sc_fagc-10-n_anchors_300-anchors_kmeans"
    with pytest.raises(ValidationError, match="n_anchors 300 is no power of two; give 512 or 0"):
        ScFagc(n_anchors=300)
    with pytest.raises(ValidationError, match="size_min"):
        ScFagc(size_min=1.1)


def test_mistakes_that_only_the_samples_show(
    features: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method, says in (
        (KMeansPeer(n_clusters=241), "n_clusters=241 is above the 240 samples"),
        (ScFagc(n_clusters=241), "fewer than n_clusters=241"),
        (ScFagc(n_clusters=4, n_anchors=512), "fewer than n_anchors=512"),
        (KMeansConstrainedPeer(n_clusters=7, size_min=1, size_max=1), "no whole sizes of 240 samples"),
    ):
        with pytest.raises((ConfigError, DataError), match=says):
            cluster_features(tmp_path / "out", method=method, features=features, seed=0)
    monkeypatch.setitem(sys.modules, "k_means_constrained", None)
    with pytest.raises(ConfigError, match="k-means-constrained is not installed; pip install"):
        cluster_features(tmp_path / "out", method=METHODS[-1], features=features, seed=0)


def test_every_method_has_its_work_and_a_form_can_tell_them_apart() -> None:
    shapes = [frozenset(method.model_fields) for method in BUILT_IN]
    assert len(set(shapes)) == len(shapes)
    assert all(callable(clusterer_of(method())) for method in BUILT_IN)
