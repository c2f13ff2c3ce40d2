"""One packed corpus for all tests."""

from pathlib import Path

import pytest

from tasks.pretrain.config import CorpusSettings
from tasks.pretrain.corpus import build_corpus
from tests.tiny_models import toy_text


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    source = toy_text(folder / "toy.jsonl", documents=120)
    settings = CorpusSettings(source=str(source), vocabulary=280, context=32, validation_share=0.1)
    build_corpus(settings, folder / "corpus")
    return folder / "corpus"
