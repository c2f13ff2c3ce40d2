"""Pruning's cost: against torch.nn.utils.prune, Wanda against magnitude, scaling, and peak memory.

Times are processor seconds on one thread, the best of several, so that other work on the machine counts little.
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
from torch import nn
from torch.nn.utils import prune
from transformers import LlamaConfig, LlamaForCausalLM

from methods.pruning_representations import keep_mask, magnitude, wanda

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seconds(work: Callable[[], object], rounds: int = 5) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def model_of_width(width: int, layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=256,
    )
    return LlamaForCausalLM(config).eval()


def exponent(sizes: list[int], times: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def test_mask_of_a_layer_against_torch(benchmark: Any) -> None:
    """The same mask as the peer, in at most the peer's time."""
    weight = torch.randn(1536, 1536, generator=torch.Generator().manual_seed(0))

    def peer() -> torch.Tensor:
        layer = nn.Linear(1, 1, bias=False)
        layer.weight = nn.Parameter(weight.clone())
        prune.l1_unstructured(layer, "weight", amount=0.5)
        mask: torch.Tensor = layer.weight_mask
        return mask.bool()

    def mine() -> torch.Tensor:
        return keep_mask(weight.abs(), sparsity=0.5, compare="layer")

    assert torch.equal(mine(), peer())
    ratio = seconds(mine) / seconds(peer)
    benchmark.extra_info["time_to_torch_prune"] = ratio
    benchmark(mine)
    assert ratio <= 1, f"{ratio:.2f} times torch.nn.utils.prune"


@pytest.mark.parametrize("pattern", ["unstructured", "2:4"])
def test_wanda_against_magnitude(benchmark: Any, pattern: str) -> None:
    """Wanda costs two forward passes of the calibration tokens more."""
    model, ids = model_of_width(384), torch.randint(0, 64, (8, 128))
    by_magnitude = seconds(lambda: magnitude(model, pattern=pattern), rounds=3)
    by_wanda = seconds(lambda: wanda(model, ids, pattern=pattern), rounds=3)
    forward = seconds(lambda: model.model(ids, use_cache=False), rounds=3)
    benchmark.extra_info["time_to_magnitude"] = by_wanda / by_magnitude
    benchmark.extra_info["time_to_two_forwards_and_magnitude"] = by_wanda / (2 * forward + by_magnitude)
    benchmark.pedantic(lambda: wanda(model, ids, pattern=pattern), rounds=1)
    assert by_wanda <= 1.5 * (2 * forward + by_magnitude)


@pytest.mark.parametrize("recipe", ["magnitude", "wanda"])
def test_time_grows_with_the_number_of_weights(benchmark: Any, recipe: str) -> None:
    """At a fixed number of tokens both are linear in the weights: exponent over four sizes about 1."""
    ids = torch.randint(0, 64, (4, 64))
    sizes, times = [], []
    for width in (192, 384, 768, 1152):
        model = model_of_width(width)
        sizes.append(sum(parameter.numel() for parameter in model.model.layers.parameters()))
        run = (lambda m=model: magnitude(m)) if recipe == "magnitude" else (lambda m=model: wanda(m, ids))
        run()
        times.append(seconds(run, rounds=3))
    benchmark.extra_info["weights"] = sizes
    benchmark.extra_info["seconds"] = times
    benchmark.extra_info["exponent"] = exponent(sizes, times)
    benchmark.pedantic(run, rounds=1)
    assert exponent(sizes, times) <= 1.25


def test_wandas_time_grows_with_the_tokens(benchmark: Any) -> None:
    model, counts, times = model_of_width(384), [512, 1024, 2048, 4096], []
    for count in counts:
        ids = torch.randint(0, 64, (count // 128, 128))
        times.append(seconds(lambda ids=ids: wanda(model, ids), rounds=3))
    benchmark.extra_info["exponent"] = exponent(counts, times)
    benchmark.pedantic(lambda: wanda(model, ids), rounds=1)
    assert exponent(counts, times) <= 1.2


MEMORY = """
import json, resource, sys, threading, time
from pathlib import Path
import psutil, torch, transformers, datasets, transformers.models.llama.modeling_llama
from tasks.compress.compress import compress_model
from tasks.compress.recipes import WandaRecipe, MagnitudeRecipe
from tasks.reference import Reference
from methods.pruning_representations import wanda
torch.set_num_threads(1)
before = psutil.Process().memory_info().rss
work = Path(sys.argv[1])
recipe = WandaRecipe(calibration_length=64) if sys.argv[2] == "wanda" else MagnitudeRecipe()
text = Reference(path=work / "text", digest="", kind="text")
model = Reference(path=work / "model", digest="", kind="model")
compress_model(work / "out", recipe=recipe, model=model, calibration=text)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"ratio": (peak - before) / (work / "model" / "model.safetensors").stat().st_size}))
"""


@pytest.mark.parametrize("recipe", ["magnitude", "wanda"])
def test_peak_memory_is_near_one_model(benchmark: Any, recipe: str, tmp_path: Path) -> None:
    """Above the imports' memory, the peak is less than 1.75 times the weights: no second copy of the model is held.

    The file's mapped pages while it is loaded and one block of six in another format are what stands above one.
    """
    from tests.tasks.compress.conftest import save_text, save_tiny_model

    save_tiny_model(tmp_path / "model")  # for its tokenizer
    save_text(tmp_path / "text", documents=80)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=16,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")

    def run() -> float:
        command = [sys.executable, "-c", MEMORY, str(tmp_path), recipe]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return float(json.loads(done.stdout.splitlines()[-1])["ratio"])

    ratio = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["peak_to_weights"] = ratio
    assert ratio <= 1.75, f"peak is {ratio:.2f} times the weights"
