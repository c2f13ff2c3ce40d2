"""Progress without a terminal: lines in the log, neither none nor one a step."""

import io
import logging
import sys

import pytest

from tasks import progress


def test_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # no terminal
    caplog.set_level(logging.INFO, "seedloom")
    with progress.progress_bar("distillation", "step") as on_step:
        for done in range(1, 101):
            clock[0] += 7
            on_step(done, 100)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "distillation: 9 of 100 steps"
    assert len(lines) == 11
    caplog.clear()
    with progress.progress_bar("layers", "layer") as on_layer:
        on_layer(1, 1)
    assert not caplog.records  # short work says nothing
