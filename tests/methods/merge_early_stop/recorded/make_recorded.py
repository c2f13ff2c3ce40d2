"""Record what mergekit 0.1.5 and fusion-bench 0.2.33 answer on a small case; they do not share our environment.

    python -m venv peers
    peers/bin/pip install -c constraints.txt torch transformers accelerate peft immutables click \
        pydantic pyyaml && peers/bin/pip install --no-deps mergekit==0.1.5 fusion-bench==0.2.33
    peers/bin/python tests/methods/merge_early_stop/recorded/make_recorded.py
"""

import importlib.util
import subprocess
import sys
import tempfile
import types
from importlib.metadata import distribution, version
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save_file

SHAPES = {"layer.weight": (40, 25), "layer.bias": (40,), "conv.weight": (6, 3, 3, 3)}
EXPERTS = 3
CASES = {
    "linear": ("linear", {"weight": 1.0}, {}),
    "task_arithmetic_0.3": ("task_arithmetic", {"weight": 0.3}, {"normalize": False}),
    "ties_0.2": ("ties", {"weight": 1.0, "density": 0.2}, {"normalize": True}),
    "ties_0.5_lambda_0.7": ("ties", {"weight": 1.0, "density": 0.5}, {"normalize": True, "lambda": 0.7}),
}


def states() -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(7)
    base = {n: torch.randn(s, generator=draw) for n, s in SHAPES.items()}
    experts = [
        {n: v + 0.1 * torch.randn(v.shape, generator=draw) for n, v in base.items()} for _ in range(EXPERTS)
    ]
    return [base, *experts]


def run_mergekit(folder: Path, name: str, each: dict, whole: dict) -> dict[str, torch.Tensor]:
    paths = [str(folder / f"m{i}.safetensors") for i in range(EXPERTS + 1)]
    config = {
        "merge_method": name,
        "models": [{"model": p, "parameters": each} for p in paths[1:]],
        "parameters": whole,
        "dtype": "float32",
    }
    if name != "linear":
        config["base_model"] = paths[0]
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    out = folder / f"out_{len(list(folder.iterdir()))}"
    command = [str(Path(sys.executable).parent / "mergekit-pytorch"), str(folder / "config.yml"), str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return load_file(out / "model.safetensors")


def fusion_bench_ties():
    """The functions of fusion-bench, loaded from its file: importing the package needs much that they do not."""
    stub = types.ModuleType("fusion_bench.utils.type")
    stub.StateDictType = dict
    for name in ("fusion_bench", "fusion_bench.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["fusion_bench.utils.type"] = stub
    path = distribution("fusion-bench").locate_file("fusion_bench/method/ties_merging/ties_merging_utils.py")
    spec = importlib.util.spec_from_file_location("ties_merging_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ties_merging


def main() -> None:
    arrays: dict[str, np.ndarray] = {}
    models = states()
    for i, state in enumerate(models):
        arrays |= {f"model{i}/{n}": v.numpy() for n, v in state.items()}
    with tempfile.TemporaryDirectory() as name:
        for i, state in enumerate(models):
            save_file(state, Path(name) / f"m{i}.safetensors")
        for case, (method, each, whole) in CASES.items():
            merged = run_mergekit(Path(name), method, each, whole)
            arrays |= {f"mergekit/{case}/{n}": v.numpy() for n, v in merged.items()}
    taus = torch.stack([torch.cat([(m[n] - models[0][n]).flatten() for n in SHAPES]) for m in models[1:]])
    ties_merging = fusion_bench_ties()
    for density in (0.2, 0.5):
        arrays[f"fusion_bench/global_{density}"] = ties_merging(taus, density, "dis-mean").numpy()
    arrays["versions"] = np.array([f"{p} {version(p)}" for p in ("mergekit", "fusion-bench", "torch")])
    np.savez_compressed(Path(__file__).with_name("peers.npz"), **arrays)


if __name__ == "__main__":
    main()
