"""One method on a group of experts: the search on the select parts and the folder that is written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from methods.common.errors import ConfigError, NumericalError
from methods.merge_early_stop import task_vector
from tasks.load_model import load_causal_lm
from tasks.merge import methods, select
from tasks.merge.candidates import live_merge, merge_candidate, write_vector
from tasks.merge.config import MergeSettings
from tasks.merge.methods import MergeJob, MergeMethod
from tasks.merge.select import Selector, TaskScore
from tasks.reference import Reference, reference_to
from tasks.train.loading import load_tokenizer

SETTINGS = MergeSettings(coefficients=(0.4, 0.7, 1.0), dtype="float32", select_examples=16)


def merge(
    out: Path, base: Path, experts: Any, tasks: Path, method: str, settings: Any = SETTINGS
) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    references = [e if isinstance(e, Reference) else reference_to(e, "adapter") for e in experts]
    return merge_candidate(
        out,
        settings=settings,
        method=method,
        base=reference_to(base, "model"),
        experts=references,
        tasks=reference_to(tasks, "tasks"),
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def merged(
    base: Path, tasks: Path, experts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("merged") / "task_arithmetic"
    return out, merge(out, base, experts.values(), tasks, "task_arithmetic")


def test_the_best_coefficient_of_the_select_parts_is_written(
    merged: tuple, base: Path, experts: dict[str, Path]
) -> None:
    out, summary = merged
    tried = {row["coefficient"]: row["select_score"] for row in summary["scores"]}
    assert list(tried) == [0.0, 0.4, 0.7, 1.0]
    assert tried[0.0] == 0.0
    assert summary["select_score"] == max(score for value, score in tried.items() if value) > 0
    assert summary["coefficient"] == max((v for v in tried if v), key=lambda value: tried[value])
    taus = [task_vector(base, folder) for folder in experts.values()]
    before, after = weights(base), weights(out)
    for name, old in before.items():
        change = sum(tau[name] for tau in taus if name in tau)
        assert torch.allclose(after[name], old + summary["coefficient"] * change, atol=1e-6), name


def test_it_is_an_ordinary_model_folder(merged: tuple, base: Path) -> None:
    out, summary = merged
    load_causal_lm(out, torch.float32)
    assert (out / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert (out / "generation_config.json").is_file()
    assert not (out / "expert.json").exists()
    assert json.loads((out / "merge.json").read_text())["coefficient"] == summary["coefficient"]
    for file in out.iterdir():
        assert str(base.parent).encode() not in file.read_bytes()


def test_the_search_scores_the_model_that_is_written(merged: tuple, base: Path, tasks: Path) -> None:
    out, summary = merged
    selector = Selector(tasks, load_tokenizer(base), SETTINGS)
    unchanged, found = (
        selector(load_causal_lm(base, torch.float32)),
        selector(load_causal_lm(out, torch.float32)),
    )
    assert selector.mean(found, unchanged) == pytest.approx(summary["select_score"], abs=1e-5)


def test_the_merge_is_better_than_the_base_on_both_tasks(merged: tuple) -> None:
    _, summary = merged
    rows = {row["coefficient"]: row["tasks"] for row in summary["scores"]}
    for task, before in rows[0.0].items():
        assert rows[summary["coefficient"]][task]["bits_per_byte"] < before["bits_per_byte"]


def test_the_same_again_after_a_kill(
    merged: tuple, base: Path, tasks: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    left = tmp_path / "again"
    (left / ".merged").mkdir(parents=True)
    (left / ".merged" / "model.safetensors").write_bytes(b"half")
    (left / "model.safetensors").write_bytes(b"half")
    merge(left, base, experts.values(), tasks, "task_arithmetic")
    assert {p.name: p.read_bytes() for p in left.iterdir()} == {
        p.name: p.read_bytes() for p in merged[0].iterdir()
    }


def test_a_killed_search_tries_only_what_is_missing(
    merged: tuple,
    base: Path,
    tasks: Path,
    experts: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed(BaseException):
        pass

    scored: list[Any] = []
    score = Selector.__call__

    def counted(self: Selector, model: Any) -> dict[str, TaskScore]:
        if len(scored) == 2:
            raise Killed
        found = score(self, model)
        scored.append(found)
        return found

    monkeypatch.setattr(select, "_known", {})
    monkeypatch.setattr(Selector, "__call__", counted)
    left = tmp_path / "left"
    with pytest.raises(Killed):
        merge(left, base, experts.values(), tasks, "task_arithmetic")
    with (left / ".trials.jsonl").open("a") as file:
        file.write('{"coefficient": 0.7, "tas')  # the kill came while it wrote
    other = shutil.copytree(left, tmp_path / "other")
    assert len(scored) == 2  # the base and 0.4
    scored[:] = [None] * 3
    merge(left, base, experts.values(), tasks, "task_arithmetic")
    assert len(scored) == 3 + 2  # 0.7 and 1.0
    assert {p.name: p.read_bytes() for p in left.iterdir()} == {
        p.name: p.read_bytes() for p in merged[0].iterdir()
    }
    scored[:] = [None] * 3
    ties = merge(other, base, experts.values(), tasks, "ties")  # those trials are of another method
    assert len(scored) == 3 + 3
    assert ties["scores"][1] != json.loads((left / "merge.json").read_text())["scores"][1]


def test_other_files_stay_and_the_base_has_no_say_about_its_making(
    base: Path, tasks: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    grown = shutil.copytree(base, tmp_path / "grown")
    (grown / "expert.json").write_text("{}")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    settings = SETTINGS.model_copy(update={"coefficients": (1.0,)})
    merge(tmp_path / "out", grown, experts.values(), tasks, "task_arithmetic", settings)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "out" / "expert.json").exists()


@pytest.mark.parametrize("method", ["average", "ties", "dare"])
def test_the_other_methods(
    method: str, base: Path, tasks: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    # nine of ten changes dropped is too much for adapters of rank 4 on 30 thousand weights
    settings = SETTINGS.model_copy(update={"drop_rate": 0.3})
    summary = merge(tmp_path / method, base, experts.values(), tasks, method, settings)
    assert summary["select_score"] > 0
    tried = [row["coefficient"] for row in summary["scores"]]
    assert tried == ([0.0, 1.0] if method == "average" else [0.0, 0.4, 0.7, 1.0])
    if method == "average":
        taus = [task_vector(base, folder) for folder in experts.values()]
        name = "model.layers.0.mlp.up_proj.weight"
        expected = weights(base)[name] + (taus[0][name] + taus[1][name]) / 2
        assert torch.allclose(weights(tmp_path / method)[name], expected, atol=1e-6)


def test_settings_reach_the_operator(
    base: Path, tasks: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    def made(name: str, method: str, **values: Any) -> bytes:
        settings = SETTINGS.model_copy(update={"coefficients": (1.0,), **values})
        merge(tmp_path / name, base, experts.values(), tasks, method, settings)
        return (tmp_path / name / "model.safetensors").read_bytes()

    ties = [made("a", "ties"), made("b", "ties", density=0.5), made("c", "ties", granularity="per_tensor")]
    assert len(set(ties)) == 3
    dare = [made("d", "dare"), made("e", "dare", seed=1), made("f", "dare", drop_rate=0.2), made("g", "dare")]
    assert len(set(dare)) == 3
    assert dare[0] == dare[3]


def test_adapters_and_whole_models_mix(
    base: Path, tasks: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    write_vector(base, task_vector(base, experts["toy1"]), 1.0, whole, None)
    settings = SETTINGS.model_copy(update={"coefficients": (0.7,)})
    mixed = [reference_to(experts["toy0"], "adapter"), reference_to(whole, "model")]
    merge(tmp_path / "mixed", base, mixed, tasks, "task_arithmetic", settings)
    merge(tmp_path / "adapters", base, experts.values(), tasks, "task_arithmetic", settings)
    a, b = weights(tmp_path / "mixed"), weights(tmp_path / "adapters")
    assert all(torch.allclose(a[name], b[name], atol=1e-5) for name in b)


def test_accuracy_as_objective(base: Path, tasks: Path, experts: dict[str, Path], tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"objective": "accuracy", "coefficients": (0.7,)})
    summary = merge(tmp_path / "out", base, experts.values(), tasks, "task_arithmetic", settings)
    row = summary["scores"][1]
    chance = 1 / 4
    expected = sum((t["accuracy_norm"] - chance) / (1 - chance) for t in row["tasks"].values()) / 2
    assert summary["select_score"] == pytest.approx(expected)


def test_the_mean_is_over_tasks_relative_to_the_base(tasks: Path, base: Path) -> None:
    selector = Selector(tasks, load_tokenizer(base), SETTINGS)
    before = {"a": TaskScore(2.0, 0.5, 0.5), "b": TaskScore(0.1, 0.25, 0.25)}
    after = {"a": TaskScore(1.0, 0.75, 0.5), "b": TaskScore(0.1, 1.0, 0.25)}
    assert selector.mean(after, before) == pytest.approx((0.5 + 0.0) / 2)
    selector.objective = "accuracy"
    assert selector.mean(after, before) == pytest.approx((0.5 + 1.0) / 2)


@pytest.mark.parametrize("save_dtype", ["bfloat16", "float16"])
def test_another_type_on_disk(
    save_dtype: str, base: Path, tasks: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update={"coefficients": (1.0,), "save_dtype": save_dtype})
    merge(tmp_path / "out", base, experts.values(), tasks, "task_arithmetic", settings)
    assert {t.dtype for t in weights(tmp_path / "out").values()} == {getattr(torch, save_dtype)}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == save_dtype


def test_a_live_merge_starts_from_the_base_each_time(
    base: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    model = load_causal_lm(base, torch.float32)
    vector = task_vector(base, experts["toy0"])
    set_coefficient = live_merge(base, vector, model, tmp_path / "scratch")
    set_coefficient(1.0)
    set_coefficient(0.0)
    for name, old in weights(base).items():
        assert torch.equal(dict(model.named_parameters())[name], old)
    with pytest.raises(ConfigError, match=r"lm_body\.weight"):
        live_merge(base, {"lm_body.weight": torch.zeros(2)}, model, tmp_path / "scratch")


class Halves:
    """A toy method: half of the first expert's task vector."""

    tuned = True

    def vector(self, job: MergeJob) -> dict[str, torch.Tensor]:
        first = next(iter(job.experts.values()))
        return {name: tau / 2 for name, tau in task_vector(job.base, first).items()}


