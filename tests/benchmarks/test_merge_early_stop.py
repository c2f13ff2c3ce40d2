"""Time and memory of merging: a ratio to a peer in the same run, the scaling exponent, the peak against one
model.

    pytest tests/benchmarks/test_merge_early_stop.py --benchmark-only

The peer of the environment is the plain way: load all models with safetensors, stack, apply the textbook
formula, save.
Against mergekit 0.1.5, which needs an environment of its own (see tests/methods/merge_early_stop/recorded),
give its
command as SEEDLOOM_MERGEKIT; without it that comparison is left out.
"""

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from methods.merge_early_stop import merge

EXPERTS = 8
REPOSITORY = Path(__file__).parents[2]


def minilm_like(scale: float) -> dict[str, tuple[int, int]]:
    """Shapes of MiniLM-L6 (22.7 million parameters at scale 1); the width stays, the vocabulary and depth
    shrink.
    """
    shapes = {"embeddings.word_embeddings.weight": (max(64, int(30522 * scale)), 384)}
    for layer in range(max(1, round(6 * scale))):
        for name, shape in {
            "query": (384, 384), "key": (384, 384), "value": (384, 384), "output": (384, 384), "up": (1536, 384),
            "down": (384, 1536),
        }.items():  # fmt: skip
            shapes[f"layer.{layer}.{name}.weight"] = shape
    return shapes


def write_models(folder: Path, scale: float) -> tuple[Path, list[Path], int]:
    draw = torch.Generator().manual_seed(0)
    base = {n: 0.02 * torch.randn(s, generator=draw) for n, s in minilm_like(scale).items()}
    paths = [folder / name for name in ("base", *(f"expert{i}" for i in range(EXPERTS)))]
    for i, path in enumerate(paths):
        path.mkdir(parents=True)
        state = (
            base if i == 0 else {n: v + 0.001 * torch.randn(v.shape, generator=draw) for n, v in base.items()}
        )
        save_file(state, path / "model.safetensors", metadata={"format": "pt"})
        (path / "config.json").write_text("{}")
    return paths[0], paths[1:], sum(v.numel() for v in base.values())


def naive_average(base: Path, experts: list[Path], out: Path) -> None:
    theta = load_file(base / "model.safetensors")
    states = [load_file(e / "model.safetensors") for e in experts]
    merged = {n: v + torch.stack([s[n] - v for s in states]).mean(0) for n, v in theta.items()}
    out.mkdir()
    save_file(merged, out / "model.safetensors")


def naive_ties(base: Path, experts: list[Path], out: Path, density: float = 0.2) -> None:
    theta = load_file(base / "model.safetensors")
    flat = torch.cat([v.flatten() for v in theta.values()])
    taus = torch.stack([
        torch.cat([s[n].flatten() for n in theta]) - flat for s in (load_file(e / "model.safetensors") for e in experts)
    ])  # fmt: skip
    keep = int(density * taus.shape[1])
    thresholds = taus.abs().kthvalue(taus.shape[1] - keep + 1, dim=1, keepdim=True).values
    taus = torch.where(taus.abs() >= thresholds, taus, 0.0)
    # in float32, sums near zero would change sign with the order of the experts
    sign = taus.sum(0, dtype=torch.float64).sign()
    sign = torch.where(sign == 0, sign.sum().sign(), sign).float()
    agree = (taus * sign) > 0
    delta = (taus * agree).sum(0) / agree.sum(0).clamp(min=1)
    out.mkdir()
    parts = (flat + delta).split([v.numel() for v in theta.values()])
    save_file(
        {n: p.reshape(v.shape).clone() for (n, v), p in zip(theta.items(), parts, strict=True)},
        out / "model.safetensors",
    )


