"""Which model a compressed candidate is probed against."""

from pathlib import Path

from flows.stages import _dense_parent
from tasks.candidates import Candidate
from tasks.reference import reference_to
from tests.tiny_models import tiny_llama


def test_the_parent_is_found_among_the_candidates(tmp_path: Path) -> None:
    folder = reference_to(tiny_llama(tmp_path / "m"), "model")
    merge = Candidate(name="merge/average", stage="merge", method="average", reference=folder)
    made = Candidate(
        name="compressed/x", stage="compressed", method="x", reference=folder, parents=("merge/average",)
    )
    assert _dense_parent(made, [merge, made]) == folder
    assert _dense_parent(made, [made]) is None
    assert _dense_parent(merge, [merge, made]) is None
    adapter = merge.model_copy(update={"reference": folder.model_copy(update={"kind": "adapter"})})
    assert _dense_parent(made, [adapter, made]) is None
