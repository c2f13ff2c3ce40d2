"""The study's tasks: graphs whose targets depend on far nodes, each split into train, validation and test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data

from methods.common.errors import DataError
from methods.s3gnn.study_questions import questions

Array = np.ndarray[Any, Any]
CLASSES = 5
# Of a number of nodes, of rows, and a seed.
_FAMILIES: dict[str, Callable[[int, int, int], Any]] = {
    "erdos": lambda n, _, seed: nx.gnp_random_graph(n, 0.15, seed=seed),
    "barabasi": lambda n, _, seed: nx.barabasi_albert_graph(n, 2, seed=seed),
    "grid": lambda n, rows, _: nx.grid_2d_graph(rows, n // rows),
    "caveman": lambda n, rows, _: nx.connected_caveman_graph(rows, n // rows),
    "tree": lambda n, _, seed: nx.random_labeled_tree(n, seed=seed),
    "ladder": lambda n, *_: nx.ladder_graph(n // 2),
    "line": lambda n, *_: nx.path_graph(n),
    "star": lambda n, *_: nx.star_graph(n - 1),
    "caterpillar": lambda n, _, seed: nx.random_lobster_graph(n // 2, 0.6, 0, seed=seed),
    "lobster": lambda n, _, seed: nx.random_lobster_graph(n // 3, 0.6, 0.4, seed=seed),
}
FAMILIES = tuple(_FAMILIES)
SMALLEST, LARGEST = 25, 35
STEPS_EACH = 5


@dataclass(frozen=True)
class TaskData:
    """A task's graphs.

    Attributes:
        train, valid, test: `Data` with x, edge_index, y.
        classes: whether y are classes.
    """

    train: list[Data]
    valid: list[Data]
    test: list[Data]
    classes: bool


def undirected(edges: Array) -> torch.Tensor:
    """Pairs `[E, 2]` as an edge_index both ways."""
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2).T
    return torch.as_tensor(np.concatenate([pairs, pairs[::-1]], 1))


def ring_payload(size: int, payloads: int, generator: np.random.Generator) -> Data:
    """A ring in which some nodes hold a random class that the node opposite must name.

    Features: is a source, is a target, the class (one-hot, at sources only). Nodes are in random order, so that
    nothing can be learnt by heart. y is -1 at all but the targets.
    """
    order = generator.permutation(size)
    edges = np.stack([order, np.roll(order, 1)], 1)
    x = np.zeros((size, 2 + CLASSES), dtype=np.float32)
    y = np.full(size, -1)
    for place in generator.permutation(size // 2)[:payloads]:
        source, target = order[place], order[place + size // 2]
        payload = int(generator.integers(CLASSES))
        x[source, 0] = x[target, 1] = x[source, 2 + payload] = 1
        y[target] = payload
    return Data(x=torch.as_tensor(x), edge_index=undirected(edges), y=torch.as_tensor(y))


def barbell(size: int, generator: np.random.Generator) -> Data:
    """Two cliques joined by one edge; each node's target is the mean number of the other clique."""
    ones = np.triu_indices(size, 1)
    clique = np.stack(ones, 1)
    edges = np.concatenate([clique, clique + size, [[size - 1, size]]])
    means = generator.normal(size=2)
    x = np.repeat(means, size) + generator.normal(size=2 * size)
    opposite = np.repeat([x[size:].mean(), x[:size].mean()], size)
    flag = np.repeat([0.0, 1.0], size)
    return Data(
        x=torch.as_tensor(np.stack([x, flag], 1), dtype=torch.float32),
        edge_index=undirected(edges),
        y=torch.as_tensor(opposite, dtype=torch.float32),
    )


def random_graph(kind: str, generator: np.random.Generator) -> Any:
    """A connected graph of 25 to 35 nodes of one of the usual ten families."""
    while True:
        size, seed = int(generator.integers(SMALLEST, LARGEST + 1)), int(generator.integers(2**31))
        rows = int(generator.integers(4, 7))
        graph = _FAMILIES[kind](size, rows, seed)
        # The random lobsters have any size at all.
        if SMALLEST <= graph.number_of_nodes() <= LARGEST and nx.is_connected(graph):
            return nx.convert_node_labels_to_integers(graph)


def graph_property(name: str, generator: np.random.Generator) -> Data:
    """Raw hop counts: `diameter` of the graph, or `hops`, each node's eccentricity and distance from the source.

    Features: a random number, a source flag.
    """
    graph = random_graph(FAMILIES[int(generator.integers(len(FAMILIES)))], generator)
    size = graph.number_of_nodes()
    source = int(generator.integers(size))
    x = np.zeros((size, 2), dtype=np.float32)
    x[:, 0], x[source, 1] = generator.uniform(size=size), 1
    ecc = nx.eccentricity(graph)
    if name == "diameter":
        y = torch.tensor([float(max(ecc.values()))])
    else:
        away = nx.single_source_shortest_path_length(graph, source)
        y = torch.tensor([[float(ecc[node]), float(away[node])] for node in range(size)])
    return Data(x=torch.as_tensor(x), edge_index=undirected(np.array(graph.edges)), y=y)


