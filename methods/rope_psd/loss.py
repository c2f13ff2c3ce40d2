"""The loss of RoPE-perturbed self-distillation, sections 2.1 to 2.5 of the method in its order.

    L = L_CLM + lambda * L_distill
    L_distill = 1 / (L - s) * sum_{i >= s} KL( p(. | x_<i; r) || sg[ p(. | x_<i; standard) ] )

The teacher is the same network under standard indices, read in the same step, without a gradient. With logits z_j that
predict x_{j+1} the sum runs over j = s .. L-2: the term i = s comes from a prefix row and is zero.
"""

from __future__ import annotations

import math
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError
from methods.common.packed_scoring import unwrapped
from methods.rope_psd.kl import CHUNK, Direction, chunked_kl
from methods.rope_psd.long_ce import long_ce, long_ce_weights, token_losses
from methods.rope_psd.rope_models import (
    attention_of,
    cache_name,
    check_rope,
    cut_cache,
    head_of,
    new_cache,
    prefix_can_be_shared,
    run_body,
    sees_prefix,
)
from methods.rope_psd.views import (
    SHORTEST,
    Mode,
    check_mode,
    perturb_position_ids,
    sample_perturbation,
    standard_position_ids,
)

LossVariant = Literal["clm", "longce"]
ClmView = Literal["standard", "perturbed"]


@dataclass
class _Batch:
    """A batch in one form: an explicit mask, standard indices, and what each row's second view is."""

    ids: Tensor  # (rows, length)
    mask: Tensor  # (rows, length), 1 for tokens
    labels: Tensor  # (rows, length), -100 where ignored
    places: Tensor  # (rows, length) standard indices
    documents: Tensor | None  # (rows, length)
    given_mask: Tensor | None
    given_places: Tensor | None

    def attention(self, model: nn.Module) -> Tensor:
        """What the model's attention takes: the mask, or with documents who sees whom."""
        if self.documents is None:
            return self.mask
        same = self.documents[:, None, :, None] == self.documents[:, None, None, :]
        seen = (same & self.mask[:, None, None, :].bool()).tril()
        if attention_of(model) != "eager":
            return seen
        # Eager attention adds its mask to the scores: true and false would hide nothing.
        dtype = unwrapped(model).get_input_embeddings().weight.dtype
        return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


