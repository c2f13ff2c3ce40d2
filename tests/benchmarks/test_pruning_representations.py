"""What dropping buys and what looking costs: speed of dropped models, the probe, the rankings, SparseGPT.

Times are processor seconds on one thread, the best of several; ratios are of one run. See test_pruning.py for masks.
"""

import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from methods.pruning_representations import (
    RepresentationProbe,
    drop_sublayers,
    rank_layers,
    sparsegpt,
    wanda,
)
from tasks.prepare.config import ModelSettings
from tasks.prepare.models import materialise_model
from tests.methods.pruning_representations.words import Numbers, prompt

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    materialise_model(ModelSettings(), folder)
    return folder


def seconds(*works: Callable[[], object], rounds: int = 5) -> list[float]:
    """The best time of each, measured in turns so that a busy moment meets all alike."""
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for i, work in enumerate(works):
            start = time.process_time()
            work()
            best[i] = min(best[i], time.process_time() - start)
    return best


def exponent(sizes: list[int], times: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def small(width: int, layers: int = 2, vocabulary: int = 1000) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 64),
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("sublayer", ["attn", "mlp", "block"])
def test_a_dropped_model_is_faster_by_what_was_removed(benchmark: Any, smollm2: Path, sublayer: str) -> None:
    """n of L sublayers gone: time at most 1 - 0.6 x their share of the dense forward pass; reading and writing."""
    dense = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    layers, n = 30, 8
    kind = "blocks" if sublayer == "block" else sublayer
    few = drop_sublayers(dense, **{kind: range(4, 4 + n)})
    none = drop_sublayers(dense, **{kind: range(1, layers)})
    ids = torch.randint(0, 49_152, (4, 128), generator=torch.Generator().manual_seed(0))
    one = ids[:1, :64]

    def read(model: Any) -> Callable[[], object]:
        return lambda: model.model(ids, use_cache=False)

    def write(model: Any) -> Callable[[], object]:
        given = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
        return lambda: model.generate(one, attention_mask=torch.ones_like(one), **given)

    with torch.inference_mode():
        for name, work in (("read", read), ("write", write)):
            whole, less, least = seconds(work(dense), work(few), work(none), rounds=4)
            share = (1 - least / whole) * layers / (layers - 1)  # of all sublayers of this kind
            bar = 1 - 0.6 * share * n / layers
            benchmark.extra_info[f"{name}_ratio"] = less / whole
            benchmark.extra_info[f"{name}_share"] = share
            benchmark.extra_info[f"{name}_bar"] = bar
            if name == "read":
                assert less / whole <= bar
        cache = few(input_ids=one, use_cache=True).cache
    filled = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    assert len(filled) == (layers if sublayer == "mlp" else layers - n)
    benchmark.pedantic(read(few), rounds=1)


COST = """
import json, resource, sys, time
import psutil, torch, transformers.models.llama.modeling_llama
from transformers import AutoModelForCausalLM, AutoTokenizer
from methods.pruning_representations import RepresentationProbe
torch.set_num_threads(1)
folder = sys.argv[1]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder)
text = "The museum was opened in the spring, and the first visitors came from the villages along the river. " * 12
start = time.process_time()
table = RepresentationProbe(model, tokenizer).layerwise([text, text[40:]], sublayer="all", max_tokens=256)
spent = time.process_time() - start
assert table.frame.token.nunique() == 256 and len(table.frame) == 256 * 60
print(json.dumps({"seconds": spent, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
"""


def test_all_sublayers_at_256_tokens_within_minutes_and_three_gibibytes(
    benchmark: Any, smollm2: Path
) -> None:
    """The brief allows 6 minutes on 2 cores (720 processor seconds) and 3 GiB for the whole process."""

    def run() -> dict[str, float]:
        done = subprocess.run(
            [sys.executable, "-c", COST, str(smollm2)], capture_output=True, text=True, check=True, cwd=ROOT
        )
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    found = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info.update(found)
    assert found["seconds"] <= 720
    assert found["gib"] <= 3


def test_predicting_kl_costs_at_most_twice_the_cosine(benchmark: Any, smollm2: Path) -> None:
    """On the usual calibration of 16 x 256 tokens."""
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    ids = torch.randint(0, 49_152, (16, 256), generator=torch.Generator().manual_seed(0))
    cosine, predicted = seconds(
        lambda: rank_layers(model, ids, criterion="cosine"),
        lambda: rank_layers(model, ids, criterion="kl_estimate"),
        rounds=1,
    )
    benchmark.extra_info["kl_to_cosine"] = predicted / cosine
    benchmark.pedantic(lambda: rank_layers(model, ids[:1], criterion="cosine"), rounds=1)
    assert predicted <= 2 * cosine


def test_the_probe_against_its_matrix_products_alone(benchmark: Any) -> None:
    """The comparison of 50k logits costs less than 12 times the products that make them, whatever the tokens."""
    model = small(256, layers=4, vocabulary=50_000)
    counts, times = [32, 64, 128, 256], []
    row = torch.randint(0, 50_000, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    probe = RepresentationProbe(model, Numbers())
    for count in counts:
        times += seconds(
            lambda n=count: probe.layerwise([prompt(row)], max_tokens=n, max_length=300), rounds=2
        )
    hidden = torch.randn(256, 256)
    with torch.no_grad():
        (product,) = seconds(lambda: [model.lm_head(hidden) for _ in range(8)], rounds=3)
    benchmark.extra_info["to_products"] = times[-1] / product
    benchmark.extra_info["exponent"] = exponent(counts, times)
    benchmark.pedantic(lambda: probe.layerwise([prompt(row)], max_tokens=32, max_length=300), rounds=1)
    assert exponent(counts, times) <= 1.1
    assert times[-1] <= 12 * product


def test_sparsegpt_against_wanda_and_its_growth_with_the_width(benchmark: Any) -> None:
    """Its algebra is cubic in the width; at these sizes the exponent over the number of weights stays below 1.6."""
    ids = torch.randint(0, 1000, (4, 64))
    widths, sizes, times = (128, 256, 384, 576), [], []
    for width in widths:
        model = small(width)
        sizes.append(sum(p.numel() for p in model.model.layers.parameters()))
        times += seconds(lambda m=model: sparsegpt(copy.deepcopy(m), ids), rounds=2)
    (by_wanda,) = seconds(lambda: wanda(copy.deepcopy(model), ids), rounds=2)
    benchmark.extra_info["to_wanda"] = times[-1] / by_wanda
    benchmark.extra_info["exponent"] = exponent(sizes, times)
    benchmark.pedantic(lambda: sparsegpt(copy.deepcopy(model), ids), rounds=1)
    assert exponent(sizes, times) <= 1.6
