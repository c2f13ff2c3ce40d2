"""transformers' Trainer without chatter: no bars for each checkpoint, no dictionary a step."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer

from tasks.quiet import quiet_logs


@contextlib.contextmanager
def no_chatter() -> Iterator[None]:
    """Neither bars for each checkpoint nor warnings that a person cannot act on."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), quiet_logs("transformers"):
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
            yield
    finally:
        if bars:
            logging.enable_progress_bar()


def quieten(trainer: Trainer) -> None:
    """A bar on a terminal, nothing elsewhere."""
    for talkative in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(talkative)
    if sys.stderr.isatty():
        trainer.add_callback(_Bar)


class _Bar(ProgressCallback):
    """The trainer's progress bar without a line of numbers for each step."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        return
