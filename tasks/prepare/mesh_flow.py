"""Flows around a cylinder on triangle meshes, made by a finite-element solver, for graph models that learn them.

Incompressible Navier-Stokes, Taylor-Hood elements (scikit-fem), implicit Stokes steps with explicit convection. A
channel of 2 x 1 with a cylinder at a random place, and an inlet whose speed changes in time: what enters moves the
whole channel at once (the pressure is elliptic), so that a model must carry the inlet's change across the mesh in one
step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.linalg import splu
from scipy.spatial import Delaunay

Array = np.ndarray[Any, Any]
LENGTH, HEIGHT, SPACING = 2.0, 1.0, 0.09
VISCOSITY = 0.02
STEP, SUBSTEPS = 0.02, 5
TRAJECTORIES, SNAPSHOTS = 60, 11


def mesh_flow(out: Path) -> dict[str, Any]:
    """`flows.npz`: 60 trajectories of 11 snapshots, 0.1 time units apart."""
    return write_flows(out / "flows.npz", TRAJECTORIES, SNAPSHOTS)


def write_flows(file: Path, trajectories: int, snapshots: int, seed: int = 0) -> dict[str, Any]:
    """Solve and store: nodes, edges, kinds of nodes, velocities and inlet speeds of all trajectories beside each other.

    Args:
        file: written.
        trajectories, snapshots: how many.
        seed: of obstacles and inlets.
    """
    parts = [flow(np.random.default_rng([seed, i]), snapshots) for i in range(trajectories)]
    arrays = {
        "nodes": np.cumsum([0, *(len(p["points"]) for p in parts)]),
        "edges": np.cumsum([0, *(p["edges"].shape[1] for p in parts)]),
        "points": np.concatenate([p["points"] for p in parts]).astype(np.float32),
        "kinds": np.concatenate([p["kinds"] for p in parts]).astype(np.int8),
        "edge_index": np.concatenate([p["edges"] for p in parts], 1).astype(np.int32),
        "velocity": np.concatenate([p["velocity"] for p in parts], 1).astype(np.float32),
        "inlet": np.stack([p["inlet"] for p in parts]).astype(np.float32),
    }
    np.savez_compressed(file, **arrays)
    return {
        "trajectories": trajectories,
        "snapshots": snapshots,
        "nodes": int(arrays["nodes"][-1]),
        "source": "Navier-Stokes, Taylor-Hood elements of scikit-fem",
        "viscosity": VISCOSITY,
        "step": STEP * SUBSTEPS,
        "licence": "made here",
    }


def flow(generator: np.random.Generator, snapshots: int) -> dict[str, Any]:
    """One trajectory: points `[n, 2]`, edges `[2, E]` both ways, kinds (0 inside, 1 inlet, 2 wall or cylinder,
    3 outlet), velocity `[snapshots, n, 2]`, inlet speed `[snapshots]`."""
    centre = np.array([generator.uniform(0.45, 0.8), generator.uniform(0.35, 0.65)])
    radius = float(generator.uniform(0.1, 0.16))
    points, triangles = channel_mesh(centre, radius, generator)
    times = STEP * np.arange((snapshots - 1) * SUBSTEPS + 1)
    speeds = inlet_speeds(times, generator)
    velocity = solve(points, triangles, speeds)
    sides = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    once = np.unique(np.sort(sides, 1), axis=0).T
    return {
        "points": points,
        "edges": np.concatenate([once, once[::-1]], 1),
        "kinds": node_kinds(points, centre, radius),
        "velocity": velocity[::SUBSTEPS],
        "inlet": speeds[::SUBSTEPS],
    }


def channel_mesh(centre: Array, radius: float, generator: np.random.Generator) -> tuple[Array, Array]:
    """Points `[n, 2]` and triangles `[t, 3]` of the channel without the cylinder."""
    across = np.linspace(0, LENGTH, round(LENGTH / SPACING) + 1)
    up = np.linspace(0, HEIGHT, round(HEIGHT / SPACING) + 1)
    edge = [(x, y) for x in across for y in (0.0, HEIGHT)] + [(x, y) for y in up[1:-1] for x in (0.0, LENGTH)]
    inside = np.array([(x, y) for x in across[1:-1] for y in up[1:-1]])
    inside = inside + generator.uniform(-0.25, 0.25, inside.shape) * SPACING
    inside = inside[np.linalg.norm(inside - centre, axis=1) > radius + 0.55 * SPACING]
    angles = np.linspace(0, 2 * np.pi, round(2 * np.pi * radius / SPACING * 1.3), endpoint=False)
    circle = centre + radius * np.stack([np.cos(angles), np.sin(angles)], 1)
    points = np.concatenate([np.array(edge), inside, circle])
    found = Delaunay(points).simplices
    middle = points[found].mean(1)
    area = np.abs(
        np.linalg.det(np.stack([points[found[:, 1]], points[found[:, 2]]], 1) - points[found[:, :1]])
    )
    return points, found[(np.linalg.norm(middle - centre, axis=1) > radius) & (area > 1e-9)]


def node_kinds(points: Array, centre: Array, radius: float) -> Array:
    """0 inside, 1 inlet, 2 wall or cylinder, 3 outlet."""
    x, y = points.T
    kinds = np.zeros(len(points), dtype=np.int64)
    kinds[np.isclose(x, LENGTH)] = 3
    kinds[np.isclose(x, 0)] = 1
    on_wall = np.isclose(y, 0) | np.isclose(y, HEIGHT)
    kinds[on_wall | (np.linalg.norm(points - centre, axis=1) < radius * 1.001)] = 2
    return kinds


def inlet_speeds(times: Array, generator: np.random.Generator) -> Array:
    """A smooth random speed in time, between about 0.3 and 1.7."""
    waves = zip(generator.uniform(2, 9, 3), generator.uniform(0, 2 * np.pi, 3), strict=True)
    speed: Array = 1 + sum(0.25 * np.sin(rate * times + phase) for rate, phase in waves)
    return speed


def solve(points: Array, triangles: Array, speeds: Array) -> Array:
    """Velocities at the mesh's points `[steps + 1, n, 2]` for the inlet's speed at each step.

    No slip on walls and cylinder, a parabola times the speed at the inlet, free outflow; the start is Stokes' flow.
    """
    from skfem import Basis, BilinearForm, ElementTriP1, ElementTriP2, ElementVector, LinearForm, MeshTri
    from skfem.helpers import ddot, div, dot, grad
    from skfem.utils import bmat, condense

    mesh = MeshTri(points.T.copy(), triangles.T.copy())
    flow_basis = Basis(mesh, ElementVector(ElementTriP2()), intorder=4)
    pressure = flow_basis.with_element(ElementTriP1())

    @BilinearForm
    def stiff(u: Any, v: Any, _: Any) -> Any:
        return ddot(grad(u), grad(v))

    @BilinearForm
    def mass(u: Any, v: Any, _: Any) -> Any:
        return dot(u, v)

    @BilinearForm
    def diverges(u: Any, q: Any, _: Any) -> Any:
        return -div(u) * q

    @LinearForm
    def convects(v: Any, w: Any) -> Any:
        # (u . grad) u, the velocity before
        carried = np.einsum("ij...,j...->i...", w["before"].grad, w["before"])
        return dot(carried, v)

    still, m = VISCOSITY * stiff.assemble(flow_basis), mass.assemble(flow_basis)
    b = diverges.assemble(flow_basis, pressure)
    fixed, profile = _fixed(mesh, flow_basis)
    size = still.shape[0]

    def factor(block: Any) -> Any:
        inner, _, _, free = condense(
            bmat([[block, b.T], [b, None]], "csc"), D=fixed, x=np.zeros(size + b.shape[0])
        )
        return splu(inner.tocsc()), free

    def advance(parts: Any, block: Any, force: Array, speed: float) -> Array:
        lu, free = parts
        known = np.zeros(size + b.shape[0])
        known[fixed] = speed * profile
        whole = bmat([[block, b.T], [b, None]], "csr")
        right = np.concatenate([force, np.zeros(b.shape[0])]) - whole @ known
        known[free] = lu.solve(right[free])
        return known[:size]

    u = advance(factor(still), still, np.zeros(size), float(speeds[0]))
    moving = m / STEP + still
    parts = factor(moving)
    found = [u]
    for speed in speeds[1:]:
        carried = convects.assemble(flow_basis, before=flow_basis.interpolate(u))
        u = advance(parts, moving, m @ u / STEP - carried, float(speed))
        found.append(u)
    at_points = np.stack(
        [np.stack([one[flow_basis.nodal_dofs[0]], one[flow_basis.nodal_dofs[1]]], 1) for one in found]
    )
    if not np.isfinite(at_points).all():
        raise RuntimeError("the flow left the finite numbers; a smaller time step is needed")
    return at_points


def _fixed(mesh: Any, basis: Any) -> tuple[Array, Array]:
    """Degrees of freedom with given velocities, and their values at speed 1."""
    boundary = mesh.boundary_facets()
    middle = mesh.p[:, mesh.facets[:, boundary]].mean(1)
    given = boundary[middle[0] < LENGTH - 1e-9]  # all but the outlet
    dofs = basis.get_dofs(given).all()
    x, y = basis.doflocs[:, dofs]
    first = np.zeros(basis.N, dtype=bool)
    first[np.concatenate([basis.nodal_dofs[0], basis.facet_dofs[0]])] = True
    values = np.where(np.isclose(x, 0) & first[dofs], 4 * y * (HEIGHT - y) / HEIGHT**2, 0.0)
    return dofs, values
