"""Folders of the user's: replaced only when nothing of hers is in them, and never an input."""

import os
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from methods.common.errors import DataError
from tasks.candidates import Candidate, folder_names, load_candidates, save_candidates
from tasks.output_folder import check_output, check_report, export, write_output
from tasks.reference import EXPORT_MARKER, reference_to
from tasks.report.publish import write_files


def fill(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "weights").write_text("w")


def test_an_export_is_the_same_content_and_is_replaced_by_the_next(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    fill(source)
    reference = reference_to(source, "model")
    target = export(reference, tmp_path / "mine")
    assert (target / EXPORT_MARKER).exists()
    assert reference_to(target, "model").digest == reference.digest
    export(reference, target)
    assert (target / "sub" / "weights").read_text() == "w"


@pytest.mark.parametrize(
    ("name", "content"),
    [("NOTES.md", "mine"), ("sub/weights", "W"), ("timings.json", "{}"), ("sub/more", "m")],
)
def test_what_a_person_added_or_changed_stays(tmp_path: Path, name: str, content: str) -> None:
    folder = write_output(tmp_path / "out", fill)
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=f"{name} was added or changed"):
        write_output(folder, fill)
    assert (folder / name).read_text() == content


def test_a_touched_or_removed_file_is_nobody_s(tmp_path: Path) -> None:
    folder = write_output(tmp_path / "out", fill)
    (folder / "sub" / "weights").touch()
    write_output(folder, fill)
    (folder / "sub" / "weights").unlink()
    write_output(folder, fill)
    assert (folder / "sub" / "weights").read_text() == "w"


def test_the_same_content_is_the_same_folder_to_the_byte(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_output(tmp_path / name, fill)
        os.utime(tmp_path / name / "sub" / "weights", (1, 1))
    marks = [(tmp_path / name / EXPORT_MARKER).read_bytes() for name in ("a", "b")]
    assert marks[0] == marks[1]
    assert b"mtime" not in marks[0]


def test_files_of_others_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a").write_text("a")
    for name in ("theirs", "theirs/a"):
        with pytest.raises(DataError, match=r"^output: .*(other files|is a file)"):
            check_output(tmp_path / name)


@pytest.mark.parametrize("output", ["in", "in/merged", "."])
def test_an_output_that_overlaps_an_input_is_refused(
    tmp_path: Path, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_output(Path("in"), fill)
    with pytest.raises(DataError, match="the input in overlap"):
        check_output(Path(output), [Path("owner/on-the-hub"), Path("in")])
    check_output(Path("out"), [Path("owner/on-the-hub"), Path("in")])


def test_the_current_folder_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for output in (".", "..", str(tmp_path)):
        with pytest.raises(DataError, match="current folder"):
            check_output(Path(output))


def test_a_folder_that_cannot_be_made_is_known_before_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for check in (check_output, check_report):
        with pytest.raises(DataError, match="cannot be made"):
            check(tmp_path / "file" / "below" / "out")


def candidate(name: str, folder: Path) -> Candidate:
    folder.mkdir()
    (folder / "config.json").write_text(name)
    return Candidate(name=name, stage="merge", method="m", reference=reference_to(folder, "model"))


def test_no_candidate_lies_inside_another(tmp_path: Path) -> None:
    names = ["merge/ties", "merge/ties/own_optimum", "merge/a/b-c", "merge/a-b/c"]
    made = [candidate(name, tmp_path / str(i)) for i, name in enumerate(names)]
    assert folder_names(made)[:2] == ["ties", "ties-own_optimum"]
    assert len(set(folder_names(made))) == len(made)
    loaded = load_candidates(save_candidates(made, tmp_path / "out"))
    assert [c.name for c in loaded] == names
    assert [c.reference.digest for c in loaded] == [c.reference.digest for c in made]


def report(folder: Path, plot: str) -> None:
    figure = Figure()
    figure.subplots().plot([0, 1])
    write_files(folder, {"a": 1}, {plot: pd.DataFrame({"x": [1]})}, {plot: figure}, "# Report")


def test_a_report_spares_what_others_keep_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    check_report(folder)
    report(folder, "first")
    (folder / "plots" / "mine.csv").write_text("mine")
    check_report(folder)
    report(folder, "second")
    assert {p.name for p in (folder / "plots").iterdir()} == {"mine.csv", "second.csv", "second.png"}
    assert not (tmp_path / ".report.partial").exists()


def test_results_of_others_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(DataError, match=r"report.folder: .*metrics.json was written by no report"):
        check_report(tmp_path)
    (tmp_path / "card.md").write_text("")  # a paper's folder
    check_report(tmp_path)


def test_a_marker_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    folder = tmp_path / "report"
    report(folder, "first")
    (folder / EXPORT_MARKER).write_text('{"report": ["../mine"]}')
    report(folder, "first")
    assert (tmp_path / "mine").exists()