def mesh_steps(
    folder: Path, trajectories: slice, noise: float, generator: np.random.Generator, each: int = STEPS_EACH
) -> list[Data]:
    """Steps of stored flows: the velocity now and the inlet's next speed at the inlet's nodes; y the velocity's change.

    Args:
        folder: holds flows.npz as `seedloom fetch mesh_flow` writes it.
        trajectories: which.
        noise: standard deviation added to the velocity of training steps, so that rollouts stay stable.
        each: steps drawn from a trajectory.
    """
    stored = _flows(folder)
    found = []
    for i in range(len(stored["inlet"]))[trajectories]:
        nodes = slice(*stored["nodes"][i : i + 2])
        edges = torch.as_tensor(stored["edge_index"][:, slice(*stored["edges"][i : i + 2])].astype(np.int64))
        steps = stored["velocity"].shape[0] - 1
        for step in sorted(generator.permutation(steps)[:each].tolist()):
            now, after = stored["velocity"][step, nodes], stored["velocity"][step + 1, nodes]
            now = now + noise * generator.normal(size=now.shape).astype(np.float32)
            x = mesh_features(
                now, stored["kinds"][nodes], stored["points"][nodes], stored["inlet"][i, step + 1]
            )
            y = torch.as_tensor(after - now)
            found.append(Data(x=x, edge_index=edges, y=y, trajectory=i, step=step))
    return found


def mesh_features(now: Array, kinds: Array, points: Array, inlet: float) -> torch.Tensor:
    """`[n, 9]`: velocity, kind one-hot, place, and the inlet's next speed where it is prescribed."""
    given = np.where(kinds == 1, inlet, 0.0)[:, None]
    parts = [now, np.eye(4)[kinds], points, given]
    return torch.as_tensor(np.concatenate(parts, 1), dtype=torch.float32)


@lru_cache(maxsize=1)
def _flows(folder: Path) -> dict[str, Array]:
    try:
        with np.load(folder / "flows.npz") as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder}: holds no flows.npz that can be read; `seedloom fetch mesh_flow {folder}`"
        ) from error


def rollout_error(predict: Callable[[Data], Array], folder: Path, trajectories: slice) -> float:
    """Root mean square error over all steps of flows that a model carries on from its own predictions."""
    stored = _flows(folder)
    squares, count = 0.0, 0
    for i in range(len(stored["inlet"]))[trajectories]:
        nodes = slice(*stored["nodes"][i : i + 2])
        edges = torch.as_tensor(stored["edge_index"][:, slice(*stored["edges"][i : i + 2])].astype(np.int64))
        now = stored["velocity"][0, nodes]
        for step in range(stored["velocity"].shape[0] - 1):
            inlet = stored["inlet"][i, step + 1]
            x = mesh_features(now, stored["kinds"][nodes], stored["points"][nodes], inlet)
            now = now + predict(Data(x=x, edge_index=edges))
            difference = np.clip(now, -1e3, 1e3) - stored["velocity"][step + 1, nodes]
            squares, count = squares + float((difference**2).sum()), count + difference.size
    return float(np.sqrt(squares / count))


@dataclass(frozen=True)
class Plan:
    """How a task is measured.

    Attributes:
        metric: of the test part.
        layers, act: of every model.
        sizes, full: train, validation and test graphs (mesh: trajectories) of the default and the full profile.
        epochs, full_epochs: of training.
        batch: graphs a step.
    """

    metric: str
    layers: int
    sizes: tuple[int, int, int]
    epochs: int
    full: tuple[int, int, int]
    full_epochs: int
    batch: int = 16


PLANS = {
    "payload": Plan("accuracy", 4, (150, 50, 200), 20, (1000, 200, 1000), 40),
    "payload_far": Plan("accuracy", 4, (60, 20, 150), 20, (1000, 200, 1000), 40, 8),
    "routing": Plan("accuracy", 8, (240, 60, 200), 20, (2000, 300, 1000), 100),
    "barbell": Plan("mse", 4, (40, 20, 40), 30, (100, 100, 100), 150, 8),
    "diameter": Plan("log10_mse", 4, (200, 60, 200), 12, (5120, 640, 1280), 60),
    "hops": Plan("log10_mse", 4, (200, 60, 200), 12, (5120, 640, 1280), 60),
    "kgqa": Plan("hits", 6, (180, 45, 200), 8, (450, 115, 300), 30),
    "mesh": Plan("rmse", 4, (12, 4, 10), 12, (40, 8, 12), 40, 4),
}
TASKS = tuple(PLANS)
RINGS = {"payload": 32, "payload_far": 128}
ROUTING_RING = 16
BARBELL = {"small": 20, "full": 50}
NOISE = 0.01


@lru_cache(maxsize=2)
def task_data(name: str, seed: int, full: bool, folder: Path) -> TaskData:
    """A task's graphs; the seed draws them anew (the flows: which are held out).

    Args:
        name: one of TASKS.
        seed: of graphs and split.
        full: the larger sizes.
        folder: of the stored flows.
    """
    plan = PLANS[name]
    sizes = plan.full if full else plan.sizes
    if name == "mesh":
        parts = _mesh_parts(sizes, seed, folder)
    elif name == "kgqa":
        parts = questions(sizes, seed)
    else:
        makers: dict[str, Callable[[np.random.Generator], Data]] = {
            "routing": lambda g: ring_payload(ROUTING_RING, 3, g),
            "barbell": lambda g: barbell(BARBELL["full" if full else "small"], g),
        } | {ring: lambda g, n=size: ring_payload(n, 1, g) for ring, size in RINGS.items()}
        make = makers.get(name, lambda g: graph_property(name, g))
        parts = [
            [make(np.random.default_rng([seed, split, i])) for i in range(count)]
            for split, count in enumerate(sizes)
        ]
    return TaskData(parts[0], parts[1], parts[2], plan.metric in ("accuracy", "hits"))


def _mesh_parts(sizes: tuple[int, int, int], seed: int, folder: Path) -> list[list[Data]]:
    """Whole trajectories to each part. The test trajectories are the last ones for every seed."""
    generator = np.random.default_rng(seed)
    train = mesh_steps(folder, slice(0, sizes[0]), NOISE, generator)
    valid = mesh_steps(folder, slice(sizes[0], sizes[0] + sizes[1]), 0.0, generator)
    return [train, valid, mesh_steps(folder, slice(-sizes[2], None), 0.0, generator)]
