"""Training experts, the bank, the sweep and the selection on a small real problem: scikit-learn's digits."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig
from sklearn.datasets import load_digits
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.merge_early_stop import (
    Key,
    MergeEarlyStopping,
    MergeRule,
    Operator,
    TaskSplits,
    length_sweep,
    select_checkpoints,
    task_vector,
    train_experts,
)
from methods.merge_early_stop.experts import EARLY_STOP, ExpertBank, accuracy, minibatches
from methods.merge_early_stop.shifted_digits import (
    SHIFTS,
    SMALL,
    Bench,
    DigitNet,
    Sizes,
    load_digit_images,
    make_bench,
    train_base,
)
from methods.merge_early_stop.sweep import norm

TASKS = ("rotate_left", "mirror", "edges")


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """The bundled 8 x 8 digits, enlarged to 28 x 28."""
    raw = load_digits()
    small = torch.from_numpy(raw.images).float()[:, None] / 16
    large = F.interpolate(small, size=28, mode="bilinear")[:, 0]
    return (large * 255).round().to(torch.uint8), torch.from_numpy(raw.target)


@pytest.fixture(scope="module")
def bench(digits: tuple[Tensor, Tensor]) -> Bench:
    return make_bench(*digits, tasks=TASKS, sizes=SMALL, label_noise=0.2)


@pytest.fixture(scope="module")
def base(bench: Bench) -> DigitNet:
    return train_base(bench.base, steps=80)


@pytest.fixture(scope="module")
def bank(base: DigitNet, bench: Bench) -> ExpertBank:
    return train_experts(base, bench.tasks, steps=[4, 32, 64], seeds=(0, 1), batch_size=32)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


# ---- the bench -----------------------------------------------------------------------------------------------------


def test_splits_share_no_image_and_shifts_stay_images(digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    unique = images.flatten(1).unique(dim=0)
    seen: list[Tensor] = []
    marked = torch.arange(len(images)).reshape(-1, 1, 1)
    # the images are replaced by their number, so that each split tells which ones it holds
    numbered = torch.cat([(marked // 256), (marked % 256)], dim=1).to(torch.uint8)
    numbered = F.pad(numbered, (0, 27, 0, 26))
    bench = make_bench(numbered, labels, tasks=("mirror", "invert"), sizes=SMALL)
    for name, part in [
        ("base", bench.base),
        *[(t, getattr(s, p)) for t, s in bench.tasks.items() for p in ("train",)],
    ]:
        x = part[0].flip(-1) if name == "mirror" else 1 - part[0] if name == "invert" else part[0]
        seen.append((x[:, 0, 0, 0] * 255).round().long() * 256 + (x[:, 0, 1, 0] * 255).round().long())
    for part_name in ("stop", "select", "test"):
        x = getattr(bench.tasks["mirror"], part_name)[0].flip(-1)
        seen.append((x[:, 0, 0, 0] * 255).round().long() * 256 + (x[:, 0, 1, 0] * 255).round().long())
    together = torch.cat(seen)
    assert len(together.unique()) == len(together) == SMALL.total(2)
    assert len(unique) > 1700
    x = images[:50, None].float() / 255
    for name, shift in SHIFTS.items():
        moved = shift(x)
        assert moved.shape == x.shape
        assert 0 <= float(moved.min()) <= float(moved.max()) <= 1.0 + 1e-6, name
        assert torch.equal(moved, shift(x))
        assert not torch.equal(moved, x)


def test_label_noise_touches_the_train_labels_only(digits: tuple[Tensor, Tensor]) -> None:
    clean = make_bench(*digits, tasks=TASKS, sizes=SMALL)
    noisy = make_bench(*digits, tasks=TASKS, sizes=SMALL, label_noise=0.2)
    for task in TASKS:
        changed = clean.tasks[task].train[1] != noisy.tasks[task].train[1]
        assert torch.equal(changed, noisy.flipped[task])
        assert int(changed.sum()) == 30
        assert not bool(clean.flipped[task].any())
        for part in ("stop", "select", "test"):
            assert torch.equal(getattr(clean.tasks[task], part)[1], getattr(noisy.tasks[task], part)[1])


def test_bench_refusals(digits: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    import numpy as np

    with pytest.raises(ConfigError, match="tasks="):
        make_bench(*digits, tasks=("upside_down",))
    with pytest.raises(ConfigError, match="label_noise=1"):
        make_bench(*digits, label_noise=1.0)
    with pytest.raises(ConfigError, match="images are needed"):
        make_bench(*digits, sizes=Sizes())
    images, labels = (t.numpy() for t in digits)
    np.savez(tmp_path / "good.npz", images=images, labels=labels)
    loaded = load_digit_images(tmp_path / "good.npz")
    assert torch.equal(loaded[0], digits[0])
    assert torch.equal(loaded[1], digits[1])
    np.savez(tmp_path / "float.npz", images=images / 255, labels=labels)
    np.savez(tmp_path / "short.npz", images=images, labels=labels[:5])
    np.savez(tmp_path / "names.npz", x=images)
    (tmp_path / "text.npz").write_text("no")
    for name in ("float", "short", "names", "text", "absent"):
        with pytest.raises(DataError, match=f"{name}.npz"):
            load_digit_images(tmp_path / f"{name}.npz")


def test_digits_from_arrow(digits: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    import datasets

    table = {"images": [i.numpy() for i in digits[0][:20]], "labels": digits[1][:20].tolist()}
    features = datasets.Features(images=datasets.Array2D((28, 28), "uint8"), labels=datasets.Value("int64"))
    datasets.Dataset.from_dict(table, features=features).save_to_disk(str(tmp_path / "arrow"))
    images, labels = load_digit_images(tmp_path / "arrow")
    assert torch.equal(images, digits[0][:20])
    assert torch.equal(labels, digits[1][:20])


# ---- training ------------------------------------------------------------------------------------------------------


def test_experts_learn_and_leave_base_and_head_alone(base: DigitNet, bench: Bench, bank: ExpertBank) -> None:
    for task in TASKS:
        key = Key(task, 0, "constant", 64)
        assert (
            accuracy(bank.model(key), bench.tasks[task].test) > accuracy(base, bench.tasks[task].test) + 0.05
        )
        assert not any(n.startswith("head") for n in bank.state(key))
    again = train_experts(base, {"mirror": bench.tasks["mirror"]}, steps=[32], seeds=(1,), batch_size=32)
    key = Key("mirror", 1, "constant", 32)
    assert same(
        again.state(key), bank.state(key)
    )  # other tasks, seeds and lengths in the call change nothing
    assert not same(bank.state(Key("mirror", 0, "constant", 32)), bank.state(key))
    assert norm(bank.tau(Key("mirror", 0, "constant", 64))) > norm(bank.tau(Key("mirror", 0, "constant", 4)))


def test_per_length_runs_end_with_a_small_rate(base: DigitNet, bench: Bench, bank: ExpertBank) -> None:
    tasks = {"mirror": bench.tasks["mirror"]}
    made = train_experts(base, tasks, steps=[4, 32], schedule="per_length", batch_size=32)
    assert set(made.weights) == {Key("mirror", 0, "per_length", s) for s in (4, 32)}
    # the cosine run covers less ground than the constant one
    assert norm(made.tau(Key("mirror", 0, "per_length", 32))) < norm(
        bank.tau(Key("mirror", 0, "constant", 32))
    )


def test_stopper_ends_each_task_by_itself(base: DigitNet, bench: Bench) -> None:
    rule = {"warmup": 5, "every": 5, "patience": 1, "max_reductions": 0}
    one = train_experts(base, bench.tasks, steps=[80], stopper=rule, batch_size=32)
    two = train_experts(base, bench.tasks, steps=[80], stopper=MergeEarlyStopping(**rule), batch_size=32)
    for task in TASKS:
        run = one.run(task, 0, EARLY_STOP)
        assert run.trace == two.run(task, 0, EARLY_STOP).trace
        assert run.kept_step <= run.optimiser_steps <= 80
        scores = {row["step"]: row["score"] for row in run.trace}
        kept = one.model(Key(task, 0, EARLY_STOP, run.kept_step))
        assert accuracy(kept, bench.tasks[task].stop) == scores[run.kept_step] == max(scores.values())
    assert len({one.run(t, 0, EARLY_STOP).optimiser_steps for t in TASKS}) > 1


def test_a_bank_on_disk_trains_only_what_is_missing(base: DigitNet, bench: Bench, tmp_path: Path) -> None:
    settings = {"steps": [2, 4], "batch_size": 32}
    first = train_experts(base, bench.tasks, bank=tmp_path / "bank", **settings)
    key = Key("mirror", 0, "constant", 4)
    before = key.path(tmp_path / "bank").stat().st_mtime_ns
    assert key.path(tmp_path / "bank").name == "step_4.safetensors"
    (tmp_path / "bank" / "edges" / "0" / "constant" / "run_4.json").unlink()  # as if killed before the record
    lost = Key("edges", 0, "constant", 4).path(tmp_path / "bank")
    lost.write_bytes(b"half")
    second = train_experts(base, bench.tasks, bank=tmp_path / "bank", **settings)
    assert key.path(tmp_path / "bank").stat().st_mtime_ns == before
    for task in TASKS:
        for step in (2, 4):
            place = Key(task, 0, "constant", step)
            assert same(
                first.state(place) if place.task != "edges" else second.state(place), second.state(place)
            )
    held = train_experts(base, bench.tasks, **settings)
    assert same(held.state(Key("edges", 0, "constant", 4)), second.state(Key("edges", 0, "constant", 4)))


def test_lora_experts_are_dense_in_the_bank(base: DigitNet, bench: Bench) -> None:
    made = train_experts(
        base,
        {"mirror": bench.tasks["mirror"]},
        steps=[3],
        batch_size=32,
        lora=LoraConfig(r=2, target_modules=["hidden"]),
    )
    tau = made.tau(Key("mirror", 0, "constant", 3))
    assert float(tau["conv1.weight"].abs().max()) == 0
    assert int(torch.linalg.matrix_rank(tau["hidden.weight"].double(), rtol=1e-4)) == 2
    assert same(task_vector(base, made.model(Key("mirror", 0, "constant", 3)), exclude=["head.*"]), tau)


def test_training_refusals(base: DigitNet, bench: Bench) -> None:
    only_train = {"mirror": TaskSplits(bench.tasks["mirror"].train)}
    with pytest.raises(DataError, match="task mirror has no stop split"):
        train_experts(base, only_train, steps=[2], stopper={})
    with pytest.raises(DataError, match="no train split"):
        train_experts(base, {"x": TaskSplits((torch.zeros(0, 1), torch.zeros(0)))}, steps=[2])
    with pytest.raises(ConfigError, match="steps="):
        train_experts(base, only_train, steps=[0])
    with pytest.raises(ConfigError, match="schedule='linear'"):
        train_experts(base, only_train, schedule="linear")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no trainable"):
        train_experts(DigitNet().requires_grad_(False), only_train)
    with pytest.raises(NumericalError, match="loss"):
        train_experts(base, only_train, steps=[30], lr=1e30)
    with pytest.raises(DataError, match="no expert"):
        train_experts(base, only_train, steps=[1]).state(Key("mirror", 0, "constant", 9))


def test_each_epoch_sees_every_example_once() -> None:
    batches = minibatches(10, 4, "x")
    for _ in range(3):
        assert sorted(torch.cat([next(batches) for _ in range(3)]).tolist()) == list(range(10))


# ---- sweep and selection -------------------------------------------------------------------------------------------


def test_sweep_has_a_row_for_each_step_method_and_seed(bench: Bench, bank: ExpertBank) -> None:
    grid = (0.2, 0.5, 1.0)
    rules = {m: MergeRule(Operator(m), grid) for m in ("task_arithmetic", "ties", "dare")}
    sweep = length_sweep(bank, bench.tasks, steps=[4, 32, 64], methods=rules, seeds=(0,))
    frame = sweep.to_frame()
    assert len(frame) == 3 * 3
    assert set(frame["lambda"]) <= set(grid)
    assert frame.notna().all().all()
    detail = sweep.per_task()
    means = detail.groupby(["step", "method", "seed"])["merged"].mean()
    for row in frame.to_dict("records"):
        assert row["merged"] == pytest.approx(means[row["step"], row["method"], row["seed"]])
        assert row["merged_min"] <= row["merged"]
    # at the peak the norm-matched merge is the merge itself
    for _, curve in frame.groupby(["method", "seed"]):
        peak = curve.sort_values("step").loc[lambda f: f["select"].idxmax()]
        assert peak["norm_matched"] == pytest.approx(peak["merged"])
    again = length_sweep(bank, bench.tasks, steps=[4, 32, 64], methods=rules, seeds=(0,)).to_frame()
    assert again.equals(frame)


def test_sweep_merges_what_merge_merges(bench: Bench, bank: ExpertBank) -> None:
    from methods.merge_early_stop import merge

    rule = MergeRule(Operator("ties", density=0.3), (0.8,))
    row = length_sweep(bank, bench.tasks, steps=[64], methods={"x": rule}).to_frame().iloc[0]
    experts = {t: bank.model(Key(t, 0, "constant", 64)) for t in TASKS}
    model = merge(bank.base, experts, "ties", density=0.3, lambda_=0.8, exclude=["head.*"], frozen=["head.*"])
    score = sum(accuracy(model, s.test) for s in bench.tasks.values()) / len(TASKS)
    assert row["merged"] == pytest.approx(score, abs=1e-9)


def test_sweep_refusals(bench: Bench, bank: ExpertBank) -> None:
    with pytest.raises(ConfigError, match="'fisher' is unknown"):
        length_sweep(bank, bench.tasks, methods=["fisher"])
    with pytest.raises(DataError, match="no expert"):
        length_sweep(bank, bench.tasks, steps=[5])
    with pytest.raises(DataError, match="no select split"):
        length_sweep(bank, {t: TaskSplits(s.train, test=s.test) for t, s in bench.tasks.items()}, steps=[4])


def test_selection_finds_the_best_of_a_separable_objective_and_keeps_its_budget() -> None:
    best = {"a": 8, "b": 2, "c": 4}
    calls = []

    def objective(steps: dict[str, int]) -> float:
        calls.append(dict(steps))
        return -sum(abs(steps[t] - best[t]) for t in best)

    found = select_checkpoints([1, 2, 4, 8], objective, tasks=list(best))
    assert found.steps == best
    assert found.evaluations == len(calls) == len({tuple(c.values()) for c in calls})
    assert [row["score"] for row in found.trace] == sorted(row["score"] for row in found.trace)
    calls.clear()
    short = select_checkpoints([1, 2, 4, 8], objective, tasks=list(best), budget=5)
    assert len(calls) == short.evaluations == 5
    assert short.score >= max(-sum(abs(s - b) for b in best.values()) for s in (1, 2, 4, 8))
    with pytest.raises(ConfigError, match="no checkpoints"):
        select_checkpoints({}, objective)
    with pytest.raises(ConfigError, match="budget=0"):
        select_checkpoints([1], objective, tasks=["a"], budget=0)


def test_selection_from_a_bank(bench: Bench, bank: ExpertBank) -> None:
    found = select_checkpoints(bank, lambda steps: float(sum(steps.values())), seed=1)
    assert found.steps == dict.fromkeys(TASKS, 64)


class Dictionaries(torch.utils.data.Dataset):
    """Batches as dictionaries, as transformers' models take them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": self.x[i], "labels": self.y[i]}


class Wrapped(nn.Module):
    def __init__(self, net: DigitNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, labels: Tensor | None = None) -> object:
        from types import SimpleNamespace

        logits = self.net(x)
        return SimpleNamespace(
            logits=logits, loss=None if labels is None else F.cross_entropy(logits, labels)
        )


def test_models_and_data_of_the_transformers_kind(base: DigitNet, bench: Bench) -> None:
    splits = bench.tasks["mirror"]
    data = {
        "mirror": TaskSplits(
            *(Dictionaries(*getattr(splits, p)) for p in ("train", "stop", "select", "test"))
        )
    }
    made = train_experts(Wrapped(base), data, steps=[3], batch_size=32)
    plain = train_experts(base, {"mirror": splits}, steps=[3], batch_size=32)
    key = Key("mirror", 0, "constant", 3)
    assert all(torch.equal(made.state(key)[f"net.{n}"], v) for n, v in plain.state(key).items())
    frame = length_sweep(made, data, steps=[3], methods=["average"]).to_frame()
    assert frame["own"][0] == pytest.approx(accuracy(plain.model(key), splits.test))
