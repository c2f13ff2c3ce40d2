"""The loss: views are exact, the suffix sees the prefix, nothing leaks, the divergence is the formula's."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from methods.common.errors import ConfigError
from methods.rope_psd import RopePSDLoss, perturb_position_ids, sees_prefix
from methods.rope_psd.rope_models import new_cache, run_body
from tests.methods.rope_psd.oracle import logits as oracle
from tests.methods.rope_psd.tiny import VOCABULARY, gradients, ids, largest_difference, model, one

L = 24


def view(made: Any, tokens: Tensor, r: Tensor, use_cache: bool = False) -> Tensor:
    cache = new_cache() if use_cache else None
    with torch.no_grad():
        return made.lm_head(run_body(made, tokens, torch.ones_like(tokens), r, cache))


# -- bar 2 first: the suffix attends to the prefix ------------------------------------------------------------------


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_suffix_sees_the_prefix(attention: str, use_cache: bool) -> None:
    made = model(attention=attention)
    tokens, places = ids(1, L), torch.arange(L)[None]
    other = tokens.clone()
    other[0, 3] = (other[0, 3] + 1) % VOCABULARY
    for mode, s, y in (("skip", 10, 7), ("skip", 10, 500), ("cyclic", 0, 9)):
        r = perturb_position_ids(places, mode, s, y)
        first, second = (view(made, t, r, use_cache) for t in (tokens, other))
        assert (first[:, 10:] - second[:, 10:]).abs().max() > 1e-3
        known = oracle(made, tokens[0], r[0])
        # Logits of size 8; the library's norms and eager softmax are float32 in a float64 model.
        assert (first[0] - known).abs().max() <= 1e-6 * known.abs().max()


def test_without_the_mask_the_library_would_hide_it() -> None:
    """Why every pass has an explicit mask; when this fails, the library has changed, and the mask may go."""
    made = model()
    tokens, places = ids(1, L), torch.arange(L)[None]
    r = perturb_position_ids(places, "skip", 10, 7)
    with torch.no_grad():
        silent = made(input_ids=tokens, position_ids=r, use_cache=False).logits
    documents = torch.arange(L) >= 10
    apart = (documents[:, None] == documents[None]) & torch.ones(L, L).tril().bool()
    assert (silent[0] - oracle(made, tokens[0], r[0], apart)).abs().max() <= 1e-6
    assert (silent - view(made, tokens, r)).abs().max() > 1e-3


def test_a_library_that_hides_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    assert sees_prefix(made)
    body = made.model.forward
    monkeypatch.setattr(made.model, "forward", lambda **given: body(**(given | {"attention_mask": None})))
    assert not sees_prefix(made)
    with pytest.raises(RuntimeError, match="hides the prefix from the suffix"):
        RopePSDLoss()(made, ids(1, L))


# -- bar 1 and 3: exact views, no leak ------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_views_are_exact(attention: str) -> None:
    made = model(attention=attention)
    tokens, places = ids(2, L), torch.arange(L).expand(2, L)
    standard = view(made, tokens, places)
    moved = view(
        made, tokens, perturb_position_ids(places, "skip", torch.tensor([9, 15]), torch.tensor([5, 40]))
    )
    assert (standard[0, :9] - moved[0, :9]).abs().max() <= 1e-7
    assert (standard[1, :15] - moved[1, :15]).abs().max() <= 1e-7
    assert (standard - moved).abs().max() > 1e-3
    # Tables are float32: the shift must not leave their precision.
    assert (standard - view(made, tokens, places + 37)).abs().max() <= 2e-5 * standard.abs().max()


@pytest.mark.parametrize(("mode", "s", "y"), [("skip", 7, 11), ("skip", 0, 3), ("cyclic", 0, 9)])
def test_nothing_leaks_from_later_tokens(mode: Any, s: int, y: int) -> None:
    made = model()
    tokens, places = ids(1, L), torch.arange(L)[None]
    r = perturb_position_ids(places, mode, s, y)
    before = view(made, tokens, r)
    for place in (5, 12, L - 1):
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % VOCABULARY
        after = view(made, other, r)
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.equal(before[:, place:], after[:, place:])


def test_equal_views_have_no_divergence_and_no_gradient() -> None:
    made = model()
    loss = RopePSDLoss()
    told = loss(made, ids(2, L), perturbation=(torch.tensor([0, L - 1]), torch.tensor([0, 0]) + 1))
    # s = 0 moves everything by one: RoPE is relative. s = L - 1 leaves no pair to compare.
    assert abs(float(told["kl"])) <= 1e-9
    made.zero_grad()
    told = loss(made, ids(1, L), perturbation=(one(L - 1), one(5)))
    assert float(told["kl"]) == 0
    told["loss"].backward()
    own = gradients(made)
    made.zero_grad()
    made(ids(1, L), labels=ids(1, L)).loss.backward()
    assert largest_difference(own, gradients(made)) == 0


# -- bar 4: the formula ---------------------------------------------------------------------------------------------


def slow_distill(made: Any, tokens: Tensor, labels: Tensor, s: int, y: int, teacher: Any = None) -> Tensor:
    """L_distill of one unpadded sequence from the text of the paper, row by row."""
    places = torch.arange(len(tokens))
    r = torch.where(places >= s, places + y, places)
    with torch.no_grad():
        standard = oracle(teacher or made, tokens, places)
    moved = oracle(made, tokens, r)
    terms = [
        kl_divergence(Categorical(logits=moved[i - 1]), Categorical(logits=standard[i - 1]))
        for i in range(s + 1, len(tokens))
        if labels[i] != -100
    ]
    count = int((labels[s:] != -100).sum())
    return torch.stack(terms).sum() / count if terms and len(tokens) - s >= 2 else torch.zeros(())


@pytest.mark.parametrize("sharing", [True, False])
def test_the_divergence_is_the_formulas(sharing: bool) -> None:
    made = model()
    loss = RopePSDLoss(prefix_sharing=sharing, chunk_size=5)
    rng = torch.Generator().manual_seed(3)
    for case in range(20):
        length = int(torch.randint(4, L, (1,), generator=rng))
        s = int(torch.randint(0, length, (1,), generator=rng))
        y = int(torch.randint(1, 2 * length, (1,), generator=rng))
        left = int(torch.randint(0, 5, (1,), generator=rng)) if case % 3 == 0 else 0
        right = L - length - left if L - length >= left else 0
        tokens = ids(1, length, case)
        labels = tokens.masked_fill(torch.rand(1, length, generator=rng) < 0.2, -100)
        pad = (left, right)
        mask = torch.nn.functional.pad(torch.ones_like(tokens), pad)
        told = loss(
            made,
            torch.nn.functional.pad(tokens, pad),
            mask,
            torch.nn.functional.pad(labels, pad, value=-100),
            perturbation=(one(s), one(y)),
        )
        with torch.no_grad():
            slow = slow_distill(made, tokens[0], labels[0], s, y)
        # The oracle's tables are not the library's to the last bit.
        assert abs(float(told["kl"]) - float(slow)) <= 1e-6 * max(1.0, float(slow)), (case, s, y)


def test_on_equal_logits_it_is_the_formula_to_the_last_digits() -> None:
    from methods.rope_psd import chunked_kl

    rng = torch.Generator().manual_seed(0)
    for case in range(20):
        rows = 3 + case
        student, teacher = torch.randn(2, rows, VOCABULARY, generator=rng, dtype=torch.float64) * 3
        weights = torch.rand(rows, generator=rng, dtype=torch.float64)
        student.requires_grad_()
        told = chunked_kl(
            student, lambda x: x, teacher, torch.arange(rows), torch.arange(rows), weights, chunk=4
        )
        slow_from = student.detach().clone().requires_grad_()
        slow = (kl_divergence(Categorical(logits=slow_from), Categorical(logits=teacher)) * weights).sum()
        assert abs(float(told.kl.detach()) - float(slow.detach())) <= 1e-10
        told.kl.backward()
        slow.backward()
        assert (student.grad - slow_from.grad).abs().max() <= 1e-10
        ce = torch.nn.functional.cross_entropy(student.detach(), torch.arange(rows), reduction="none")
        assert abs(float(told.student_ce) - float((ce * weights).sum())) <= 1e-10
        forward = chunked_kl(
            student, lambda x: x, teacher, torch.arange(rows), torch.arange(rows), weights, "forward", 4
        )
        student.grad = slow_from.grad = None
        slow = (kl_divergence(Categorical(logits=teacher), Categorical(logits=slow_from)) * weights).sum()
        assert abs(float(forward.kl.detach()) - float(slow.detach())) <= 1e-10
        forward.kl.backward()
        slow.backward()
        assert (student.grad - slow_from.grad).abs().max() <= 1e-10


@pytest.mark.parametrize("sharing", [True, False])
def test_the_teacher_gets_no_gradient(sharing: bool) -> None:
    """The gradient is that of a deep-frozen copy as teacher; the teacher's part in it would be large."""
    made = model()
    tokens = ids(2, L)
    s, y = torch.tensor([6, 15]), torch.tensor([9, 20])
    loss = RopePSDLoss(prefix_sharing=sharing, chunk_size=7)
    loss(made, tokens, perturbation=(s, y))["loss"].backward()
    own = gradients(made)
    frozen = copy.deepcopy(made).requires_grad_(False)
    made.zero_grad()
    places = torch.arange(L).expand(2, L)
    with torch.no_grad():
        standard = frozen(tokens).logits
    r = perturb_position_ids(places, "skip", s, y)
    moved = made.lm_head(run_body(made, tokens, torch.ones_like(tokens), r))
    clm = made(tokens, labels=tokens).loss
    total = clm
    for row in range(2):
        rows = slice(int(s[row]), L - 1)
        terms = kl_divergence(Categorical(logits=moved[row, rows]), Categorical(logits=standard[row, rows]))
        total = total + terms.sum() / (L - int(s[row])) / 2
    total.backward()
    assert largest_difference(own, gradients(made)) <= 1e-6


