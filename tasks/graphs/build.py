"""Tables or torch-geometric files as the arrays that models are trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from methods.common.errors import DataError
from methods.s3gnn.study_data import ring_payload
from methods.s3gnn.targets import expected_rows, rows_of, task_of
from tasks.graphs.config import GraphSettings
from tasks.graphs.read import BUNDLED, Tables, is_saved, read_tables
from tasks.prepare.user_data import source_name

ARRAYS, RECORD, NAMES = "graphs.npz", "graphs.json", "rows.csv"
MOST_CLASSES = 20
BUNDLED_RINGS, BUNDLED_SIZE = 120, 24
IDS = ("graph", "node", "source", "target")


@dataclass(frozen=True)
class Graphs:
    """graphs: x, edge_index, y `[rows]` or `[rows, t]` (NaN: not known), and edge_label_index for edge targets.

    names: what each row of the targets is, in the graphs' order. classes: their names, empty for numbers.
    """

    graphs: list[Data]
    names: pd.DataFrame
    level: str
    classes: tuple[str, ...]
    features: tuple[str, ...]


def build_graphs(settings: GraphSettings, out: Path) -> dict[str, Any]:
    """Read the source and write arrays, the rows' names and a record.

    Raises:
        DataError: a mistake in the source, in one line.
    """
    found = _bundled() if settings.source == BUNDLED else _of(settings)
    known = sum(int(torch.isfinite(one.y).reshape(len(one.y), -1).all(1).sum()) for one in found.graphs)
    if known < 5:
        raise DataError(f"target {settings.target!r}: only {known} {found.level}s have one; give at least 5")
    _write(found, out)
    record = {
        "source": source_name(settings.source),
        "graphs": len(found.graphs),
        "nodes": sum(int(one.num_nodes) for one in found.graphs),
        "edges": sum(int(one.num_edges) for one in found.graphs) // 2,
        "level": found.level,
        "known": known,
        "rows": len(found.names),
        "classes": list(found.classes),
        "features": list(found.features),
    }
    (out / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return record


def _of(settings: GraphSettings) -> Graphs:
    return _saved(settings) if is_saved(settings.source) else _from_tables(read_tables(settings), settings)


def _bundled() -> Graphs:
    rings = [ring_payload(BUNDLED_SIZE, 1, np.random.default_rng(i)) for i in range(BUNDLED_RINGS)]
    for ring in rings:
        ring.y = torch.where(ring.y < 0, torch.nan, ring.y.double())
    names = pd.DataFrame(
        [(f"ring {i}", str(node)) for i in range(len(rings)) for node in range(BUNDLED_SIZE)],
        columns=["graph", "node"],
    )
    classes = tuple("ABCDE")
    return Graphs(rings, names, "node", classes, ("source", "target", *classes))


def _saved(settings: GraphSettings) -> Graphs:
    """torch-geometric objects, read without running any code of the file's."""
    safe: list[Any] = [Data, GlobalStorage, DataEdgeAttr, DataTensorAttr]
    try:
        with torch.serialization.safe_globals(safe):
            held = torch.load(Path(settings.source).expanduser(), weights_only=True)
    except Exception as error:
        raise DataError(
            f"source {source_name(settings.source)}: not a file of torch-geometric Data alone "
            f"({str(error).splitlines()[0][:120]}); save a Data object or a list of them"
        ) from error
    listed = [held] if isinstance(held, Data) else held
    if not isinstance(listed, list) or not listed or not all(isinstance(one, Data) for one in listed):
        raise DataError(
            f"source {source_name(settings.source)}: give a torch-geometric Data object or a list of them"
        )
    for place, one in enumerate(listed):
        if one.x is None or one.edge_index is None or one.y is None:
            raise DataError(f"source {source_name(settings.source)}: graph {place} lacks x, edge_index or y")
    level = task_of(listed)
    if level != settings.level:
        raise DataError(
            f"level {settings.level!r}: the targets y of {source_name(settings.source)} are of {level}s"
        )
    classes = _saved_classes(listed, settings)
    graphs, names = [], []
    for place, one in enumerate(listed):
        y = rows_of(one.y).double()
        if classes and not one.y.is_floating_point():
            y = torch.where(y < 0, torch.nan, y)
        kept = Data(x=one.x.float(), edge_index=one.edge_index, y=y, num_nodes=one.num_nodes)
        for name in ("edge_weight", "edge_label_index"):
            if name in one:
                kept[name] = one[name]
        graphs.append(kept)
        names += [(str(place), str(row)) for row in range(expected_rows(one, level))]
    features = tuple(str(i) for i in range(listed[0].x.shape[1]))
    return Graphs(
        graphs,
        pd.DataFrame(names, columns=["graph", level if level != "graph" else "row"]),
        level,
        classes,
        features,
    )


