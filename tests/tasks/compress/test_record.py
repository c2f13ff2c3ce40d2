"""What a compressed folder tells: the model it was made from, and the documents that it has read."""

from pathlib import Path

import pytest
from datasets import Dataset

from methods.common.errors import ConfigError, DataError
from tasks.compress.compress import check_calibration, check_compression, compress_model
from tasks.compress.recipes import DropRecipe, MagnitudeRecipe
from tasks.compress.record import REPORT, parent_digest, refuse_seen_text
from tasks.evaluate.perplexity import read_text
from tasks.reference import Reference, reference_to

DROP = DropRecipe(layers=1, calibration_sequences=4, calibration_length=16)


def test_a_model_is_not_judged_on_text_that_its_compression_has_read(
    tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    compress_model(tmp_path / "drop", recipe=DROP, model=tiny_model, calibration=tiny_text)
    once = reference_to(tmp_path / "drop", "model")
    compress_model(tmp_path / "zeros", recipe=MagnitudeRecipe(), model=once, calibration=tiny_text)
    documents = read_text(tiny_text.path)
    refuse_seen_text(tiny_model.path, "the original", documents)
    # The second recipe reads no text, but its model had.
    for folder in ("drop", "zeros"):
        refuse_seen_text(tmp_path / folder, folder, ["another text", "w1 w2"])
        with pytest.raises(DataError, match=f"text: 1 of its 2 documents were calibration text of {folder}"):
            refuse_seen_text(tmp_path / folder, folder, ["another text", f"{documents[3]} \n"])


def test_a_document_is_known_by_its_beginning_however_long_it_was_cut(
    tiny_model: Reference, tmp_path: Path
) -> None:
    long = " ".join(f"w{i % 50}" for i in range(900))
    Dataset.from_dict({"text": [long]}).save_to_disk(str(tmp_path / "text"))
    text = reference_to(tmp_path / "text", "text")
    compress_model(tmp_path / "drop", recipe=DROP, model=tiny_model, calibration=text)
    with pytest.raises(DataError, match="1 of its 1 documents"):
        refuse_seen_text(tmp_path / "drop", "drop", [long[:1500]])


def test_what_was_read_is_no_part_of_the_models_identity(
    tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    compress_model(tmp_path / "drop", recipe=DROP, model=tiny_model, calibration=tiny_text)
    before = reference_to(tmp_path / "drop", "model").digest
    (tmp_path / "drop" / "calibration_documents.txt").unlink()
    assert reference_to(tmp_path / "drop", "model").digest == before


def test_the_parent_is_named_by_its_content(
    tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    compress_model(tmp_path / "drop", recipe=DROP, model=tiny_model, calibration=tiny_text)
    assert parent_digest(tmp_path / "drop") == tiny_model.digest
    assert parent_digest(tiny_model.path) == ""
    (tmp_path / "drop" / REPORT).write_text("{")
    with pytest.raises(DataError, match=r"compression\.json: is damaged"):
        parent_digest(tmp_path / "drop")


def test_recipes_and_their_text_are_refused_before_any_work(
    tiny_model: Reference, tiny_text: Reference, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match="recipe drop-attn-3-c4x16: layers 3: the model has 3 with attn; drop"
    ):
        check_compression((DROP, DROP.model_copy(update={"layers": 3})), tiny_model.path)
    compress_model(tmp_path / "drop", recipe=DROP, model=tiny_model, calibration=tiny_text)
    with pytest.raises(ConfigError, match="layers 2: the model has 2 with attn"):
        check_compression((DROP.model_copy(update={"layers": 2}),), tmp_path / "drop")
    check_compression((DROP.model_copy(update={"layers": 2, "sublayer": "mlp"}),), tmp_path / "drop")
    with pytest.raises(DataError, match=r"text .*: is no data set .*; give a folder such as"):
        check_calibration((DROP,), reference_to(tiny_model.path, "text"))
    check_calibration((MagnitudeRecipe(),), reference_to(tiny_model.path, "text"))
