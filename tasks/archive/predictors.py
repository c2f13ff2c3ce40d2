"""Models for archives: a language model's folder, an n-gram model's file, or text that an n-gram model counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError, DataError
from methods.pmatic import NGram, Predictor, Steps
from tasks.archive.config import ArchiveSettings, Computation
from tasks.prepare.config import TextSettings
from tasks.prepare.models import check_model_folder
from tasks.prepare.text import check_text_source, read_documents

NGRAM = "ngram:"


@dataclass(frozen=True)
class Loaded:
    """A model ready to code: `predictor` scores whole texts, `second` computes the same another way."""

    predictor: Predictor
    tokenizer: Any = None

    def second(self, computation: Computation) -> Predictor:
        """The model by another computation.

        Raises:
            ConfigError: the model has no number format to change.
        """
        if computation == "steps":
            return Steps(self.predictor)
        from methods.pmatic import HFCausalLM

        if not isinstance(self.predictor, HFCausalLM):
            raise ConfigError(
                f"computations: {computation} is for language models; an n-gram model has 'steps' only"
            )
        import torch

        mine = self.predictor
        return Steps(
            HFCausalLM(
                mine.model,
                mine.tokenizer,
                window=mine.window,
                overlap=mine.overlap,
                start_token=mine.start_token,
                autocast={"bfloat16": torch.bfloat16, "float16": torch.float16}[computation],
                name=mine.name,
            )
        )


def text_settings(source: str) -> TextSettings:
    return TextSettings(source=source, calibration_bytes=0)


def check_model(source: str) -> None:
    """Refuse what is no model for an archive, before any work starts.

    Raises:
        DataError: names the source and the remedy.
    """
    if source.startswith(NGRAM):
        check_text_source(text_settings(source.removeprefix(NGRAM)))
        return
    path = Path(source).expanduser()
    if path.is_dir():
        check_model_folder(path, "causal-lm")
    elif path.suffix == ".safetensors" and path.is_file():
        return
    else:
        raise DataError(
            f"model {source}: give a model folder (`seedloom run prepare` stores one), an n-gram model's .safetensors "
            f"file, or '{NGRAM}' and text that both sides have"
        )


def load_predictor(source: str, settings: ArchiveSettings) -> Loaded:
    """The model of a source that `check_model` accepts.

    Raises:
        DataError: as `check_model`, or it cannot be loaded. ConfigError: a window that the model does not have.
    """
    check_model(source)
    if source.startswith(NGRAM):
        documents, _ = read_documents(text_settings(source.removeprefix(NGRAM)))
        text = "\n".join(text for _, text in documents).encode("utf-8", "surrogatepass")
        return Loaded(NGram.fit_bytes(text))
    path = Path(source).expanduser()
    if path.is_file():
        return Loaded(NGram.load(path, path.stem))
    import torch
    from transformers import AutoTokenizer

    from methods.pmatic import HFCausalLM
    from tasks.load_model import load_causal_lm

    dtype: Any = "auto" if settings.dtype == "stored" else getattr(torch, settings.dtype)
    model = load_causal_lm(path, dtype)
    tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    predictor = HFCausalLM(model, tokenizer, window=settings.window or None, name=path.name)
    return Loaded(predictor, tokenizer)
