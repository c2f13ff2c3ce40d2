"""Merge methods: the registry that leads from a name to the work.

The built-in methods stream through `methods.merge_early_stop`. Another package plugs in its own by an entry point
that names a `MergeMethod` object (or a class or function without arguments that makes one):

    [project.entry-points."seedloom.merge_methods"]
    fisher = "mypackage.fisher:FisherMerge"

Its name is then a choice of the settings, the form and the command line. Imports nothing heavy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from methods.common.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.merge.config import MergeSettings

ENTRY_POINTS = "seedloom.merge_methods"
BUILT_IN = ("average", "task_arithmetic", "ties", "dare")


@dataclass(frozen=True)
class MergeJob:
    """What a method works on.

    Attributes:
        base: folder of the base model (safetensors).
        experts: folders of the experts by name, adapters or whole models of the same architecture, checked.
        tasks: folder of the task sets; a method may read the select parts, never the test parts.
        settings: the merge settings.
    """

    base: Path
    experts: Mapping[str, Path]
    tasks: Path
    settings: MergeSettings


@runtime_checkable
class MergeMethod(Protocol):
    """A way to merge: theta_0 + coefficient * v, with v from the experts' task vectors.

    Attributes:
        tuned: whether the coefficient is chosen on the select parts; otherwise it is 1.
    """

    tuned: bool

    def vector(self, job: MergeJob) -> Mapping[str, Tensor]:
        """v for every tensor that changes: its name in the base's files, and a float tensor of its shape."""


def method_names() -> list[str]:
    """The built-in methods and those that installed packages plug in; loads none."""
    return [*BUILT_IN, *sorted(set(_points()) - set(BUILT_IN))]


def merge_method(name: str) -> MergeMethod:
    """The method of a name.

    Raises:
        ConfigError: there is none, or a plug-in cannot be loaded; names the known ones.
    """
    if name in BUILT_IN:
        from tasks.merge.built_in import BuiltIn

        return BuiltIn(name)
    point = _points().get(name)
    if point is None:
        raise ConfigError(f"method {name!r}: no such merge method; known are {', '.join(method_names())}")
    try:
        loaded: Any = point.load()
        made = loaded() if isinstance(loaded, type) or not isinstance(loaded, MergeMethod) else loaded
    except Exception as error:
        raise ConfigError(f"merge method {name} ({point.value}) cannot be loaded: {error}") from error
    if not isinstance(made, MergeMethod):
        raise ConfigError(f"merge method {name} ({point.value}) has no `tuned` and `vector`")
    return made


@functools.cache
def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
