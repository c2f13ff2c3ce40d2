"""The encoder bench on a tiny random BERT: the frozen head, the parts, one whole job, and its claims."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import (
    AutoModel,
    AutoTokenizer,
    EarlyStoppingCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from methods.common.errors import ConfigError, DataError
from methods.merge_early_stop import MergeEarlyStopping, encoder_study, train_experts
from methods.merge_early_stop.encoder import (
    SCALE,
    EncoderBench,
    PartSizes,
    TextExample,
    make_encoder_bench,
    split_examples,
)
from methods.merge_early_stop.encoder_claims import encoder_claims
from methods.merge_early_stop.encoder_study import (
    HABIT,
    STOPPED,
    SWEPT,
    EncoderSettings,
    encoder_job,
    encoder_jobs,
)
from methods.merge_early_stop.experts import EARLY_STOP, Key, accuracy
from tests.tiny_encoder import tiny_bert, toy_texts

SIZES = PartSizes(train=40, stop=20, select=20, test=30)
SETTINGS = EncoderSettings(
    steps=(2, 8, 24), seeds=(0, 1), rates={"full": 3e-3, "lora": 1e-2}, rank=2, batch_size=10, warmup=2
)


def toy_tasks(seed: int) -> dict[str, dict[str, list[TextExample]]]:
    good = [TextExample(text, ("bad", "good"), gold) for text, gold in toy_texts("good", "bad", seed=1)]
    choices = [
        TextExample(text, ("north", "south", "the day") if gold else ("warm", "cold", "soup"), 1 + gold)
        for text, gold in toy_texts("warm", "cold", seed=2)
    ]
    return {
        "good": split_examples("good", good, SIZES, seed),
        "warm": split_examples("warm", choices, SIZES, seed),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def bench(folder: Path) -> EncoderBench:
    return make_encoder_bench(folder, toy_tasks(0), max_tokens=16)


@pytest.fixture(scope="module")
def frames(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    bank = tmp_path_factory.mktemp("bank")
    parts = [
        encoder_job(make_encoder_bench(folder, toy_tasks(seed)), kind, seed, SETTINGS, bank / f"{kind}{seed}")
        for kind, seed in encoder_jobs(SETTINGS)
    ]
    return {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in parts[0]}


def test_logits_are_cosines_with_the_bases_answers(folder: Path, bench: EncoderBench) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def vector(text: str) -> torch.Tensor:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        mean = hidden.mean(0)
        return mean / mean.norm()

    number = int(bench.tasks["good"].test[0][3])
    example = toy_tasks(0)["good"]["test"][3]
    bench.base.eval()
    with torch.no_grad():
        logits = bench.base(torch.tensor([number]))[0]
    expected = [SCALE * float(vector(example.text) @ vector(answer)) for answer in example.answers]
    assert logits[:2].tolist() == pytest.approx(expected, abs=1e-4)
    assert logits[2:].tolist() == [float("-inf")]


def test_padding_and_order_of_a_batch_change_nothing(bench: EncoderBench) -> None:
    index = torch.cat([part[0] for task in bench.tasks.values() for part in (task.train, task.test)])
    bench.base.eval()
    with torch.no_grad():
        together = bench.base(index)
        alone = torch.cat([bench.base(one[None]) for one in index])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=0)


def test_the_head_and_the_embeddings_stay_frozen(bench: EncoderBench) -> None:
    trained = {name for name, p in bench.base.named_parameters() if p.requires_grad}
    assert trained
    assert not [name for name in trained if "embeddings" in name or "vectors" in name or "pooler" in name]


def test_the_embeddings_can_be_trained_too(folder: Path) -> None:
    made = make_encoder_bench(folder, toy_tasks(0), train_embeddings=True)
    assert any("word_embeddings" in name for name, p in made.base.named_parameters() if p.requires_grad)


def test_parts_are_disjoint_balanced_and_keep_groups_together() -> None:
    examples = [
        TextExample(text, ("no", "yes"), gold, group=f"article {i // 3}")
        for i, (text, gold) in enumerate(toy_texts("good", "bad", count=300))
    ]
    again = [TextExample(e.text.upper(), e.answers, e.gold, e.group) for e in examples]
    parts = split_examples("t", examples + again, SIZES, 3)
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 40,
        "stop": 20,
        "select": 20,
        "test": 30,
    }
    assert all(sum(e.gold for e in part) == len(part) / 2 for part in parts.values())
    groups = [{e.group for e in part} for part in parts.values()]
    texts = [{e.text for e in part} for part in parts.values()]
    for i in range(4):
        for j in range(i):
            assert not groups[i] & groups[j]
            assert not texts[i] & texts[j]
    assert parts == split_examples("t", examples + again, SIZES, 3)
    assert parts != split_examples("t", examples + again, SIZES, 4)
    with pytest.raises(DataError, match="task t: its 300 different texts do not fill parts of 1110 examples"):
        split_examples("t", examples, PartSizes(train=1040, stop=20, select=20, test=30), 0)


def test_shared_texts_and_too_few_tasks_are_refused(folder: Path) -> None:
    tasks = toy_tasks(0)
    with pytest.raises(ConfigError, match="1 tasks"):
        make_encoder_bench(folder, {"good": tasks["good"]})
    tasks["good"]["test"] = tasks["good"]["train"]
    with pytest.raises(DataError, match="task good: its test part shares a text"):
        make_encoder_bench(folder, tasks)
    with pytest.raises(ConfigError, match="kinds="):
        EncoderSettings(kinds=("prefix",))
    with pytest.raises(ConfigError, match="steps="):
        EncoderSettings(steps=(4,))


def test_a_job_has_every_cell_and_repeats(folder: Path, frames: dict[str, pd.DataFrame]) -> None:
    assert len(frames["sweep"]) == 2 * 2 * 3 * len(SWEPT)
    strategies = {"full", "own_optimum", HABIT, EARLY_STOP, "early_stop_aggressive", "best_uniform"}
    assert set(frames["stopping"]["strategy"]) == strategies
    assert set(frames["stopping"]["method"]) == set(SWEPT) | set(STOPPED)
    again = encoder_job(make_encoder_bench(folder, toy_tasks(1)), "lora", 1, SETTINGS)
    for name, frame in again.items():
        if name != "costs":
            whole = frames[name]
            part = whole[(whole["seed"] == 1) & (whole["kind"] == "lora")].reset_index(drop=True)
            pd.testing.assert_frame_equal(part[frame.columns], frame)
    by = (
        frames["stopping"]
        .query("strategy == 'full'")
        .merge(frames["sweep"].query("step == 24"), on=["method", "kind", "seed"], suffixes=("", "_sweep"))
    )
    assert len(by) == 2 * 2 * 2
    assert (by["merged"] == by["merged_sweep"]).all()


def test_a_killed_job_goes_on_where_it_was(
    folder: Path, frames: dict[str, pd.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = encoder_study.length_sweep
    methods: list[str] = []

    def dies_at_ties(*given: Any, **options: Any) -> Any:
        methods.extend(options["methods"])
        if methods[-1] == "ties":
            raise KeyboardInterrupt
        return made(*given, **options)

    monkeypatch.setattr(encoder_study, "length_sweep", dies_at_ties)
    with pytest.raises(KeyboardInterrupt):
        encoder_job(make_encoder_bench(folder, toy_tasks(0)), "full", 0, SETTINGS, tmp_path)
    monkeypatch.setattr(
        encoder_study, "length_sweep", lambda *a, **o: methods.extend(o["methods"]) or made(*a, **o)
    )
    again = encoder_job(make_encoder_bench(folder, toy_tasks(0)), "full", 0, SETTINGS, tmp_path)
    assert methods == ["average", "task_arithmetic", "ties", "ties"]
    whole = frames["sweep"]
    part = whole[(whole["seed"] == 0) & (whole["kind"] == "full")].reset_index(drop=True)
    pd.testing.assert_frame_equal(part[again["sweep"].columns], again["sweep"])


def test_experts_learn_their_task_with_dropout_on(bench: EncoderBench) -> None:
    bank = train_experts(bench.base, bench.tasks, steps=[48], lr=3e-3, batch_size=10)
    for task, splits in bench.tasks.items():
        zero = accuracy(bench.base, splits.test)
        assert accuracy(bank.model(Key(task, 0, "constant", 48)), splits.test) > zero + 0.1


def test_dropout_does_not_depend_on_what_ran_before(bench: EncoderBench) -> None:
    both = train_experts(bench.base, bench.tasks, steps=[3], batch_size=10)
    torch.manual_seed(99)
    one = train_experts(bench.base, {"warm": bench.tasks["warm"]}, steps=[3], batch_size=10)
    key = Key("warm", 0, "constant", 3)
    assert all(torch.equal(both.state(key)[n], t) for n, t in one.state(key).items())


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_watcher_keeps_what_a_run_of_its_own_would_keep(
    bench: EncoderBench, kind: str, tmp_path: Path
) -> None:
    aggressive = {"warmup": 2, "every": 3, "patience": 1, "max_reductions": 0}
    judged = {"warmup": 2, "every": 3, "patience": 3, "max_reductions": 1}
    common = {"steps": [24], "lr": 3e-3, "batch_size": 10, "lora": SETTINGS.lora(kind)}
    seen = train_experts(
        bench.base, bench.tasks, stopper=judged, watchers={"watcher": aggressive}, bank=tmp_path, **common
    )
    plain = train_experts(bench.base, bench.tasks, stopper=judged, **common)
    alone = train_experts(bench.base, bench.tasks, stopper=aggressive, **common)
    for task in bench.tasks:
        watcher, own = seen.run(task, 0, "watcher"), alone.run(task, 0, EARLY_STOP)
        assert (watcher.kept_step, watcher.optimiser_steps) == (own.kept_step, own.optimiser_steps)
        for bank, key, other, place in (
            (seen, Key(task, 0, "watcher", own.kept_step), alone, Key(task, 0, EARLY_STOP, own.kept_step)),
            (seen, Key(task, 0, EARLY_STOP, plain.run(task, 0, EARLY_STOP).kept_step), plain, None),
        ):
            expected = other.state(place or key)
            assert all(torch.equal(bank.state(key)[n], t) for n, t in expected.items())
    again = train_experts(
        bench.base, bench.tasks, stopper=judged, watchers={"watcher": aggressive}, bank=tmp_path, **common
    )
    assert set(again.weights) == set(seen.weights)
    assert {(r.task, r.schedule, r.kept_step) for r in again.runs} == {
        (r.task, r.schedule, r.kept_step) for r in seen.runs
    }


def test_a_watcher_that_never_looks_is_refused(bench: EncoderBench) -> None:
    with pytest.raises(ConfigError, match="watchers: late never looked within 4 steps"):
        train_experts(bench.base, bench.tasks, steps=[4], batch_size=10, watchers={"late": {"warmup": 9}})


def test_the_habit_is_transformers_early_stopping(tmp_path: Path) -> None:
    """The same scores: the same last evaluation and the same best one as transformers' callback decides."""
    draw = torch.Generator().manual_seed(0)
    args = TrainingArguments(
        output_dir=str(tmp_path), load_best_model_at_end=True, metric_for_best_model="score", greater_is_better=True,
        eval_strategy="epoch", save_strategy="epoch", use_cpu=True,
    )  # fmt: skip
    lengths = set()
    for _ in range(200):
        scores = (torch.randint(0, 12, (40,), generator=draw) / 11).tolist()
        callback, state, control = EarlyStoppingCallback(3), TrainerState(), TrainerControl()
        rule = MergeEarlyStopping(warmup=0, every=1, patience=3, max_reductions=0)
        best_epoch = 0
        for epoch, score in enumerate(scores, start=1):
            callback.on_evaluate(args, state, control, {"eval_score": score})
            if state.best_metric is None or score > state.best_metric:  # as Trainer does after the evaluation
                state.best_metric, best_epoch = score, epoch
            rule.observe(epoch, score)
            assert rule.stopped == control.should_training_stop
            if rule.stopped:
                break
        assert rule.best_step == best_epoch
        lengths.add(rule.last_step)
    assert len(lengths) > 5


