"""Experts that cannot be merged are refused before any work, in one line that names them."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from methods.common.errors import ConfigError, DataError
from tasks.candidates import Candidate
from tasks.merge.candidates import merge_candidate
from tasks.merge.config import MergeSettings
from tasks.merge.experts import check_experts, expert_doubts, expert_kind, resolve_expert
from tasks.reference import reference_to
from tasks.report.summaries import noted
from tasks.train.loading import weights_digest
from tests.tiny_models import tiny_llama


def _edit(field: str, value: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))

    return edit


def _pickle(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps({}))


def _cut(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _other_base(folder: Path) -> None:
    file = folder / "expert.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_digest": "f" * 64}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_edit("use_dora", True), "use_dora"),
        (_edit("peft_type", "IA3"), "IA3"),
        (_edit("bias", "all"), "bias"),
        (_pickle, "pickle"),
        (_cut, "cut short"),
        (_other_base, "another base"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "cannot be read"),
    ],
)
def test_a_spoilt_adapter(
    spoil: Callable[[Path], None], words: str, base: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(experts["toy0"], tmp_path / "expert")
    reference = reference_to(folder, "adapter")
    spoil(folder)
    with pytest.raises(DataError, match=words) as caught:
        check_experts(base, weights_digest(base), [reference])
    assert "\n" not in str(caught.value)


def test_a_model_of_another_architecture(base: Path, tmp_path: Path) -> None:
    wide = tiny_llama(tmp_path / "wide", hidden=64)
    with pytest.raises(DataError, match="expert wide: has hidden_size 64, the base 32"):
        check_experts(base, "", [reference_to(wide, "model")])
    config = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps(config | {"model_type": "mistral"}))
    with pytest.raises(DataError, match="is a mistral, the base a llama"):
        check_experts(base, "", [reference_to(wide, "model")])


def test_a_pickled_model(base: Path, tmp_path: Path) -> None:
    model = shutil.copytree(base, tmp_path / "pickled")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(DataError, match="safetensors"):
        check_experts(base, "", [reference_to(model, "model")])


def test_an_adapter_that_does_not_fit(
    base: Path, tasks: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    wide = tiny_llama(tmp_path / "wide", hidden=64)
    foreign = shutil.copytree(experts["toy0"], tmp_path / "foreign")
    (foreign / "expert.json").unlink()  # so that only the shapes tell
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="do not fit the base"):
        merge_candidate(
            tmp_path / "out",
            settings=MergeSettings(dtype="float32"),
            method="ties",
            base=reference_to(wide, "model"),
            experts=[reference_to(foreign, "adapter")],
            tasks=reference_to(tasks, "tasks"),
        )


def test_no_experts(base: Path) -> None:
    with pytest.raises(ConfigError, match="experts: the list is empty"):
        check_experts(base, "", [])


def test_names_tell_experts_apart(base: Path, experts: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(experts["toy0"], tmp_path / "output")
    references = [reference_to(f, "adapter") for f in (folder, *experts.values())]
    assert list(check_experts(base, weights_digest(base), references)) == ["toy0", "toy0-2", "toy1"]


def test_a_source_is_a_folder_or_a_hub_id(base: Path, experts: dict[str, Path], tmp_path: Path) -> None:
    assert resolve_expert(str(experts["toy0"])).kind == expert_kind(experts["toy0"]) == "adapter"
    assert resolve_expert(str(base)).kind == "model"
    for source, words in (
        (str(tmp_path / "nowhere"), "does not exist"),
        ("someone/an-adapter", "the hub does not give it"),
        (str(tmp_path), "is no model"),
    ):
        with pytest.raises(DataError, match=words) as caught:
            resolve_expert(source)
        assert "\n" not in str(caught.value)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the terminal shows, whoever has set up the logging."""
    lines: list[str] = []
    monkeypatch.setattr("tasks.notices._said", set())
    monkeypatch.setattr(
        "tasks.notices.logger.warning", lambda message, *values: lines.append(message % values)
    )
    return lines


