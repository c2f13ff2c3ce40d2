"""Cards: the front matter's model, the numbers against metrics.json, the README's table."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from flows import cards
from flows.cli import app
from methods.common.errors import DataError

README = f"# Demo\n\n{cards.BEGIN}\n{cards.END}\n\nThe end.\n"
COMMAND = "dvc repro study@merge_early_stop"


def front_matter(**changes: Any) -> dict[str, Any]:
    """A valid card; the slug is that of a registered study, because a card without a study is refused."""
    claim = {
        "claim": "Stopping early merges better",
        "bar": "at least 1 point over the longest training",
        "measured": 3.1,
        "metric": "gain/merge/ties",
        "spread": "standard deviation 0.4",
        "seeds": 3,
        "held": True,
        "command": COMMAND,
    }
    fields: dict[str, Any] = {
        "slug": "merge_early_stop",
        "title": "Stopping | merging",
        "paper": {"authors": "A. Author et al.", "venue": "ICML 2026", "arxiv": "2506.14126"},
        "problem": "When to stop training experts that will be merged",
        "module": "methods.merge_early_stop",
        "flow": "merge_early_stop",
        "families": ["language models"],
        "claims": [
            claim,
            {**claim, "claim": "It costs less", "measured": 40, "metric": "cost", "held": False},
            {**claim, "claim": "It scales", "measured": "", "metric": "", "seeds": 0, "held": "not_tested"},
        ],
        "peers": ["mergekit"],
        "hardware": "2 CPU cores",
        "minutes": 7.5,
    }
    return {**fields, **changes}


def write_card(root: Path, fields: dict[str, Any], text: str = "Use it so.", slug: str | None = None) -> Path:
    folder = root / "seeds" / (slug or fields["slug"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "card.md").write_text(f"---\n{yaml.safe_dump(fields, sort_keys=False)}---\n{text}\n")
    (folder / "metrics.json").write_text(
        json.dumps({"gain": {"merge/ties": 3.1234}, "cost": 39.6, "text": "x"})
    )
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "README.md").write_text(README)
    write_card(tmp_path, front_matter())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_write_fills_the_table_and_check_agrees(root: Path) -> None:
    assert cards.check(root) == [
        "README.md: the table of papers differs from the cards; `seedloom cards --write` renews it"
    ]
    assert cards.write(root)
    assert cards.check(root) == []
    assert not cards.write(root)
    readme = (root / "README.md").read_text()
    assert readme.startswith("# Demo\n")
    assert readme.endswith(f"{cards.END}\n\nThe end.\n")
    row = next(line for line in readme.splitlines() if "2506.14126" in line)
    assert "[Stopping \\| merging](seeds/merge_early_stop/card.md)" in row
    assert "(https://arxiv.org/abs/2506.14126)" in row
    assert row.endswith("| `methods.merge_early_stop` | `merge_early_stop` | 1 of 2 (1 not tested) |")


def test_without_papers_nothing_stands_between_the_markers(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(README)
    assert cards.check(tmp_path) == []
    assert not cards.write(tmp_path)


@pytest.mark.parametrize(
    ("measured", "agrees"),
    [(3.1, True), (3.12, True), (3.1234, True), (3, True), (3.2, False), (3.13, False), (4, False)],
)
def test_measured_is_the_files_number_to_the_digits_given(root: Path, measured: float, agrees: bool) -> None:
    fields = front_matter()
    fields["claims"][0]["measured"] = measured
    write_card(root, fields)
    cards.write(root)
    lines = cards.check(root)
    assert (lines == []) == agrees
    if not agrees:
        assert f"claims.0: measured = {measured}, but seeds" in lines[0].replace(f"{root}/", "")
        assert lines[0].endswith("has gain/merge/ties = 3.1234; correct the card")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metric": "gain/merge/tie"}, "metric 'gain/merge/tie' is no number in"),
        ({"metric": "text"}, "metric 'text' is no number in"),
        ({"metric": "gain"}, "metric 'gain' is no number in"),
    ],
)
def test_a_metric_that_is_no_number_is_named(root: Path, changes: dict[str, Any], says: str) -> None:
    fields = front_matter()
    fields["claims"][0].update(changes)
    write_card(root, fields)
    cards.write(root)
    (line,) = cards.check(root)
    assert says in line


def test_a_benchs_metrics_stand_under_its_folder(root: Path) -> None:
    bench = root / "seeds" / "merge_early_stop" / "encoder"
    bench.mkdir()
    (bench / "metrics.json").write_text('{"claims": {"lora/effect": {"mean": 1.2345}}}')
    fields = front_matter()
    fields["claims"][0].update({"metric": "encoder/claims/lora/effect/mean", "measured": 1.23})
    write_card(root, fields)
    cards.write(root)
    assert cards.check(root) == []
    (bench / "metrics.json").write_text('{"claims": {"lora/effect": {"mean": 1.25}}}')
    assert "encoder/claims/lora/effect/mean = 1.25; correct the card" in cards.check(root)[0]


def test_a_card_before_its_study_ran_is_named(root: Path) -> None:
    cards.write(root)
    (root / "seeds" / "merge_early_stop" / "metrics.json").unlink()
    assert len(cards.check(root)) == 2
    assert "does not exist; run the study" in cards.check(root)[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"slug": "other_paper"}, "slug is 'other_paper', the folder is 'merge_early_stop'; make them equal"),
        ({"flow": "lifecycle"}, "flow 'lifecycle' is no study of 'merge_early_stop'"),
        ({"module": "methods.common"}, "module 'methods.common' is not methods.merge_early_stop"),
    ],
)
def test_a_card_must_fit_its_study(root: Path, changes: dict[str, Any], says: str) -> None:
    write_card(root, front_matter(**changes), slug="merge_early_stop")
    cards.write(root)
    assert any(says in line for line in cards.check(root))


def test_a_claim_may_name_its_metric_before_it_is_tested(root: Path) -> None:
    fields = front_matter()
    fields["claims"][0].update({"measured": "", "held": "not_tested", "seeds": 0, "spread": ""})
    folder = write_card(root, fields)
    (folder / "metrics.json").write_text('{"cost": 40}')
    cards.write(root)
    assert cards.check(root) == []
    assert "0 of 1 (2 not tested)" in (root / "README.md").read_text()


def test_a_card_needs_its_text(root: Path) -> None:
    write_card(root, front_matter(), text=" ")
    cards.write(root)
    (line,) = cards.check(root)
    assert "no text; say how to use it" in line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"minutes": 0}, "minutes = 0: input should be greater than 0"),
        ({"problem": ""}, "problem = '': string should have at least 1 character"),
        ({"claims": []}, "claims = []: tuple should have at least 1 item"),
        ({"colour": "red"}, "colour = 'red': extra inputs are not permitted"),
    ],
)
def test_a_wrong_field_is_one_line(root: Path, changes: dict[str, Any], says: str) -> None:
    write_card(root, front_matter(**changes))
    (line,) = cards.check(root)
    assert f"card.md: {says}" in line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"held": "not_tested"}, "held is not_tested, but measured = 3.1"),
        ({"seeds": 0}, "held is given without `measured` and `seeds`"),
        ({"measured": "about 3"}, "metric 'gain/merge/ties' needs a number"),
        ({"held": "partly"}, "claims.0.held"),
    ],
)
def test_a_claim_cannot_contradict_itself(root: Path, changes: dict[str, Any], says: str) -> None:
    fields = front_matter()
    fields["claims"][0].update(changes)
    write_card(root, fields)
    assert any(says in line for line in cards.check(root))


def test_damaged_files_are_named(root: Path) -> None:
    card = root / "seeds" / "merge_early_stop" / "card.md"
    card.write_text("---\nslug: [\n---\n")
    with pytest.raises(DataError, match=r"card\.md: the front matter is not YAML at line"):
        cards.load_seeds(root)
    card.write_text("no front matter\n")
    with pytest.raises(DataError, match="no front matter"):
        cards.load_seeds(root)
    folder = write_card(root, front_matter())
    (folder / "metrics.json").write_text("{")
    with pytest.raises(DataError, match=r"metrics\.json is damaged; run the study again"):
        cards.load_seeds(root)
    (root / "README.md").write_text(f"{cards.END}{cards.BEGIN}")
    write_card(root, front_matter())
    with pytest.raises(DataError, match="add both where the table shall stand"):
        cards.write(root)


def test_command_line(root: Path) -> None:
    runner = CliRunner()
    refused = runner.invoke(app, ["cards", "--check"])
    assert refused.exit_code == 1
    assert refused.output == (
        "error: README.md: the table of papers differs from the cards; `seedloom cards --write` renews it\n"
    )
    assert runner.invoke(app, ["cards", "--write"]).output == "README.md: table renewed\n"
    assert runner.invoke(app, ["cards", "--write"]).output == "README.md: nothing to renew\n"
    assert runner.invoke(app, ["cards"]).output == "README.md and the cards agree\n"


def test_the_projects_own_cards_agree() -> None:
    assert cards.check(Path(__file__).parents[2]) == []
