"""The study's tasks: targets against independent computations, nothing that gives answers away."""

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.utils import to_networkx

from methods.s3gnn import study_data, study_questions
from methods.s3gnn.study_data import (
    FAMILIES,
    LARGEST,
    SMALLEST,
    barbell,
    graph_property,
    random_graph,
    ring_payload,
    rollout_error,
)
from methods.s3gnn.study_questions import TEMPLATES, facts, paths, possible, question, questions
from tasks.prepare.mesh_flow import flow, solve, write_flows


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("size", "payloads"), [(32, 1), (16, 3)])
def test_payloads_stand_opposite_their_targets(size, payloads):
    data = ring_payload(size, payloads, rng())
    graph = to_networkx(data, to_undirected=True)
    sources, targets = data.x[:, 0].nonzero().flatten(), data.x[:, 1].nonzero().flatten()
    assert len(sources) == len(targets) == payloads == int((data.y >= 0).sum())
    for target in targets.tolist():
        away = nx.single_source_shortest_path_length(graph, target)
        (source,) = [s for s in sources.tolist() if away[s] == size // 2]
        assert int(data.x[source, 2:].argmax()) == int(data.y[target])
        assert data.x[target, 2:].sum() == 0


def test_the_barbell_asks_for_the_other_clique():
    data = barbell(6, rng())
    assert torch.allclose(data.y[:6], data.x[6:, 0].mean().expand(6), atol=1e-6)
    assert torch.allclose(data.y[6:], data.x[:6, 0].mean().expand(6), atol=1e-6)
    assert data.num_edges == 2 * (2 * 15 + 1)


@pytest.mark.parametrize("kind", FAMILIES)
def test_families_keep_their_size(kind):
    graph = random_graph(kind, rng())
    assert SMALLEST <= len(graph) <= LARGEST
    assert nx.is_connected(graph)


def test_properties_are_those_of_the_graph():
    for seed in range(5):
        data = graph_property("hops", rng(seed))
        hops = dict(nx.all_pairs_shortest_path_length(to_networkx(data, to_undirected=True)))
        source = int(data.x[:, 1].argmax())
        assert data.y[:, 0].tolist() == [max(hops[v].values()) for v in range(data.num_nodes)]
        assert data.y[:, 1].tolist() == [hops[source][v] for v in range(data.num_nodes)]
        assert float(graph_property("diameter", rng(seed)).y) == max(max(h.values()) for h in hops.values())


def test_answers_follow_the_facts():
    france = ("country", "France")
    assert ("capital", "Madrid") in paths(france, ("borders", "capital"))[0]
    assert ("capital", "Paris") not in paths(france, ("borders", "capital"))[0]
    assert paths(("capital", "Paris"), ("~capital", "currency"))[0] == {("currency", "EUR")}
    assert all(fact in facts().all for fact in paths(france, ("borders", "capital"))[1])


def test_a_question_holds_its_answers_and_its_path():
    for template, start in [possible()[i] for i in range(0, len(possible()), 97)]:
        data = question(template, start, rng())
        answers, _ = paths(start, TEMPLATES[template][1])
        assert int((data.y == 1).sum()) == len(answers)
        graph = to_networkx(data, to_undirected=True)
        seed = int(data.x[:, 10].argmax())
        away = nx.single_source_shortest_path_length(graph, seed)
        # A step through a fact is two hops.
        assert all(
            away[node] <= 2 * len(TEMPLATES[template][1])
            for node in (data.y == 1).nonzero().flatten().tolist()
        )


def test_splits_do_not_share_questions(monkeypatch):
    monkeypatch.setattr(study_questions, "question", lambda template, start, generator: (template, start))
    parts = questions((180, 45, 200), 0)
    assert [len(part) for part in parts] == [180, 45, 200]
    assert len({pair for part in parts for pair in part}) == 425
    assert parts != questions((180, 45, 200), 1)


def test_a_channel_without_a_cylinder_flows_as_poiseuille():
    across, up = np.meshgrid(np.linspace(0, 2, 17), np.linspace(0, 1, 9), indexing="ij")
    points = np.stack([across.ravel(), up.ravel()], 1)
    corners = np.arange(17 * 9).reshape(17, 9)
    a, b, c, d = corners[:-1, :-1], corners[1:, :-1], corners[1:, 1:], corners[:-1, 1:]
    triangles = np.concatenate([np.stack([x.ravel() for x in t], 1) for t in ((a, b, c), (a, c, d))])
    found = solve(points, triangles, np.ones(3))
    expected = np.stack([4 * points[:, 1] * (1 - points[:, 1]), np.zeros(len(points))], 1)
    assert np.abs(found - expected).max() < 1e-8


def test_what_enters_leaves():
    made = flow(rng(1), 3)
    kinds, points, velocity = made["kinds"], made["points"], made["velocity"]
    for step in range(3):
        through = []
        for kind in (1, 3):
            side = np.flatnonzero(
                (kinds == kind) | ((kinds == 2) & np.isclose(points[:, 0], 0 if kind == 1 else 2))
            )
            order = side[np.argsort(points[side, 1])]
            through.append(np.trapezoid(velocity[step, order, 0], points[order, 1]))
        assert through[1] == pytest.approx(through[0], rel=0.03)
    assert np.abs(velocity[:, kinds == 2]).max() < 1e-12


def test_stored_flows_and_rollouts(tmp_path):
    record = write_flows(tmp_path / "flows.npz", 3, 4)
    assert record["trajectories"] == 3
    steps = study_data.mesh_steps(tmp_path, slice(0, 2), 0.0, rng(), each=3)
    assert len(steps) == 6
    assert steps[0].x.shape[1] == 9
    # A model that knows the answer makes no error; one that says "nothing changes" makes one.
    stored = np.load(tmp_path / "flows.npz")
    nodes = slice(*stored["nodes"][2:4])
    answers = iter(np.diff(stored["velocity"][:, nodes], axis=0))
    assert rollout_error(lambda data: next(answers), tmp_path, slice(2, 3)) < 1e-6
    assert rollout_error(lambda data: np.zeros((data.num_nodes, 2)), tmp_path, slice(2, 3)) > 1e-3
