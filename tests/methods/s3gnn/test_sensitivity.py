"""How far models look: against finite differences, and the law of section 2.6."""

import networkx as nx
import numpy as np
import pytest
import torch

from methods.s3gnn.model import S3GNN
from methods.s3gnn.sensitivity import (
    cancellation,
    decay_exponent,
    distances,
    jacobian_sensitivity,
    sensitivity_by_distance,
)
from tests.methods.s3gnn.oracle import GRAPHS, graph_data


def model(layers, channels=8, seed=0, **settings):
    torch.manual_seed(seed)
    return S3GNN(channels, channels, 2, layers, act="tanh", **settings).double()


def ring(size, channels=8):
    return graph_data(nx.cycle_graph(size), channels)


def test_it_is_the_jacobian():
    data, net = graph_data(GRAPHS["grid"](), 3), model(2, 3)
    found = jacobian_sensitivity(net, data, [0, 5], [15, 1, 0])
    whole = torch.autograd.functional.jacobian(lambda x: net.embed(x, data.edge_index), data.x)
    for i, source in enumerate([0, 5]):
        for j, target in enumerate([15, 1, 0]):
            block = whole[target, :, source, :]
            assert torch.isclose(found[i, j], block.abs().mean(), atol=1e-15)
            spectral = jacobian_sensitivity(net, data, [source], [target], "spectral")[0, 0]
            assert torch.isclose(spectral, torch.linalg.svdvals(block)[0])
            frobenius = jacobian_sensitivity(net, data, [source], [target], "frobenius")[0, 0]
            assert torch.isclose(frobenius, block.norm())


def test_it_leaves_the_model_as_it_was():
    data, net = ring(8), model(2)
    net.train()
    jacobian_sensitivity(net, data, [0], [4])
    assert net.training
    assert all(p.grad is None for p in net.parameters())


def test_beyond_the_layers_only_the_global_branch_reaches():
    data = ring(32)
    assert float(jacobian_sensitivity(model(4, use_p0=False), data, [0], [16])) == 0
    with_mean = sensitivity_by_distance(model(4), data, [0])
    far = [with_mean[hop] for hop in range(6, 17)]
    assert min(far) > 1e-5
    assert max(far) / min(far) < 3  # the distance does not matter


def test_it_falls_as_one_over_the_nodes():
    sizes = (16, 32, 64, 128, 256)
    found = [
        np.mean([float(jacobian_sensitivity(model(4, seed=s), ring(n), [0], [n // 2])) for s in range(2)])
        for n in sizes
    ]
    assert -1.4 < decay_exponent(sizes, found) < -0.6


def test_distances_and_the_slope():
    assert distances(ring(6), [0]).tolist() == [[0, 1, 2, 3, 2, 1]]
    assert np.isinf(distances(graph_data(GRAPHS["parts"]()), [0])[0, 7])
    assert decay_exponent([1, 2, 4], [1, 0.5, 0.25]) == pytest.approx(-1)
    assert decay_exponent([1, 2], [1, 0]) == -np.inf


def test_cancellation_is_zero_where_the_response_is():
    net = model(2, 6)
    assert all(0 < value < 1 for value in cancellation(net, None))
    with torch.no_grad():
        net.convs[0].alpha0.zero_()
    assert cancellation(net, None)[0] == 0
    assert cancellation(model(1, use_p0=False), None) == [0.0]


@pytest.mark.parametrize(("sources", "targets"), [([-1], [0]), ([0], [99]), ([], [0])])
def test_nodes_that_are_not_there(sources, targets):
    with pytest.raises(ValueError, match="give nodes from 0 to 7"):
        jacobian_sensitivity(model(1), ring(8), sources, targets)
