"""A person's graphs as three tables (nodes, edges, graphs), whatever files they come in.

Every mistake is one line that names the file, the column, the row and the remedy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import pandas as pd

from methods.common.errors import DataError
from tasks.graphs.config import GraphSettings
from tasks.prepare.user_data import source_files, source_name

NETWORKX = (".graphml", ".gml", ".json")
BUNDLED = "bundled:rings"


@dataclass(frozen=True)
class Tables:
    """nodes: graph, node and attributes; edges: graph, source, target and attributes; graphs: graph and attributes.

    Names of graphs and nodes are text. An edge may stand once or in both directions.
    """

    nodes: pd.DataFrame
    edges: pd.DataFrame
    graphs: pd.DataFrame


def check_source(settings: GraphSettings) -> None:
    """Refuse a source that is not there or of an unknown kind.

    Raises:
        DataError: one line with the remedy.
    """
    if settings.source != BUNDLED and not is_saved(settings.source) and not _edge_file(settings.source):
        source_files(settings.source, NETWORKX)


def is_saved(source: str) -> bool:
    """Whether it is a file of torch-geometric objects."""
    path = Path(source).expanduser()
    if path.suffix == ".pt" and not path.is_file():
        raise DataError(f"source {source}: there is no such file")
    return path.suffix == ".pt"


def read_tables(settings: GraphSettings) -> Tables:
    """The source's tables.

    Raises:
        DataError: an unreadable file, a missing column, a node that is named twice or not at all.
    """
    edges = _edge_file(settings.source)
    return _from_csv(edges) if edges else _from_networkx(source_files(settings.source, NETWORKX))


def _edge_file(source: str) -> Path | None:
    path = Path(source).expanduser()
    if path.is_dir() and (path / "edges.csv").is_file():
        return path / "edges.csv"
    return path if path.suffix.lower() == ".csv" and path.is_file() else None


def _csv(path: Path, needed: tuple[str, ...]) -> pd.DataFrame:
    text = dict.fromkeys(("graph", "node", "source", "target"), str)
    try:
        table = pd.read_csv(path, dtype=text)
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name}: cannot be read as CSV ({str(error).splitlines()[0]})") from error
    for column in needed:
        if column not in table:
            raise DataError(
                f"{path.name}: has no column {column!r}; its columns are {', '.join(table.columns)}"
            )
    if "graph" not in table:
        table["graph"] = "0"
    empty = table[[*needed, "graph"]].isna().any(axis=1)
    if empty.any():
        raise DataError(f"{path.name}: row {int(empty.to_numpy().argmax()) + 2} lacks {' or '.join(needed)}")
    return table


def _from_csv(path: Path) -> Tables:
    edges = _csv(path, ("source", "target"))
    beside = path.parent
    if (beside / "nodes.csv").is_file():
        nodes = _csv(beside / "nodes.csv", ("node",))
        twice = nodes.duplicated(["graph", "node"])
        if twice.any():
            raise DataError(
                f"nodes.csv: node {nodes.node[twice].iloc[0]!r} stands there twice; keep one row a node"
            )
    else:
        ends = [edges[["graph", side]].rename(columns={side: "node"}) for side in ("source", "target")]
        nodes = pd.concat(ends).drop_duplicates().sort_values(["graph", "node"]).reset_index(drop=True)
    graphs = nodes[["graph"]].drop_duplicates().reset_index(drop=True)
    if (beside / "graphs.csv").is_file():
        given = _csv(beside / "graphs.csv", ("graph",))
        graphs = graphs.merge(given, on="graph", how="left", validate="one_to_one")
    return Tables(nodes, edges, graphs)


def _from_networkx(files: list[Path]) -> Tables:
    nodes, edges, graphs = [], [], []
    for path in files:
        graph = _graph(path)
        name = path.stem
        graphs.append({"graph": name, **graph.graph})
        nodes += [
            {**attributes, "graph": name, "node": str(node)} for node, attributes in graph.nodes(data=True)
        ]
        edges += [
            {**attributes, "graph": name, "source": str(first), "target": str(second)}
            for first, second, attributes in graph.edges(data=True)
        ]
    if not nodes:
        raise DataError(f"{files[0].name}: holds no nodes")
    return Tables(
        pd.DataFrame(nodes),
        pd.DataFrame(edges, columns=None if edges else ["graph", "source", "target"]),
        pd.DataFrame(graphs),
    )


def _graph(path: Path) -> Any:
    try:
        if path.suffix.lower() == ".graphml":
            return nx.read_graphml(path)
        if path.suffix.lower() == ".gml":
            return nx.read_gml(path)
        record = json.loads(path.read_text(encoding="utf-8"))
        return nx.node_link_graph(record, edges="edges" if "edges" in record else "links")
    except Exception as error:  # whatever a damaged file brings
        raise DataError(
            f"{source_name(str(path))}: NetworkX cannot read it ({type(error).__name__}: {str(error)[:120]})"
        ) from error