class RopePSDLoss:
    """Cross-entropy of the standard view plus the divergence of the perturbed view from it.

    A call `loss(model, input_ids, attention_mask, labels)` returns `loss` with its gradient, and without: `clm`, `kl`
    (nats, mean over rows), `perturbed_ce` (nats a token of the suffix under the perturbed view), `s`, `y`.

    Args:
        kl_weight: lambda; 0 is plain training, the second view is then not read.
        max_skip: Y, the largest gap; a float is a multiple of each sequence's length, an int a number of tokens.
        mode: the view, see `methods.rope_psd.views`; "none" has no second view.
        direction: "reverse", the paper's; "forward" is an ablation.
        chunk_size: rows of logits of the second view at a time.
        prefix_sharing: read the suffix alone, with the first pass's keys and values before it; the same loss and
            gradients at 1.5 instead of 2 passes. Layers with windows and gradient checkpointing read all of it.
        prob_apply: share of batches that get the second view.
        loss_variant: "longce" weighs the cross-entropy by what a long context adds.
        clm_view: "perturbed" takes the cross-entropy under the perturbed indices (PoSE as the paper compares it);
            needs kl_weight 0.
        long_ce_context, long_ce_stride: tokens of LongCE's short context, and by which it moves.
        seed: of the draws of (s, y).

    Raises:
        ConfigError: a value out of bounds.
    """

    def __init__(
        self,
        kl_weight: float = 1.0,
        max_skip: float | int = 1.0,
        mode: Mode = "skip",
        direction: Direction = "reverse",
        chunk_size: int = CHUNK,
        prefix_sharing: bool = True,
        *,
        prob_apply: float = 1.0,
        loss_variant: LossVariant = "clm",
        clm_view: ClmView = "standard",
        long_ce_context: int = 4096,
        long_ce_stride: int = 1024,
        seed: int = 0,
    ) -> None:
        check_mode(mode)
        for name, value, known in (
            ("direction", direction, ("reverse", "forward")),
            ("loss_variant", loss_variant, ("clm", "longce")),
            ("clm_view", clm_view, ("standard", "perturbed")),
        ):
            if value not in known:
                raise ConfigError(f"{name}={value!r}: choose one of {', '.join(known)}")
        if not 0 <= kl_weight < math.inf:
            raise ConfigError(f"kl_weight={kl_weight}: give 0 or more; the paper's is 1")
        if not 0 < max_skip < math.inf:
            raise ConfigError(
                f"max_skip={max_skip}: give a positive multiple of the length, or a number of tokens"
            )
        if not 0 < prob_apply <= 1:
            raise ConfigError(f"prob_apply={prob_apply}: give a share above 0, at most 1")
        if chunk_size < 1:
            raise ConfigError(f"chunk_size={chunk_size}: give at least 1 row")
        if clm_view == "perturbed" and (kl_weight or loss_variant == "longce"):
            raise ConfigError(
                "clm_view='perturbed': has one view alone; set kl_weight=0 and loss_variant='clm'"
            )
        if not 1 <= long_ce_stride < long_ce_context:
            raise ConfigError(
                f"long_ce_stride={long_ce_stride}: give at least 1, and fewer than long_ce_context={long_ce_context}"
            )
        self.kl_weight, self.max_skip, self.mode, self.direction = kl_weight, max_skip, mode, direction
        self.chunk_size, self.prefix_sharing, self.prob_apply = chunk_size, prefix_sharing, prob_apply
        self.loss_variant, self.clm_view = loss_variant, clm_view
        self.long_ce_context, self.long_ce_stride = long_ce_context, long_ce_stride
        self.generator = torch.Generator().manual_seed(seed)
        self._checked: weakref.ref[nn.Module] | None = None
        self._warned = False

    def __call__(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        perturbation: tuple[Tensor, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """The loss of one batch.

        Args:
            model: a transformers causal language model, wrapped or not.
            input_ids: (rows, length).
            attention_mask: (rows, length), 1 for tokens; padding on either side.
            labels: (rows, length), -100 where ignored; the ids themselves when left out.
            position_ids: (rows, length) standard indices that are not 0, 1, ..., such as those of `pose_rows`; only
                without a second view.
            document_ids: (rows, length) which document a token belongs to, for packed rows (mode skip): documents do
                not see each other, and each has its own (s, y).
            perturbation: s, y instead of drawn ones; (rows,), or (rows, length) with documents.

        Raises:
            TypeError, ConfigError, NotImplementedError: see `check_rope` and `perturb_position_ids`.
            RuntimeError: the installed transformers hides the prefix from the suffix in spite of the mask.
        """
        self._check(model)
        if input_ids.ndim != 2:
            raise ConfigError(f"input_ids: has shape {tuple(input_ids.shape)}; give (rows, length)")
        if input_ids.shape[1] < SHORTEST:
            raise ConfigError(
                f"length={input_ids.shape[1]}: a sequence needs at least {SHORTEST} tokens for two views"
            )
        batch = _batch(input_ids, attention_mask, labels, position_ids, document_ids)
        if document_ids is not None:
            self._check_documents(model)
        wanted = self._wanted()
        s, y = perturbation or self._draw(batch)
        s, y = s.to(input_ids.device), y.to(input_ids.device)
        if self.clm_view == "perturbed" and wanted:
            places = perturb_position_ids(batch.places, self.mode, s, y, batch.mask)
            out = model(
                input_ids=batch.ids,
                attention_mask=batch.attention(model),
                position_ids=places,
                labels=batch.labels,
                use_cache=False,
            )
            zero = torch.zeros_like(out.loss.detach())
            return {
                "loss": out.loss,
                "clm": out.loss.detach(),
                "kl": zero,
                "perturbed_ce": zero,
                "s": s,
                "y": y,
            }
        second = wanted and self.kl_weight > 0 and self.mode != "none"
        if second and position_ids is not None:
            raise ConfigError(
                "position_ids: given indices and a second view exclude each other; set kl_weight=0"
            )
        return self._two_views(model, batch, s, y, second)

    def _check(self, model: nn.Module) -> None:
        inner = unwrapped(model)
        if self._checked is not None and self._checked() is inner:
            return
        check_rope(inner, self.mode)
        if not sees_prefix(inner):
            raise RuntimeError(
                "the installed transformers hides the prefix from the suffix of a perturbed view although a mask is "
                "given; install the version of constraints.txt"
            )
        self._checked = weakref.ref(inner)

    def _check_documents(self, model: nn.Module) -> None:
        if self.mode not in ("skip", "none"):
            raise ConfigError(
                f"perturbation mode={self.mode!r}: rows that hold several documents need 'skip'"
            )
        attention = attention_of(model)
        if attention not in ("sdpa", "eager"):
            raise ConfigError(
                f"document_ids with {attention}: takes no mask of who sees whom; load the model with "
                "attn_implementation='sdpa'"
            )
        # The documents' mask would take the place of a layer's window, and says nothing to a recurrent layer.
        if not prefix_can_be_shared(model):
            raise ConfigError(
                "document_ids: this model has layers with sliding windows or a state, which cannot keep documents "
                "apart; give one document a row"
            )

    def _wanted(self) -> bool:
        """Whether this batch gets the second view."""
        if self.prob_apply == 1:
            return True
        return float(torch.rand((), generator=self.generator)) < self.prob_apply

    def _draw(self, batch: _Batch) -> tuple[Tensor, Tensor]:
        if batch.documents is None:
            lengths = batch.mask.sum(1).clamp(min=1)
            return sample_perturbation(lengths, self.max_skip, self.generator, self.mode)
        units, counts = _units(batch)
        s, y = sample_perturbation(counts, self.max_skip, self.generator, self.mode)
        return s.to(units.device)[units], y.to(units.device)[units]

    def _two_views(
        self, model: nn.Module, batch: _Batch, s: Tensor, y: Tensor, second: bool
    ) -> dict[str, Tensor]:
        cache = None
        share = second and self.mode == "skip" and batch.documents is None
        more: dict[str, Any] = {"use_cache": False}
        if share and self.prefix_sharing and prefix_can_be_shared(model):
            cache = new_cache()
            more = {"use_cache": True, cache_name(unwrapped(model)): cache}
        if batch.documents is not None:
            more |= {"attention_mask": batch.attention(model), "position_ids": batch.places}
        elif batch.given_places is not None:
            more |= {"attention_mask": batch.mask, "position_ids": batch.places}
        elif batch.given_mask is not None:
            more |= {"attention_mask": batch.given_mask, "position_ids": batch.places}
        # 1. The standard view: exactly what plain training does.
        out = model(input_ids=batch.ids, labels=batch.labels, **more)
        clm = out.loss
        if self.loss_variant == "longce":
            losses = token_losses(out.logits, batch.labels)
            weights = long_ce_weights(
                model, batch.ids, batch.labels, losses.detach(), self.long_ce_context, self.long_ce_stride
            )
            clm = long_ce(losses, batch.labels, weights)
        zero = torch.zeros((), dtype=torch.float32, device=batch.ids.device)
        found = {"loss": clm, "clm": clm.detach(), "kl": zero, "perturbed_ce": zero, "s": s, "y": y}
        if not second:
            return found
        if cache is not None and not cache.get_seq_length():
            cache = None
            if not self._warned:
                warnings.warn(
                    "prefix_sharing: gradient checkpointing keeps no keys and values; the whole sequence is read twice",
                    stacklevel=3,
                )
                self._warned = True
        # 2. to 4. The perturbed view against it.
        weights = kl_weights(batch.labels, batch.places, batch.mask, self._split(s), *_unit_list(batch))
        weights = weights.to(torch.float64 if out.logits.dtype == torch.float64 else torch.float32)
        if not bool(weights.any()):
            return found
        places = perturb_position_ids(batch.places, self.mode, s, y, batch.mask)
        rows = weights.flatten().nonzero()[:, 0]
        if cache is None:
            hidden = run_body(model, batch.ids, batch.attention(model), places)
            student = hidden.flatten(0, 1)[rows]
        else:
            student = _suffixes(model, batch, places, weights, self._split(s), cache)
        logits = out.logits.detach().flatten(0, 1)
        targets = nn.functional.pad(batch.labels[:, 1:], (0, 1), value=-100).flatten()[rows]
        kl, ce = chunked_kl(
            student,
            head_of(model),
            logits,
            rows,
            targets,
            weights.flatten()[rows],
            self.direction,
            self.chunk_size,
        )
        found |= {"loss": clm + self.kl_weight * kl, "kl": kl.detach(), "perturbed_ce": ce / weights.sum()}
        return found

    def _split(self, s: Tensor) -> Tensor:
        return s if self.mode == "skip" else torch.zeros_like(s)


def _batch(
    ids: Tensor, mask: Tensor | None, labels: Tensor | None, places: Tensor | None, documents: Tensor | None
) -> _Batch:
    full = torch.ones_like(ids) if mask is None else mask.long()
    if full.shape != ids.shape:
        raise ConfigError(
            f"attention_mask: has shape {tuple(full.shape)}; give {tuple(ids.shape)}, 1 for tokens"
        )
    if labels is None:
        labels = ids.masked_fill(full == 0, -100)
    if labels.shape != ids.shape:
        raise ConfigError(f"labels: has shape {tuple(labels.shape)}; give {tuple(ids.shape)}")
    standard = standard_position_ids(full) if places is None else places
    if documents is not None:
        if documents.shape != ids.shape:
            raise ConfigError(f"document_ids: has shape {tuple(documents.shape)}; give {tuple(ids.shape)}")
        new = torch.ones_like(documents, dtype=torch.bool)
        new[:, 1:] = documents[:, 1:] != documents[:, :-1]
        columns = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        standard = columns - torch.where(new, columns, 0).cummax(1).values
        # The first token of a document is not predicted by another document's last one.
        labels = labels.masked_fill(new, -100)
    return _Batch(ids, full, labels, standard, documents, mask, places)


def _units(batch: _Batch) -> tuple[Tensor, Tensor]:
    """What has one (s, y): the number of each token's document, and the documents' lengths."""
    assert batch.documents is not None
    starts = batch.places == 0
    numbers = starts.flatten().cumsum(0).reshape(starts.shape) - 1
    return numbers, torch.bincount(numbers.flatten())


def _unit_list(batch: _Batch) -> tuple[Tensor, int]:
    if batch.documents is not None:
        numbers, counts = _units(batch)
        return numbers, len(counts)
    rows = torch.arange(len(batch.ids), device=batch.ids.device)
    return rows[:, None].expand_as(batch.ids), len(batch.ids)


def kl_weights(labels: Tensor, places: Tensor, mask: Tensor, s: Tensor, units: Tensor, count: int) -> Tensor:
    """The weight of each row of logits, so that their weighted sum is L_distill, averaged over sequences.

    Args:
        labels, places, mask: (rows, length).
        s: splits, (rows,) or (rows, length).
        units: (rows, length) number of the sequence that a token belongs to.
        count: sequences.

    Returns:
        (rows, length) float64: 1 / (valid targets i >= s of the sequence) / count for the logits j with index >= s
        whose target j + 1 is valid, else 0. A sequence without such a target has none.
    """
    split = s[:, None] if s.ndim == 1 else s
    behind = (places >= split) & mask.bool()
    valid = behind & (labels != -100)
    totals = torch.zeros(count, dtype=torch.float64, device=labels.device)
    totals.index_add_(0, units.flatten(), valid.flatten().double())
    predicts = torch.zeros_like(behind)
    predicts[:, :-1] = behind[:, :-1] & valid[:, 1:] & (units[:, 1:] == units[:, :-1])
    return predicts / (totals.clamp(min=1)[units] * count)


def _suffixes(
    model: nn.Module, batch: _Batch, places: Tensor, weights: Tensor, s: Tensor, cache: Any
) -> Tensor:
    """Last hidden states of the rows with a weight, each suffix read behind the first pass's keys and values.

    A row is read by itself: its split is its own, and reading all from the earliest one would cost nearly a whole pass.
    """
    found = []
    for row in range(len(batch.ids)):
        used = weights[row].nonzero()[:, 0]
        if not len(used):
            continue
        real = batch.mask[row].bool() & (batch.places[row] >= s[row])
        start, end = int(real.nonzero()[0]), int(used[-1]) + 1
        part = slice(start, end)
        hidden = run_body(
            model,
            batch.ids[row : row + 1, part],
            batch.mask[row : row + 1, :end],
            places[row : row + 1, part],
            cut_cache(cache, row, start) if start else None,
        )
        found.append(hidden[0, used - start])
    return torch.cat(found)
