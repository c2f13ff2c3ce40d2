"""The encoder bench as work on files: its tasks, what it refuses, one tiny run, and its report."""

import json
from pathlib import Path
from typing import Any

import pytest

from methods.common.errors import ConfigError, DataError
from methods.merge_early_stop.encoder_study import STOPPED, SWEPT
from tasks.reference import reference_to
from tasks.report.merge_early_stop_encoder import (
    figures,
    metrics_and_verdicts,
    rules_markdown,
    shown_table,
    tables,
)
from tasks.report.publish import markdown_table, write_files
from tasks.study.merge_early_stop_encoder import (
    check_tasks,
    choice_examples,
    own_examples,
    read_encoder_frames,
    sentiment_examples,
    study_kind,
)
from tasks.study.merge_early_stop_encoder_config import EncoderBenchStudy, EncoderTexts
from tests.tiny_encoder import tiny_bert, toy_texts


def own_task(file: Path, positive: str, negative: str, seed: int) -> Path:
    rows = [
        {"text": text, "answers": [negative, positive], "gold": gold}
        for text, gold in toy_texts(positive, negative, seed=seed)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def tiny_study(own: list[Path], **changes: Any) -> EncoderBenchStudy:
    texts = EncoderTexts(
        names=(), own=tuple(map(str, own)), train=30, stop=20, select=20, test=20, max_tokens=16
    )
    values = {"tasks": texts, "steps": (2, 8), "rank": 2, "batch_size": 10, "warmup": 1, "dtype": "float32"}
    return EncoderBenchStudy.model_validate(values | changes)


def test_neutral_sentences_are_left_out_and_articles_stay_whole() -> None:
    def row(number: str, rating: float, domain: str = "news") -> dict[str, Any]:
        return {"domain": domain, "id": number, "rating": rating, "text": f"text {number}"}

    rows = [row("1_1", -0.5), row("1_2", 0.49), row("2_1", 3.0), row("7", 1.0, "tweets")]
    found = sentiment_examples(rows, "news")
    assert [(e.text, e.gold, e.group) for e in found] == [
        ("text 1_1", 0, "news 1"),
        ("text 2_1", 1, "news 2"),
    ]
    assert "bad" in found[0].answers[0]
    assert sentiment_examples(rows, "tweets")[0].group == ""


def test_questions_of_a_bundled_task_have_one_number_of_choices() -> None:
    found = choice_examples("arc_easy")
    assert {len(e.answers) for e in found} == {4}
    assert len(found) > 2000
    assert not any(e.text.startswith("Question") or e.text.endswith("Answer:") for e in found)
    assert all(answer == answer.strip() for e in found[:200] for answer in e.answers)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "a", "answers": ["x"], "gold": 0}', "line 2: gold or answers do not fit"),
        ('{"text": "a", "answers": ["x", "y"], "gold": 2}', "line 2: gold or answers do not fit"),
        ('{"text": "a", "gold": 0}', "line 2: 'answers'; each line must be"),
        ("{", "line 2: Expecting property name"),
    ],
)
def test_a_wrong_line_of_ones_own_task_is_named(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"text": "a", "answers": ["x", "y"], "gold": 1}\n' + line + "\n")
    with pytest.raises(DataError, match=says):
        own_examples(file)


def test_tasks_that_cannot_be_used_are_refused_before_work(tmp_path: Path) -> None:
    one = own_task(tmp_path / "one.jsonl", "good", "bad", 1)
    (tmp_path / "other").mkdir()
    namesake = own_task(tmp_path / "other" / "one.jsonl", "good", "bad", 1)
    with pytest.raises(ConfigError, match="tasks: one; give two or more"):
        check_tasks(tiny_study([one]))
    with pytest.raises(ConfigError, match="tasks: one, one; give two or more of different names"):
        check_tasks(tiny_study([one, namesake]))
    with pytest.raises(DataError, match=r"tasks\.own: .*gone\.jsonl cannot be read"):
        check_tasks(tiny_study([one, tmp_path / "gone.jsonl"]))
    with pytest.raises(DataError, match="dvc repro data@sentiment"):
        check_tasks(EncoderBenchStudy(data=str(tmp_path)))


def test_a_tiny_run_and_its_report(tmp_path: Path) -> None:
    own = [
        own_task(tmp_path / "one.jsonl", "good", "bad", 1),
        own_task(tmp_path / "two.jsonl", "warm", "cold", 2),
    ]
    inputs = {
        "settings": tiny_study(own),
        "model": reference_to(tiny_bert(tmp_path / "model"), "model"),
        "sentences": None,
        "own": [reference_to(file, "data") for file in own],
    }
    parts = []
    for kind in ("full", "lora"):
        out = tmp_path / kind
        out.mkdir()
        summary = study_kind(out, **inputs, kind=kind, seed=0)
        assert summary["frames"] == ["per_task", "stop_steps", "stopping", "sweep"]
        assert not (out / "bank").exists()
        parts.append((out, summary["timings"]["costs"]))
    frames = read_encoder_frames(parts)
    assert len(frames["sweep"]) == 2 * 2 * len(SWEPT)
    metrics, verdicts = metrics_and_verdicts(frames)
    cell = frames["sweep"].query("kind == 'lora' and method == 'ties' and step == 8").iloc[0]
    assert metrics["lengths"]["lora/ties/8"] == {"merged": cell.merged, "own": cell.own}
    assert len(verdicts) == sum(claim["held"] is not None for claim in metrics["claims"].values())
    shown = shown_table(frames)
    assert list(shown.columns) == ["training", "score", "base", "2 steps", "8 steps"]
    assert len(shown) == 2 * (1 + len(SWEPT))
    rules = rules_markdown(frames)
    assert all(f"{method} %" in rules for method in STOPPED)
    assert "early_stop_aggressive" in rules
    write_files(tmp_path / "report", metrics, tables(frames), figures(frames), markdown_table(shown))
    names = {path.name for path in (tmp_path / "report" / "plots").iterdir()}
    assert {
        "encoder_lengths.png",
        "encoder_lengths.csv",
        "encoder_stopping.png",
        "encoder_tasks.csv",
    } <= names
