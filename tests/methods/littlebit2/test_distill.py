"""Distillation: it learns, it is reproducible, it goes on after a kill, and refuses what cannot work."""

import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.littlebit2 import LittleBitConfig, binary_layers, compress_model, distill, token_blocks
from methods.littlebit2.distillation import _rate, _rows
from methods.littlebit2.peers import replace_by_one_bit
from tests.methods.littlebit2.distill_run import STEPS, TOKENS, main
from tests.methods.pruning_representations.tiny import tiny

ROOT = Path(__file__).parents[3]
CONFIG = LittleBitConfig(bpp=2.0, n_iter=3)


def student(**changes: Any) -> Any:
    return compress_model(tiny(), LittleBitConfig(**{**CONFIG.to_dict(), **changes}), n_jobs=1)[0]


def test_it_moves_towards_the_teacher_and_flips_signs() -> None:
    pupil = student()
    before = {name: layer.factors().sign_u for name, layer in binary_layers(pupil)}
    history = distill(pupil, tiny(), TOKENS, steps=40, batch_size=5, lr=5e-3, hidden_weight=1.0)
    assert history[0] == {"step": 0.0}
    losses = [row["loss"] for row in history[1:]]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert any(not torch.equal(before[name], layer.factors().sign_u) for name, layer in binary_layers(pupil))


def test_the_loss_is_the_papers() -> None:
    """KL(teacher || student) summed over positions, mean over sequences, and 10 times each block's MSE."""
    pupil, teacher = student(), tiny()
    row = distill(pupil, teacher, TOKENS[:3], steps=1, batch_size=3, lr=1e-12, hidden_weight=10.0)[1]
    with torch.no_grad():
        own, given = (m(input_ids=TOKENS[:3], output_hidden_states=True) for m in (student().eval(), teacher))
    p, q = given.logits.softmax(-1), own.logits.log_softmax(-1)
    kl = float((p * (p.log() - q)).sum() / 3)
    pairs = list(zip(own.hidden_states, given.hidden_states, strict=True))
    assert torch.equal(*pairs[0])
    hidden = sum(float(F.mse_loss(a, b)) for a, b in pairs[1:])
    assert row["kl"] == pytest.approx(kl, rel=1e-3)
    assert row["hidden"] == pytest.approx(hidden, rel=1e-3)
    assert row["loss"] == pytest.approx(kl + 10 * hidden, rel=1e-3)
    per_token = distill(student(), teacher, TOKENS[:3], steps=1, batch_size=3, lr=1e-12, reduction="token")[1]
    assert per_token["kl"] == pytest.approx(kl / TOKENS.shape[1], rel=1e-3)


def test_choices_of_what_is_trained() -> None:
    teacher = tiny()
    frozen = {name: p.clone() for name, p in teacher.named_parameters()}
    teacher.train()
    for trainable, moves in (("all", True), ("factors", False)):
        pupil = student()
        before = pupil.get_input_embeddings().weight.clone()
        distill(pupil, teacher, TOKENS, steps=2, lr=1e-2, trainable=trainable, hidden_weight=0)  # type: ignore[arg-type]
        assert torch.equal(pupil.get_input_embeddings().weight, before) != moves
    assert teacher.training  # as it was, although it answered in evaluation mode
    assert all(torch.equal(frozen[name], p) for name, p in teacher.named_parameters())
    assert all(p.grad is None for p in teacher.parameters())


@pytest.mark.parametrize("gradient", ["smooth_sign", "clipped"])
def test_both_surrogate_gradients_and_the_one_bit_peer_learn(gradient: str) -> None:
    one_bit = tiny()
    assert replace_by_one_bit(one_bit) > 1
    for pupil in (student(residual=True), one_bit):
        history = distill(
            pupil, tiny(), TOKENS, steps=25, batch_size=5, lr=5e-3, hidden_weight=0, gradient=gradient  # type: ignore[arg-type]
        )  # fmt: skip
        assert history[-1]["loss"] < history[1]["loss"]