def test_claims_read_the_frames(frames: dict[str, pd.DataFrame]) -> None:
    found = {claim.name: claim for claim in encoder_claims(frames)}
    assert len(found) == len(encoder_claims(frames))
    sweep = frames["sweep"].query("kind == 'lora' and method == 'ties' and seed == 0").sort_values("step")
    best = sweep.iloc[sweep["select"].to_numpy().argmax()]
    expected = 100 * (best["merged"] - sweep.iloc[-1]["merged"])
    assert found["lora/ties/effect"].values[0] == pytest.approx(expected)
    table = (
        frames["stopping"].query("kind == 'full' and seed == 1").set_index(["strategy", "method"])["merged"]
    )
    gap = 100 * (table[EARLY_STOP, "task_arithmetic"] - table[HABIT, "ties_mergekit"])
    assert found["full/early_stop/mergekit_gap"].values[1] == pytest.approx(gap)


def test_an_absent_effect_is_not_held(frames: dict[str, pd.DataFrame]) -> None:
    flat = dict(frames)
    flat["sweep"] = frames["sweep"].assign(merged=0.5, select=0.5)
    found = {claim.name: claim for claim in encoder_claims(flat)}
    assert found["full/task_arithmetic/effect"].held is False
    longest = frames["sweep"]["step"].max()
    rising = frames["sweep"].assign(merged=frames["sweep"]["step"] / longest, select=-frames["sweep"]["step"])
    assert {c.name: c for c in encoder_claims({**frames, "sweep": rising})}["lora/ties/effect"].held is False
    falling = rising.assign(merged=1 - rising["merged"])
    assert {c.name: c for c in encoder_claims({**frames, "sweep": falling})}["lora/ties/effect"].held is True
