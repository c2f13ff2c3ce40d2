"""The forward pass of every scheme as plain functions of a state dict, written from the equations alone."""

import math
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def logits(weights: Weights, config: dict[str, Any], ids: Tensor) -> Tensor:
    """Logits (batch, tokens, vocabulary) of a model with these weights."""
    scheme, layers = config["norm_scheme"], config["num_hidden_layers"]
    x = weights["model.embed_tokens.weight"][ids]
    p = u = x
    for layer in range(layers):
        w = {
            name.removeprefix(f"model.layers.{layer}."): value
            for name, value in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        rule = scheme
        if scheme == "mix_ln":
            rule = "postnorm" if layer < int(0.25 * layers) else "prenorm"
        if scheme == "hybrid_star" and layer:
            rule = "hybrid"
        if scheme == "siamese":
            p, u = siamese(p, u, w, config, layer)
            x = p + norm(u, w["out_norm.weight"]) if layer == layers - 1 else p
        else:
            x = block(x, w, config, rule, layer)
    if "model.norm.weight" in weights:
        x = norm(x, weights["model.norm.weight"])
    scale = config["mup_base_width"] / config["hidden_size"] if config.get("mup_base_width") else 1.0
    return scale * (x @ weights["lm_head.weight"].T)


def block(x: Tensor, w: Weights, config: dict[str, Any], rule: str, layer: int) -> Tensor:
    def n(name: str, value: Tensor) -> Tensor:
        return norm(value, w[f"{name}.weight"])

    def a(value: Tensor) -> Tensor:
        return attention(value, w, config)

    def f(value: Tensor) -> Tensor:
        return routed(value, w, config) if config.get("num_experts") else gated(value, w)

    if rule == "span":
        start = n("input_norm", x) if layer == 0 else x
        y = n("attn_norm", x + a(start))
        return n("ffn_norm", x + f(y))
    if rule == "aggregate":
        start = n("input_norm", x) if layer == 0 else x
        z = x + a(start)
        return n("ffn_norm", x + a(start) + f(n("attn_norm", z)))
    if rule == "prenorm":
        y = x + a(n("attn_norm", x))
        return y + f(n("ffn_norm", y))
    if rule == "postnorm":
        y = n("attn_norm", x + a(x))
        return n("ffn_norm", y + f(y))
    if rule == "deepnorm":
        alpha = math.sqrt(math.sqrt(2 * config["num_hidden_layers"]))
        y = n("attn_norm", alpha * x + a(x))
        return n("ffn_norm", alpha * y + f(y))
    if rule == "sandwich":
        y = x + n("attn_out_norm", a(n("attn_norm", x)))
        return y + n("ffn_out_norm", f(n("ffn_norm", y)))
    if rule == "lns":
        scale = (layer + 1) ** -0.5
        y = x + a(scale * n("attn_norm", x))
        return y + f(scale * n("ffn_norm", y))
    if rule == "hybrid":
        y = n("attn_norm", x + a(x))
        return y + f(y)
    if rule == "hybrid_star":
        y = x + a(n("attn_norm", x))
        return y + f(n("ffn_norm", y))
    raise AssertionError(rule)


def siamese(p: Tensor, u: Tensor, w: Weights, config: dict[str, Any], layer: int) -> tuple[Tensor, Tensor]:
    for branch, kind in (
        (lambda v: attention(v, w, config), "attn"),
        (lambda v: routed(v, w, config) if config.get("num_experts") else gated(v, w), "ffn"),
    ):
        out = branch(norm(p + norm(u, w[f"{kind}_stream_norm.weight"]), w[f"{kind}_in_norm.weight"]))
        p = norm(p + out / math.sqrt(layer + 1), w[f"{kind}_norm.weight"])
        u = u + out
    return p, u


def norm(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    return gain * x / ((x * x).mean(-1, keepdim=True) + eps).sqrt()


def gated(x: Tensor, w: Weights, where: str = "mlp") -> Tensor:
    g = x @ w[f"{where}.gate_proj.weight"].T
    return (g / (1 + (-g).exp()) * (x @ w[f"{where}.up_proj.weight"].T)) @ w[f"{where}.down_proj.weight"].T


def routed(x: Tensor, w: Weights, config: dict[str, Any]) -> Tensor:
    """Every expert on every token; those beyond the top k weigh nothing."""
    shares = (x @ w["mlp.router.proj.weight"].T).softmax(-1)
    least = shares.sort(dim=-1, descending=True).values[..., config["num_experts_per_tok"] - 1, None]
    gates = torch.where(shares >= least, shares, torch.zeros_like(shares))
    gates = gates / gates.sum(-1, keepdim=True)
    experts = [gated(x, w, f"mlp.experts.{e}") for e in range(config["num_experts"])]
    out = sum(gates[..., e, None] * expert for e, expert in enumerate(experts))
    out = out * w.get("mlp.variance_scale", torch.ones((), dtype=x.dtype))
    return out + gated(x, w, "mlp.shared") if config["shared_expert"] else out


def attention(x: Tensor, w: Weights, config: dict[str, Any]) -> Tensor:
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    batch, tokens, width = x.shape
    size = width // heads

    def split(name: str, count: int) -> Tensor:
        out = (x @ w[f"self_attn.{name}_proj.weight"].T).reshape(batch, tokens, count, size)
        gain = w.get(f"self_attn.{name}_norm.weight")
        return (out if gain is None else norm(out, gain)).permute(0, 2, 1, 3)

    q, k, v = split("q", heads), split("k", groups), split("v", groups)
    q, k = rotate(q, config["rope_theta"]), rotate(k, config["rope_theta"])
    k, v = (t.repeat_interleave(heads // groups, dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(size)
    future = torch.ones(tokens, tokens).triu(1).bool()
    shares = scores.masked_fill(future, -math.inf).softmax(-1)
    return (shares @ v).permute(0, 2, 1, 3).reshape(batch, tokens, width) @ w["self_attn.o_proj.weight"].T


def rotate(x: Tensor, theta: float) -> Tensor:
    """RoPE on halves; angles are float32 in the library whatever the weights are."""
    tokens, size = x.shape[-2:]
    speed = 1.0 / theta ** (torch.arange(0, size, 2).float() / size)
    angle = torch.arange(tokens).float()[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