class Broken(Halves):
    def vector(self, job: MergeJob) -> dict[str, torch.Tensor]:
        return {name: tau * float("nan") for name, tau in super().vector(job).items()}


class Point:
    """An entry point of an installed package."""

    def __init__(self, value: Any) -> None:
        self.given, self.value = value, "package:Halves"

    def load(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def test_another_package_plugs_in_a_method(
    base: Path, tasks: Path, experts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {
        "halves": Point(Halves),
        "broken": Point(Broken()),
        "absent": Point(ImportError("no numpy")),
        "odd": Point(int),
    }
    monkeypatch.setattr(methods, "_points", lambda: points)
    assert methods.method_names()[4:] == ["absent", "broken", "halves", "odd"]
    assert isinstance(methods.merge_method("halves"), MergeMethod)
    summary = merge(tmp_path / "out", base, experts.values(), tasks, "halves")
    name = "model.layers.1.self_attn.q_proj.weight"
    change = task_vector(base, experts["toy0"])[name] / 2
    expected = weights(base)[name] + summary["coefficient"] * change
    assert torch.allclose(weights(tmp_path / "out")[name], expected, atol=1e-6)
    load_causal_lm(tmp_path / "out", torch.float32)
    with pytest.raises(NumericalError, match="broken"):
        merge(tmp_path / "nan", base, experts.values(), tasks, "broken")
    for wrong, words in (("absent", "no numpy"), ("odd", "tuned"), ("nothing", "known are average")):
        with pytest.raises(ConfigError, match=words):
            methods.merge_method(wrong)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"methods": ("averag",)}, "average"),
        ({"methods": ("ties", "ties")}, "twice"),
        ({"methods": ()}, "at least 1"),
        ({"coefficients": (0.5, float("nan"))}, "finite number"),
        ({"coefficients": (0.0,)}, r"coefficient 0\.0"),
        ({"density": 0.0}, "greater than 0"),
        ({"drop_rate": 1.0}, "less than 1"),
    ],
)
def test_settings_that_do_not_fit(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MergeSettings(**values)