def cpu_seconds(function: Callable[[], object]) -> float:
    """Processor time of this process: the same on a busy machine."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


NAIVE: dict[str, Callable[..., None]] = {"average": naive_average, "ties": naive_ties}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], int]:
    torch.set_num_threads(1)
    return write_models(tmp_path_factory.mktemp("models"), 1.0)


@pytest.mark.parametrize("method", ["average", "ties"])
def test_eight_minilms_against_the_plain_way(
    benchmark: Any, models: tuple[Path, list[Path], int], tmp_path: Path, method: str
) -> None:
    base, experts, size = models
    count = iter(range(1000))
    plain = cpu_seconds(lambda: NAIVE[method](base, experts, tmp_path / "naive"))
    spent = []

    def run() -> Path:
        out = tmp_path / f"ours{next(count)}"
        spent.append(cpu_seconds(lambda: merge(base, experts, method, out=out)))
        return out

    out = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    ours, theirs = (load_file(p / "model.safetensors") for p in (out, tmp_path / "naive"))
    assert max(float((ours[n] - theirs[n]).abs().max()) for n in ours) <= 1e-6
    ratio = min(spent) / plain
    benchmark.extra_info.update(
        parameters=size, cpu_seconds=min(spent), plain_seconds=plain, ratio_to_plain=ratio
    )
    assert min(spent) <= 10.0
    assert ratio <= 1.2


MEASURE = """
import json, re, sys, torch
torch.set_num_threads(1)
from methods.merge_early_stop import merge
base, out, method, *experts = sys.argv[1:]
def peak():  # ru_maxrss would begin with the parent's memory
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
before = peak()
merge(base, experts, method, out=out)
print(json.dumps([before, peak()]))
"""


@pytest.mark.parametrize("method", ["average", "ties", "dare"])
def test_peak_memory_against_one_model(
    benchmark: Any, models: tuple[Path, list[Path], int], tmp_path: Path, method: str
) -> None:
    base, experts, size = models

    def run() -> list[int]:
        command = [sys.executable, "-c", MEASURE, base, tmp_path / method, method, *experts]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        return json.loads(done.stdout)

    before, after = benchmark.pedantic(run, rounds=1)
    model_kib = 4 * size / 1024
    benchmark.extra_info.update(
        models_of_extra_memory=(after - before) / model_kib, peak_in_models=after / model_kib
    )
    # RSS counts torch's own libraries, so the bar is on what merging adds
    assert (after - before) <= 3 * model_kib


@pytest.mark.parametrize("method", ["average", "ties"])
def test_time_grows_no_faster_than_the_models(benchmark: Any, tmp_path: Path, method: str) -> None:
    sizes, seconds = [], []
    for scale in (0.125, 0.25, 0.5, 1.0):
        base, experts, size = write_models(tmp_path / f"s{scale}", scale)
        best = math.inf
        for repeat in range(3):
            out = tmp_path / f"s{scale}" / f"out{repeat}"
            best = min(best, cpu_seconds(partial(merge, base, experts, method, out=out)))
        sizes.append(size)
        seconds.append(best)
    x, y = torch.tensor(sizes).double().log(), torch.tensor(seconds).double().log()
    exponent = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    benchmark.extra_info.update(sizes=sizes, seconds=seconds, exponent=exponent)
    benchmark.pedantic(lambda: None, rounds=1)
    assert exponent <= 1.15


@pytest.mark.skipif(not os.environ.get("SEEDLOOM_MERGEKIT"), reason="SEEDLOOM_MERGEKIT is not set")
def test_against_mergekit(benchmark: Any, models: tuple[Path, list[Path], int], tmp_path: Path) -> None:
    """Per-tensor TIES, whole processes on both sides, one thread each."""
    base, experts, _ = models
    config = {
        "merge_method": "ties", "base_model": str(base / "model.safetensors"), "dtype": "float32",
        "parameters": {"normalize": True},
        "models": [
            {"model": str(e / "model.safetensors"), "parameters": {"weight": 1.0, "density": 0.2}} for e in experts
        ],
    }  # fmt: skip
    (tmp_path / "config.yml").write_text(json.dumps(config))
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONWARNINGS": "ignore",
    }

    def spent(command: list[Any]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([str(c) for c in command], env=environment, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    code = MEASURE.replace("method, out=out", "method, out=out, trim='per_tensor'")
    command = [sys.executable, "-c", code, base, tmp_path / "ours", "ties", *experts]
    ours = benchmark.pedantic(lambda: spent(command), rounds=1)
    theirs = spent([os.environ["SEEDLOOM_MERGEKIT"], tmp_path / "config.yml", tmp_path / "theirs"])
    benchmark.extra_info.update(ours_seconds=ours, mergekit_seconds=theirs, ratio=ours / theirs)
    a, b = (load_file(tmp_path / n / "model.safetensors") for n in ("ours", "theirs"))
    # mergekit elects signs from sums in float32: where eight numbers nearly cancel, some come out the other way
    differing = sum(int(((a[n] - b[n]).abs() > 1e-6).sum()) for n in a)
    benchmark.extra_info["entries_with_another_sign"] = differing
    assert differing <= 1e-5 * sum(v.numel() for v in a.values())
    assert ours <= 1.2 * theirs


def test_stopper_overhead(benchmark: Any) -> None:
    """Validation against training with the default constants on a small network; a full stop split of 512."""
    from methods.merge_early_stop import MergeEarlyStopping
    from methods.merge_early_stop.experts import accuracy
    from methods.merge_early_stop.shifted_digits import DigitNet

    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = DigitNet()
    x, y = torch.rand(512, 1, 28, 28), torch.randint(0, 10, (512,))
    stopper = MergeEarlyStopping(lambda m: accuracy(m, (x, y)), max_reductions=10_000)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    stopper.attach(optimizer, net)

    def run() -> float:
        stopper.eval_seconds = 0.0
        begin = time.perf_counter()
        for step in range(stopper.last_step + 1, stopper.last_step + 151):
            index = torch.randint(0, 512, (64,))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()
            stopper.step(step)
        return stopper.eval_seconds / (time.perf_counter() - begin - stopper.eval_seconds)

    run()  # the warm-up, without evaluations
    share = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["validation_over_training"] = share
    assert share <= 0.3
