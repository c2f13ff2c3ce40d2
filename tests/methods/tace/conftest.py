"""e3nn, the oracle, builds its constants in the default type."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