def _saved_classes(listed: Sequence[Any], settings: GraphSettings) -> tuple[str, ...]:
    every = torch.cat([rows_of(one.y).reshape(-1) for one in listed])
    if settings.kind == "numbers" or (settings.kind == "auto" and every.is_floating_point()):
        return ()
    if any(rows_of(one.y).dim() > 1 and one.y.shape[-1] > 1 for one in listed):
        raise DataError("y has several columns of classes; give one class a row, or kind numbers")
    top = int(every[torch.isfinite(every)].max())
    return tuple(str(i) for i in range(top + 1))


def _from_tables(tables: Tables, settings: GraphSettings) -> Graphs:
    nodes = tables.nodes.reset_index(drop=True)
    features = _feature_names(nodes, settings)
    matrix = _numbers(nodes, features, "nodes") if features else None
    owner = {"node": nodes, "graph": tables.graphs, "edge": tables.edges}[settings.level]
    targets, classes = _targets(owner, settings)
    weights = _numbers(tables.edges, (settings.weight,), "edges")[:, 0] if settings.weight else None
    graphs, names = [], []
    node_groups = nodes.groupby("graph", sort=False).indices
    edge_groups = tables.edges.groupby("graph", sort=False).indices
    strange = set(edge_groups) - set(node_groups)
    if strange:
        raise DataError(f"edges: graph {sorted(strange)[0]!r} has no nodes")
    graph_rows = {name: row for row, name in enumerate(tables.graphs.graph)}
    for graph, rows in node_groups.items():
        place = {name: i for i, name in enumerate(nodes.node.to_numpy()[rows])}
        chosen = edge_groups.get(graph, np.zeros(0, dtype=int))
        pairs = _pairs(tables.edges, chosen, place, str(graph))
        data = _data(matrix, rows, pairs, None if weights is None else weights[chosen])
        taken = {"node": rows, "edge": chosen, "graph": np.array([graph_rows[graph]])}[settings.level]
        data.y = torch.as_tensor(targets[taken])
        if settings.level == "edge":
            data.edge_label_index = torch.as_tensor(pairs.T.copy())
        graphs.append(data)
        names.append(owner.iloc[taken][[c for c in IDS if c in owner]])
    if settings.level == "edge":
        graphs, names = _with_edges(graphs, names)
    named = pd.concat(names, ignore_index=True)
    return Graphs(graphs, named, settings.level, classes, features or ("one", "log degree"))


def _with_edges(graphs: list[Data], names: list[pd.DataFrame]) -> tuple[list[Data], list[pd.DataFrame]]:
    """Graphs without any edge have no edge targets."""
    kept = [place for place, one in enumerate(graphs) if one.edge_label_index.shape[1]]
    if not kept:
        raise DataError("edges: there are none; nothing to predict")
    return [graphs[place] for place in kept], [names[place] for place in kept]


def _data(matrix: Any, rows: Any, pairs: Any, weights: Any) -> Data:
    """A graph with every edge both ways; edges given in both directions stay one."""
    both = np.concatenate([pairs, pairs[:, ::-1]])
    values = np.ones(len(both)) if weights is None else np.concatenate([weights, weights])
    _, first = np.unique(both, axis=0, return_index=True)
    edges = torch.as_tensor(both[first].T.copy())
    if matrix is None:
        degree = np.bincount(both[first][:, 0], minlength=len(rows))
        x = np.stack([np.ones(len(rows)), np.log1p(degree)], 1)
    else:
        x = matrix[rows]
    data = Data(x=torch.as_tensor(x, dtype=torch.float32), edge_index=edges, num_nodes=len(rows))
    if weights is not None:
        data.edge_weight = torch.as_tensor(values[first], dtype=torch.float32)
    return data


def _pairs(edges: pd.DataFrame, chosen: Any, place: dict[str, int], graph: str) -> Any:
    found = np.zeros((len(chosen), 2), dtype=np.int64)
    for column, name in enumerate(("source", "target")):
        for i, node in enumerate(edges[name].to_numpy()[chosen]):
            if node not in place:
                raise DataError(f"edges: {name} {node!r} of graph {graph!r} is no node of it")
            found[i, column] = place[node]
    return found


