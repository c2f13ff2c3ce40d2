"""Attention heads: where their outputs are in each architecture, and their states at the ends of forks.

A head's state z_{l,h} is its slice of the concatenated attention output before the output projection: one a query
head, also where several query heads share keys and values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from methods.common.errors import DataError
from methods.common.linear_layers import UnknownArchitectureError, is_linear, oriented_weight, residual_blocks
from methods.common.sublayers import layout_of

if TYPE_CHECKING:
    from methods.dynasteer.forks import ForkSet

# Names of an attention's output projection, relative to the attention module; the first that is there counts.
PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense")
SAMPLED = 1_024  # values of a tensor that its fingerprint reads


@dataclass(frozen=True)
class HeadLayout:
    """A model's output projections, block by block, and the heads that write into each.

    Attributes:
        projections: [L] modules whose first input is [batch, length, n_heads * head_dim].
        n_heads: query heads of a block.
        head_dim: width of a head.
    """

    projections: tuple[nn.Module, ...]
    n_heads: int
    head_dim: int

    def check(self, layers: Tensor, heads: Tensor, head_dim: int) -> None:
        """DataError when directions were fitted on a model of another shape."""
        if head_dim != self.head_dim:
            raise DataError(
                f"head_dim {head_dim} of the steering is not the model's {self.head_dim}; use the model of the fit"
            )
        if len(layers) and (int(layers.max()) >= len(self.projections) or int(heads.max()) >= self.n_heads):
            raise DataError(
                f"the steering names block {int(layers.max())}, head {int(heads.max())}; the model has "
                f"{len(self.projections)} blocks of {self.n_heads} heads: use the model it was fitted on"
            )


def head_layout(model: nn.Module) -> HeadLayout:
    """Where the heads' outputs are.

    Raises:
        UnknownArchitectureError: the model type has no known attention, or its output projection has no known name.
    """
    attention = layout_of(model).attention[0]
    found = []
    for block in residual_blocks(model):
        module = block.get_submodule(attention)
        name = next((n for n in PROJECTIONS if is_linear(getattr(module, n, nn.Identity()))), None)
        if name is None:
            raise UnknownArchitectureError(
                f"{type(module).__name__} has no output projection named {', '.join(PROJECTIONS)}; "
                "add its name to methods.dynasteer.heads.PROJECTIONS"
            )
        found.append(getattr(module, name))
    config: Any = model.config
    n_heads = int(config.num_attention_heads)
    return HeadLayout(tuple(found), n_heads, oriented_weight(found[0]).shape[1] // n_heads)


def fingerprint_of(model: Any) -> str:
    """Names a model by its weights: the same in float32 and bfloat16, another one after training or pruning.

    sha256 over evenly spaced values of each tensor of the embeddings and the blocks, rounded to bfloat16.
    """
    digest = hashlib.sha256()
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    for module in (*residual_blocks(model), *(end for end in ends if end is not None)):
        for name, weight in module.named_parameters():
            flat = weight.detach().flatten()
            places = torch.linspace(0, len(flat) - 1, min(len(flat), SAMPLED), dtype=torch.float64)
            chosen = flat[places.round().long().to(flat.device)].to(torch.bfloat16).cpu().view(torch.int16)
            digest.update(f"{name} {tuple(weight.shape)}".encode() + chosen.numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class HeadActivations:
    """States of every head at the last token of n labelled forks.

    Attributes:
        z: [n, L, H, d] float32.
        labels: [n] 1 Truth, 0 Fallacy.
        groups: [n] the context that a fork belongs to.
        problems: [n] the problem that the context belongs to: train and test are split by it.
        sentences: [n] number of the sentence in its answer, from 1.
        entropies: [n] mean entropy of the sentence that the forks were drawn at.
        hidden: [n, L, width] residual stream after each block, or None.
        fingerprint: of the model, see `fingerprint_of`; empty when it is not known.
    """

    z: Tensor
    labels: np.ndarray
    groups: np.ndarray
    problems: np.ndarray
    sentences: np.ndarray
    entropies: np.ndarray
    hidden: Tensor | None = None
    fingerprint: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    def __post_init__(self) -> None:
        if self.z.ndim != 4:
            raise DataError(f"z has {self.z.ndim} axes; give [samples, layers, heads, head width]")
        for name in ("labels", "groups", "problems"):
            if len(getattr(self, name)) != len(self.z):
                raise DataError(
                    f"{name}: {len(getattr(self, name))} for {len(self.z)} samples; give one a sample"
                )
        if len(self.labels) and not torch.isfinite(self.z).all():
            raise DataError("z holds NaN or infinity; use an intact model")

    def save(self, folder: Path) -> None:
        """heads.safetensors below `folder`."""
        from safetensors.torch import save_file

        tensors = {"z": self.z.contiguous()}
        for name in ("labels", "groups", "problems", "sentences"):
            tensors[name] = torch.from_numpy(np.asarray(getattr(self, name), np.int64))
        tensors["entropies"] = torch.from_numpy(np.asarray(self.entropies, np.float64))
        if self.hidden is not None:
            tensors["hidden"] = self.hidden.contiguous()
        save_file(tensors, folder / "heads.safetensors", metadata={"fingerprint": self.fingerprint})

    @classmethod
    def load(cls, folder: Path) -> HeadActivations:
        """What `save` wrote. DataError: it is not there or damaged."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(folder / "heads.safetensors", framework="pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
                fingerprint = (file.metadata() or {}).get("fingerprint", "")
            arrays = {
                name: found[name].numpy()
                for name in ("labels", "groups", "problems", "sentences", "entropies")
            }
            return cls(z=found["z"], hidden=found.get("hidden"), fingerprint=fingerprint, **arrays)
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(
                f"{folder}: holds no whole heads.safetensors ({error}); capture the heads again"
            ) from error


