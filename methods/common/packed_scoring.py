"""Log-likelihoods of answers with each prompt read once, however many answers it has.

The answers of a prompt stand behind each other in one sequence; a mask lets each answer see the prompt and itself
only, and position numbers start again after the prompt. The model then computes the same function of each answer at
a fraction of the tokens. Only the positions that predict an answer's token pass through the output layer.

This is right for architectures whose layers see everything before them and nothing else (`PACKABLE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from methods.common.errors import DataError

# Plain decoders: rotary positions, full attention, no scaling or capping of the logits.
PACKABLE = frozenset({"llama", "mistral", "qwen2", "qwen3", "olmo2", "smollm3"})
# Rows of logits at a time: 128 x 49k in float32 stay within the cache of a server processor.
LOGIT_ROWS = 128

# (anything that names it, tokens of the prompt, tokens of the answer); the harness puts both texts first.
Request = tuple[Any, list[int], list[int]]
# Log-likelihood in nats, and whether greedy decoding gives the answer.
Score = tuple[float, bool]


@dataclass
class Group:
    """One prompt and its answers: request numbers and tokens."""

    context: list[int]
    answers: list[tuple[int, list[int]]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens of the packed sequence: an answer's last token is only predicted, never read."""
        return len(self.context) + sum(len(tokens) - 1 for _, tokens in self.answers)


def unwrapped(model: nn.Module) -> Any:
    """The transformers model inside a wrapper of data-parallel training or of PEFT."""
    inner: Any = model
    while not hasattr(inner, "get_output_embeddings") and isinstance(
        getattr(inner, "module", None), nn.Module
    ):
        inner = inner.module
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def is_packable(model: nn.Module) -> bool:
    """Whether the model's layers see everything before a token and nothing else, so that packing changes nothing."""
    inner = unwrapped(model)
    config = getattr(inner, "config", None)
    if getattr(config, "model_type", None) not in PACKABLE:
        return False
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return (
        all(kind == "full_attention" for kind in kinds)
        and not slides
        and getattr(config, "_attn_implementation", "sdpa") in ("sdpa", "eager")
        # An adapted output layer is more than its weight.
        and type(inner.get_output_embeddings()) is nn.Linear
    )


