"""Quantisation-aware distillation: the compressed student learns its teacher's answers and hidden states.

Loss = KL(teacher || student) + lambda * sum over blocks MSE(hidden states), the embedding's output left out. AdamW
without weight decay (it would flip signs), cosine with warm-up. The whole state is kept in a checkpoint, so that a
killed run goes on and ends with the same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.common.checks import check_choice, check_number, check_whole
from methods.common.errors import ConfigError, DataError, NumericalError
from methods.littlebit2.layer import LATENT
from methods.littlebit2.signs import Gradient

Reduction = Literal["batchmean", "token"]
Trainable = Literal["all", "factors"]
_STATE, _RECORD = "state.safetensors", "record.json"


def token_blocks(tokenizer: Any, texts: Iterable[str], length: int, limit: int | None = None) -> Tensor:
    """Tokens of the texts, joined by the end-of-text token, cut into rows [n, length].

    Args:
        tokenizer: of transformers.
        texts: documents.
        length: tokens of a row.
        limit: at most this many tokens.

    Raises:
        ConfigError: a length or limit below 1.
        DataError: the texts do not fill one row, or are one string.
    """
    check_whole("length", length, 1)
    if limit is not None:
        check_whole("limit", limit, 1)
    if isinstance(texts, str | bytes):  # each letter would be a document
        raise DataError("texts: is one string; give a list of documents")
    end = getattr(tokenizer, "eos_token_id", None)
    stream: list[int] = []
    for text in texts:
        stream += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        stream += [] if end is None else [end]
        if limit is not None and len(stream) >= limit:
            break
    rows = min(len(stream), limit or len(stream)) // length
    if rows == 0:
        raise DataError(
            f"the text has {len(stream)} tokens, less than one sequence of {length}; give more text"
        )
    return torch.tensor(stream[: rows * length]).view(rows, length)


def distill(
    student: nn.Module,
    teacher: nn.Module,
    tokens: Tensor,
    *,
    steps: int,
    batch_size: int = 4,
    lr: float = 4e-5,
    warmup: float = 0.02,
    hidden_weight: float = 10.0,
    reduction: Reduction = "batchmean",
    gradient: Gradient | None = None,
    trainable: Trainable = "all",
    clip: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    probe: Callable[[nn.Module], float] | None = None,
    probe_every: int = 0,
    on_step: Callable[[int, int, dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:
    """Train the student in place.

    Args:
        student: what `compress_model` returned, not packed.
        teacher: the original model.
        tokens: [sequences, length] ids; must not hold the text that the result is judged on.
        steps: optimiser steps; each epoch draws the sequences in a new order.
        batch_size: sequences a step.
        lr: peak learning rate.
        warmup: share of the steps.
        hidden_weight: lambda; 0 leaves the hidden states out.
        reduction: of the KL: `batchmean` sums over positions, as the paper's code; `token` is the mean per token.
        gradient: surrogate gradient of sgn for all layers; None leaves each layer's own.
        trainable: all parameters, or only the factors and scales.
        clip: norm of the gradient at most; 0 leaves it.
        seed: of the order and of the student's dropout.
        dtype: of the matrix products (autocast); latents, scales and losses stay float32.
        checkpoint: folder to resume from and to write to; removed by whoever gave it.
        checkpoint_every: steps between two checkpoints.
        probe: called with the student in evaluation mode; its value stands in the history under `probe`.
        probe_every: steps between probes (also before the first and after the last step); 0 only those two.
        on_step: progress: (done, of, row).

    Returns:
        a row a step: step, loss, kl, hidden, lr, and probe where it was asked.

    Raises:
        ConfigError: a setting out of range, a student without a trainable binary layer, or a teacher that does not
            fit it.
        DataError: tokens of a wrong shape or vocabulary, or a checkpoint that is damaged or of another run.
        NumericalError: the loss is not finite.
    """
    _check_settings(
        steps=steps, batch_size=batch_size, lr=lr, warmup=warmup, hidden_weight=hidden_weight, reduction=reduction,
        gradient=gradient, trainable=trainable, clip=clip, seed=seed, checkpoint_every=checkpoint_every,
        probe_every=probe_every,
    )  # fmt: skip
    _check_models(student, teacher, hidden_weight)
    _check_tokens(tokens, student)
    for layer in _binary(student):
        layer.gradient = gradient or layer.gradient
    named = _trainable(student, trainable)
    optimiser = torch.optim.AdamW([p for _, p in named], lr=lr, weight_decay=0.0)
    settings = [
        steps,
        batch_size,
        lr,
        warmup,
        hidden_weight,
        reduction,
        gradient,
        trainable,
        clip,
        seed,
        str(dtype),
    ]
    folder = None if checkpoint is None else Path(checkpoint)
    mark = "" if folder is None else _fingerprint(settings, tokens, (student, teacher))
    history = [] if folder is None else _restore(folder, mark, named, optimiser)
    modes = student.training, teacher.training
    teacher.eval()

    def probed(row: dict[str, float]) -> dict[str, float]:
        if probe is not None:
            student.eval()
            row["probe"] = float(probe(student))
        return row

    try:
        if not history:
            history.append(probed({"step": 0.0}))
        for step in range(len(history) - 1, steps):
            student.train()
            rate = _rate(step, steps, lr, warmup)
            batch = tokens[_rows(len(tokens), step, batch_size, seed)]
            with _own_numbers(student, seed, step):
                loss, kl, hidden = _loss(student, teacher, batch, hidden_weight, reduction, dtype)
                if not bool(loss.isfinite()):
                    raise NumericalError(
                        f"distillation: the loss of step {step + 1} is not finite; lower lr ({lr:g})"
                    )
                _update(optimiser, loss, rate, clip)
            row = {"step": step + 1.0, "loss": float(loss.detach()), "kl": float(kl), "hidden": float(hidden)}
            row["lr"] = rate
            last = step + 1 == steps
            if last or (probe_every and (step + 1) % probe_every == 0):
                row = probed(row)
            history.append(row)
            if folder is not None and (last or (step + 1) % checkpoint_every == 0):
                _keep(folder, mark, named, optimiser, history)
            if on_step:
                on_step(step + 1, steps, row)
    finally:
        student.train(modes[0])
        teacher.train(modes[1])
    return history


def _check_settings(**given: Any) -> None:
    for field, least in (
        ("steps", 1),
        ("batch_size", 1),
        ("seed", None),
        ("checkpoint_every", 1),
        ("probe_every", 0),
    ):
        check_whole(field, given[field], least)
    check_number("lr", given["lr"], above=0)
    check_number("warmup", given["warmup"], least=0, below=1)
    check_number("hidden_weight", given["hidden_weight"], least=0)
    check_number("clip", given["clip"], least=0)
    check_choice("reduction", given["reduction"], Reduction)
    check_choice("trainable", given["trainable"], Trainable)
    if given["gradient"] is not None:
        check_choice("gradient", given["gradient"], Gradient)


def _binary(student: nn.Module) -> list[Any]:
    """Layers with latents of signs: `LittleBitLinear`, and peers that are distilled beside it."""
    return [module for module in student.modules() if getattr(module, "trains_signs", False)]


def _check_models(student: nn.Module, teacher: nn.Module, hidden_weight: float) -> None:
    if not _binary(student):
        raise ConfigError(
            "student: has no trainable binary layer; call compress_model first and pack it afterwards"
        )
    if teacher is student or set(map(id, teacher.parameters())) & set(map(id, student.parameters())):
        raise ConfigError(
            "teacher: shares weights with the student, so it would learn nothing; load the original anew"
        )
    own, given = getattr(student, "config", None), getattr(teacher, "config", None)
    fields = ["vocab_size"] + (["hidden_size", "num_hidden_layers"] if hidden_weight else [])
    for field in fields:
        pair = getattr(own, field, None), getattr(given, field, None)
        if None not in pair and pair[0] != pair[1]:
            remedy = "another teacher" if field == "vocab_size" else "hidden_weight 0"
            raise ConfigError(f"teacher: its {field} is {pair[1]}, the student's {pair[0]}; give {remedy}")


def _check_tokens(tokens: Tensor, student: Any) -> None:
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or not len(tokens) or tokens.shape[1] < 2:
        shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise DataError(
            f"tokens {shape}: give a tensor [sequences, length] with at least 2 tokens a sequence"
        )
    if tokens.dtype not in (torch.int64, torch.int32):
        raise DataError(f"tokens of {tokens.dtype}: give ids, int64")
    find = getattr(student, "get_input_embeddings", None)
    known = len(find().weight) if find is not None else None
    if known is not None and not 0 <= int(tokens.min()) <= int(tokens.max()) < known:
        raise DataError(
            f"tokens from {int(tokens.min())} to {int(tokens.max())}: the model knows 0 to {known - 1}; use its own "
            "tokenizer"
        )


@contextmanager
def _own_numbers(student: nn.Module, seed: int, step: int) -> Iterator[None]:
    """Dropout draws from the step's own numbers, so that a resumed run draws the same; the caller's stay."""
    device = next(student.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed((seed * 1_000_003 + step) % 2**63)
        yield


def _update(optimiser: torch.optim.Optimizer, loss: Tensor, rate: float, clip: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], clip)
    optimiser.step()


def _trainable(student: nn.Module, trainable: Trainable) -> list[tuple[str, nn.Parameter]]:
    found = []
    for name, parameter in student.named_parameters():  # tied weights come once
        wanted = trainable == "all" or name.rsplit(".", 1)[-1] in LATENT
        parameter.requires_grad_(wanted and parameter.is_floating_point())
        if parameter.requires_grad:
            found.append((name, parameter))
    return found


def _loss(
    student: nn.Module,
    teacher: nn.Module,
    batch: Tensor,
    hidden_weight: float,
    reduction: Reduction,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    wants = hidden_weight > 0
    batch = batch.to(next(student.parameters()).device)
    with torch.autocast(batch.device.type, dtype, enabled=dtype != torch.float32):
        with torch.no_grad():
            given = teacher(input_ids=batch, output_hidden_states=wants, use_cache=False)
        own = student(input_ids=batch, output_hidden_states=wants, use_cache=False)
    target = F.log_softmax(given.logits.float(), dim=-1)
    kl = F.kl_div(F.log_softmax(own.logits.float(), dim=-1), target, log_target=True, reduction="sum")
    kl = kl / (len(batch) if reduction == "batchmean" else batch.numel())
    hidden = torch.zeros(())
    if wants:
        # The first hidden state is the embedding's output, which is not what the blocks make.
        pairs = zip(own.hidden_states[1:], given.hidden_states[1:], strict=True)
        hidden = torch.stack([F.mse_loss(a.float(), b.float()) for a, b in pairs]).sum()
    return kl + hidden_weight * hidden, kl.detach(), hidden.detach()


def _rate(step: int, steps: int, lr: float, warmup: float) -> float:
    """Linear warm-up, then half a cosine to zero."""
    first = max(1, round(warmup * steps))
    if step < first:
        return lr * (step + 1) / first
    return lr * 0.5 * (1 + math.cos(math.pi * (step - first) / max(1, steps - first)))


def _rows(count: int, step: int, batch_size: int, seed: int) -> Tensor:
    """Which sequences a step reads: a new order each epoch, known from the step alone."""
    places = range(step * batch_size, (step + 1) * batch_size)
    orders: dict[int, Tensor] = {}
    picked = []
    for place in places:
        epoch, index = divmod(place, count)
        if epoch not in orders:
            orders[epoch] = torch.randperm(
                count, generator=torch.Generator().manual_seed(seed * 100_003 + epoch)
            )
        picked.append(orders[epoch][index])
    return torch.stack(picked)


def _fingerprint(settings: list[Any], tokens: Tensor, models: tuple[nn.Module, nn.Module]) -> str:
    """What a run is: its settings and text, and both models as they are now, by up to 1,024 numbers a tensor."""
    digest = hashlib.sha256(json.dumps(settings).encode())
    digest.update(tokens.cpu().contiguous().numpy().tobytes())
    for model in models:
        for name, value in model.named_parameters():
            digest.update(f"{name} {list(value.shape)}".encode())
            some = value.detach().flatten()[:: max(1, value.numel() // 1024)]
            digest.update(some.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _keep(
    folder: Path,
    mark: str,
    named: list[tuple[str, nn.Parameter]],
    optimiser: torch.optim.Optimizer,
    history: list[dict[str, float]],
) -> None:
    """Write a checkpoint; the folder changes whole or not at all."""
    from safetensors.torch import save_file

    tensors = {}
    for name, parameter in named:
        state = optimiser.state[parameter]
        tensors[f"{name}|value"] = parameter.detach().contiguous()
        for key in ("exp_avg", "exp_avg_sq", "step"):
            if key in state:
                tensors[f"{name}|{key}"] = state[key].contiguous()
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(tensors, partial / _STATE)
    (partial / _RECORD).write_text(json.dumps({"mark": mark, "history": history}))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _restore(
    folder: Path, mark: str, named: list[tuple[str, nn.Parameter]], optimiser: torch.optim.Optimizer
) -> list[dict[str, float]]:
    partial = folder.with_name(folder.name + ".partial")
    if not folder.is_dir() and (partial / _RECORD).is_file():
        partial.rename(folder)  # killed between the removal of the old one and the renaming of the new one
    if not (folder / _RECORD).is_file():
        return []
    from safetensors import SafetensorError, safe_open

    try:
        record = json.loads((folder / _RECORD).read_text())
        history: list[dict[str, float]] = record["history"]
        with safe_open(folder / _STATE, framework="pt") as state:
            names = state.keys() if record["mark"] == mark else ()
            tensors = {name: state.get_tensor(name) for name in names}
    except (ValueError, KeyError, OSError, SafetensorError) as error:
        raise DataError(f"checkpoint {folder}: is damaged ({error}); remove the folder") from error
    if record["mark"] != mark:
        raise DataError(
            f"checkpoint {folder}: is of a run with other settings, text or models; give an empty folder"
        )
    with torch.no_grad():
        for name, parameter in named:
            parameter.copy_(tensors[f"{name}|value"])
            if f"{name}|exp_avg" in tensors:
                optimiser.state[parameter] = {
                    key: tensors[f"{name}|{key}"] for key in ("step", "exp_avg", "exp_avg_sq")
                }
    return history
