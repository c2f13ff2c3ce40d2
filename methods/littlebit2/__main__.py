"""Compress a model folder from the command line: `python -m methods.littlebit2 --model SRC --bpp 0.55 --out DIR`.

With `--distill-tokens N --text FILE ...` the result is distilled on the texts; without, it writes no usable text.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch

from methods.common.checks import check_number, check_whole
from methods.common.dtype import fast_dtype
from methods.common.errors import ConfigError, DataError, NumericalError
from methods.littlebit2 import LittleBitConfig, compress_model, distill, save_compressed, token_blocks
from methods.littlebit2.config import Init


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m methods.littlebit2", description=__doc__)
    found.add_argument("--model", required=True, type=Path, help="model folder (safetensors)")
    found.add_argument("--out", required=True, type=Path, help="new folder for the packed model")
    found.add_argument("--bpp", type=float, default=0.55, help="bits a weight of the linear layers")
    found.add_argument(
        "--init", choices=get_args(Init), default="joint_itq", help="where distillation starts"
    )
    found.add_argument("--residual", action="store_true", help="a second product for what the first leaves")
    found.add_argument("--jobs", type=int, default=None, help="layers at the same time; default all cores")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--distill-tokens", type=int, default=0, help="tokens of text to distil on")
    found.add_argument("--text", type=Path, nargs="*", default=[], help="text files to distil on")
    found.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    found.add_argument("--batch", type=int, default=4, help="sequences of a step")
    found.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    found.add_argument("--hidden-weight", type=float, default=0.0, help="weight of the hidden states' error")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 with one line on stderr for a user's mistake."""
    given = parser().parse_args(arguments)
    try:
        for name, value in run(given).items():
            print(f"{name}: {value:,.4g}")
    except (ConfigError, DataError, NumericalError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(given: argparse.Namespace) -> dict[str, float]:
    """Compress, distil, save."""
    from tqdm import tqdm
    from transformers import AutoTokenizer

    config = LittleBitConfig(bpp=given.bpp, init=given.init, residual=given.residual, seed=given.seed)
    _check(given)
    tokenizer = AutoTokenizer.from_pretrained(
        str(given.model), local_files_only=True, trust_remote_code=False
    )
    tokens = token_blocks(tokenizer, _texts(given.text), given.length) if given.distill_tokens else None
    student = _load(given.model, "auto")
    stored = student.dtype
    with tqdm(desc="layers", disable=None) as bar:
        student, rows = compress_model(
            student.float(), config, n_jobs=given.jobs, on_layer=lambda done, _: _advance(bar, done)
        )
    if tokens is not None:
        steps = max(1, given.distill_tokens // (given.batch * given.length))
        with tqdm(desc="distillation", total=steps, disable=None) as bar:
            distill(
                student, _load(given.model, torch.float32), tokens, steps=steps, batch_size=given.batch, lr=given.lr,
                hidden_weight=given.hidden_weight, reduction="token", seed=given.seed, dtype=fast_dtype(),
                on_step=lambda done, _total, _row: _advance(bar, done),
            )  # fmt: skip
    sizes = save_compressed(student, given.out, config, dtype=stored)
    tokenizer.save_pretrained(given.out)
    return {"mean_error": sum(row["error"] for row in rows) / len(rows), **sizes}


def _check(given: argparse.Namespace) -> None:
    """Everything that can be known to be wrong before the model is loaded."""
    if given.out.exists() and (not given.out.is_dir() or any(given.out.iterdir())):
        raise ConfigError(f"out {given.out}: holds files; name a new folder")
    if not (given.model / "config.json").is_file():
        raise DataError(f"model {given.model}: holds no config.json; give a save_pretrained folder")
    if given.jobs is not None:
        check_whole("jobs", given.jobs, 1)
    check_whole("distill-tokens", given.distill_tokens, 0)
    check_whole("length", given.length, 2)
    check_whole("batch", given.batch, 1)
    check_number("lr", given.lr, above=0)
    check_number("hidden-weight", given.hidden_weight, least=0)
    if bool(given.distill_tokens) != bool(given.text):
        raise ConfigError(
            f"distill-tokens {given.distill_tokens}: give it together with --text and its files"
        )
    limit = json.loads((given.model / "config.json").read_text()).get("max_position_embeddings")
    if given.distill_tokens and limit and given.length > limit:
        raise ConfigError(f"length {given.length}: the model reads at most {limit} tokens; set that or less")


def _texts(files: list[Path]) -> Iterator[str]:
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"text {file}: is no readable UTF-8 file ({error}); name text files") from error


def _load(model: Path, dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(model), dtype=dtype, use_safetensors=True, local_files_only=True, trust_remote_code=False
    )


def _advance(bar: Any, done: int) -> None:
    bar.update(done - bar.n)


if __name__ == "__main__":
    raise SystemExit(main())