def test_weight_zero_is_plain_training() -> None:
    made = model()
    tokens = ids(3, L)
    mask = torch.ones_like(tokens)
    mask[1, 15:] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    told = RopePSDLoss(kl_weight=0)(made, tokens, mask, labels)
    told["loss"].backward()
    own = gradients(made)
    made.zero_grad()
    plain = made(input_ids=tokens, attention_mask=mask, labels=labels).loss
    plain.backward()
    assert torch.equal(told["loss"], plain)
    assert largest_difference(own, gradients(made)) == 0


# -- bar 5: sharing the prefix --------------------------------------------------------------------------------------


def both(made: Any, loss: dict[str, Any], *args: Any, **more: Any) -> tuple[Any, Any]:
    found = []
    for sharing in (True, False):
        made.zero_grad()
        told = RopePSDLoss(prefix_sharing=sharing, **loss)(made, *args, **more)
        told["loss"].backward()
        found.append((told, gradients(made)))
    return found[0], found[1]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_sharing_the_prefix_changes_nothing(attention: str) -> None:
    made = model(attention=attention)
    splits = [
        0,
        1,
        L - 2,
        L - 1,
        *torch.randint(0, L, (26,), generator=torch.Generator().manual_seed(1)).tolist(),
    ]
    for start in range(0, 30, 3):
        s = torch.tensor(splits[start : start + 3])
        shared, naive = both(made, {}, ids(3, L, start), perturbation=(s, torch.tensor([1, 13, L]) + start))
        assert abs(float(shared[0]["loss"].detach()) - float(naive[0]["loss"].detach())) <= 1e-9
        assert abs(float(shared[0]["kl"]) - float(naive[0]["kl"])) <= 1e-9
        assert largest_difference(shared[1], naive[1]) <= 1e-6


