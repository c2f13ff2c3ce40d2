"""What an archive came to, as people read it."""

from typing import Any

import pandas as pd

from tasks.report.summaries import size_in_words
from tasks.step import StepResult


def archive_tables(
    made: StepResult, codec: StepResult, verified: StepResult
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A line a fact, and all numbers for metrics.json."""
    size, fit, read = made.summary, codec.summary, verified.summary
    rows = [
        ("files", f"{size['files']:,}"),
        ("before", size_in_words(size["source_bytes"])),
        ("after", size_in_words(size["archive_bytes"])),
        ("share of the size", f"{size['ratio']:.1%}"),
        ("bits per byte", f"{size['bits_per_byte']:.3f}"),
        ("bound on the log-odds (nats)", f"{fit['Delta']:.3g}"),
        *(
            (f"largest mismatch, {name}", f"{report['largest']:.3g}")
            for name, report in fit["mismatch"].items()
        ),
        ("read back by", ", ".join(read["computations"])),
        ("seconds: calibrate, compress, read back", _seconds(codec, made, verified)),
    ]
    metrics = {
        "archive": {name: value for name, value in size.items() if isinstance(value, int | float)},
        "codec": {name: value for name, value in fit.items() if isinstance(value, int | float)},
        "mismatch": fit["mismatch"],
        "verified_files": read["files"],
    }
    return pd.DataFrame(rows, columns=["what", "measured"]), metrics


def _seconds(*steps: StepResult) -> str:
    return ", ".join(f"{step.timings['seconds']:.0f}" for step in steps)
