"""A Llama as a function of its weights that takes RoPE indices and who sees whom explicitly; shares no code with it."""

import math

import torch
from torch import Tensor


def rms(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    x = x.float()  # as the library, whatever the model's precision
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)).double() * gain


def turn(x: Tensor, r: Tensor, theta: float) -> Tensor:
    """Rotate pairs (i, i + d/2) of (length, d) by r * theta^(-2i/d)."""
    half = x.shape[-1] // 2
    # The library's tables are float32; so are these.
    speeds = 1.0 / theta ** (torch.arange(0, 2 * half, 2).float() / (2 * half))
    angles = r.float()[:, None] * speeds
    first, second = x[:, :half], x[:, half:]
    cos, sin = angles.cos().double(), angles.sin().double()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def logits(model: torch.nn.Module, ids: Tensor, r: Tensor, seen: Tensor | None = None) -> Tensor:
    """(length, vocabulary) of one sequence.

    Args:
        ids, r: (length,). seen: (length, length), True where row may look at column; causal when left out.
    """
    w, c = dict(model.named_parameters()), model.config
    d = c.hidden_size // c.num_attention_heads
    theta = c.rope_parameters["rope_theta"]
    if seen is None:
        seen = torch.ones(len(ids), len(ids)).tril().bool()
    x = w["model.embed_tokens.weight"][ids]
    for number in range(c.num_hidden_layers):
        p = f"model.layers.{number}."
        h = rms(x, w[p + "input_layernorm.weight"], c.rms_norm_eps)
        q, k, v = (h @ w[p + f"self_attn.{name}_proj.weight"].T for name in "qkv")
        heads = []
        for head in range(c.num_attention_heads):
            group = head * c.num_key_value_heads // c.num_attention_heads
            own = turn(q[:, head * d : head * d + d], r, theta)
            other = turn(k[:, group * d : group * d + d], r, theta)
            scores = (own @ other.T / math.sqrt(d)).masked_fill(~seen, -math.inf)
            heads.append(scores.softmax(-1) @ v[:, group * d : group * d + d])
        x = x + torch.cat(heads, -1) @ w[p + "self_attn.o_proj.weight"].T
        h = rms(x, w[p + "post_attention_layernorm.weight"], c.rms_norm_eps)
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    return rms(x, w["model.norm.weight"], c.rms_norm_eps) @ w["lm_head.weight"].T
