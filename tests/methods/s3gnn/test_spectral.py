"""The projector on the first eigenspace: orthonormal, the right eigenvalue, Lanczos like the dense solver."""

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from methods.s3gnn import spectral
from methods.s3gnn.spectral import AddSpectralProjector
from tests.methods.s3gnn.oracle import GRAPHS, dense_adjacency, graph_data


def columns_of(data):
    width = int(data.spectral_index[1].max()) + 1 if data.spectral.numel() else 0
    dense = torch.zeros(data.num_nodes, width, dtype=torch.float64)
    dense[data.spectral_index[0], data.spectral_index[1]] = data.spectral.double()
    return dense


@pytest.mark.parametrize(
    ("name", "width"), [("ring", 2), ("clique", 5), ("grid", 2), ("star", 6), ("path", 1)]
)
def test_whole_eigenspaces(name, width):
    data = AddSpectralProjector()(graph_data(GRAPHS[name]()))
    columns = columns_of(data)
    assert columns.shape[1] == width
    assert torch.allclose(columns.T @ columns, torch.eye(width, dtype=torch.float64), atol=1e-10)
    adjacency = dense_adjacency(data)
    scale = torch.diag(adjacency.sum(1).rsqrt())
    laplacian = torch.eye(data.num_nodes, dtype=torch.float64) - scale @ adjacency @ scale
    smallest = torch.linalg.eigvalsh(laplacian)[1]
    assert torch.allclose(laplacian @ columns, smallest * columns, atol=1e-10)


def test_more_eigenspaces_and_the_plain_laplacian():
    data = AddSpectralProjector(k=2, normalization="none")(graph_data(GRAPHS["ring"]()))
    columns = columns_of(data)
    values = torch.diagonal(columns.T @ (2 * torch.eye(12) - dense_adjacency(data)) @ columns)
    expected = [2 - 2 * np.cos(2 * np.pi * i / 12) for i in (1, 1, 2, 2)]
    assert torch.allclose(values, torch.tensor(expected, dtype=torch.float64), atol=1e-10)


def test_lanczos_finds_the_space_of_the_dense_solver(monkeypatch):
    for graph in (nx.grid_2d_graph(7, 7), nx.cycle_graph(41), nx.random_regular_graph(3, 50, seed=1)):
        for normalization in ("sym", "none"):
            transform = AddSpectralProjector(normalization=normalization)
            dense = columns_of(transform(graph_data(graph)))
            with monkeypatch.context() as patch:
                patch.setattr(spectral, "DENSE_NODES", 1)
                found = columns_of(transform(graph_data(graph)))
            assert torch.allclose(dense @ dense.T, found @ found.T, atol=1e-7)


def test_disconnected_graphs():
    merged = columns_of(AddSpectralProjector()(graph_data(GRAPHS["parts"]())))
    assert merged.shape[1] == 1
    assert (merged[:5] > 0).all() != (merged[5:] > 0).all()
    separate = columns_of(AddSpectralProjector(components="separate")(graph_data(GRAPHS["parts"]())))
    assert separate.shape[1] == 3
    assert (separate[:5, 2] == 0).all()


def test_a_graph_without_edges_has_what_it_can_have():
    assert AddSpectralProjector()(graph_data(GRAPHS["single"]())).spectral.numel() == 0
    assert columns_of(AddSpectralProjector()(graph_data(GRAPHS["edgeless"]()))).shape[1] == 3
    empty = AddSpectralProjector(components="separate")(graph_data(GRAPHS["edgeless"]()))
    assert empty.spectral.numel() == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AddSpectralProjector(k=0), "k 0"),
        (lambda: AddSpectralProjector(tol=0), "tol 0"),
        (lambda: AddSpectralProjector(normalization="rw"), "normalization 'rw'"),
        (lambda: AddSpectralProjector(max_columns=3)(graph_data(GRAPHS["star"]())), "max_columns=3"),
        (lambda: AddSpectralProjector(k=2)(graph_data(GRAPHS["parts"]())), "use 'separate'"),
        (lambda: AddSpectralProjector()(Data(x=torch.ones(3, 1))), "edge_index is missing"),
    ],
)
def test_bad_inputs(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_solver_that_fails_says_so(monkeypatch):
    def fail(*_, **__):
        raise spectral.ArpackError(-9)

    monkeypatch.setattr(spectral, "DENSE_NODES", 1)
    monkeypatch.setattr(spectral, "eigsh", fail)
    with pytest.raises(RuntimeError, match="eigenvectors of a graph of 12 nodes"):
        AddSpectralProjector()(graph_data(GRAPHS["ring"]()))