def doubts(base: Path, *folders: Path) -> list[str]:
    digest = weights_digest(base)
    kinds = [reference_to(folder, expert_kind(folder)) for folder in folders]
    return expert_doubts(base, digest, check_experts(base, digest, kinds))


def test_an_expert_that_was_made_here_is_not_doubted(base: Path, experts: dict[str, Path]) -> None:
    assert doubts(base, *experts.values()) == []


@pytest.mark.parametrize(
    ("told", "source", "words"),
    [
        (None, "", "nothing says which base"),
        (
            "owner/other",
            "",
            "says that it was trained on owner/other, which is not known to be this base; give",
        ),
        ("owner/other", "owner/this", "not known to be this base (owner/this)"),
        ("owner/this", "owner/this", ""),
    ],
)
def test_an_adapter_without_proof_of_its_base(
    told: str | None, source: str, words: str, base: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    adapter = shutil.copytree(experts["toy0"], tmp_path / "foreign")
    (adapter / "expert.json").unlink()
    _edit("base_model_name_or_path", told)(adapter)
    origin = shutil.copytree(base, tmp_path / "base")
    if source:
        (origin / "provenance.json").write_text(json.dumps({"source": source}))
    found = doubts(origin, adapter)
    assert bool(found) == bool(words)
    assert all(line.startswith("expert foreign: ") and words in line for line in found)
    _edit("base_model_name_or_path", str(base))(adapter)  # the very folder is proof enough
    assert doubts(origin, adapter) == []


def test_a_model_of_another_origin_is_doubted_and_a_relative_is_not(base: Path, tmp_path: Path) -> None:
    stranger = tiny_llama(tmp_path / "stranger", seed=7)
    relative = shutil.copytree(base, tmp_path / "relative")
    file = relative / "model.safetensors"
    save_file({n: v * 1.1 for n, v in load_file(file).items()}, file, metadata={"format": "pt"})
    found = doubts(base, stranger, relative)
    assert len(found) == 1
    assert "expert stranger: its weights hardly resemble the base's (cosine" in found[0]


def test_a_doubt_is_seen_on_the_terminal_and_in_the_report(
    base: Path, experts: dict[str, Path], tasks: Path, tmp_path: Path, said: list[str]
) -> None:
    adapter = shutil.copytree(experts["toy0"], tmp_path / "unknown")
    (adapter / "expert.json").unlink()
    (tmp_path / "out").mkdir()
    summary = merge_candidate(
        tmp_path / "out",
        settings=MergeSettings(coefficients=(1.0,), dtype="float32", select_examples=4),
        method="average",
        base=reference_to(base, "model"),
        experts=[reference_to(adapter, "adapter")],
        tasks=reference_to(tasks, "tasks"),
    )
    assert said[0].startswith("note: expert unknown: nothing says which base it was trained on")
    reference = reference_to(tmp_path / "out", "model")
    made = Candidate(
        name="merge/average", stage="merge", method="average", reference=reference, facts=summary
    )
    assert noted([made]).startswith("- Note: expert unknown: nothing says")
    assert noted([made.model_copy(update={"facts": {}})]) == ""


def test_evaluation_notes_an_adapter_of_another_base(
    base: Path, experts: dict[str, Path], tmp_path: Path, said: list[str]
) -> None:
    from flows.evaluate import with_doubts

    stranger = tiny_llama(tmp_path / "stranger", seed=9)
    given = [
        Candidate(name="base", stage="base", method="given", reference=reference_to(stranger, "model")),
        Candidate(
            name="e", stage="expert", method="given", reference=reference_to(experts["toy1"], "adapter")
        ),
    ]
    found = with_doubts(given, given[0].reference)
    assert said[0].startswith("note: expert e: was trained on another base")
    assert noted(found).startswith("- Note: expert e: was trained on another base")
    assert noted(with_doubts(given, reference_to(base, "model"))) == ""
    assert with_doubts(given, None) == given
