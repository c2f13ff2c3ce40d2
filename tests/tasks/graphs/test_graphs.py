"""A person's graphs: CSV, NetworkX and torch-geometric files become the same graphs; mistakes are one line."""

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from methods.common.errors import DataError
from methods.s3gnn import S3GNNClassifier, S3GNNRegressor
from tasks.graphs.build import build_graphs, load_graphs
from tasks.graphs.config import GraphSettings, TrainGraphSettings
from tasks.graphs.read import check_source
from tasks.graphs.train import test_masks as masks_of
from tasks.graphs.train import train_model
from tasks.reference import reference_to
from tasks.report.graphs import figures, graph_table, tables

SHORT = TrainGraphSettings(
    epochs=3, hidden=8, layers=2, seeds=(0, 1), learning_rates=(0.01,), models=("s3gnn",)
)


def example() -> nx.Graph:
    graph = nx.grid_2d_graph(6, 5)
    graph = nx.convert_node_labels_to_integers(graph)
    rng = np.random.default_rng(0)
    for node in graph:
        graph.nodes[node].update(size=float(rng.normal()), height=float(rng.normal()), kind="ab"[node % 2])
    for first, second in graph.edges:
        graph.edges[first, second].update(width=float(rng.uniform(0.5, 2)), flow=float(rng.normal()))
    return graph


def as_csv(graph: nx.Graph, folder: Path, name: str = "one") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    nodes = pd.DataFrame([{"graph": name, "node": n, **d} for n, d in graph.nodes(data=True)])
    edges = pd.DataFrame(
        [{"graph": name, "source": a, "target": b, **d} for a, b, d in graph.edges(data=True)]
    )
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)
    return folder


def built(tmp_path: Path, **settings):
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    build_graphs(GraphSettings(**settings), out)
    return load_graphs(out)


def test_the_same_graph_from_every_kind_of_file(tmp_path: Path) -> None:
    graph = example()
    as_csv(graph, tmp_path / "csv")
    nx.write_graphml(graph, tmp_path / "one.graphml")
    nx.write_gml(graph, tmp_path / "one.gml")
    (tmp_path / "one.json").write_text(json.dumps(nx.node_link_data(graph)))
    common = {"target": "kind", "features": ("size", "height"), "weight": "width"}
    found = [
        built(tmp_path, source=str(tmp_path / name), **common)
        for name in ("csv", "one.graphml", "one.gml", "one.json")
    ]
    (first,), record, names = found[0]
    assert record["classes"] == ["a", "b"]
    assert names.node.tolist() == [str(n) for n in graph]
    assert first.x.tolist() == pytest.approx(
        np.array([[d["size"], d["height"]] for _, d in graph.nodes(data=True)], dtype=np.float32)
    )
    dense = np.zeros((30, 30))
    dense[first.edge_index[0], first.edge_index[1]] = first.edge_weight
    assert np.allclose(dense, nx.to_numpy_array(graph, weight="width"), atol=1e-6)
    for (other,), again, _ in found[1:]:
        assert again["classes"] == record["classes"]
        assert torch.allclose(other.x, first.x)
        assert torch.equal(other.edge_index, first.edge_index)
        assert torch.equal(other.y, first.y)


def test_edge_targets_and_rows_without_one(tmp_path: Path) -> None:
    graph = example()
    folder = as_csv(graph, tmp_path / "csv")
    edges = pd.read_csv(folder / "edges.csv")
    edges.loc[::4, "flow"] = np.nan
    edges.to_csv(folder / "edges.csv", index=False)
    (data,), record, names = built(tmp_path, source=str(folder), level="edge", target="flow")
    assert record["classes"] == []
    assert record["known"] == edges.flow.notna().sum()
    assert data.edge_label_index.shape == (2, len(edges))
    assert names.columns.tolist() == ["graph", "source", "target"]
    assert np.allclose(data.y, edges.flow, equal_nan=True)


def test_several_graphs_with_targets_of_their_own(tmp_path: Path) -> None:
    for i in range(12):
        graph = nx.cycle_graph(5 + i)
        graph.graph["y"] = float(i) + 0.5
        nx.write_gml(graph, tmp_path / f"g{i:02}.gml")
    graphs, record, names = built(tmp_path, source=str(tmp_path / "*.gml"), level="graph")
    assert [one.y.tolist() for one in graphs] == [[i + 0.5] for i in range(12)]
    assert record["features"] == ["one", "log degree"]
    assert names.graph.tolist() == [f"g{i:02}" for i in range(12)]