@torch.no_grad()
def capture_heads(
    model: Any,
    tokenizer: Any,
    forks: Sequence[ForkSet],
    batch_size: int = 32,
    hidden: bool = False,
    on_done: Callable[[int, int], None] | None = None,
) -> HeadActivations:
    """Run each contrastive context with each unanimous fork once and keep the heads at the fork's last token.

    Args:
        model, tokenizer: what the forks were drawn with.
        forks: contexts; those without both a Truth and a Fallacy fork are passed over.
        batch_size: sequences side by side.
        hidden: keep the residual stream after each block too (for CAA).
        on_done: called with (done, all).

    Raises:
        NoContrastError: no context has both kinds.
    """
    from methods.dynasteer.forks import contrastive

    chosen = contrastive(forks)
    rows = [
        (fork_set.prefix + fork, label, number, fork_set)
        for number, fork_set in enumerate(chosen)
        for fork, label in zip(fork_set.forks, fork_set.labels, strict=True)
        if label >= 0
    ]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
    layout = head_layout(model)
    blocks = residual_blocks(model)
    z = torch.empty(len(rows), len(blocks), layout.n_heads, layout.head_dim)
    width = int(model.config.hidden_size)
    states = torch.empty(len(rows), len(blocks), width) if hidden else None
    pad = next((t for t in (tokenizer.pad_token_id, tokenizer.eos_token_id) if t is not None), 0)
    with ExitStack() as stack:
        last = torch.zeros(0, dtype=torch.long)
        index = torch.zeros(0, dtype=torch.long)

        def keep_heads(layer: int) -> Any:
            def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
                found = args[0][torch.arange(len(last)), last.to(args[0].device)]
                z[index, layer] = found.float().cpu().unflatten(-1, (layout.n_heads, -1))

            return hook

        def keep_hidden(layer: int) -> Any:
            def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
                found = output[0] if isinstance(output, tuple) else output
                assert states is not None
                states[index, layer] = found[torch.arange(len(last)), last.to(found.device)].float().cpu()

            return hook

        for layer, projection in enumerate(layout.projections):
            stack.callback(projection.register_forward_pre_hook(keep_heads(layer)).remove)
        if hidden:
            for layer, block in enumerate(blocks):
                stack.callback(block.register_forward_hook(keep_hidden(layer)).remove)
        for start in range(0, len(rows), batch_size):
            index = torch.tensor(order[start : start + batch_size])
            ids = [rows[i][0] for i in index.tolist()]
            last = torch.tensor([len(row) - 1 for row in ids])
            longest = int(last.max()) + 1
            table = torch.tensor([row + [pad] * (longest - len(row)) for row in ids], device=model.device)
            # Padding on the right of causal attention changes nothing before it.
            mask = (torch.arange(longest)[None] <= last[:, None]).long().to(model.device)
            model(input_ids=table, attention_mask=mask, use_cache=False, logits_to_keep=1)
            if on_done is not None:
                on_done(min(start + batch_size, len(rows)), len(rows))
    return HeadActivations(
        z=z,
        labels=np.array([label for _, label, _, _ in rows]),
        groups=np.array([number for _, _, number, _ in rows]),
        problems=np.array([fork_set.problem for *_, fork_set in rows]),
        sentences=np.array([fork_set.sentence for *_, fork_set in rows]),
        entropies=np.array([fork_set.entropy for *_, fork_set in rows]),
        hidden=states,
        fingerprint=fingerprint_of(model),
    )
