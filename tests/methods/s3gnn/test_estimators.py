"""The estimators: what they learn, what they refuse, what a saved one still says; every baseline trains."""

import json

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch_geometric.data import Batch, Data

from methods.s3gnn import S3GNNClassifier, S3GNNRegressor
from methods.s3gnn.baselines import KINDS, build_model
from methods.s3gnn.estimators import _optimiser
from methods.s3gnn.model import S3GNN
from tests.methods.s3gnn.oracle import GRAPHS, graph_data, permuted

QUICK = {"hidden": 8, "num_layers": 2, "epochs": 3}


def rings(count=24, size=10, task="graph"):
    """Rings of random numbers; the target is their mean, of the graph or at every node."""
    found = []
    for i in range(count):
        data = graph_data(nx.cycle_graph(size), 2, seed=i)
        data.x = data.x.float()
        mean = data.x[:, 0].mean()
        data.y = {
            "graph": mean.reshape(1),
            "node": mean.expand(size).clone(),
            "edge": data.x[[0, 1], 0] * data.x[[5, 6], 0],
        }[task]
        if task == "edge":
            data.edge_label_index = torch.tensor([[0, 1], [5, 6]])
        found.append(data)
    return found


@pytest.mark.parametrize("task", ["graph", "node"])
def test_it_learns_what_lies_far_away(task):
    data = rings(60, task=task)
    model = S3GNNRegressor(hidden=16, num_layers=2, epochs=150, learning_rate=1e-2, act="tanh", patience=150)
    model.fit(data[:45])
    assert model.task_ == task
    assert model.score(data[45:]) > 0.9


def test_edge_targets():
    data = rings(30, task="edge")
    model = S3GNNRegressor(**QUICK).fit(data)
    assert model.task_ == "edge"
    assert model.predict(data).shape == (60,)


def test_one_graph_with_unknown_targets():
    data = graph_data(nx.grid_2d_graph(8, 8), 3)
    labels = (torch.arange(64) % 8 < 4).long()
    data.x[:, 0] = labels.double()
    data.y = labels.clone()
    data.y[::3] = -1
    model = S3GNNClassifier(hidden=16, num_layers=2, epochs=60, learning_rate=1e-2).fit(data)
    assert model.predict(data).shape == (64,)
    data.y = labels
    assert model.score(data) > 0.9
    assert np.allclose(model.predict_proba(data).sum(1), 1, atol=1e-5)


def test_classes_keep_their_names_and_labels_their_columns():
    data = rings(20)
    for place, one in enumerate(data):
        one.y = torch.tensor([3 if place % 2 else 7])
        one.x[:, 1] = place % 2
    model = S3GNNClassifier(hidden=8, num_layers=1, epochs=80, learning_rate=2e-2).fit(data)
    assert set(model.predict(data)) == {3, 7}
    assert model.score(data) == 1
    for place, one in enumerate(data):
        one.y = torch.tensor([[place % 2, 1 - place % 2, 1 if place % 4 else 0]])
    many = S3GNNClassifier(**QUICK).fit(data)
    assert many.predict(data).shape == (20, 3)
    assert 0 < many.score(data) <= 1


def test_missing_numbers_are_left_out():
    data = rings(task="node")
    for one in data:
        one.y[::2] = float("nan")
    model = S3GNNRegressor(**QUICK).fit(data)
    assert np.isfinite(model.predict(data)).all()
    assert np.isfinite(model.score(data))


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_trains_saves_and_batches(kind, tmp_path):
    data = [*rings(12), *rings(3, size=7)]
    model = S3GNNRegressor(kind=kind, **QUICK).fit(data)
    found = model.predict(data)
    one_by_one = np.concatenate([model.predict([one]) for one in data])
    assert np.allclose(found, one_by_one, atol=1e-4)
    model.save(tmp_path / "kept")
    again = S3GNNRegressor.load(tmp_path / "kept")
    assert np.array_equal(again.predict(data), found)
    assert again.get_params() == model.get_params()


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_is_permutation_equivariant(kind):
    torch.manual_seed(0)
    model = build_model(kind, 4, 8, 3, 2).double().eval()
    data = graph_data(GRAPHS["lonely"]())
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(model.on(data), model.on(permuted(data, order))[order], atol=1e-10)


def test_only_global_models_see_another_component():
    data = graph_data(GRAPHS["parts"]())
    changed = data.clone()
    changed.x[7] += 1
    for kind in KINDS:
        torch.manual_seed(0)
        model = build_model(kind, 4, 8, 3, 2).double().eval()
        sees = not torch.equal(model.on(data)[0], model.on(changed)[0])
        assert sees == (kind in ("s3gnn", "gcn_vn", "gps")), kind


def test_spectral_branch_is_added_for_graphs_without_it():
    data = rings(12)
    model = S3GNNRegressor(use_p1=True, **QUICK).fit(data)
    assert model.model_.alphas()[:, 1].abs().min() > 0
    assert model.predict(data).shape == (12,)


