"""Samples as a matrix of features, from tables, arrays, saved data sets and the bundled digits.

Every mistake is one line that names the source, the column, the row and the remedy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from methods.common.errors import ConfigError, DataError
from tasks.cluster.config import FeatureSettings
from tasks.prepare.user_data import load_hub, load_saved, source_files, source_kind, source_name

if TYPE_CHECKING:
    import pandas as pd

BUNDLED = "bundled:digits"
FEATURES, TRUTH, RECORD = "features.npy", "truth.npy", "features.json"
TABLES = (".csv", ".parquet", ".jsonl", ".arrow", ".feather")
ARRAYS = (".npy", ".npz")


def check_features(settings: FeatureSettings) -> None:
    """Refuse a source that is not there or of an unknown kind, before any work starts.

    Raises:
        DataError: one line that names the source and the remedy.
    """
    if settings.source != BUNDLED:
        feature_files(settings.source)


def build_features(settings: FeatureSettings, out: Path) -> dict[str, Any]:
    """Write `features.npy` (float32 `[n, d]`), `truth.npy` (class numbers, where there are labels) and `features.json`.

    Raises:
        DataError: an unreadable source, a missing column, a value that is no number.
        ConfigError: more components than features or samples.
    """
    matrix, truth, names = _read(settings)
    where = source_name(settings.source)
    if not len(matrix):
        raise DataError(f"data {where}: holds no rows")
    bad = ~np.isfinite(matrix)
    if bad.any():
        row, column = (int(place) for place in np.argwhere(bad)[0])
        raise DataError(
            f"data {where}: column {names[column]!r} has no finite number in row {row + 1}; fill or drop such rows"
        )
    if settings.scale == "standard":
        spread = matrix.std(axis=0)
        matrix = (matrix - matrix.mean(axis=0)) / np.where(spread > 0, spread, 1)
    if settings.components:
        matrix = _components(matrix, settings.components)
    np.save(out / FEATURES, matrix.astype(np.float32, copy=False))
    classes: list[str] = []
    if truth is not None:
        classes, numbers = _class_numbers(truth)
        np.save(out / TRUTH, numbers)
    record = {
        "source": where,
        "rows": len(matrix),
        "features": matrix.shape[1],
        "columns": names if len(names) <= 100 else [],
        "classes": len(classes),
        "scale": settings.scale,
        "components": settings.components,
    }
    (out / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return record


def load_features(folder: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The matrix as a memory map, and the true classes where there are any."""
    truth = folder / TRUTH
    return np.load(folder / FEATURES, mmap_mode="r"), np.load(truth) if truth.is_file() else None


def read_table(settings: FeatureSettings) -> pd.DataFrame | None:
    """The source's rows as they are, in order; None for arrays and the bundled digits.

    Raises:
        DataError: an unreadable source.
    """
    import pandas as pd

    if settings.source == BUNDLED:
        return None
    files = feature_files(settings.source)
    if not files:
        if source_kind(settings.source) == "saved":
            data = load_saved(Path(settings.source).expanduser(), settings.hub_split)
        else:
            data = load_hub(settings.source, "", settings.hub_split)
        return data.to_pandas()
    if files[0].suffix.lower() in ARRAYS:
        return None
    return pd.concat([_read_file(path) for path in files], ignore_index=True)


def feature_files(source: str, *, several_arrays: bool = False) -> list[Path]:
    """The files of a source; none for a saved data set and one of the hub.

    Raises:
        DataError: nothing is there, or an array among several files, unless `several_arrays`.
    """
    if source_kind(source) != "files":
        return []
    files = source_files(source, TABLES + ARRAYS)
    arrays = sum(path.suffix.lower() in ARRAYS for path in files)
    if arrays and len(files) > 1 and not several_arrays:
        raise DataError(
            f"data {source}: {arrays} of {len(files)} files are arrays; stack them into one .npy, or give tables only"
        )
    return files


def _read(settings: FeatureSettings) -> tuple[np.ndarray, Any, list[str]]:
    """(matrix, labels or None, a name for each of its columns)."""
    if settings.source == BUNDLED:
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.data, digits.target, list(digits.feature_names)
    files = feature_files(settings.source)
    if files and files[0].suffix.lower() in ARRAYS:
        return _array(files[0], settings)
    table = read_table(settings)
    assert table is not None
    return table_matrix(table, settings)