def packed_loglikelihoods(
    model: nn.Module, requests: Sequence[Request], *, max_length: int, batch_tokens: int
) -> list[Score]:
    """The score of each request, in their order; requests with the same prompt share it.

    Args:
        model: a model for which `is_packable` holds.
        requests: prompts and answers as tokens.
        max_length: a longer sequence loses the start of its prompt, as in EleutherAI's harness.
        batch_tokens: rows x padded length of one forward pass, at most; a single longer prompt makes its own.

    Raises:
        DataError: an answer has no token of its own.
    """
    results: list[Score] = [(0.0, True)] * len(requests)
    groups = group_requests(requests, max_length, batch_tokens)
    order = sorted(range(len(groups)), key=lambda i: (-groups[i].length, i))
    start = 0
    while start < len(order):
        longest = groups[order[start]].length
        stop = start + max(1, batch_tokens // longest)
        for number, answer in _score(unwrapped(model), [groups[i] for i in order[start:stop]]):
            results[number] = answer
        start = stop
    return results


@torch.no_grad()
def _score(model: Any, groups: list[Group]) -> list[tuple[int, Score]]:
    tokens, mask, positions, rows, targets, owners = pack(groups, model.dtype)
    device = model.device
    inputs = {"input_ids": tokens.to(device), "use_cache": False}
    if mask is not None:
        inputs |= {"attention_mask": mask.to(device), "position_ids": positions.to(device)}
    hidden = getattr(model, model.base_model_prefix)(**inputs).last_hidden_state
    hidden = hidden.reshape(-1, hidden.shape[-1])
    scores, greedy = target_scores(hidden, model.get_output_embeddings(), rows.to(device), targets.to(device))
    sums = torch.zeros(len(owners), dtype=torch.float64)
    exact = torch.ones(len(owners), dtype=torch.bool)
    index = torch.tensor([i for i, (_, count) in enumerate(owners) for _ in range(count)])
    sums.index_add_(0, index, scores.double().cpu())
    exact[index[~greedy.cpu()]] = False
    return [(number, (float(sums[i]), bool(exact[i]))) for i, (number, _) in enumerate(owners)]


def group_requests(requests: Sequence[Request], max_length: int, batch_tokens: int) -> list[Group]:
    """Requests with the same prompt together, unless their packed sequence would exceed `batch_tokens`.

    As the harness does, a sequence longer than the model loses the start of its prompt.

    Raises:
        DataError: an answer has no token of its own.
    """
    open_groups: dict[tuple[int, ...], Group] = {}
    groups: list[Group] = []
    for number, (texts, context, continuation) in enumerate(requests):
        if not continuation:
            raise DataError(
                f"the answer {texts[1] if texts else ''!r} melts into its prompt's last token; start it with a space"
            )
        kept = context[-max(1, max_length + 1 - len(continuation)) :]
        key = tuple(kept)
        group = open_groups.get(key)
        if group is None or group.length + len(continuation) - 1 > max(batch_tokens, len(kept)):
            group = Group(kept)
            open_groups[key] = group
            groups.append(group)
        group.answers.append((number, continuation))
    return groups


def pack(groups: list[Group], dtype: torch.dtype) -> tuple[Any, ...]:
    """Lay groups out as one batch.

    Returns:
        tokens: (groups, length) token ids, padded on the right.
        mask: (groups, 1, length, length) to add to the attention scores; None when every group has one answer, for
            which the model's own causal mask is right.
        positions: (groups, length) position of each token in its own sequence.
        rows: flat positions (group * length + place) that predict the answers' tokens.
        targets: the tokens that they should predict.
        owners: per answer, its request number and its count of tokens, in the order of `rows`.
    """
    length = max(group.length for group in groups)
    tokens = torch.zeros(len(groups), length, dtype=torch.long)
    positions = torch.zeros(len(groups), length, dtype=torch.long)
    single = all(len(group.answers) == 1 for group in groups)
    seen = None if single else torch.zeros(len(groups), length, length, dtype=torch.bool)
    rows: list[int] = []
    targets: list[int] = []
    owners: list[tuple[int, int]] = []
    for i, group in enumerate(groups):
        size = len(group.context)
        line = list(group.context)
        place = list(range(size))
        if seen is not None:
            seen[i, :size, :size] = torch.ones(size, size, dtype=torch.bool).tril_()
        for number, answer in group.answers:
            start, read = len(line), len(answer) - 1
            if seen is not None and read:
                seen[i, start : start + read, :size] = True
                seen[i, start : start + read, start : start + read] = torch.ones(
                    read, read, dtype=torch.bool
                ).tril_()
            rows += [i * length + size - 1, *range(i * length + start, i * length + start + read)]
            targets += answer
            owners.append((number, len(answer)))
            line += answer[:-1]
            place += range(size, size + read)
        tokens[i, : len(line)] = torch.tensor(line)
        positions[i, : len(line)] = torch.tensor(place)
        if seen is not None:
            seen[i, len(line) :, 0] = True  # padding looks at something, else its attention is undefined
    mask = None
    if seen is not None:
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
    return tokens, mask, positions, torch.tensor(rows), torch.tensor(targets), owners


def target_scores(hidden: Tensor, head: Any, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each target at its row, and whether it is the most probable token.

    Args:
        hidden: (positions, width) last hidden states.
        head: the output layer (`torch.nn.Linear`).
        rows: (answers' tokens,) which position predicts.
        targets: (answers' tokens,) what it should predict.

    Each distinct row is computed once. The target's logit is computed in float32: in bfloat16 two answers would often
    tie, and the first would win.
    """
    distinct, inverse = torch.unique(rows, return_inverse=True)
    weight, bias = head.weight, getattr(head, "bias", None)
    # Large temporary tensors cost more than the arithmetic: both buffers are used again for each piece.
    size = min(LOGIT_ROWS, len(distinct))
    rounded = torch.empty(size, len(weight), dtype=weight.dtype, device=weight.device)
    logits = torch.empty(size, len(weight), dtype=torch.float32, device=weight.device)
    top, total = [], []
    for start in range(0, len(distinct), LOGIT_ROWS):
        picked = hidden[distinct[start : start + LOGIT_ROWS]]
        piece = logits[: len(picked)]
        piece.copy_(torch.mm(picked, weight.T, out=rounded[: len(picked)]))
        if bias is not None:
            piece += bias.float()
        highest, token = piece.max(-1, keepdim=True)
        total.append(highest[:, 0] + piece.sub_(highest).exp_().sum(-1).log_())
        top.append(token[:, 0])
    exact = (hidden[rows].float() * weight[targets].float()).sum(-1)
    if bias is not None:
        exact = exact + bias[targets].float()
    return exact - torch.cat(total)[inverse], torch.cat(top)[inverse] == targets
