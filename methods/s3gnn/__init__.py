"""S3GNN: global mixing and local message passing for long-range graphs (Shi et al., ICML 2026, arXiv 2605.23467).

`S3GNNConv` is one layer, `S3GNN` a model for node, graph or edge targets, `AddSpectralProjector` the transform
that its routing branch needs, `S3GNNRegressor` and `S3GNNClassifier` estimators on lists of graphs, and
`jacobian_sensitivity` measures how far a model looks. Names load when they are asked for: torch-geometric is slow to
import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from methods.s3gnn.estimators import S3GNNClassifier, S3GNNRegressor
    from methods.s3gnn.layer import FoldedS3GNNConv, S3GNNConv
    from methods.s3gnn.model import S3GNN
    from methods.s3gnn.sensitivity import jacobian_sensitivity
    from methods.s3gnn.spectral import AddSpectralProjector

_HOMES = {
    "S3GNN": "model",
    "S3GNNConv": "layer",
    "FoldedS3GNNConv": "layer",
    "AddSpectralProjector": "spectral",
    "S3GNNClassifier": "estimators",
    "S3GNNRegressor": "estimators",
    "jacobian_sensitivity": "sensitivity",
}

__all__ = [
    "S3GNN",
    "AddSpectralProjector",
    "FoldedS3GNNConv",
    "S3GNNClassifier",
    "S3GNNConv",
    "S3GNNRegressor",
    "jacobian_sensitivity",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch_geometric  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "methods.s3gnn needs torch-geometric; install it with: pip install 'seedloom[graphs]'"
        ) from error
    return getattr(import_module(f"methods.s3gnn.{_HOMES[name]}"), name)
