"""The numbers behind the report's verdicts: intervals against scipy, pairing, and the edge of each claim."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tasks.candidates import Candidate, best_on_select
from tasks.evaluate.items import main_tasks, split_of, task_metrics
from tasks.reference import Reference
from tasks.report.comparison import paired_difference, score, stratified_mean
from tasks.report.lifecycle import compare, verdicts
from tasks.report.summaries import candidates_table
from tasks.step import StepResult


def items(scores: dict[str, list[float]], choices: int = 2) -> pd.DataFrame:
    rows = [
        {"task": task, "id": f"{task}{i}", "score": value, "choices": choices}
        for task, values in scores.items()
        for i, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def candidate(name: str, stage: str, method: str = "given", **more: object) -> Candidate:
    reference = Reference(path=Path(name), digest=name, kind="model")
    return Candidate.model_validate(
        {"name": name, "stage": stage, "method": method, "reference": reference, **more}
    )


def test_one_task_is_the_usual_interval_of_a_mean() -> None:
    values = np.random.default_rng(0).normal(size=200)
    found = stratified_mean([values])
    low, high = stats.norm.interval(0.95, loc=values.mean(), scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((values.mean(), low, high))


def test_each_task_weighs_the_same_however_many_items_it_has() -> None:
    found = score(items({"a": [1.0] * 90, "b": [0.0] * 10}), "score")
    assert found.mean == pytest.approx(0.5)


def test_pairing_is_by_item_not_by_order() -> None:
    one = items({"a": [1.0, 0.0, 1.0, 0.0]})
    other = one.iloc[::-1].reset_index(drop=True)
    found = paired_difference(one, other, "score")
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)


def test_candidates_on_different_items_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different items"):
        paired_difference(items({"a": [1.0, 0.0]}), items({"a": [1.0]}), "score")


def test_a_merge_must_beat_the_base_beyond_its_interval() -> None:
    base, merge = candidate("base", "base"), candidate("merge/ties", "merge", facts={"select_score": 0.1})
    clear = {"base": items({"a": [0.0] * 50}), "merge/ties": items({"a": [1.0] * 49 + [0.0]})}
    noise = {"base": items({"a": [0.0, 1.0] * 25}), "merge/ties": items({"a": [1.0, 0.0] * 24 + [1.0, 1.0]})}
    assert [v.held for v in verdicts([base, merge], clear)] == [True]
    assert [v.held for v in verdicts([base, merge], noise)] == [False]


def test_equal_merges_are_no_worse_and_clearly_worse_ones_are() -> None:
    ours, theirs = (
        candidate("merge/ties", "merge", facts={"select_score": 0.1}),
        candidate("merge/ties/own_optimum", "merge", facts={"select_score": 0.0}),
    )
    good, bad = items({"a": [1.0] * 49 + [0.0]}), items({"a": [0.0] * 50})
    same = verdicts([ours, theirs], {ours.name: good, theirs.name: good})
    worse = verdicts([ours, theirs], {ours.name: bad, theirs.name: good})
    assert [v.held for v in same] == [True]
    assert [v.held for v in worse] == [False]


def test_noise_does_not_show_that_a_merge_is_no_worse() -> None:
    names = "merge/ties", "merge/ties/own_optimum"
    ours, theirs = (candidate(name, "merge", facts={"select_score": 0.1}) for name in names)
    noisy = {ours.name: items({"a": [0.0, 1.0] * 25}), theirs.name: items({"a": [1.0, 0.0] * 25})}
    assert [v.held for v in verdicts([ours, theirs], noisy)] == [False]


def test_the_base_is_best_when_no_merge_beats_it_on_the_select_parts() -> None:
    base = candidate("base", "base")
    rows = [{"coefficient": 0.0, "select_score": 0.5}]
    merges = [
        candidate(f"merge/{i}", "merge", facts={"select_score": s, "scores": rows})
        for i, s in enumerate((0.4, 0.5))
    ]
    assert best_on_select(merges, base) == base
    assert best_on_select(merges) == merges[1]
    better = candidate("merge/2", "merge", facts={"select_score": 0.6, "scores": rows})
    assert best_on_select([*merges, better], base) == better
    assert best_on_select([base]) is None


def test_free_text_has_no_part_in_a_mean_of_accuracies() -> None:
    mixed = pd.concat([items({"choice": [1.0, 0.0]}), items({"free": [0.01, 0.02]}, choices=1)])
    assert main_tasks(mixed) == ["choice"]
    assert main_tasks(mixed[mixed.task == "free"]) == ["free"]
    rows = mixed.assign(acc=1.0, acc_norm=1.0, exact_match=0.0, bits=8.0, bytes=4)
    found = task_metrics(rows, "select")
    assert found["select/mean/score"] == found["select/choice/score"] == 0.5
    assert found["select/free/score"] == pytest.approx(0.015)
    assert split_of(found) == "select"


def test_an_expert_that_loses_on_its_task_fails_the_claim() -> None:
    base = candidate("base", "base")
    experts = [candidate(f"expert/merge_aware/{t}", "expert", "merge_aware", task=t) for t in ("a", "b")]
    found = {
        "base": items({"a": [0.0] * 9, "b": [1.0] * 9}),
        experts[0].name: items({"a": [1.0] * 9, "b": [0.0] * 9}),
        experts[1].name: items({"a": [1.0] * 9, "b": [0.0] * 9}),
    }
    assert [v.held for v in verdicts([base, *experts[:1]], found)] == [True]
    assert [v.held for v in verdicts([base, *experts], found)] == [False]


def scored(folder: Path, metrics: dict[str, float]) -> StepResult:
    items({"free": [0.2, 0.4]}, choices=1).to_parquet(folder / "items.parquet")
    sizes = {"size/bytes": 1e6, "size/nonzero_share": 1.0, "size/nominal_bytes": 1e6}
    reference = Reference(path=folder, digest="d", kind="report")
    return StepResult(
        reference=reference, summary={"metrics": {**metrics, **sizes}}, timings={"seconds": 1.0}
    )


@pytest.mark.parametrize("split", ["test", "select"])
def test_free_text_is_not_called_accuracy(tmp_path: Path, split: str) -> None:
    metrics = {f"{split}/free/score": 0.3, f"{split}/free/score_stderr": 0.1, f"{split}/mean/score": 0.3}
    compared = compare([candidate("base", "base")], {"base": scored(tmp_path, metrics)})
    assert "free prob/byte %" in compared.shown.columns
    label = compared.figures["quality_vs_size"].axes[0].get_xlabel()
    assert "probability per byte" in label
    assert "accuracy" not in label
    assert f"{split} part" in label
    assert f"{split}/mean/score_low" in compared.metrics["candidates"]["base"]


def test_a_step_s_table_is_short_and_its_metrics_are_whole() -> None:
    facts = {"size/bytes": 2_500_000, "sparsity": 0.5, "seed": 3, "label": "x", "damage": {"1": 0.2}}
    table, metrics = candidates_table(
        [candidate("compressed/a", "compressed", facts=facts), candidate("compressed/b", "compressed")]
    )
    assert list(table.columns) == ["candidate", "file MB", "zeros %", "seconds"]
    assert list(table.loc[0]) == ["compressed/a", "2.5", "50", "0.0"]
    assert list(table.loc[1]) == ["compressed/b", "-", "-", "0.0"]
    assert metrics["compressed/a"] == {"size/bytes": 2_500_000, "sparsity": 0.5, "seed": 3}
