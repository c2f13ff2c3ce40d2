"""The layer by its definition: dense matrices, one graph at a time."""

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data

GRAPHS = {
    "ring": lambda: nx.cycle_graph(12),
    "clique": lambda: nx.complete_graph(6),
    "grid": lambda: nx.grid_2d_graph(4, 4),
    "star": lambda: nx.star_graph(7),
    "path": lambda: nx.path_graph(9),
    "pair": lambda: nx.path_graph(2),
    "single": lambda: nx.empty_graph(1),
    "edgeless": lambda: nx.empty_graph(4),
    "parts": lambda: nx.disjoint_union(nx.cycle_graph(5), nx.path_graph(3)),
    "lonely": lambda: nx.disjoint_union(nx.path_graph(4), nx.empty_graph(2)),
}


def graph_data(graph, channels=4, seed=0, weighted=False):
    """A networkx graph as double-precision data, features random."""
    generator = np.random.default_rng(seed)
    graph = nx.convert_node_labels_to_integers(graph)
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2).T
    index = torch.as_tensor(np.concatenate([edges, edges[::-1]], 1))
    data = Data(
        x=torch.as_tensor(generator.normal(size=(graph.number_of_nodes(), channels))), edge_index=index
    )
    if weighted:
        data.edge_weight = torch.as_tensor(np.tile(generator.uniform(0.1, 2, edges.shape[1]), 2))
    return data


def random_graph(generator):
    """Any small graph, disconnected and edgeless ones among them."""
    size = int(generator.integers(1, 15))
    return nx.gnp_random_graph(size, float(generator.uniform(0, 0.6)), seed=int(generator.integers(2**31)))


def permuted(data, order):
    """The same graph with node i called order[i]."""
    inverse = torch.argsort(order)
    found = Data(x=data.x[inverse], edge_index=order[data.edge_index])
    if "edge_weight" in data:
        found.edge_weight = data.edge_weight
    return found


def dense_adjacency(data):
    size = data.num_nodes
    weight = data.edge_weight if "edge_weight" in data else torch.ones(data.num_edges, dtype=torch.float64)
    dense = torch.zeros(size, size, dtype=torch.float64)
    for (source, target), value in zip(data.edge_index.T.tolist(), weight, strict=True):
        dense[target, source] += value
    return dense


def dense_p1(data, tol=1e-6):
    """Projector on the whole eigenspace of the second-smallest eigenvalue; zero without two nodes. Connected graphs."""
    adjacency = dense_adjacency(data)
    if len(adjacency) < 2:
        return torch.zeros_like(adjacency)
    scale = torch.diag(adjacency.sum(1).rsqrt())
    values, vectors = torch.linalg.eigh(torch.eye(len(adjacency)) - scale @ adjacency @ scale)
    columns = vectors[:, 1:][:, (values[1:] - values[1]).abs() <= tol * max(float(values[1]), tol)]
    return columns @ columns.T


def dense_layer(conv, data):
    """eps, both branches and the bias, from the free parameters on."""
    adjacency, x = dense_adjacency(data), data.x
    looped = adjacency + torch.eye(len(x)) if conv.add_self_loops else adjacency
    degree = looped.sum(1)
    scale = torch.diag(torch.where(degree > 0, degree.clamp(min=1e-300).rsqrt(), 0.0))
    p0 = torch.ones(len(x), len(x), dtype=torch.float64) / len(x)
    if conv.p0 == "sqrtdeg" and adjacency.sum() > 0:
        vector = adjacency.sum(1).sqrt()
        p0 = torch.outer(vector, vector) / vector.dot(vector)
    mixer = torch.zeros_like(p0)
    if conv.alpha0 is not None:
        mixer = mixer + conv.alpha0 * p0
    if conv.alpha1 is not None:
        mixer = mixer + conv.alpha1 * dense_p1(data)
    change = (
        scale
        @ looped
        @ scale
        @ (x @ dense_weight(conv.spa_in).T)
        @ dense_weight(conv.spa_out or conv.spa_in).T
    )
    if conv.spec_in is not None:
        spec = dense_weight(conv.spec_in).T, dense_weight(conv.spec_out or conv.spec_in).T
        change = change + mixer @ (x @ spec[0]) @ spec[1]
    return x + conv.step_size * (change + (0 if conv.bias is None else conv.bias))


def dense_weight(weight):
    """What of the antisymmetric constraint, entry by entry."""
    size, entries = weight.channels, iter(weight.free)
    rows = [[torch.tensor(0.0, dtype=torch.float64)] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1, size):
            entry = next(entries)
            rows[i][j], rows[j][i] = entry, -entry
        rows[i][i] = torch.tensor(-weight.dissipation, dtype=torch.float64)
    return torch.stack([torch.stack(row) for row in rows])