def test_runs_repeat_and_clones_fit():
    data = rings()
    first = S3GNNRegressor(**QUICK).fit(data).predict(data)
    assert np.array_equal(clone(S3GNNRegressor(**QUICK)).fit(data).predict(data), first)
    assert not np.array_equal(S3GNNRegressor(**QUICK, random_state=1).fit(data).predict(data), first)


def test_given_validation_graphs_decide():
    data = rings()
    model = S3GNNRegressor(**QUICK).fit(data[:12], data[12:])
    targets = torch.tensor([float(one.y) for one in data[12:]])
    error = ((torch.as_tensor(model.predict(data[12:])) - targets) / model.scale_).square().mean()
    assert model.validation_loss_ == pytest.approx(float(error), rel=1e-4)


def test_scalars_are_spared_weight_decay():
    model = S3GNN(4, 8, 3, 2, use_p1=True)
    decayed, spared = _optimiser(model, 1e-3, 0.5).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.5, 0)
    assert sum(p.numel() == 1 and p.dim() == 0 for p in spared["params"]) == 4
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_model_api():
    model = S3GNN(4, 8, 3, 2, task="graph", use_p1=False)
    data = [graph_data(GRAPHS[name]()) for name in ("ring", "star")]
    model = model.double()
    out = model.on(Batch.from_data_list(data))
    assert out.shape == (2, 3)
    assert torch.allclose(model.fold().on(Batch.from_data_list(data)), out, atol=1e-12)
    assert model.alphas().tolist() == [[1.0, 0.0], [1.0, 0.0]]
    before = [p.clone() for p in model.parameters()]
    model.reset_parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_operator_is_made_once(monkeypatch):
    data = graph_data(GRAPHS["ring"]())
    model = S3GNN(4, 8, 3, 2).double()
    first = model.operator(data.x, data.edge_index)
    assert model.operator(data.x, data.edge_index) is first
    data.edge_index[0, 0] = 3  # changed in place: another graph
    with pytest.warns(UserWarning, match="directed"):
        assert model.operator(data.x, data.edge_index) is not first


BAD = {
    "empty": (lambda d: [], "empty list"),
    "no features": (
        lambda d: [*d, Data(edge_index=d[0].edge_index, y=d[0].y)],
        "graph 24 has no node features",
    ),
    "widths": (
        lambda d: [*d, Data(x=torch.ones(2, 5), edge_index=d[0].edge_index, y=d[0].y)],
        "has 5 features",
    ),
    "nan": (
        lambda d: [Data(x=d[0].x * float("nan"), edge_index=d[0].edge_index, y=d[0].y)],
        "graph 0: x holds",
    ),
    "no targets": (lambda d: [Data(x=d[0].x, edge_index=d[0].edge_index)], "graph 0 has no targets"),
    "count": (
        lambda d: [Data(x=d[0].x, edge_index=d[0].edge_index, y=torch.ones(4))],
        "4 rows in a graph of 10",
    ),
    "few": (lambda d: d[:1], "too few known targets"),
    "text": (lambda d: ["ring"], "give torch-geometric Data"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_graphs_are_refused(name):
    change, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        S3GNNRegressor(**QUICK).fit(change(rings()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "gcnn"}, "kind 'gcnn': choose one of s3gnn"),
        ({"task": "graphs"}, "task 'graphs'"),
        ({"epochs": 0}, "epochs 0"),
        ({"learning_rate": 0}, "learning_rate 0"),
        ({"validation": 1}, "validation 1"),
        ({"hidden": 0}, "hidden 0"),
        ({"step_size": -1}, "step_size -1"),
        ({"kind": "gcn", "step_size": -1}, "step_size -1"),
        ({"kind": "gcn", "use_p1": True}, "only s3gnn has a spectral branch"),
        ({"act": "gelu"}, "act 'gelu'"),
        ({"pool": "median"}, "pool 'median'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        S3GNNRegressor(**(QUICK | settings)).fit(rings())


def test_classes_that_are_none():
    data = rings()
    with pytest.raises(ValueError, match="whole numbers"):
        S3GNNClassifier(**QUICK).fit(data)
    for one in data:
        one.y = torch.tensor([1])
    with pytest.raises(ValueError, match="fewer than two classes"):
        S3GNNClassifier(**QUICK).fit(data)


def test_before_fit_and_damaged_folders(tmp_path):
    with pytest.raises(NotFittedError):
        S3GNNRegressor().predict(rings())
    with pytest.raises(ValueError, match="no saved S3GNNRegressor"):
        S3GNNRegressor.load(tmp_path)
    S3GNNRegressor(**QUICK).fit(rings()).save(tmp_path)
    with pytest.raises(ValueError, match="holds a S3GNNRegressor"):
        S3GNNClassifier.load(tmp_path)
    record = json.loads((tmp_path / "estimator.json").read_text())
    record["settings"]["hidden"] = 9
    (tmp_path / "estimator.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="no saved S3GNNRegressor"):
        S3GNNRegressor.load(tmp_path)


def test_other_widths_than_trained_on():
    model = S3GNNRegressor(**QUICK).fit(rings())
    with pytest.raises(ValueError, match="has 3 features a node, others 2"):
        model.predict(graph_data(GRAPHS["ring"](), 3))
