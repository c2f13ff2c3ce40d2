"""Candidates: the models that one flow run puts side by side, and the folders that carry them between steps."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from methods.common.errors import DataError
from tasks.config import Config
from tasks.output_folder import write_output
from tasks.reference import Reference, reference_to

Stage = Literal["base", "expert", "merge", "compressed"]
LISTING = "candidates.json"


class Candidate(Config):
    """A model under comparison.

    Attributes:
        name: unique in its flow run and stable between runs, e.g. `merge/ties`.
        stage: the step that made it.
        method: how it was made: the stopping rule, the merge method or the compression recipe.
        reference: its folder: a full model, or an adapter on the base.
        parents: names of the candidates it was made from.
        task: the task that an expert was trained on.
        facts: what its step measured about it (chosen coefficient, stop step, sparsity ...).
        seconds: how long its step took, when it was made.
    """

    name: str
    stage: Stage
    method: str
    reference: Reference
    parents: tuple[str, ...] = ()
    task: str = ""
    facts: dict[str, Any] = Field(default_factory=dict)
    seconds: float = 0.0


def save_candidates(candidates: Sequence[Candidate], folder: Path) -> Path:
    """Copy the candidates' folders below `folder` with a listing; whole or not at all.

    Raises:
        DataError: when `folder` holds files that are not an earlier run's.
    """

    def fill(staging: Path) -> None:
        listing = []
        for candidate, place in zip(candidates, folder_names(candidates), strict=True):
            shutil.copytree(candidate.reference.path, staging / place)
            entry = candidate.model_dump(mode="json", exclude={"seconds"})
            entry["reference"]["path"] = place
            listing.append(entry)
        (staging / LISTING).write_text(json.dumps(listing, indent=1, sort_keys=True) + "\n")

    return write_output(folder, fill)


def folder_names(candidates: Sequence[Candidate]) -> list[str]:
    """One folder a candidate, side by side: a folder inside another one would be a part of that model.

    `merge/ties/own_optimum` lies in `merged/ties-own_optimum`: the outer folder already says which stage it is.
    """
    names: list[str] = []
    for candidate in candidates:
        plain = candidate.name.removeprefix(f"{candidate.stage}/").replace("/", "-")
        names.append(plain if plain not in names else f"{plain}-{len(names)}")
    return names


def load_candidates(folder: Path) -> list[Candidate]:
    """Read a folder of candidates; a plain model or adapter folder is one candidate named after it.

    Raises:
        DataError: when the folder holds neither.
    """
    if not (folder / LISTING).exists():
        name = Path(os.path.abspath(folder)).name  # `.` has no name of its own; a link keeps its own
        if (folder / "adapter_config.json").exists():
            return [
                Candidate(
                    name=name,
                    stage="expert",
                    method="given",
                    reference=reference_to(folder, "adapter"),
                )
            ]
        if (folder / "config.json").exists():
            return [
                Candidate(name=name, stage="base", method="given", reference=reference_to(folder, "model"))
            ]
        raise DataError(
            f"{folder} holds no model; give a folder with config.json, adapter_config.json or {LISTING}"
        )
    try:
        listing = json.loads((folder / LISTING).read_text())
        candidates = [Candidate.model_validate(entry) for entry in listing]
    except ValueError as error:
        raise DataError(
            f"{folder / LISTING} is damaged ({str(error).splitlines()[0]}); run the step that made it again"
        ) from error
    found = []
    for candidate in candidates:
        path = folder / candidate.reference.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{folder / LISTING} points outside its folder: {candidate.reference.path}")
        reference = reference_to(path, candidate.reference.kind)
        if reference.digest != candidate.reference.digest:
            raise DataError(
                f"{path} was changed after {LISTING} was written; run the step that made it again"
            )
        found.append(candidate.model_copy(update={"reference": reference}))
    return found


def best_on_select(candidates: Sequence[Candidate], base: Candidate | None = None) -> Candidate | None:
    """The candidate with the highest select score; the test part has no say.

    Args:
        candidates: those without a select score are passed over.
        base: chosen instead when no candidate beats it; a merge records the base's score as that of coefficient 0.

    Returns:
        None when no candidate has a select score.
    """
    scored = [c for c in candidates if "select_score" in c.facts]
    if not scored:
        return None
    best = max(scored, key=lambda c: float(c.facts["select_score"]))
    unchanged = next(
        (row["select_score"] for row in best.facts.get("scores", ()) if not row["coefficient"]), None
    )
    if base is not None and unchanged is not None and best.facts["select_score"] <= unchanged:
        return base
    return best
