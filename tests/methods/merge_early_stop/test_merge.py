"""`merge` on real folders and adapters: round trips, peft's own deltas, tied weights, every refusal."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.merge_early_stop import merge, merge_direction, task_vector, tune_lambda

TINY = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1,
}  # fmt: skip


def llama(seed: int, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=tied))


def moved(model: nn.Module, seed: int, size: float = 0.05) -> nn.Module:
    import copy

    draw = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(size * torch.randn(p.shape, generator=draw))
    return other


def adapter(model: nn.Module, seed: int, **options: object) -> PeftModel:
    import copy

    torch.manual_seed(seed)
    config = LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], **options})
    peft = get_peft_model(copy.deepcopy(model), config)
    with torch.no_grad():
        for n, p in peft.named_parameters():
            if "lora_" in n:
                p.normal_(0, 0.2)
    return peft


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, list[Path]]:
    base = llama(0)
    base.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    (tmp_path / "base" / "modeling_evil.py").write_text("boom")
    (tmp_path / "base" / "pytorch_model.bin").write_bytes(b"pickle")
    paths = [tmp_path / f"expert{i}" for i in range(3)]
    for i, path in enumerate(paths):
        moved(base, i + 1).save_pretrained(path)
    return tmp_path / "base", paths


# ---- what comes out
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["average", "task_arithmetic", "ties", "dare"])
def test_folder_module_and_state_dict_agree(
    folders: tuple[Path, list[Path]], tmp_path: Path, method: str
) -> None:
    base, experts = folders
    options = {"lambda_": 0.4, "density": 0.3, "names": ["a", "b", "c"]}
    out = merge(base, experts, method, out=tmp_path / "out", **options)
    loaded = AutoModelForCausalLM.from_pretrained(out)
    module = merge(
        AutoModelForCausalLM.from_pretrained(base), [AutoModelForCausalLM.from_pretrained(e) for e in experts], method,
        **options,
    )  # fmt: skip
    states = [load_file(p / "model.safetensors") for p in (base, *experts)]
    state = merge(states[0], states[1:], method, **options)
    for name, value in load_file(out / "model.safetensors").items():
        assert torch.equal(value, state[name])
        assert torch.equal(value, loaded.state_dict()[name])
        assert torch.equal(value, module.state_dict()[name])
    assert (out / "tokenizer.json").is_file()
    assert not (out / "modeling_evil.py").exists()
    assert not (out / "pytorch_model.bin").exists()
    record = json.loads((out / "merge_info.json").read_text())
    assert record["method"] == method
    assert str(tmp_path) not in json.dumps(record)


def test_same_inputs_give_the_same_bytes(folders: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, experts = folders
    for method in ("ties", "dare"):
        one = merge(base, experts, method, out=tmp_path / f"{method}1") / "model.safetensors"
        two = merge(base, experts[::-1], method, out=tmp_path / f"{method}2") / "model.safetensors"
        assert one.read_bytes() == two.read_bytes()
        other = merge(base, experts, method, out=tmp_path / f"{method}3", seed=1) / "model.safetensors"
        assert (other.read_bytes() == one.read_bytes()) == (method == "ties")


def test_shards_stay_shards(tmp_path: Path) -> None:
    base = llama(0)
    base.save_pretrained(tmp_path / "base", max_shard_size="6KB")
    assert (tmp_path / "base" / "model.safetensors.index.json").is_file()
    moved(base, 1).save_pretrained(tmp_path / "e")
    out = merge(tmp_path / "base", [tmp_path / "e"], lambda_=1.0, out=tmp_path / "out")
    expert = AutoModelForCausalLM.from_pretrained(tmp_path / "e").state_dict()
    merged = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert all(torch.equal(merged[n], expert[n]) for n in expert)


def test_tied_weights_count_once() -> None:
    base = llama(0)
    tau = task_vector(base, moved(base, 1))
    assert len([n for n in tau if tau[n].shape == (64, 16)]) == 1
    tied = merge(base, [moved(base, 1), moved(base, 2)], "ties")
    assert tied.lm_head.weight.data_ptr() == tied.model.embed_tokens.weight.data_ptr()
    shared = torch.randn(30)
    state = {"a": shared, "b": shared, "c": torch.randn(4)}
    doubled = merge(state, [{n: v + 1 for n, v in state.items()}], "average", lambda_=0.5)
    assert doubled["a"] is doubled["b"]


def test_tied_head_stored_twice_by_an_expert(tmp_path: Path) -> None:
    base = llama(0)
    base.save_pretrained(tmp_path / "base")
    state = {n: v.clone() + 0.5 for n, v in base.state_dict().items()}
    (tmp_path / "e").mkdir()
    save_file(state, tmp_path / "e" / "model.safetensors")
    out = merge(tmp_path / "base", [tmp_path / "e"], out=tmp_path / "out", lambda_=1.0)
    assert "lm_head.weight" not in load_file(out / "model.safetensors")
    state["lm_head.weight"] += 1  # no longer a copy
    save_file(state, tmp_path / "e" / "model.safetensors")
    with pytest.raises(DataError, match=r"has 1 more \(lm_head.weight\)"):
        merge(tmp_path / "base", [tmp_path / "e"], out=tmp_path / "out2")


def test_integer_tensors_come_from_the_base_with_a_warning() -> None:
    base = {"w": torch.zeros(3), "ids": torch.arange(3)}
    with pytest.warns(UserWarning, match="copied from the base: ids"):
        merged = merge(base, [{"w": torch.ones(3), "ids": torch.arange(3) + 5}])
    assert torch.equal(merged["ids"], base["ids"])


def test_excluded_heads_stay_and_may_be_missing() -> None:
    base = {"body": torch.zeros(3), "head.w": torch.ones(2, 2)}
    merged = merge(
        base,
        [{"body": torch.ones(3)}, {"body": torch.ones(3), "head.w": torch.ones(5, 2)}],
        exclude=["head.*"],
    )
    torch.testing.assert_close(merged["body"], torch.full((3,), 2.0))
    assert torch.equal(merged["head.w"], base["head.w"])


def test_half_precision_is_merged_in_float32_and_saved_as_it_was() -> None:
    base = {"w": torch.randn(500).bfloat16()}
    experts = [{"w": (base["w"].float() + 0.01 * torch.randn(500)).bfloat16()} for _ in range(4)]
    merged = merge(base, experts, "average")
    expected = (
        base["w"].double() + sum(e["w"].double() - base["w"].double() for e in experts) / 4
    ).bfloat16()
    assert merged["w"].dtype == torch.bfloat16
    assert torch.equal(merged["w"], expected)
    assert merge(base, experts, "average", save_dtype=torch.float32)["w"].dtype == torch.float32


def test_direction_and_tuned_lambda() -> None:
    base = nn.Linear(3, 2)
    experts = [moved(base, i, 1.0) for i in range(3)]
    direction = merge_direction(base, experts, "ties", density=0.5)
    target = merge(base, experts, "ties", density=0.5, lambda_=0.35)

    def score(model: nn.Module) -> float:
        return -float((model.weight - target.weight).detach().norm())

    found = tune_lambda(base, experts, score, method="ties", density=0.5)
    assert found.lambda_ == 0.35
    assert found.val_score == max(found.scores.values())
    assert len(found.scores) == 20
    torch.testing.assert_close(found.merged.weight, base.weight + 0.35 * direction["weight"])
    state = {n: p.detach() for n, p in base.named_parameters()}
    as_state = tune_lambda(
        state, experts, lambda s: -float((s["weight"] - target.weight).norm()), method="ties", density=0.5
    )
    torch.testing.assert_close(as_state.merged["weight"], found.merged.weight)


# ---- adapters
# ------------------------------------------------------------------------------------------------------

VARIANTS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.down_proj": 9}},
    "square": {"target_modules": ["q_proj", "o_proj"]},
    "embedding": {"target_modules": ["embed_tokens", "v_proj"]},
    "saved_module": {"modules_to_save": ["lm_head"]},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_adapter_folder_equals_pefts_delta(tmp_path: Path, variant: str) -> None:
    base = llama(0, tied=False)
    base.save_pretrained(tmp_path / "base")
    adapters = [adapter(base, i, **VARIANTS[variant]) for i in range(2)]
    if variant == "saved_module":
        with torch.no_grad():
            for a in adapters:
                a.base_model.model.lm_head.modules_to_save["default"].weight.add_(1.0)
    for i, a in enumerate(adapters):
        a.save_pretrained(tmp_path / f"a{i}")
    paths = [tmp_path / f"a{i}" for i in range(2)]
    out = merge(tmp_path / "base", paths, "task_arithmetic", lambda_=0.5, out=tmp_path / "out")
    merged = load_file(out / "model.safetensors")
    state = {n: v.clone() for n, v in base.state_dict().items()}
    for a in adapters:
        for name, module in a.base_model.model.named_modules():
            if hasattr(module, "get_delta_weight"):
                state[f"{name}.weight"] += 0.5 * module.get_delta_weight("default").detach()
    if variant == "saved_module":
        state["lm_head.weight"] += 1.0
    for name, value in merged.items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=1e-5)
    live = merge(base, adapters, "task_arithmetic", lambda_=0.5).state_dict()
    assert all(torch.equal(live[n], merged[n]) for n in merged)
    tau = task_vector(tmp_path / "base", paths[0])
    assert set(tau) < set(state)


def test_conv1d_of_gpt2_is_transposed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    expert = adapter(base, 1, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    expert.save_pretrained(tmp_path / "a")
    tau = task_vector(base, tmp_path / "a")
    found = 0
    for name, module in expert.base_model.model.named_modules():
        if hasattr(module, "get_delta_weight"):
            found += 1
            torch.testing.assert_close(
                tau[f"{name}.weight"], module.get_delta_weight("default").detach(), rtol=0, atol=1e-5
            )
    assert found == len(tau) == 3


def test_dense_merge_is_not_the_average_of_the_factors() -> None:
    base = llama(0)
    adapters = [adapter(base, i) for i in range(3)]
    merged = merge(base, adapters, "average").state_dict()
    name = "model.layers.0.self_attn.q_proj"
    layers = [a.base_model.model.get_submodule(name) for a in adapters]
    a = sum(layer.lora_A["default"].weight for layer in layers) / 3
    b = sum(layer.lora_B["default"].weight for layer in layers) / 3
    wrong = base.state_dict()[f"{name}.weight"] + 1.5 * (b @ a)
    right = (
        base.state_dict()[f"{name}.weight"] + sum(layer.get_delta_weight("default") for layer in layers) / 3
    )
    torch.testing.assert_close(merged[f"{name}.weight"], right, rtol=0, atol=1e-5)
    assert float((merged[f"{name}.weight"] - wrong).norm()) > 0.3 * float(
        (right - base.state_dict()[f"{name}.weight"]).norm()
    )


def test_merged_as_lora_loads_in_peft_and_is_the_best_approximation(tmp_path: Path) -> None:
    base = llama(0, tied=False)
    base.save_pretrained(tmp_path / "base")
    for i in range(2):
        adapter(base, i).save_pretrained(tmp_path / f"a{i}")
    paths = [tmp_path / "a0", tmp_path / "a1"]
    direction = merge_direction(tmp_path / "base", paths)
    exact = merge(tmp_path / "base", paths, out=tmp_path / "full_rank", lora_rank=8)  # two adapters of rank 4
    state = PeftModel.from_pretrained(llama(0, tied=False), exact).merge_and_unload().state_dict()
    for name, delta in direction.items():
        torch.testing.assert_close(state[name], base.state_dict()[name] + delta, rtol=0, atol=1e-5)
    cut = merge(tmp_path / "base", paths, out=tmp_path / "cut", lora_rank=3)
    tau = task_vector(tmp_path / "base", cut)
    errors = json.loads((cut / "merge_info.json").read_text())["relative_error"]
    for name, delta in direction.items():
        s = torch.linalg.svdvals(delta.double())
        best = float(s[3:].norm() / s.norm())
        assert errors[name] == pytest.approx(best, abs=1e-6)
        assert float((tau[name] - delta).norm() / delta.norm()) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_dora", True),
        ("bias", "all"),
        ("lora_bias", True),
        ("init_lora_weights", "pissa"),
        ("peft_type", "LOHA"),
        ("target_parameters", ["x"]),
        ("trainable_token_indices", [1, 2]),
    ],
)
def test_adapters_that_are_no_plain_lora_are_refused(tmp_path: Path, field: str, value: object) -> None:
    base = llama(0)
    adapter(base, 1).save_pretrained(tmp_path / "a")
    file = tmp_path / "a" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(DataError, match=f"adapter a: {field}="):
        merge(base, [tmp_path / "a"])


def test_a_real_dora_adapter_and_a_foreign_base_are_refused(tmp_path: Path) -> None:
    base = llama(0)
    with pytest.raises(DataError, match="use_dora"):
        merge(base, [adapter(base, 1, use_dora=True)])
    adapter(base, 1).save_pretrained(tmp_path / "a")
    with pytest.raises(DataError, match="do not fit the base"):
        merge(nn.Linear(3, 3), [tmp_path / "a"])
    with pytest.raises(ConfigError, match="merge_and_unload"):
        merge(adapter(base, 1), [base])
    with pytest.raises(DataError, match="is an adapter"):
        merge(tmp_path / "a", [tmp_path / "a"], out=tmp_path / "o")


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"target_modules": ["q_proj", "lm_head"]},
    ],
    ids=str,
)
def test_an_adapter_that_parts_tied_layers_is_refused(
    tmp_path: Path, options: dict[str, object], live: bool
) -> None:
    base = llama(0)
    base.save_pretrained(tmp_path / "base")
    made = adapter(base, 1, **options)
    made.save_pretrained(tmp_path / "a")
    with pytest.raises(DataError, match=r"adapter .*the base ties its embedding and output layer; [^\n]*$"):
        task_vector(base, made) if live else task_vector(tmp_path / "base", tmp_path / "a")


@pytest.mark.parametrize("tied", [False, True])
def test_an_adapted_embedding_is_merged_as_peft_does(tmp_path: Path, tied: bool) -> None:
    base = llama(0, tied=tied)
    base.save_pretrained(tmp_path / "base")
    options = (
        {"target_modules": ["embed_tokens", "q_proj"]} if tied else {"modules_to_save": ["embed_tokens"]}
    )
    made = adapter(base, 1, **options)
    if not tied:
        with torch.no_grad():
            made.base_model.model.model.embed_tokens.modules_to_save["default"].weight.add_(1.0)
    made.save_pretrained(tmp_path / "a")
    merge(tmp_path / "base", [tmp_path / "a"], "task_arithmetic", lambda_=1.0, out=tmp_path / "out")
    tokens = torch.arange(6).view(1, 6)
    theirs = PeftModel.from_pretrained(llama(0, tied=tied), tmp_path / "a").merge_and_unload()(tokens).logits
    ours = LlamaForCausalLM.from_pretrained(tmp_path / "out")(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


# ---- refusals
# ------------------------------------------------------------------------------------------------------


def test_names_and_shapes_that_differ_are_listed() -> None:
    base = {"a": torch.zeros(2), "b": torch.zeros(3)}
    with pytest.raises(DataError, match=r"expert 0 lacks 1 tensors \(b\) and has 1 more \(c\)"):
        merge(base, [{"a": torch.zeros(2), "c": torch.zeros(3)}])
    with pytest.raises(DataError, match=r"expert x differs in 1 shapes: b \(4,\) instead of \(3,\)"):
        merge(base, {"x": {"a": torch.zeros(2), "b": torch.zeros(4)}})


def test_frozen_tensors_betray_another_base() -> None:
    base = {"body": torch.randn(50), "head": torch.randn(5)}
    expert = {"body": base["body"] + 1, "head": base["head"].clone()}
    merge(base, [expert], frozen=["head"])
    expert["head"][0] += 1e-6
    with pytest.raises(DataError, match="frozen tensor head differs"):
        merge(base, [expert], frozen=["head"])
    stranger = {"body": torch.randn(50), "head": torch.randn(5)}
    with pytest.warns(UserWarning, match="hardly resembles the base"):
        merge(
            {n: v + 10 * (n == "body") for n, v in base.items()}, [{n: -v - 10 for n, v in stranger.items()}]
        )


def test_bad_numbers_are_refused(folders: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, experts = folders
    state = load_file(experts[1] / "model.safetensors")
    state["model.norm.weight"][3] = float("nan")
    save_file(state, experts[1] / "model.safetensors")
    with pytest.raises(NumericalError, match=r"expert expert1: the task vector of model\.norm\.weight"):
        merge(base, experts, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))
    small = {"w": torch.ones(3).half()}
    with pytest.raises(NumericalError, match="overflows"):
        merge(small, [{"w": torch.full((3,), 60000.0).half()}], lambda_=2.0)


def test_wrong_calls_are_refused(folders: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, experts = folders
    with pytest.raises(ConfigError, match="empty"):
        merge({"a": torch.zeros(1)}, [])
    with pytest.raises(ConfigError, match="out is missing"):
        merge(base, experts)
    with pytest.raises(ConfigError, match="sigma is no option"):
        merge(base, experts, out=tmp_path / "o", sigma=1)
    with pytest.raises(ConfigError, match="not an empty folder"):
        merge(base, experts, out=base)
    with pytest.raises(ConfigError, match="list or a mapping"):
        merge(base, experts[0], out=tmp_path / "o")
    with pytest.raises(DataError, match="does not exist"):
        merge(base, [tmp_path / "nowhere"], out=tmp_path / "o")
    with pytest.raises(ConfigError, match="lambda=nan"):
        tune_lambda(nn.Linear(1, 1), [nn.Linear(1, 1)], lambda m: 0.0, lambdas=[float("nan")])


def test_damaged_and_pickled_files_are_refused(folders: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, experts = folders
    whole = (experts[0] / "model.safetensors").read_bytes()
    for cut in (whole[:-5], whole[:40], b"", b"\xff" * 100):
        (experts[0] / "model.safetensors").write_bytes(cut)
        with pytest.raises(DataError, match=r"model\.safetensors"):
            merge(base, experts[:1], out=tmp_path / "o")
    (experts[0] / "model.safetensors").unlink()
    torch.save({}, experts[0] / "pytorch_model.bin")
    with pytest.raises(DataError, match="pickled"):
        merge(base, experts[:1], out=tmp_path / "o")


def test_nothing_half_written_when_the_disk_refuses(folders: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, experts = folders
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DataError, match="cannot write"):
        merge(base, experts, out=file / "o")