def test_sharing_with_padding_on_either_side() -> None:
    made = model()
    mask = torch.ones(3, L, dtype=torch.long)
    mask[0, :6], mask[1, 18:] = 0, 0
    shared, naive = both(
        made, {}, ids(3, L), mask, perturbation=(torch.tensor([4, 9, 11]), torch.tensor([3, 30, 8]))
    )
    assert abs(float(shared[0]["loss"].detach()) - float(naive[0]["loss"].detach())) <= 1e-9
    assert largest_difference(shared[1], naive[1]) <= 1e-6
    assert float(shared[0]["kl"]) > 1e-3


def test_gradient_checkpointing_reads_all_and_says_so_once() -> None:
    made = model().train()
    tokens, where = ids(2, L), (torch.tensor([5, 12]), torch.tensor([9, 9]))
    loss = RopePSDLoss()
    expected = loss(made, tokens, perturbation=where)["loss"]
    made.gradient_checkpointing_enable()
    with pytest.warns(UserWarning, match="prefix_sharing: gradient checkpointing keeps no keys"):
        told = loss(made, tokens, perturbation=where)
    assert abs(float(told["loss"].detach()) - float(expected.detach())) <= 1e-9
    told["loss"].backward()


# -- documents, variants, scalings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_documents_are_separate_sequences(attention: str) -> None:
    made = model(attention=attention)
    first, second, third = ids(1, 10, 1), ids(1, 14, 2), ids(1, L, 3)
    packed = torch.cat((torch.cat((first, second), 1), third))
    documents = torch.tensor([[0] * 10 + [1] * 14, [0] * L])
    s, y = [4, 6, 11], [5, 9, 20]
    spread = [torch.tensor([[v[0]] * 10 + [v[1]] * 14, [v[2]] * L]) for v in (s, y)]
    made.zero_grad()
    told = RopePSDLoss()(made, packed, document_ids=documents, perturbation=(spread[0], spread[1]))
    alone = [
        RopePSDLoss()(
            made, tokens, labels=tokens.index_fill(1, torch.tensor([0]), -100), perturbation=(one(a), one(b))
        )
        for tokens, a, b in zip((first, second, third), s, y, strict=True)
    ]
    assert float(told["kl"]) == pytest.approx(sum(float(a["kl"]) for a in alone) / 3, abs=1e-9)
    targets = (9, 13, L - 1)
    mean = sum(float(a["clm"]) * n for a, n in zip(alone, targets, strict=True)) / sum(targets)
    assert float(told["clm"]) == pytest.approx(mean, abs=1e-6)  # the library's loss is taken in float32
    drawn = RopePSDLoss(seed=1)(made, packed, document_ids=documents)
    assert len(set(drawn["s"][0].tolist())) <= 2
    with pytest.raises(ConfigError, match="several documents need 'skip'"):
        RopePSDLoss(mode="cyclic")(made, packed, document_ids=documents)


