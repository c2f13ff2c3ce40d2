"""A Cartesian-3j framework for interatomic potentials (Xu et al., ICML 2026, arXiv 2512.16882).

Features are irreducible Cartesian tensors. `path_matrix` and `ictd` decompose; `cartesian_3j` couples two tensors,
`ggcc` many; `TensorProduct`, `Linear`, `Gate` and `NormActivation` have the interface and normalisation of e3nn.
`TACE` and the twins `CartesianMACE`, `CartesianNequIP` and `CartesianAllegro` make energies and forces of graphs,
`PotentialTrainer` fits them to labelled structures, and `TaceCalculator` gives them to ASE.
"""

try:
    import e3nn  # noqa: F401
except ImportError as error:
    raise ImportError("methods.tace needs e3nn; install it with: pip install 'seedloom[atoms]'") from error

from methods.tace.calculator import TaceCalculator
from methods.tace.config import PotentialConfig
from methods.tace.frames import labelled_graphs
from methods.tace.generalised import ggcc
from methods.tace.graphs import batch_of, graph_of
from methods.tace.harmonics import CartesianHarmonics
from methods.tace.irreps import Irreps, project, to_cartesian, to_spherical
from methods.tace.layers import Gate, Linear, NormActivation
from methods.tace.models import (
    TACE,
    CartesianAllegro,
    CartesianMACE,
    CartesianNequIP,
    build_potential,
)
from methods.tace.paths import Path, ictd, path_matrix
from methods.tace.potential import Potential
from methods.tace.product import TensorProduct
from methods.tace.symbols import Contraction, cartesian_3j, contraction_of, path_factor
from methods.tace.training import (
    PotentialTrainer,
    TrainingConfig,
    load_potential,
    save_potential,
    score,
)

__all__ = [
    "TACE",
    "CartesianAllegro",
    "CartesianHarmonics",
    "CartesianMACE",
    "CartesianNequIP",
    "Contraction",
    "Gate",
    "Irreps",
    "Linear",
    "NormActivation",
    "Path",
    "Potential",
    "PotentialConfig",
    "PotentialTrainer",
    "TaceCalculator",
    "TensorProduct",
    "TrainingConfig",
    "batch_of",
    "build_potential",
    "cartesian_3j",
    "contraction_of",
    "ggcc",
    "graph_of",
    "ictd",
    "labelled_graphs",
    "load_potential",
    "path_factor",
    "path_matrix",
    "project",
    "save_potential",
    "score",
    "to_cartesian",
    "to_spherical",
]
