"""The layer against its definition, its symmetries, its errors."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv

from methods.s3gnn.layer import S3GNNConv
from methods.s3gnn.model import S3GNN
from methods.s3gnn.operator import graph_operator
from methods.s3gnn.spectral import AddSpectralProjector
from methods.s3gnn.weights import ConstrainedWeight
from tests.methods.s3gnn.oracle import GRAPHS, dense_layer, graph_data, permuted, random_graph

CONNECTED = [name for name in GRAPHS if name not in ("edgeless", "parts", "lonely")]


def layer(channels=4, seed=0, **settings_):
    torch.manual_seed(seed)
    conv = S3GNNConv(channels, **settings_).double()
    with torch.no_grad():
        for parameter in (conv.alpha0, conv.alpha1, conv.bias):
            if parameter is not None:
                parameter.add_(torch.randn_like(parameter))
    return conv


def run(conv, data):
    spectral = (data.spectral_index, data.spectral) if "spectral" in data else None
    weight = data.edge_weight if "edge_weight" in data else None
    return conv(data.x, data.edge_index, data.batch, weight, spectral)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    tie=st.booleans(),
    loops=st.booleans(),
    p0=st.sampled_from(["mean", "sqrtdeg"]),
)
def test_batches_equal_dense_matrices(seed, tie, loops, p0):
    generator = np.random.default_rng(seed)
    graphs = [
        graph_data(random_graph(generator), seed=seed + i, weighted=True)
        for i in range(int(generator.integers(1, 5)))
    ]
    conv = layer(seed=seed % 1000, tie=tie, add_self_loops=loops, p0=p0)
    expected = torch.cat([dense_layer(conv, data) for data in graphs])
    assert (run(conv, Batch.from_data_list(graphs)) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("name", CONNECTED)
def test_spectral_branch_equals_dense_eigenspace(name):
    conv = layer(use_p1=True)
    data = AddSpectralProjector()(graph_data(GRAPHS[name]()))
    assert (run(conv, data) - dense_layer(conv, data)).abs().max() < 1e-12


@settings(max_examples=20, deadline=None)
@given(channels=st.integers(1, 12), g=st.floats(0, 1), seed=st.integers(0, 1000))
def test_weights_are_antisymmetric_but_for_the_dissipation(channels, g, seed):
    torch.manual_seed(seed)
    weight = ConstrainedWeight(channels, dissipation=g).double()()
    assert (weight + weight.T + 2 * g * torch.eye(channels, dtype=torch.float64)).abs().max() < 1e-12


def test_other_constraints_hold():
    torch.manual_seed(0)
    eye = torch.eye(6, dtype=torch.float64)
    for kind in ("orthogonal", "orthogonal_ste", "cayley"):
        matrix = ConstrainedWeight(6, kind).double()()
        assert (matrix @ matrix.T - eye).abs().max() < 1e-12, kind
    sums = ConstrainedWeight(6, "doubly_stochastic").double()()
    assert sums.min() > 0
    assert (sums.sum(0) - 1).abs().max() < 1e-6
    assert (sums.sum(1) - 1).abs().max() < 1e-6


def test_straight_through_gradient_is_the_free_matrix():
    weight = ConstrainedWeight(4, "orthogonal_ste").double()
    weight().sum().backward()
    assert torch.equal(weight.free.grad, torch.ones(16, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["antisymmetric", "cayley", "orthogonal", "doubly_stochastic"])
def test_gradients_are_exact(kind):
    data = AddSpectralProjector()(graph_data(GRAPHS["ring"](), channels=3))
    conv = layer(3, use_p1=True, weight_param=kind)
    parameters = dict(conv.named_parameters())
    spectral = (data.spectral_index, data.spectral)

    def value(x, *values):
        given_ = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(conv, given_, (x, data.edge_index, None, None, spectral))

    assert torch.autograd.gradcheck(value, (data.x.requires_grad_(), *parameters.values()))


def test_second_derivatives_pass():
    data = graph_data(GRAPHS["path"](), channels=2)
    conv = layer(2)
    assert torch.autograd.gradgradcheck(lambda x: conv(x, data.edge_index).tanh(), (data.x.requires_grad_(),))


def test_effective_parameters():
    for channels in (1, 5, 32):
        base = 4 * channels * (channels - 1) // 2 + channels
        assert S3GNNConv(channels).effective_parameters() == base + 1
        assert S3GNNConv(channels, use_p1=True).effective_parameters() == base + 2


@pytest.mark.parametrize("name", CONNECTED)
def test_permutation_equivariant_with_repeated_eigenvalues(name):
    conv, data = layer(use_p1=True), graph_data(GRAPHS[name]())
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(3))
    moved = AddSpectralProjector()(permuted(data, order))
    assert (run(conv, AddSpectralProjector()(data)) - run(conv, moved)[order]).abs().max() < 1e-10


@pytest.mark.parametrize("components", ["merge", "separate"])
def test_disconnected_graphs_are_permutation_equivariant(components):
    conv = layer(use_p1=True, components=components)
    transform = AddSpectralProjector(components=components)
    for name in ("parts", "lonely", "edgeless"):
        data = graph_data(GRAPHS[name]())
        order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
        moved = transform(permuted(data, order))
        assert (run(conv, transform(data)) - run(conv, moved)[order]).abs().max() < 1e-10, name


def test_separate_components_equal_graphs_of_their_own():
    whole = graph_data(GRAPHS["parts"]())
    parts = [graph_data(GRAPHS["ring"]()), graph_data(GRAPHS["path"]())]
    conv = layer(use_p1=True, components="separate")
    transform = AddSpectralProjector(components="separate")
    ring = whole.subgraph(torch.arange(5))
    path = whole.subgraph(torch.arange(5, 8))
    expected = torch.cat([run(conv, transform(ring)), run(conv, transform(path))])
    assert (run(conv, transform(whole)) - expected).abs().max() < 1e-12
    assert len(parts) == 2


def test_sign_of_eigenvectors_does_not_matter():
    conv, data = layer(use_p1=True), AddSpectralProjector()(graph_data(GRAPHS["path"]()))
    before = run(conv, data)
    data.spectral = -data.spectral
    assert torch.allclose(run(conv, data), before, atol=1e-14)


def test_a_batch_equals_its_graphs_with_the_spectral_branch():
    conv, transform = layer(use_p1=True), AddSpectralProjector()
    graphs = [transform(graph_data(make(), seed=i)) for i, make in enumerate(GRAPHS.values())]
    expected = torch.cat([run(conv, data) for data in graphs])
    assert (run(conv, Batch.from_data_list(graphs)) - expected).abs().max() < 1e-12


def test_dense_columns_equal_stored_ones():
    conv, data = layer(use_p1=True), AddSpectralProjector()(graph_data(GRAPHS["ring"]()))
    columns = torch.zeros(12, 2, dtype=torch.float64)
    columns[data.spectral_index[0], data.spectral_index[1]] = data.spectral
    assert torch.allclose(conv(data.x, data.edge_index, spectral=columns), run(conv, data), atol=1e-14)


def test_adjacency_is_that_of_gcn():
    data = graph_data(GRAPHS["lonely"](), weighted=True)
    gcn = GCNConv(4, 4, bias=False).double()
    with torch.no_grad():
        gcn.lin.weight.copy_(torch.eye(4))
    ours = graph_operator(data.edge_index, data.num_nodes, edge_weight=data.edge_weight, dtype=torch.float64)
    assert torch.allclose(ours.adjacency @ data.x, gcn(data.x, data.edge_index, data.edge_weight), atol=1e-12)


def test_fold_gives_the_same_outputs():
    data = AddSpectralProjector()(graph_data(GRAPHS["grid"](), channels=16))
    for settings_ in ({}, {"use_p1": True}, {"tie": True}, {"bias": False}, {"use_p0": False}):
        conv = layer(16, **settings_)
        assert (run(conv, data) - run(conv.fold(), data)).abs().max() < 1e-12
        narrow = conv.float()
        data32 = data.clone().apply(lambda t: t.float() if t.is_floating_point() else t)
        assert (run(narrow, data32) - run(narrow.fold(), data32)).abs().max() < 1e-5
        assert not list(conv.fold().parameters())


def test_learnt_edge_weights_get_their_gradient():
    data = graph_data(GRAPHS["ring"](), weighted=True)
    conv = layer()
    weight = data.edge_weight.clone().requires_grad_()
    out = conv(data.x, data.edge_index, edge_weight=weight)
    assert torch.allclose(out, run(conv, data), atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one changed weight makes the graph directed
        assert torch.autograd.gradcheck(lambda w: conv(data.x, data.edge_index, edge_weight=w), (weight,))


def test_sparse_tensors_and_repeated_edges():
    data, conv = graph_data(GRAPHS["grid"](), weighted=True), layer()
    expected = run(conv, data)
    size = (data.num_nodes, data.num_nodes)
    coo = torch.sparse_coo_tensor(data.edge_index.flip(0), data.edge_weight, size)
    assert torch.allclose(conv(data.x, coo), expected, atol=1e-13)
    assert torch.allclose(conv(data.x, coo.coalesce().to_sparse_csr()), expected, atol=1e-13)
    twice = torch.cat([data.edge_index, data.edge_index], 1)
    halves = torch.cat([data.edge_weight, data.edge_weight]) / 2
    assert torch.allclose(conv(data.x, twice, edge_weight=halves), expected, atol=1e-13)


def test_narrow_formats():
    data = graph_data(GRAPHS["ring"]())
    conv = layer()
    expected = run(conv, data)
    out = conv.bfloat16()(data.x.bfloat16(), data.edge_index)
    assert out.dtype == torch.bfloat16
    assert (out.double() - expected).abs().max() < 0.1


def test_a_single_node_mixes_with_itself():
    data, conv = graph_data(GRAPHS["single"]()), layer(use_p0=True)
    assert torch.allclose(run(conv, data), dense_layer(conv, data), atol=1e-14)


def test_directed_edges_warn_and_are_symmetrised_on_request():
    data = graph_data(GRAPHS["path"]())
    half = data.edge_index[:, : data.num_edges // 2]
    with pytest.warns(UserWarning, match="directed"):
        layer()(data.x, half)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = layer(symmetrize=True)(data.x, half)
    assert torch.allclose(found, layer()(data.x, data.edge_index), atol=1e-14)


def test_tied_weights_cannot_expand_and_untied_can():
    for seed in range(5):
        tied = layer(32, seed, tie=True, dissipation=0.1)
        assert max(tied.spectral_abscissa()) <= 0.1**2 + 1e-9
    assert max(max(layer(32, seed).spectral_abscissa()) for seed in range(5)) > 0.1


def test_tied_layers_stay_finite_sixty_four_deep():
    data = graph_data(GRAPHS["grid"](), channels=16)
    torch.manual_seed(0)
    model = S3GNN(16, 32, 2, 64, tie=True, act="tanh").double()
    first = model.encoder(data.x).norm()
    ratio = model.embed(data.x, data.edge_index).norm() / first
    assert ratio.isfinite()
    assert ratio < 1e3


BAD = {
    "channels": (lambda d: {"x": d.x[:, :3]}, r"x of shape \(12, 3\): give \[N, 4\]"),
    "integers": (lambda d: {"x": d.x.long()}, "floating"),
    "nan": (lambda d: {"x": d.x.index_fill(0, torch.tensor([2]), np.nan)}, "row 2"),
    "range": (lambda d: {"edge_index": d.edge_index + 1}, "names node 12"),
    "negative": (lambda d: {"edge_index": d.edge_index - 1}, "names node -1"),
    "shape": (lambda d: {"edge_index": d.edge_index.T}, r"give whole numbers \[2, E\]"),
    "batch length": (lambda d: {"batch": torch.zeros(5, dtype=torch.long)}, "one graph number a node"),
    "batch order": (lambda d: {"batch": torch.arange(12).flip(0)}, "not ascending"),
    "across graphs": (lambda d: {"batch": torch.arange(12) // 6}, "different graphs"),
    "weights": (lambda d: {"edge_weight": -torch.ones(24)}, "at least 0"),
    "weight count": (lambda d: {"edge_weight": torch.ones(5)}, "one number an edge"),
    "no weight": (lambda d: {"edge_weight": torch.full((24,), np.nan)}, "at least 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_inputs_are_refused(name):
    data = graph_data(GRAPHS["ring"]())
    change, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        layer()(**({"x": data.x, "edge_index": data.edge_index} | change(data)))


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"step_size": 0}, "step_size 0: give a number above 0"),
        ({"step_size": np.nan}, "step_size"),
        ({"dissipation": -1}, "dissipation -1"),
        ({"p0": "median"}, "p0 'median': choose one of mean, sqrtdeg"),
        ({"weight_param": "free"}, "weight_param 'free'"),
        ({"components": "each"}, "components 'each'"),
        ({"tie": 1}, "tie 1: give True or False"),
        ({"channels": 0}, "channels 0"),
    ],
)
def test_bad_settings_are_refused(settings_, message):
    with pytest.raises(ValueError, match=message):
        S3GNNConv(**({"channels": 4} | settings_))


def test_the_spectral_branch_is_never_skipped_in_silence():
    data = graph_data(GRAPHS["ring"]())
    with pytest.raises(ValueError, match="run AddSpectralProjector"):
        layer(use_p1=True)(data.x, data.edge_index)
    plain = layer().operator(data.x, data.edge_index)
    with pytest.raises(ValueError, match="without spectral columns"):
        layer(use_p1=True)(data.x, plain)
