"""Approximation Preserving Coresets for k-clustering (Prabhu, Schwiegelshohn, Shyam, ICML 2026, arXiv 2606.17316).

A small weighted part of the data on which any solver's approximation guarantee is kept up to 1 + eps: stronger than a
coreset that keeps the optimum, weaker than one that keeps the cost of every solution, and therefore smaller.

    from methods.approx_coresets import ApproxCoreset, CoresetClusterer, audit

    omega = ApproxCoreset(n_clusters=20, eps=0.05, random_state=0).fit(X)     # points_, weights_, indices_
    model = CoresetClusterer(coreset=ApproxCoreset(n_clusters=20)).fit(X)     # labels_, cluster_centers_, inertia_
    table = audit(X, omega, {**solution_bank(X, 20), **coreset_solutions(omega)})

Only the abstracts and the opening of the paper could be read. The definition's formula is derived from its words; the
construction is the sensitivity sampling of the same authors' line of work (arXiv 2405.01339), recalled.
"""

from methods.approx_coresets.audit import audit, by_band, coreset_solutions, solution_bank
from methods.approx_coresets.clusterer import CoresetClusterer
from methods.approx_coresets.coreset import ApproxCoreset
from methods.approx_coresets.sizes import coreset_size
from methods.approx_coresets.solvers import WeightedKMedian, swap_medoids
from methods.approx_coresets.summaries import VoronoiSummary, voronoi_summary

__all__ = [
    "ApproxCoreset",
    "CoresetClusterer",
    "VoronoiSummary",
    "WeightedKMedian",
    "audit",
    "by_band",
    "coreset_size",
    "coreset_solutions",
    "solution_bank",
    "swap_medoids",
    "voronoi_summary",
]
