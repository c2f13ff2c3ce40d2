"""The task sets of the evaluate step's tests."""

from tests.tasks.evaluate.conftest import task_sets

__all__ = ["task_sets"]
