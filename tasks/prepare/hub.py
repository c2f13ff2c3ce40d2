"""Which commit a hub id means now: a branch moves, and what was made from it must then be made anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

HubKind = Literal["model", "dataset"]
PATIENCE_SECONDS = 10
_COMMIT = re.compile(r"^[0-9a-f]{40}$")


def hub_commit(source: str, revision: str = "", kind: HubKind = "model") -> str:
    """The commit behind a hub id: the hub's answer, else that of the local cache, else `revision` as it is.

    Args:
        source: id of a model or data set (`owner/name`).
        revision: branch, tag or commit; empty for the default branch.
        kind: what the id names.
    """
    if _COMMIT.match(revision):
        return revision
    from huggingface_hub import HfApi

    try:
        found = HfApi().repo_info(source, revision=revision or None, repo_type=kind, timeout=PATIENCE_SECONDS)
    except Exception:  # no network, or no such id: the step that fetches it says so in its own words
        return _cached_commit(source, revision, kind) or revision
    return found.sha or revision


def _cached_commit(source: str, revision: str, kind: HubKind) -> str:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=source, repo_type=kind)
    ref = Path(HF_HUB_CACHE) / folder / "refs" / (revision or "main")
    try:
        return ref.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