def _array(path: Path, settings: FeatureSettings) -> tuple[np.ndarray, Any, list[str]]:
    try:
        # Without pickle: an array of objects from elsewhere may run code.
        stored = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"data {path}: is no array of numbers that can be read ({error})") from None
    truth = None
    if path.suffix.lower() == ".npz":
        names = list(stored.files)
        chosen = (
            settings.columns[0] if settings.columns else _only_matrix(path, stored, settings.label_column)
        )
        for field, name in (("columns", chosen), ("label_column", settings.label_column)):
            if name and name not in names:
                raise DataError(
                    f"data {path}: has no array {name!r}; set {field} to one of {', '.join(names)}"
                )
        if settings.label_column:
            truth = stored[settings.label_column]
        stored = stored[chosen]
    elif settings.label_column or settings.columns:
        raise DataError(
            f"data {path}: an .npy file has no columns; leave columns and label_column empty, or give an .npz"
        )
    if stored.ndim < 2 or not (np.issubdtype(stored.dtype, np.number) or stored.dtype == bool):
        raise DataError(
            f"data {path}: holds {stored.dtype} of shape {stored.shape}; give numbers of shape [n, ...]"
        )
    if truth is not None and truth.shape != (len(stored),):
        raise DataError(
            f"data {path}: {settings.label_column!r} has shape {truth.shape} for {len(stored)} rows"
        )
    matrix = stored.reshape(len(stored), -1)
    return matrix.astype(np.float32), truth, [str(i) for i in range(matrix.shape[1])]


def _only_matrix(path: Path, stored: Any, label: str) -> str:
    names = [name for name in stored.files if name != label and stored[name].ndim >= 2]
    if len(names) != 1:
        raise DataError(
            f"data {path}: holds the arrays {', '.join(stored.files)}; name the features' one in columns"
        )
    return str(names[0])


def _read_file(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        match path.suffix.lower():
            case ".csv":
                return pd.read_csv(path)
            case ".parquet":
                return pd.read_parquet(path)
            case ".jsonl":
                return pd.read_json(path, lines=True)
            case _:
                return _arrow(path)
    except (OSError, ValueError, ArithmeticError, UnicodeError) as error:
        raise DataError(f"data {path}: cannot be read ({str(error).splitlines()[0]})") from None


def _arrow(path: Path) -> pd.DataFrame:
    """Arrow's file format, or its stream format, which the same suffix carries in saved data sets."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as stored:
        try:
            return pa.ipc.open_file(stored).read_all().to_pandas()
        except pa.ArrowInvalid:
            return pa.ipc.open_stream(stored).read_all().to_pandas()


def table_matrix(table: pd.DataFrame, settings: FeatureSettings) -> tuple[np.ndarray, Any, list[str]]:
    """The features of a table's rows, the labels' column or None, and a name for each feature."""
    import pandas as pd

    where = source_name(settings.source)
    known = ", ".join(map(str, table.columns[:20]))
    label = settings.label_column
    for field, names in (("columns", settings.columns), ("label_column", (label,) if label else ())):
        for name in names:
            if name not in table:
                raise DataError(f"data {where}: has no column {name!r}; set {field} to one of {known}")
    chosen = list(settings.columns) or [
        name for name in table.columns if name != label and pd.api.types.is_numeric_dtype(table[name])
    ]
    if label in chosen:
        raise DataError(
            f"data {where}: label_column {label!r} is among columns; a label must not be a feature"
        )
    if not chosen:
        raise DataError(
            f"data {where}: has no column of numbers; name a column of embeddings in columns ({known})"
        )
    parts, names = [], []
    for name in chosen:
        column = table[name]
        if pd.api.types.is_numeric_dtype(column):
            part = column.to_numpy(dtype=np.float64, na_value=np.nan)[:, None]
            names.append(str(name))
        else:
            part = _lists(where, name, column)
            names += [f"{name}[{i}]" for i in range(part.shape[1])]
        parts.append(part)
    return np.concatenate(parts, axis=1), (table[label].to_numpy() if label else None), names


def _lists(where: str, name: str, column: pd.Series) -> np.ndarray:
    lengths = {len(value) if isinstance(value, list | tuple | np.ndarray) else -1 for value in column}
    if lengths == {-1} or not lengths:
        raise DataError(
            f"data {where}: column {name!r} holds neither numbers nor lists of numbers; choose others in columns"
        )
    if len(lengths) > 1:
        raise DataError(
            f"data {where}: the lists of column {name!r} have different lengths ({min(lengths)} to "
            f"{max(lengths)}); give embeddings of one length"
        )
    try:
        return np.stack([np.asarray(value, dtype=np.float64) for value in column])
    except (TypeError, ValueError):
        raise DataError(
            f"data {where}: column {name!r} holds lists that are no numbers; choose others in columns"
        ) from None


def _components(matrix: np.ndarray, count: int) -> np.ndarray:
    from sklearn.decomposition import PCA

    if count > min(matrix.shape):
        raise ConfigError(
            f"features.components={count}: is above the {matrix.shape[1]} features or {matrix.shape[0]} rows; lower it"
        )
    # The full solver is deterministic; it needs the covariance alone where rows are many.
    return np.asarray(PCA(count, svd_solver="covariance_eigh").fit_transform(matrix))


def _class_numbers(truth: Any) -> tuple[list[str], np.ndarray]:
    classes, numbers = np.unique(np.asarray(truth).astype(str), return_inverse=True)
    return classes.tolist(), numbers.astype(np.int64)
