"""Rows of files that may be larger than memory, a batch at a time, and their division into pieces.

A piece is a part of one file: rows of an array, row groups of Parquet, whole files of CSV, JSONL and Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from methods.common.errors import DataError
from tasks.cluster.config import FeatureSettings
from tasks.cluster.coreset_config import StreamSource
from tasks.cluster.features import ARRAYS, BUNDLED, feature_files, table_matrix
from tasks.config import Config
from tasks.prepare.user_data import source_kind, source_name

if TYPE_CHECKING:
    import pandas as pd


class Piece(Config):
    """Units `first` to `last` (not included) of one file: rows of an array, row groups of Parquet, or all (0, 1)."""

    file: str
    first: int
    last: int


def pieces_of(source: StreamSource) -> list[Piece]:
    """At most `partitions` pieces a file, of nearly equal size, in the order of the data.

    Raises:
        DataError: nothing is there, or a kind of source that cannot be read by batches.
    """
    if source.source == BUNDLED:
        return [Piece(file=BUNDLED, first=0, last=1)]
    files = _stream_files(source.source)
    pieces = []
    share = max(1, source.partitions // len(files))
    for file in files:
        units = _units(file)
        cuts = np.unique(np.linspace(0, units, min(share, units) + 1).round().astype(int))
        pieces += [Piece(file=str(file), first=int(a), last=int(b)) for a, b in pairwise(cuts)]
    if not pieces:
        raise DataError(f"data {source.source}: holds no rows")
    return pieces


def _stream_files(source: str) -> list[Path]:
    kind = source_kind(source)
    if kind == "saved":
        return sorted(Path(source).expanduser().rglob("*.arrow"))
    if kind == "hub":
        raise DataError(
            f"data {source}: a hub data set is not read by batches; store it first (datasets.save_to_disk)"
        )
    files = feature_files(source, several_arrays=True)
    if any(file.suffix.lower() == ".npz" for file in files):
        raise DataError(f"data {source}: an .npz cannot be read by parts; store the array as .npy")
    return files


def _units(file: Path) -> int:
    """How many units a file has. An unreadable file is told by name."""
    try:
        match file.suffix.lower():
            case ".npy":
                return len(_array(file))
            case ".parquet":
                import pyarrow.parquet as pq

                return int(pq.ParquetFile(file).num_row_groups)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"data {file}: cannot be read ({str(error).splitlines()[0]})") from None
    return 1


def _array(file: Path) -> np.ndarray:
    # Without pickle: an array of objects from elsewhere may run code.
    found: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    if found.ndim < 2 or not (np.issubdtype(found.dtype, np.number) or found.dtype == bool):
        raise DataError(
            f"data {file}: holds {found.dtype} of shape {found.shape}; give numbers of shape [n, ...]"
        )
    return found


def batches(piece: Piece, source: StreamSource) -> Iterator[np.ndarray]:
    """The piece's rows as matrices of at most `batch_rows` rows, in order; only one is in memory.

    Raises:
        DataError: a file that cannot be read, a missing column, a value that is no finite number.
    """
    where, seen = Path(piece.file).name, 0
    try:
        for matrix in _matrices(piece, source):
            bad = ~np.isfinite(matrix)
            if bad.any():
                row = int(np.argwhere(bad)[0, 0])
                raise DataError(
                    f"data {where}: no finite number in row {seen + row + 1} of the piece; fill or drop such rows"
                )
            seen += len(matrix)
            yield matrix
    except (OSError, ArithmeticError, UnicodeError) as error:
        raise DataError(f"data {where}: cannot be read ({str(error).splitlines()[0]})") from None


def _matrices(piece: Piece, source: StreamSource) -> Iterator[np.ndarray]:
    if piece.file == BUNDLED:
        from sklearn.datasets import load_digits

        yield np.asarray(load_digits().data, dtype=np.float64)
        return
    file = Path(piece.file)
    if file.suffix.lower() in ARRAYS:
        for start in range(piece.first, piece.last, source.batch_rows):
            # Opened anew: pages of a map that was read stay counted as this process's memory.
            part = _array(file)[start : min(start + source.batch_rows, piece.last)]
            yield np.asarray(part, dtype=np.float64).reshape(len(part), -1)
        return
    chosen = source.columns
    for table in _tables(file, piece, source):
        if not len(table):
            continue
        settings = FeatureSettings(source=str(file), columns=chosen)
        matrix, _, _ = table_matrix(table, settings)
        if not chosen:
            # The first batch decides: a later one may look different, e.g. a column of digits among words.
            import pandas as pd

            chosen = tuple(str(n) for n in table.columns if pd.api.types.is_numeric_dtype(table[n]))
        yield matrix


def _tables(file: Path, piece: Piece, source: StreamSource) -> Iterator[pd.DataFrame]:
    import pandas as pd

    rows = source.batch_rows
    try:
        match file.suffix.lower():
            case ".parquet":
                import pyarrow.parquet as pq

                groups = list(range(piece.first, piece.last))
                for batch in pq.ParquetFile(file).iter_batches(rows, row_groups=groups):
                    yield batch.to_pandas()
            case ".csv":
                yield from pd.read_csv(file, chunksize=rows)
            case ".jsonl":
                yield from pd.read_json(file, lines=True, chunksize=rows)
            case _:
                yield from _arrow_tables(file, rows)
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"data {source_name(str(file))}: cannot be read ({str(error).splitlines()[0]})"
        ) from None


def _arrow_tables(file: Path, rows: int) -> Iterator[pd.DataFrame]:
    """Arrow's file format, or its stream format, which the same suffix carries in saved data sets."""
    import pyarrow as pa

    with pa.memory_map(str(file)) as stored:
        try:
            opened: Any = pa.ipc.open_file(stored)
            found = (opened.get_batch(i) for i in range(opened.num_record_batches))
        except pa.ArrowInvalid:
            stored.seek(0)
            found = iter(pa.ipc.open_stream(stored))
        for batch in found:
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows).to_pandas()