def test_an_edge_list_alone_and_both_directions(tmp_path: Path) -> None:
    pairs = pd.DataFrame(
        [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")], columns=["source", "target"]
    )
    pairs["y"] = np.arange(6) / 7
    pairs.to_csv(tmp_path / "list.csv", index=False)
    (data,), _, _ = built(tmp_path, source=str(tmp_path / "list.csv"), level="edge")
    assert data.num_nodes == 5
    assert data.num_edges == 10


def test_torch_geometric_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    listed = [
        Data(x=torch.as_tensor(rng.normal(size=(3, 2))), edge_index=index, y=torch.tensor([i % 3]))
        for i in range(12)
    ]
    torch.save(listed, tmp_path / "set.pt")
    graphs, record, _ = built(tmp_path, source=str(tmp_path / "set.pt"), level="graph")
    assert record["classes"] == ["0", "1", "2"]
    assert len(graphs) == 12
    with pytest.raises(DataError, match=r"the targets y of set\.pt are of graphs"):
        built(tmp_path, source=str(tmp_path / "set.pt"), level="node")
    torch.save({"x": 1}, tmp_path / "dict.pt")
    with pytest.raises(DataError, match="give a torch-geometric Data object"):
        built(tmp_path, source=str(tmp_path / "dict.pt"))
    torch.save(Path, tmp_path / "code.pt")
    with pytest.raises(DataError, match="not a file of torch-geometric Data alone"):
        built(tmp_path, source=str(tmp_path / "code.pt"))


@pytest.mark.parametrize(("level", "target"), [("node", "kind"), ("node", "size"), ("edge", "flow")])
def test_training_writes_a_model_and_predictions(tmp_path: Path, level: str, target: str) -> None:
    folder = as_csv(example(), tmp_path / "csv")
    data = tmp_path / "data"
    data.mkdir()
    build_graphs(GraphSettings(source=str(folder), level=level, target=target), data)
    out = tmp_path / "trained"
    out.mkdir()
    facts = train_model(out, kind="s3gnn", settings=SHORT, graphs=reference_to(data, "data"))
    table = pd.read_csv(out / "predictions.csv")
    rows = 30 if level == "node" else nx.grid_2d_graph(6, 5).number_of_edges()
    assert len(table) == rows
    assert (table.part == "test").sum() == facts["test"] == round(0.2 * rows)
    assert len(facts["scores"]) == 2
    (graph,), _, _ = load_graphs(data)
    loaded = (S3GNNClassifier if target == "kind" else S3GNNRegressor).load(out / "model")
    predicted = loaded.predict(graph)
    shown = [["a", "b"][i] for i in predicted] if target == "kind" else predicted
    assert table.prediction.tolist() == (shown if target == "kind" else pytest.approx(shown, abs=1e-4))
    assert set(tables([facts])) == {"scores", "sensitivity"}
    assert set(figures([facts])) == {"scores", "sensitivity"}
    assert graph_table([facts])[1]["models"]["s3gnn"]["seeds"] == 2


def test_test_targets_do_not_reach_the_training(tmp_path: Path) -> None:
    folder = as_csv(example(), tmp_path / "csv")
    results = []
    for name in ("kept", "spoilt"):
        data = tmp_path / name
        data.mkdir()
        build_graphs(GraphSettings(source=str(folder), target="size"), data)
        if name == "spoilt":
            held = dict(np.load(data / "graphs.npz"))
            (graph,), _, _ = load_graphs(data)
            held["y"][masks_of([graph], SHORT.test)[0].numpy()] = 99.0
            np.savez_compressed(data / "graphs.npz", **held)
        out = tmp_path / f"{name}-out"
        out.mkdir()
        train_model(out, kind="s3gnn", settings=SHORT, graphs=reference_to(data, "data"))
        results.append(pd.read_csv(out / "predictions.csv").prediction.tolist())
    assert results[0] == results[1]


def edit(folder: Path, file: str, change) -> None:
    table = pd.read_csv(folder / file)
    change(table).to_csv(folder / file, index=False)


BAD = {
    "no target": ({"target": "colour"}, None, "no such column or attribute of nodes"),
    "target as feature": ({"target": "size", "features": ("size",)}, None, "would read the answer"),
    "feature": (
        {"target": "kind", "features": ("mass",)},
        None,
        "nodes have no 'mass'; they have size, height",
    ),
    "text feature": ({"target": "size", "features": ("kind",)}, None, "'kind' holds no number in row 1"),
    "weight": ({"target": "kind", "weight": "mass"}, None, "have no 'mass'"),
    "numbers": ({"target": "kind", "kind": "numbers"}, None, "'a' is no number; set kind classes"),
    "column": (
        {"target": "kind"},
        ("edges.csv", lambda t: t.rename(columns={"source": "from"})),
        "no column 'source'",
    ),
    "strange node": (
        {"target": "kind"},
        ("nodes.csv", lambda t: t[t.node != 3]),
        "'3' of graph 'one' is no node",
    ),
    "twice": ({"target": "kind"}, ("nodes.csv", lambda t: pd.concat([t, t[:1]])), "stands there twice"),
    "few": (
        {"target": "kind"},
        ("nodes.csv", lambda t: t.assign(kind=[*"abab", *[None] * 26])),
        "only 4 nodes have one",
    ),
    "gap": (
        {"target": "kind"},
        ("nodes.csv", lambda t: t.assign(size=[None, *t["size"][1:]])),
        "no number in row 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_one_line(tmp_path: Path, name: str) -> None:
    settings, change, message = BAD[name]
    folder = as_csv(example(), tmp_path / "csv")
    if change:
        edit(folder, *change)
    with pytest.raises(DataError, match=message) as caught:
        built(tmp_path, source=str(folder), **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [("nothing", "no such file"), ("none.pt", "no such file"), ("x.gml", "no such file")],
)
def test_sources_that_are_not_there(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_source(GraphSettings(source=str(tmp_path / source)))


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "bad.gml").write_text("graph [ node [")
    with pytest.raises(DataError, match=r"bad.gml: NetworkX cannot read it"):
        built(tmp_path, source=str(tmp_path / "bad.gml"))


def test_validation_is_drawn_from_what_is_known() -> None:
    # Ten graphs of which the split for testing hides some: none of those may be the whole validation part.
    graphs = [
        Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.rand(1))
        for _ in range(20)
    ]
    masks = masks_of(graphs, 0.9)
    shown = [
        Data(x=g.x, edge_index=g.edge_index, y=torch.where(m, torch.nan, g.y))
        for g, m in zip(graphs, masks, strict=True)
    ]
    with pytest.raises(DataError, match="too few known targets"):
        S3GNNRegressor(epochs=1, task="graph").fit(shown[:2])
    S3GNNRegressor(epochs=1, hidden=4, num_layers=1, task="graph").fit([*shown, *graphs[:6]])
