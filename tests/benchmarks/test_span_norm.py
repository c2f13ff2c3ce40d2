"""SpanNorm's cost: a training step against PreNorm's and transformers' Llama, a block against its parts, scaling.

Times are processor seconds on one thread; the two sides of a ratio take turns, so that other work on the machine
hits both.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from methods.span_norm import SpanNormConfig, SpanNormForCausalLM

ROOT = Path(__file__).parents[2]
SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 24,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def span_model(scheme: str = "span", **changes: Any) -> SpanNormForCausalLM:
    torch.manual_seed(0)
    return SpanNormForCausalLM(SpanNormConfig(**{**SHAPE, "norm_scheme": scheme, **changes}))


def training_step(model: nn.Module, batch: Tensor) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def in_turns(works: dict[str, Callable[[], object]], rounds: int, warm: int) -> dict[str, np.ndarray]:
    """Processor seconds of each work, round by round, after some rounds that do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(warm + rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            if turn >= warm:
                seconds[name].append(time.process_time() - start)
    return {name: np.asarray(values) for name, values in seconds.items()}


def ratio(seconds: dict[str, np.ndarray], one: str, other: str) -> float:
    """Median over rounds of the ratio within a round."""
    return float(np.median(seconds[one] / seconds[other]))


def test_a_step_costs_what_prenorms_costs(benchmark: Any) -> None:
    batch = torch.randint(0, 256, (8, 64), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**SHAPE))
    works = {
        "span": training_step(span_model("span"), batch),
        "prenorm": training_step(span_model("prenorm"), batch),
        "llama": training_step(llama, batch),
    }
    seconds = in_turns(works, rounds=20, warm=5)
    benchmark.extra_info["step_to_prenorm"] = ratio(seconds, "span", "prenorm")
    benchmark.extra_info["step_to_llama"] = ratio(seconds, "span", "llama")
    benchmark.pedantic(works["span"], rounds=3)
    assert ratio(seconds, "span", "prenorm") <= 1.03
    assert ratio(seconds, "span", "llama") <= 1.10


MEMORY = """
import json, resource, sys, torch
torch.set_num_threads(1)
from tests.benchmarks.test_span_norm import span_model, training_step
batch = torch.zeros(8, 64, dtype=torch.long)
step = training_step(span_model(sys.argv[1]), batch)
for _ in range(3):
    step()
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


def test_peak_memory_is_prenorms(benchmark: Any) -> None:
    def peak(scheme: str) -> float:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, scheme], capture_output=True, text=True, check=True, cwd=ROOT
        )
        return float(json.loads(done.stdout.splitlines()[-1]))

    found = peak("span") / peak("prenorm")
    benchmark.extra_info["peak_rss_to_prenorm"] = found
    benchmark.pedantic(lambda: None, rounds=1)
    assert found <= 1.05


def test_a_block_costs_what_its_parts_cost(benchmark: Any) -> None:
    """Attention, feed-forward module and two norms timed alone are the lower bound of a block."""
    block = span_model().eval().model.layers[1]
    x = torch.randn(8, 64, 128)
    places = (torch.ones(1, 64, 32), torch.zeros(1, 64, 32))

    def many(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(20):
                work()

        return run

    with torch.no_grad():
        works = {
            "block": many(lambda: block(x, position_embeddings=places)),
            "attention": many(lambda: block.self_attn(x, position_embeddings=places)),
            "feed_forward": many(lambda: block.mlp(x)),
            "norms": many(lambda: (block.attn_norm(x), block.ffn_norm(x))),
        }
        seconds = in_turns(works, rounds=15, warm=3)
        parts = seconds["attention"] + seconds["feed_forward"] + seconds["norms"]
        found = float(np.median(seconds["block"] / parts))
        benchmark.extra_info["block_to_parts"] = found
        benchmark.pedantic(works["block"], rounds=3)
    assert found <= 1.15


@pytest.mark.parametrize(
    ("name", "sizes", "low", "high"),
    [("num_hidden_layers", [4, 8, 16, 32], 0.8, 1.15), ("hidden_size", [128, 256, 512, 1024], 0.8, 2.1)],
)
def test_scaling(benchmark: Any, name: str, sizes: list[int], low: float, high: float) -> None:
    """A forward pass grows linearly with depth, at most quadratically with width."""
    batch = torch.randint(0, 256, (2, 64))
    seconds = []
    for size in sizes:
        changes = {name: size}
        if name == "hidden_size":
            changes |= {"num_hidden_layers": 2, "intermediate_size": round(8 / 3 * size)}
        made = span_model(**changes).eval()
        with torch.no_grad():
            times = in_turns({"forward": lambda made=made: made(batch, use_cache=False)}, rounds=7, warm=2)
        seconds.append(float(times["forward"].min()))
    found = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    benchmark.extra_info[f"exponent_{name}"] = found
    benchmark.pedantic(lambda: None, rounds=1)
    assert low <= found <= high
