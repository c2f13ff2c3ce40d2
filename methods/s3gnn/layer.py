"""The S3GNN layer (section 2.3): one Euler step of local message passing and global mixing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import MessagePassing

from methods.common.checks import check_choice, check_flag, check_number
from methods.common.errors import DataError
from methods.s3gnn.operator import P0, Components, GraphOperator, Spectral, graph_operator
from methods.s3gnn.weights import ConstrainedWeight, Constraint


class S3GNNConv(MessagePassing):
    """H + eps (H_spa + H_spec + bias); the activation is the model's.

    H_spa = (Atil (H What_in^T)) What_out^T and H_spec = ((alpha0 P0 + alpha1 P1) (H Vhat_in^T)) Vhat_out^T, with
    Atil the normalised adjacency, P0 the mean of each graph, P1 the projector on its first nontrivial eigenspace.
    The projectors have few columns, so the global branch multiplies d x d matrices with those only: O(E d + N d^2)
    in all.

    Args:
        channels: d, in and out.
        step_size: eps > 0.
        dissipation: g >= 0 of the antisymmetric weights.
        alpha_init: start of alpha0 and alpha1; `use_p0=False` leaves the global branch's mean out.
        use_p1: the spectral projector as well; needs `spectral`.
        p0: `mean` (paper) or `sqrtdeg`.
        tie: What_out = What_in in both branches, which bounds the real parts of the product's eigenvalues by g^2.
        weight_param: constraint of the weights; the others are the paper's ablation.
        add_self_loops: A + I instead of A.
        bias: a learnt bias.
        components: whether P0 mixes a disconnected graph whole.
        symmetrize: give directed edges their opposite.
        use_p0: ablation.

    Raises:
        ConfigError: a setting out of bounds.
    """

    def __init__(
        self,
        channels: int,
        *,
        step_size: float = 0.2,
        dissipation: float = 0.05,
        alpha_init: float = 1.0,
        use_p1: bool = False,
        p0: P0 = "mean",
        tie: bool = False,
        weight_param: Constraint = "antisymmetric",
        add_self_loops: bool = True,
        bias: bool = True,
        components: Components = "merge",
        symmetrize: bool = False,
        use_p0: bool = True,
    ) -> None:
        super().__init__(aggr="add")
        check_number("step_size", step_size, above=0)
        check_number("alpha_init", alpha_init)
        check_choice("p0", p0, P0)
        check_choice("components", components, Components)
        flags = {"use_p0": use_p0, "use_p1": use_p1, "tie": tie, "bias": bias}
        flags |= {"add_self_loops": add_self_loops, "symmetrize": symmetrize}
        for name, flag in flags.items():
            check_flag(name, flag)
        self.channels, self.step_size, self.alpha_init = channels, step_size, alpha_init
        self.use_p0, self.use_p1, self.p0, self.tie = use_p0, use_p1, p0, tie
        self.add_self_loops, self.components, self.symmetrize = add_self_loops, components, symmetrize
        self.spa_in = ConstrainedWeight(channels, weight_param, dissipation)
        self.spa_out = None if tie else ConstrainedWeight(channels, weight_param, dissipation)
        mixes = use_p0 or use_p1
        self.spec_in = ConstrainedWeight(channels, weight_param, dissipation) if mixes else None
        self.spec_out = ConstrainedWeight(channels, weight_param, dissipation) if mixes and not tie else None
        self.alpha0 = nn.Parameter(torch.tensor(float(alpha_init))) if use_p0 else None
        self.alpha1 = nn.Parameter(torch.tensor(float(alpha_init))) if use_p1 else None
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def reset_parameters(self) -> None:
        """New weights; alphas at their start, bias 0."""
        super().reset_parameters()
        for weight in (self.spa_in, self.spa_out, self.spec_in, self.spec_out):
            if weight is not None:
                weight.reset_parameters()
        with torch.no_grad():
            for alpha in (self.alpha0, self.alpha1):
                if alpha is not None:
                    alpha.fill_(self.alpha_init)
            if self.bias is not None:
                self.bias.zero_()

    def operator(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        spectral: Spectral | None = None,
    ) -> GraphOperator:
        """The graph as this layer's matrices; give it as `edge_index` to make it once for many calls.

        Raises:
            DataError: as `graph_operator`, and when the spectral projector is asked for but not given.
        """
        if self.use_p1 and spectral is None:
            raise DataError("spectral is missing and use_p1=True; run AddSpectralProjector on the graphs")
        return graph_operator(
            edge_index,
            x.shape[0],
            batch=batch,
            edge_weight=edge_weight,
            spectral=spectral if self.use_p1 else None,
            add_self_loops=self.add_self_loops,
            p0=self.p0,
            components=self.components,
            symmetrize=self.symmetrize,
            dtype=x.dtype,
        )

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | GraphOperator,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        spectral: Spectral | None = None,
    ) -> Tensor:
        """One step.

        Args:
            x: `[N, d]`.
            edge_index: `[2, E]`, a sparse `[N, N]` tensor (rows targets), or what `operator` returned.
            batch: graph of each node `[N]`, ascending.
            edge_weight: `[E]`, at least 0.
            spectral: what `AddSpectralProjector` stored; see `graph_operator`.

        Returns:
            `[N, d]`.

        Raises:
            DataError: x of other width or with numbers that are none; an edge, batch or weight that does not fit.
        """
        check_features(x, self.channels)
        if isinstance(edge_index, GraphOperator):
            graph = edge_index.to(x.device, x.dtype)
            if graph.num_nodes != x.shape[0] or (self.use_p1 and graph.columns is None):
                raise DataError(
                    "edge_index: this operator was made for another graph, or without spectral columns"
                )
        else:
            check_finite(x)
            graph = self.operator(x, edge_index, batch, edge_weight, spectral)
        change = self._local(graph, x)
        if self.spec_in is not None:
            change = change + self._mixed(graph, x, self.spec_in(), self._out(self.spec_out, self.spec_in))
        if self.bias is not None:
            change = change + self.bias
        return x + self.step_size * change

    def _out(self, out: ConstrainedWeight | None, tied: ConstrainedWeight) -> Tensor:
        matrix: Tensor = (tied if out is None else out)()
        return matrix

    def _local(self, graph: GraphOperator, x: Tensor) -> Tensor:
        inner = F.linear(x, self.spa_in())
        if graph.values.requires_grad:  # learnt edge weights: message by message, so that they get gradients
            passed = self.propagate(graph.index, x=inner, edge_weight=graph.values)
        else:
            passed = graph.adjacency @ inner
        return F.linear(passed, self._out(self.spa_out, self.spa_in))

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return edge_weight.to(x_j.dtype).unsqueeze(-1) * x_j

    def _mixed(self, graph: GraphOperator, x: Tensor, *weights: Tensor) -> Tensor:
        """(alpha0 P0 + alpha1 P1) x through the matrices, multiplied where the rows are few."""
        return mixed(graph, x, self.alpha0, self.alpha1, *weights)

    def fold(self) -> FoldedS3GNNConv:
        """The layer for inference: each pair of matrices, and eps, in one matrix; outputs stay the same."""
        return FoldedS3GNNConv(self)

    def effective_parameters(self) -> int:
        """Free numbers: 4 d(d-1)/2 + d + 1 with the defaults."""
        return sum(p.numel() for p in self.parameters())

    def spectral_abscissa(self) -> tuple[float, float]:
        """Largest real part of the eigenvalues of What_out What_in: of the local branch, of the global one (0 without).

        Above 0 a step can expand.
        """
        with torch.no_grad():
            pairs = [(self.spa_in, self.spa_out), (self.spec_in, self.spec_out)]
            return tuple(  # type: ignore[return-value]
                0.0
                if first is None
                else float(torch.linalg.eigvals((self._out(second, first) @ first()).double()).real.max())
                for first, second in pairs
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, step_size={self.step_size}, use_p1={self.use_p1})"


class FoldedS3GNNConv(nn.Module):
    """An `S3GNNConv` with What_out What_in multiplied out: for inference; it has no parameters to train."""

    local: Tensor
    spec: Tensor | None
    offset: Tensor | None
    alpha0: Tensor | None
    alpha1: Tensor | None

    def __init__(self, layer: S3GNNConv) -> None:
        super().__init__()
        self.channels, self.use_p1 = layer.channels, layer.use_p1
        self.operator = layer.operator
        step = layer.step_size
        with torch.no_grad():
            self.register_buffer("local", step * layer._out(layer.spa_out, layer.spa_in) @ layer.spa_in())
            spec = layer.spec_in
            self.register_buffer(
                "spec", None if spec is None else step * layer._out(layer.spec_out, spec) @ spec()
            )
            self.register_buffer("offset", None if layer.bias is None else step * layer.bias)
            for name in ("alpha0", "alpha1"):
                alpha = getattr(layer, name)
                self.register_buffer(name, None if alpha is None else alpha.detach().clone())

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | GraphOperator,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        spectral: Spectral | None = None,
    ) -> Tensor:
        """As `S3GNNConv.forward`."""
        check_features(x, self.channels)
        if isinstance(edge_index, GraphOperator):
            graph = edge_index.to(x.device, x.dtype)
        else:
            check_finite(x)
            graph = self.operator(x, edge_index, batch, edge_weight, spectral)
        passed = graph.adjacency @ x
        out = torch.addmm(x, passed, self.local.T)
        if self.spec is not None:
            out = out + mixed(graph, x, self.alpha0, self.alpha1, self.spec)
        return out if self.offset is None else out + self.offset


def mixed(
    graph: GraphOperator, x: Tensor, alpha0: Tensor | None, alpha1: Tensor | None, *weights: Tensor
) -> Tensor:
    """(alpha0 P0 + alpha1 P1) x W^T for each W in turn: P0 has G rows, P1 one an eigenvector."""
    total = None
    if alpha0 is not None:
        total = graph.spread @ (alpha0 * _through(graph.pool @ x, weights))
    if alpha1 is not None and graph.columns is not None:
        routed = graph.columns @ (alpha1 * _through(graph.columns.T @ x, weights))
        total = routed if total is None else total + routed
    return torch.zeros_like(x) if total is None else total


def _through(rows: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    for weight in weights:
        rows = F.linear(rows, weight)
    return rows


def check_features(x: Tensor, channels: int) -> None:
    """Raises DataError unless x is `[N, channels]` of floating numbers."""
    if x.dim() != 2 or x.shape[1] != channels:
        raise DataError(f"x of shape {tuple(x.shape)}: give [N, {channels}]")
    if not x.is_floating_point():
        raise DataError(f"x of type {x.dtype}: give floating numbers, x.float()")


def check_finite(x: Tensor) -> None:
    """Raises DataError when x holds NaN or infinity."""
    if not bool(x.isfinite().all()):
        rows = (~x.isfinite().all(1)).nonzero().flatten()
        raise DataError(f"x holds numbers that are none in {len(rows)} rows, the first row {int(rows[0])}")