@pytest.mark.parametrize("mode", ["cyclic", "nope", "chunks"])
def test_other_views_are_averaged_over_all_positions(mode: Any) -> None:
    made = model()
    tokens = ids(1, L)
    told = RopePSDLoss(mode=mode)(made, tokens, perturbation=(one(5), one(9)))
    r = perturb_position_ids(torch.arange(L)[None], mode, 5, 9)[0]
    with torch.no_grad():
        moved, standard = oracle(made, tokens[0], r), oracle(made, tokens[0], torch.arange(L))
        terms = kl_divergence(Categorical(logits=moved[:-1]), Categorical(logits=standard[:-1]))
    assert float(told["kl"]) == pytest.approx(float(terms.sum()) / L, abs=1e-6)
    assert float(told["kl"]) > 1e-3


def test_cross_entropy_on_the_moved_view() -> None:
    made = model()
    tokens = ids(1, L)
    told = RopePSDLoss(kl_weight=0, clm_view="perturbed")(made, tokens, perturbation=(one(8), one(9)))
    r = perturb_position_ids(torch.arange(L)[None], "skip", 8, 9)[0]
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(oracle(made, tokens[0], r)[:-1], tokens[0, 1:])
    assert float(told["loss"].detach()) == pytest.approx(float(expected), abs=1e-5)
    assert float(told["loss"].detach()) != pytest.approx(
        float(made(tokens, labels=tokens).loss.detach()), abs=1e-3
    )


def test_forward_direction_is_another_number() -> None:
    made = model()
    where = (one(8), one(9))
    found = [
        float(RopePSDLoss(direction=d)(made, ids(1, L), perturbation=where)["kl"])
        for d in ("reverse", "forward")
    ]
    assert abs(found[0] - found[1]) > 1e-3


def test_share_of_batches_with_a_second_view() -> None:
    made = model()
    loss = RopePSDLoss(prob_apply=0.3)
    applied = [float(loss(made, ids(1, 6))["kl"]) > 1e-9 for _ in range(60)]
    assert 6 <= sum(applied) <= 30
    s = [RopePSDLoss(seed=seed)(made, ids(4, L))["s"] for seed in (1, 1, 2)]
    assert torch.equal(s[0], s[1])
    assert not torch.equal(s[0], s[2])


@pytest.mark.parametrize("kind", ["granite", "cohere", "gemma2"])
def test_scaled_output_layers(kind: str) -> None:
    import transformers

    from methods.rope_psd.rope_models import body_of, head_of

    names = {"granite": "Granite", "cohere": "Cohere", "gemma2": "Gemma2"}
    changes = {
        "granite": {"logits_scaling": 4.0},
        "cohere": {"logit_scale": 0.25},
        "gemma2": {"head_dim": 8},
    }[kind]
    config = getattr(transformers, f"{names[kind]}Config")(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        **changes,
    )
    made = getattr(transformers, f"{names[kind]}ForCausalLM")(config).eval()
    tokens = ids(1, 9)
    with torch.no_grad():
        hidden = body_of(made)(input_ids=tokens).last_hidden_state
        assert torch.allclose(head_of(made)(hidden), made(tokens).logits, atol=1e-5)
    told = RopePSDLoss()(made, tokens, perturbation=(one(4), one(9)))  # gemma2 has windows: read as a whole
    assert float(told["kl"]) > 0
    told["loss"].backward()
