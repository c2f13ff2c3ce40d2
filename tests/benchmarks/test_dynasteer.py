"""DynaSteer's cost: steered decoding against plain decoding and transformers' own, the fit and its growth.

Times are processor seconds on one thread; the two sides of a ratio take turns, so that other work on the machine
hits both.
"""

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from methods.dynasteer import (
    DynaSteer,
    EntropyGate,
    GenConfig,
    HeadActivations,
    Policy,
    collect_trajectories,
    decode,
)
from methods.dynasteer.directions import fit_patterns
from methods.dynasteer.world import ID, VOCABULARY, make_problems, make_tokenizer, train_reasoner

CONFIG = GenConfig(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=40, batch_size=128)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_turns(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """Processor seconds of each round; the first one warms up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            started = time.process_time()
            work()
            if number:
                times[name].append(time.process_time() - started)
    return {name: np.array(found) for name, found in times.items()}


def random_activations(
    contexts: int, heads: int, width: int, forks: int = 4, seed: int = 0
) -> HeadActivations:
    rng = np.random.default_rng(seed)
    n = contexts * forks
    labels = np.tile([0, 1], n // 2)
    z = rng.standard_normal((n, 1, heads, width)).astype(np.float32)
    z[..., 0] += labels[:, None, None]
    groups = np.repeat(np.arange(contexts), forks)
    return HeadActivations(torch.from_numpy(z), labels, groups, groups, np.ones(n, int), np.zeros(n))


def test_steered_decoding_costs_its_triggers(record_property: Any) -> None:
    """Bar 10: at a trigger rate of 20 % at most 1.6 times plain decoding in the same loop."""
    model, tokenizer = train_reasoner(0, 120, batch=32, rate=1e-2), make_tokenizer()
    problems = make_problems(128, 1)
    prompts = [problem.prompt for problem in problems]
    gate = EntropyGate.fit(collect_trajectories(model, tokenizer, problems, config=CONFIG))
    rng = np.random.default_rng(0)
    n = 64
    states = HeadActivations(
        torch.from_numpy(rng.standard_normal((n, 3, 4, 16)).astype(np.float32)),
        np.tile([0, 1], n // 2),
        np.repeat(np.arange(n // 4), 4),
        np.repeat(np.arange(n // 4), 4),
        np.ones(n, int),
        np.zeros(n),
    )
    steering = DynaSteer(n_clusters=1, n_heads=8, alpha=1.0, alpha_unit="sigma").fit(states)
    found: dict[str, Any] = {}

    def run(name: str, policy: Policy) -> Callable[[], None]:
        def work() -> None:
            found[name] = decode(model, tokenizer, prompts, CONFIG, policy)

        return work

    times = in_turns(
        {
            "plain": run("plain", Policy()),
            "resample": run("resample", Policy(gate)),
            "steer": run("steer", steering.policy(gate)),
        },
        5,
    )
    steered = found["steer"]
    rate = sum(a.triggers for a in steered) / sum(len(a.sentences) for a in steered)
    ratio = float(np.median(times["steer"]) / np.median(times["plain"]))
    record_property("trigger_rate", rate)
    record_property("steer_over_plain", ratio)
    record_property("steer_over_resample", float(np.median(times["steer"]) / np.median(times["resample"])))
    print(f"trigger rate {rate:.3f}, steer/plain {ratio:.3f}")
    assert 0.1 < rate < 0.3
    assert ratio <= 1.6


def test_plain_decoding_is_no_slower_than_transformers_own(record_property: Any) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=6,
            num_attention_heads=6,
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=0,
        )
    ).eval()
    model.generation_config.eos_token_id = ID["<eos>"]
    tokenizer = make_tokenizer()
    rows = torch.tensor([problem.prompt for problem in make_problems(32, 2)])
    config = GenConfig(temperature=0.0, max_new_tokens=48, batch_size=32)

    def theirs() -> None:
        model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            do_sample=False,
            max_new_tokens=48,
            min_new_tokens=48,
            pad_token_id=0,
        )

    def ours() -> None:
        decode(model, tokenizer, rows.tolist(), config)

    times = in_turns({"ours": ours, "theirs": theirs}, 4)
    ratio = float(np.median(times["ours"]) / np.median(times["theirs"]))
    record_property("ours_over_transformers", ratio)
    print(f"ours / transformers {ratio:.3f}")
    assert ratio <= 1.5


def test_the_fit_of_a_large_model_takes_minutes(record_property: Any) -> None:
    """Bar 12: 3000 contexts of four forks, 448 heads, 5 patterns, width 128: two heads, times 224.

    Under 10 minutes on two cores, and under 4 GB: the states of all heads, and what a head's fit needs beside them.
    """
    acts = random_activations(3000, 2, 128)
    test = np.random.default_rng(0).random(3000)[acts.groups] < 0.2
    started = time.process_time()
    for head in range(2):
        fit_patterns(acts.z[:, 0, head].double().numpy(), acts.labels, acts.groups, test, 5)
    minutes = (time.process_time() - started) / 2 * 448 / 60
    tracemalloc.start()
    fit_patterns(acts.z[:, 0, 0].double().numpy(), acts.labels, acts.groups, test, 5)
    beside = tracemalloc.get_traced_memory()[1] + len(acts) * 128 * 8
    tracemalloc.stop()
    gigabytes = (acts.z.nbytes / 2 * 448 + beside) / 1e9
    record_property("minutes_for_448_heads", minutes)
    record_property("gigabytes_for_448_heads", gigabytes)
    print(f"448 heads: {minutes:.1f} processor minutes, {gigabytes:.2f} GB")
    assert minutes < 20  # two cores: under ten minutes
    assert gigabytes < 4


def test_the_fits_memory_is_one_heads_not_the_models() -> None:
    peaks = {}
    for heads in (2, 8):
        acts = random_activations(300, heads, 64)
        tracemalloc.start()
        DynaSteer(n_clusters=2, n_heads=1, cluster="nearest").fit(acts)
        peaks[heads] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[8] < 1.3 * peaks[2]


def test_the_fit_grows_no_faster_than_its_contexts(record_property: Any) -> None:
    sizes = (200, 400, 800, 1600)
    seconds = []
    for contexts in sizes:
        acts = random_activations(contexts, 1, 32)
        test = np.random.default_rng(0).random(contexts)[acts.groups] < 0.2
        best = []
        for _ in range(3):
            started = time.process_time()
            fit_patterns(acts.z[:, 0, 0].double().numpy(), acts.labels, acts.groups, test, 3)
            best.append(time.process_time() - started)
        seconds.append(min(best))
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    record_property("exponent", exponent)
    print(f"exponent {exponent:.2f}, seconds {seconds}")
    assert exponent < 1.4