def _feature_names(nodes: pd.DataFrame, settings: GraphSettings) -> tuple[str, ...]:
    if settings.features:
        for name in settings.features:
            if name not in nodes:
                held = ", ".join(c for c in nodes.columns if c not in IDS)
                raise DataError(f"features: nodes have no {name!r}; they have {held or 'no attributes'}")
            if name == settings.target and settings.level == "node":
                raise DataError(f"features: {name!r} is the target; a model would read the answer")
        return settings.features
    taken = (*IDS, settings.target) if settings.level == "node" else IDS
    numbers = nodes.select_dtypes(["number", "bool"]).columns
    return tuple(str(c) for c in numbers if c not in taken)


def _numbers(table: pd.DataFrame, columns: Sequence[str], what: str) -> Any:
    for name in columns:
        if name not in table:
            raise DataError(f"{what}: have no {name!r}; they have {', '.join(table.columns)}")
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(float)
        bad = ~np.isfinite(values)
        if bad.any():
            row = int(bad.argmax())
            raise DataError(
                f"{what}: {name!r} holds no number in row {row + 1} ({table[name].iloc[row]!r}); fill it"
            )
    return table[list(columns)].to_numpy(float)


def _targets(owner: pd.DataFrame, settings: GraphSettings) -> tuple[Any, tuple[str, ...]]:
    """One number a row, NaN where it is not known; class numbers when they are classes."""
    if settings.target not in owner:
        held = ", ".join(str(c) for c in owner.columns if c not in IDS)
        raise DataError(
            f"target {settings.target!r}: no such column or attribute of {settings.level}s; they have {held or 'none'}"
        )
    column = owner[settings.target]
    known = column.dropna()
    numbers = pd.to_numeric(known, errors="coerce")
    is_text = bool(numbers.isna().any()) or known.dtype == bool
    whole = not is_text and bool((numbers == numbers.round()).all()) and known.nunique() <= MOST_CLASSES
    if settings.kind == "numbers" and is_text:
        raise DataError(
            f"target {settings.target!r}: {known[numbers.isna()].iloc[0]!r} is no number; set kind classes"
        )
    if settings.kind == "numbers" or (settings.kind == "auto" and not is_text and not whole):
        return pd.to_numeric(column, errors="coerce").to_numpy(float), ()
    classes = sorted(known.unique(), key=lambda value: (str(type(value)), value))
    codes = {value: float(i) for i, value in enumerate(classes)}
    return column.map(codes).to_numpy(float), tuple(_plain(value) for value in classes)


def _plain(value: Any) -> str:
    """A class as people write it: 3.0 in a column with gaps is 3."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _write(found: Graphs, out: Path) -> None:
    graphs = found.graphs
    arrays = {
        "nodes": np.cumsum([0, *(int(one.num_nodes) for one in graphs)]),
        "edges": np.cumsum([0, *(int(one.num_edges) for one in graphs)]),
        "rows": np.cumsum([0, *(len(one.y) for one in graphs)]),
        "x": torch.cat([one.x for one in graphs]).numpy(),
        "edge_index": torch.cat([one.edge_index for one in graphs], 1).numpy(),
        "y": torch.cat([one.y for one in graphs]).numpy(),
    }
    if all("edge_weight" in one for one in graphs):
        arrays["edge_weight"] = torch.cat([one.edge_weight for one in graphs]).numpy()
    if found.level == "edge":
        arrays["pairs"] = torch.cat([one.edge_label_index for one in graphs], 1).numpy()
    np.savez_compressed(out / ARRAYS, **arrays)
    found.names.to_csv(out / NAMES, index=False)


def load_graphs(folder: Path) -> tuple[list[Data], dict[str, Any], pd.DataFrame]:
    """The graphs, the record and the rows' names that `build_graphs` wrote."""
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    graphs = []
    with np.load(folder / ARRAYS) as held:
        stored = {name: held[name] for name in held.files}
    for i in range(record["graphs"]):
        nodes, edges, rows = (slice(*stored[name][i : i + 2]) for name in ("nodes", "edges", "rows"))
        data = Data(
            x=torch.as_tensor(stored["x"][nodes]),
            edge_index=torch.as_tensor(stored["edge_index"][:, edges]),
            y=torch.as_tensor(stored["y"][rows]),
            num_nodes=nodes.stop - nodes.start,
        )
        if "edge_weight" in stored:
            data.edge_weight = torch.as_tensor(stored["edge_weight"][edges])
        if "pairs" in stored:
            data.edge_label_index = torch.as_tensor(stored["pairs"][:, rows])
        graphs.append(data)
    return graphs, record, pd.read_csv(folder / NAMES, dtype=str, keep_default_na=False)
