"""A report's links: to the run, and to the page of comparison only where there is something to compare."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pandas as pd
import pytest

from tasks.report import publish as module


@pytest.mark.parametrize(("compare", "links"), [("http://here/run", 1), ("http://here/compare", 2)])
def test_one_candidate_is_not_compared(
    compare: str, links: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {name: MagicMock() for name in ("link", "markdown", "table")}
    for name, mock in made.items():
        monkeypatch.setattr(module, f"create_{name}_artifact", mock)
    for name in ("log_metrics", "set_tags"):
        monkeypatch.setattr(module, name, MagicMock())
    ctx = SimpleNamespace(
        flow="demo",
        parent_run_id="1",
        client=MagicMock(),
        run_url="http://here/run",
        compare_url=compare,
    )
    module.publish.fn(ctx, "Demo", tmp_path / "out", {}, pd.DataFrame({"a": [1]}), {}, {}, [])
    assert made["link"].call_count == links
    text = made["markdown"].call_args.kwargs["markdown"]
    assert ("side by side" in text) is (links == 2)
    assert "http://here/run" in text