def test_probes_and_order_of_the_text() -> None:
    modes = []

    def probe(model: Any) -> float:
        modes.append(model.training)
        return 1.0

    pupil = student().eval()
    history = distill(pupil, tiny(), TOKENS, steps=5, lr=1e-3, probe=probe, probe_every=2)
    assert [row["step"] for row in history if "probe" in row] == [0, 2, 4, 5]
    assert modes == [False] * 4
    assert not pupil.training
    seen = torch.cat([_rows(10, step, 4, 0) for step in range(5)])
    for epoch in seen.split(10):
        assert sorted(epoch.tolist()) == list(range(10))
    assert not torch.equal(seen[:10], seen[10:])
    rates = [_rate(step, 100, 1.0, 0.02) for step in range(100)]
    assert rates[:2] == [0.5, 1.0]
    assert max(rates) == 1.0
    assert rates[51] == pytest.approx(0.5, abs=0.01)
    assert rates[-1] < 1e-3


def run(folder: Path, *more: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.methods.littlebit2.distill_run", str(folder), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_killed_distillation_ends_with_the_same_weights(tmp_path: Path) -> None:
    cut = run(tmp_path / "cut", "0.2")
    assert cut.stdout is not None
    for line in cut.stdout:
        if line.strip() == "step 7":  # after the checkpoint of step 4
            cut.send_signal(signal.SIGKILL)
            break
    assert cut.wait() == -signal.SIGKILL
    assert (tmp_path / "cut" / "checkpoint").is_dir()
    resumed = run(tmp_path / "cut")
    told, _ = resumed.communicate(timeout=120)
    assert resumed.returncode == 0
    assert told.split("\n")[0] == "step 5"
    assert f"step {STEPS}" in told
    threads = torch.get_num_threads()
    (tmp_path / "whole").mkdir()
    main(tmp_path / "whole", 0.0)
    torch.set_num_threads(threads)
    assert (tmp_path / "whole/student.safetensors").read_bytes() == (
        tmp_path / "cut/student.safetensors"
    ).read_bytes()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    distill(student(), tiny(), TOKENS, steps=2, lr=1e-3, checkpoint=tmp_path / "c")
    assert len(distill(student(), tiny(), TOKENS, steps=2, lr=1e-3, checkpoint=tmp_path / "c")) == 3
    with pytest.raises(DataError, match="is of a run with other settings, text or models"):
        distill(student(), tiny(), TOKENS, steps=3, lr=1e-3, checkpoint=tmp_path / "c")
    with pytest.raises(DataError, match="is of a run with other"):
        distill(student(), tiny(), TOKENS.flip(0), steps=2, lr=1e-3, checkpoint=tmp_path / "c")


def test_a_checkpoint_of_other_models_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """Shapes and settings are equal; only the numbers where the two students, or teachers, start differ."""
    folder = tmp_path / "c"
    distill(student(), tiny(), TOKENS, steps=2, lr=1e-3, checkpoint=str(folder))
    for pupil, teacher in ((student(init="svd"), tiny()), (student(), tiny(seed=1))):
        with pytest.raises(DataError, match="is of a run with other settings, text or models"):
            distill(pupil, teacher, TOKENS, steps=2, lr=1e-3, checkpoint=folder)
    for file in ("state.safetensors", "record.json"):
        whole = (folder / file).read_bytes()
        (folder / file).write_bytes(whole[:20])
        with pytest.raises(DataError, match=r"is damaged .*; remove the folder"):
            distill(student(), tiny(), TOKENS, steps=2, lr=1e-3, checkpoint=folder)
        (folder / file).write_bytes(whole)


def test_dropout_is_the_same_after_a_resume_and_leaves_the_callers_numbers(tmp_path: Path) -> None:
    def run(folder: Path, cut: bool) -> dict[str, Any]:
        pupil = compress_model(tiny("gpt2", resid_pdrop=0.3, embd_pdrop=0.3), CONFIG, n_jobs=1)[0]

        def stop(done: int, *_: Any) -> None:
            if cut and done == 3:
                raise KeyboardInterrupt

        torch.manual_seed(int(cut))
        before = torch.get_rng_state()
        try:
            distill(
                pupil, tiny("gpt2"), TOKENS, steps=5, batch_size=2, lr=1e-2, checkpoint=folder, checkpoint_every=2,
                on_step=stop,
            )  # fmt: skip
        except KeyboardInterrupt:
            return run(folder, False)
        if not cut:
            assert not torch.equal(before, torch.rand(1))
        return dict(pupil.state_dict())

    whole, resumed = run(tmp_path / "whole", False), run(tmp_path / "cut", True)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_products_in_bfloat16_learn_as_well_and_keep_float32_latents() -> None:
    ends = []
    for dtype in (torch.float32, torch.bfloat16):
        pupil = student()
        history = distill(
            pupil,
            tiny(),
            TOKENS,
            steps=30,
            batch_size=5,
            lr=5e-3,
            hidden_weight=0,
            reduction="token",
            dtype=dtype,
        )
        ends.append(history[-1]["loss"])
        assert all(layer.latent_u.dtype == torch.float32 for _, layer in binary_layers(pupil))
    assert ends[0] != ends[1]
    assert ends[1] == pytest.approx(ends[0], rel=0.1)
    assert ends[1] < 0.8 * history[1]["loss"]


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="student: has no trainable binary layer"):
        distill(tiny(), tiny(), TOKENS, steps=1)
    pupil = student()
    for field, wrong in (
        ("steps", 0), ("steps", 1.5), ("batch_size", 0), ("lr", 0.0), ("lr", math.inf), ("warmup", 1.0),
        ("hidden_weight", -1.0), ("hidden_weight", math.nan), ("clip", -1.0), ("seed", 1.5), ("checkpoint_every", 0),
        ("probe_every", -1), ("reduction", "mean"), ("gradient", "ste"), ("trainable", "none"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^{field} {wrong!r}: (give|choose)") as error:
            distill(pupil, tiny(), TOKENS, **{"steps": 1, field: wrong})  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    for tokens, line in (
        (TOKENS[0], r"tokens \(12,\): give a tensor \[sequences, length\]"),
        (TOKENS[:0], r"tokens \(0, 12\): give"),
        (TOKENS.tolist(), "tokens list: give"),
        (TOKENS.float(), "tokens of torch.float32: give ids"),
        (TOKENS + 50, "tokens from 53 to 110: the model knows 0 to 60; use its own tokenizer"),
        (-TOKENS, "the model knows 0 to 60"),
    ):
        with pytest.raises(DataError, match=line):
            distill(pupil, tiny(), tokens, steps=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="teacher: shares weights with the student"):
        distill(pupil, pupil, TOKENS, steps=1)
    with pytest.raises(
        ConfigError, match="teacher: its vocab_size is 77, the student's 61; give another teacher"
    ):
        distill(pupil, tiny(vocab_size=77), TOKENS, steps=1)
    with pytest.raises(
        ConfigError, match="its num_hidden_layers is 2, the student's 3; give hidden_weight 0"
    ):
        distill(pupil, tiny(num_hidden_layers=2), TOKENS, steps=1)
    assert len(distill(pupil, tiny(num_hidden_layers=2), TOKENS, steps=1, hidden_weight=0)) == 2
    broken = student()
    with torch.no_grad():
        broken.get_input_embeddings().weight.fill_(math.inf)
    with pytest.raises(NumericalError, match="the loss of step 1 is not finite; lower lr"):
        distill(broken, tiny(), TOKENS, steps=1)


def test_text_becomes_rows_of_tokens() -> None:
    class Letters:
        eos_token_id = 0

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text]}

    rows = token_blocks(Letters(), ["abc", "de", "f"], 3)
    assert rows.tolist() == [[97, 98, 99], [0, 100, 101], [0, 102, 0]]
    assert token_blocks(Letters(), ["abc", "de", "f"], 3, limit=6).shape == (2, 3)
    with pytest.raises(DataError, match="texts: is one string; give a list of documents"):
        token_blocks(Letters(), "abc", 1)
    for field in ("length", "limit"):
        with pytest.raises(ConfigError, match=f"{field} 0: give a whole number of at least 1"):
            token_blocks(Letters(), ["abc"], **{"length": 1, field: 0})
    with pytest.raises(DataError, match="the text has 4 tokens, less than one sequence of 9"):
        token_blocks(Letters(), ["abc"], 9)
