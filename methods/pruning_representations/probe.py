"""`RepresentationProbe`: how a pruned model's states, logits and probabilities part from the dense model's.

Protocol A (`layerwise`): one sublayer at a time, at fixed inputs. Protocol B (`decoding`): step by step in
generation, each model on its own text and both on the dense model's. Protocol C (`options`): the probabilities of a
few answer tokens alone, which is what multiple choice looks at. Dense first, changed second, everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError, NumericalError, at_least
from methods.common.open_text import open_tokens
from methods.common.reading_limit import longest_input
from methods.common.sublayers import blocks_of, layout_of, logits_of, output_head
from methods.pruning_representations.compare import compare_logits, compare_states, compare_top
from methods.pruning_representations.decoding import (
    Writer,
    choose,
    head_input,
    pad_left,
    readable,
    write,
)
from methods.pruning_representations.second_order import (
    check_temperature,
    cosine_of_probabilities,
    kl,
    second_order_kl,
)
from methods.pruning_representations.streams import Counterfactual, Probed, check_probed, streams
from methods.pruning_representations.tables import LayerTable, OptionTable, StepTable

# Rows of logits at a time: 32 x 50k in float32 are 6 MB, and a comparison holds about ten such; with more, the heap
# of a long run falls to pieces and grows.
LOGIT_ROWS = 32
MIN_CONTEXT = 8


class RepresentationProbe:
    """Measures a dense model against a compressed one, or against itself without one sublayer at a time.

    Args:
        model: the dense causal language model.
        tokenizer: its tokenizer.
        final_norm: pass states through the model's last norm before the head (the logit lens that the estimates
            are right for). False is the raw head on the raw state, as the paper's scripts have it.
        temperature: of the probabilities.
        device: where the models run; None leaves them where they are.

    Raises:
        ConfigError: temperature not above 0.
        DataError: the model has no output head.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        final_norm: bool = True,
        temperature: float = 1.0,
        device: torch.device | str | None = None,
    ) -> None:
        check_temperature(temperature)
        output_head(model)
        self.model = model.to(device).eval() if device is not None else model.eval()
        self.tokenizer, self.final_norm, self.temperature = tokenizer, final_norm, temperature
        self.device = device

    @torch.no_grad()
    def layerwise(
        self,
        texts: Sequence[str],
        mode: Literal["dropped", "pruned"] = "dropped",
        other: nn.Module | None = None,
        sublayer: Probed | Literal["all"] = "attn",
        *,
        max_tokens: int = 256,
        max_length: int = 256,
        steps: int = 0,
        logits: bool = True,
        layers: Iterable[int] | None = None,
    ) -> LayerTable:
        """Protocol A: each sublayer dropped, or replaced by the compressed model's, on the dense model's input.

        Args:
            texts: prompts or prose.
            mode: `dropped` needs the dense model only; `pruned` takes `other`'s sublayers.
            other: a compressed version of the model.
            sublayer: `attn`, `mlp`, `block`, or `all` for attn and mlp.
            max_tokens: positions to look at, spread evenly over the texts; each has at least 8 tokens before it.
            max_length: a longer text is cut to this many tokens, or to what the model can read.
            steps: above 0, each text is continued greedily by the dense model for so many tokens, and only the
                positions that wrote them are looked at (the paper's own protocol).
            logits: also compare logits and probabilities, which is most of the cost.
            layers: only these; None takes all.

        Raises:
            DataError: no text, texts too short, or models that do not correspond.
            ConfigError: `mode` without or with `other`, another sublayer, no layer, a number out of bounds.
        """
        for field, value, least in (
            ("max_tokens", max_tokens, 1),
            ("max_length", max_length, 1),
            ("steps", steps, 0),
        ):
            at_least(field, value, least)
        kinds: tuple[Probed, ...] = ("attn", "mlp") if sublayer == "all" else (check_probed(sublayer),)
        wanted = self._wanted(layers)
        counterfactual = self._counterfactual(mode, other)
        rows, starts = self._rows(texts, max_length, steps)
        picks = _spread(rows, starts, max_tokens)
        frames = []
        token = 0
        for number, (row, places) in enumerate(zip(rows, picks, strict=True)):
            if not places:
                continue
            ids = torch.tensor([row], device=next(self.model.parameters()).device)
            picked = torch.tensor(places)
            for kind, layer, h, h2 in self._pairs(ids, picked, kinds, counterfactual, wanted):
                columns = {name: value.cpu().numpy() for name, value in compare_states(h, h2).items()}
                if logits:
                    columns |= self._compare_lens(h, h2)
                frame = pd.DataFrame(columns)
                frame.insert(0, "token", np.arange(token, token + len(places)))
                frame.insert(0, "text", number)
                frame.insert(0, "layer", layer)
                frame.insert(0, "sublayer", kind)
                frames.append(frame)
            token += len(places)
        return LayerTable(pd.concat(frames, ignore_index=True), mode, self.temperature, self.final_norm)

    def _wanted(self, layers: Iterable[int] | None) -> set[int]:
        layout_of(self.model)
        known = set(range(len(blocks_of(self.model))))
        wanted = known if layers is None else set(layers)
        if not wanted or wanted - known:
            raise ConfigError(
                f"layers {sorted(wanted)}: give some of this model's, which has 0 to {max(known)}"
            )
        return wanted

    def _counterfactual(self, mode: str, other: nn.Module | None) -> Counterfactual | None:
        if mode not in ("dropped", "pruned"):
            raise ConfigError(f"mode {mode!r}: give 'dropped' or 'pruned'")
        if (mode == "pruned") == (other is None):
            raise ConfigError(f"mode {mode!r}: {'needs' if other is None else 'takes no'} other model")
        if other is None:
            return None
        self._same_vocabulary(other)
        return Counterfactual(self._ready(other), self.model)

    def _tokens(self, what: str, texts: Sequence[str]) -> list[list[int]]:
        if isinstance(texts, str) or not len(texts):
            raise DataError(f"no {what} to probe; give a list of at least one")
        return [open_tokens(self.tokenizer, text) for text in texts]

    def _rows(self, texts: Sequence[str], max_length: int, steps: int) -> tuple[list[list[int]], list[int]]:
        """Token ids of each text, and the first position that may be looked at."""
        rows = self._tokens("texts", texts)
        limit = longest_input(self.model.config.to_dict())  # type: ignore[union-attr, operator]
        length = max_length if limit is None else min(max_length, limit - steps)
        rows = [row[: max(1, length)] for row in rows]
        if steps == 0:
            return rows, [MIN_CONTEXT] * len(rows)
        written = write(self.model, rows, max_new_tokens=steps)
        whole = [row + more[:-1] for row, more in zip(rows, written, strict=True)]
        return whole, [len(row) - 1 for row in rows]

    def _pairs(
        self,
        ids: Tensor,
        picked: Tensor,
        kinds: tuple[Probed, ...],
        counterfactual: Counterfactual | None,
        wanted: set[int],
    ) -> Iterator[tuple[Probed, int, Tensor, Tensor]]:
        if counterfactual is None:
            for index, stream in enumerate(streams(self.model, ids, picked)):
                if index in wanted:
                    for kind in kinds:
                        yield kind, index, *stream.pair(kind)
            return
        whole = streams(self.model, ids)
        for kind in kinds:
            for index, h, h2 in counterfactual.pairs(ids, whole, kind, picked):
                if index in wanted:
                    yield kind, index, h, h2

    def _compare_lens(self, h: Tensor, h2: Tensor) -> dict[str, np.ndarray]:
        parts = []
        for a, b in zip(h.split(LOGIT_ROWS), h2.split(LOGIT_ROWS), strict=True):
            z, z2 = (logits_of(self.model, part, self.final_norm) for part in (a, b))
            _finite(z, z2)
            parts.append(compare_logits(z, z2, self.temperature))
        return {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}

    @torch.no_grad()
    def decoding(
        self,
        prompts: Sequence[str],
        other: nn.Module,
        max_new_tokens: int = 64,
        do_sample: bool = False,
        seed: int = 0,
        teacher_forced: bool = True,
        *,
        batch_size: int = 8,
    ) -> StepTable:
        """Protocol B: both models write; at each step their states, logits and probabilities are compared.

        Args:
            prompts: at least one.
            other: a compressed version of the model, with the same vocabulary.
            max_new_tokens: steps; a prompt that leaves the model no room for them loses its start.
            do_sample: draw tokens at the probe's temperature, both models by the same random numbers; else the most
                probable.
            seed: of these numbers.
            teacher_forced: also compare both on the dense model's text, which separates the local error from that
                of another history.
            batch_size: prompts at a time.

        Steps after the dense model's end of text are left out.

        Raises:
            DataError: no prompt, or another vocabulary.
            ConfigError: no steps, or more than the model can read.
        """
        other = self._ready(other)
        self._same_vocabulary(other)
        at_least("max_new_tokens", max_new_tokens, 1)
        at_least("batch_size", batch_size, 1)
        rows = readable(self.model, self._tokens("prompts", prompts), max_new_tokens)
        uniform = torch.rand(max_new_tokens, len(rows), generator=torch.Generator().manual_seed(seed))
        frames: list[pd.DataFrame] = []
        texts: list[tuple[str, str]] = []
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            numbers = uniform[:, start : start + len(part)] if do_sample else None
            frame, mine, theirs = self._free(part, other, max_new_tokens, numbers)
            lengths = [self._length(tokens) for tokens in mine]
            frames.append(_cut(frame, lengths, start))
            if teacher_forced:
                for i, (row, tokens) in enumerate(zip(part, mine, strict=True)):
                    forced = self._forced(row, tokens[: lengths[i]], other, numbers, i)
                    forced.insert(0, "prompt", start + i)
                    frames.append(forced)
            texts += [
                (self.tokenizer.decode(a[:n]), self.tokenizer.decode(b))
                for a, b, n in zip(mine, theirs, lengths, strict=True)
            ]
        return StepTable(pd.concat(frames, ignore_index=True), self.temperature, tuple(texts))

    def _length(self, tokens: list[int]) -> int:
        end = self.tokenizer.eos_token_id
        return tokens.index(end) + 1 if end in tokens else len(tokens)

    def _free(
        self, rows: list[list[int]], other: nn.Module, steps: int, uniform: Tensor | None
    ) -> tuple[pd.DataFrame, list[list[int]], list[list[int]]]:
        writers = (Writer(self.model, rows), Writer(other, rows))
        tokens: list[Tensor | None] = [None, None]
        written: tuple[list[Tensor], list[Tensor]] = ([], [])
        same = torch.ones(len(rows), dtype=torch.bool)
        frames = []
        for step in range(steps):
            (h, z), (h2, z2) = (writer.step(token) for writer, token in zip(writers, tokens, strict=True))
            drawn = None if uniform is None else uniform[step]
            chosen = [self._choose(values, drawn) for values in (z, z2)]
            frame = self._step_frame(h, h2, z, z2, chosen[0], chosen[1])
            frame.insert(0, "same_history", same.numpy().copy())
            frame.insert(0, "step", step)
            frame.insert(0, "prompt", np.arange(len(rows)))
            frame.insert(0, "mode", "free")
            frames.append(frame)
            same &= (chosen[0] == chosen[1]).cpu()
            for history, token in zip(written, chosen, strict=True):
                history.append(token)
            tokens = [chosen[0], chosen[1]]
        mine, theirs = (torch.stack(history, 1).tolist() for history in written)
        return pd.concat(frames, ignore_index=True), mine, theirs

    def _forced(
        self, row: list[int], tokens: list[int], other: nn.Module, uniform: Tensor | None, column: int
    ) -> pd.DataFrame:
        """Both models on the dense model's text, in one forward pass each."""
        ids = torch.tensor([row + tokens[:-1]], device=next(self.model.parameters()).device)
        states, logits = [], []
        for model in (self.model, other):
            with head_input(model) as seen:
                out: Any = model(input_ids=ids, use_cache=False, logits_to_keep=len(tokens))
            states.append(seen[-1][0, -len(tokens) :])
            logits.append(out.logits[0, -len(tokens) :])
        frames = []
        for start in range(0, len(tokens), LOGIT_ROWS):
            part = slice(start, start + LOGIT_ROWS)
            drawn = None if uniform is None else uniform[: len(tokens), column][part]
            chosen = [self._choose(values[part], drawn) for values in logits]
            frames.append(self._step_frame(*(s[part] for s in states), *(z[part] for z in logits), *chosen))
        frame = pd.concat(frames, ignore_index=True)
        frame.insert(0, "same_history", True)
        frame.insert(0, "step", np.arange(len(tokens)))
        frame.insert(0, "mode", "forced")
        return frame

    def _choose(self, logits: Tensor, uniform: Tensor | None) -> Tensor:
        return choose(logits, 0.0 if uniform is None else self.temperature, uniform)

    def _step_frame(
        self, h: Tensor, h2: Tensor, z: Tensor, z2: Tensor, token: Tensor, token_other: Tensor
    ) -> pd.DataFrame:
        _finite(z, z2)
        columns = compare_logits(z, z2, self.temperature) | compare_top(z, z2, self.temperature)
        if h.shape == h2.shape:
            columns |= compare_states(h, h2)
        frame = pd.DataFrame({name: value.cpu().numpy() for name, value in columns.items()})
        frame["token"], frame["token_other"] = token.cpu().numpy(), token_other.cpu().numpy()
        frame["agree"] = frame.token == frame.token_other
        return frame

    @torch.no_grad()
    def options(
        self,
        questions: Sequence[str],
        option_strings: Sequence[str] = (" a", " b", " c", " d"),
        other: nn.Module | None = None,
        *,
        batch_size: int = 16,
    ) -> OptionTable:
        """Protocol C: the next token after each question, over all tokens and over the options alone.

        Args:
            questions: prompts that end where the answer's token comes next; one that is too long loses its start.
            option_strings: the answers, each a single token, all different.
            other: a compressed version of the model.
            batch_size: questions at a time; those of like length share a batch.

        Raises:
            ConfigError: an option of several tokens, or two that are the same token.
            DataError: no question, or another vocabulary.
        """
        other = self._ready(other)
        self._same_vocabulary(other)
        at_least("batch_size", batch_size, 1)
        index = torch.tensor(option_tokens(self.tokenizer, option_strings))
        rows = readable(self.model, self._tokens("questions", questions))
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i]), i))
        frames = []
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            inputs = pad_left([rows[i] for i in part], next(self.model.parameters()).device)
            z, z2 = (
                model(**inputs, use_cache=False, logits_to_keep=1).logits[:, -1].float()
                for model in (self.model, other)
            )
            _finite(z, z2)
            frame = self._option_frame(z, z2, index.to(z.device), option_strings)
            frame.insert(0, "question", part)
            frames.append(frame)
        whole = pd.concat(frames, ignore_index=True).sort_values("question", ignore_index=True)
        return OptionTable(whole, tuple(option_strings), self.temperature)

    def _option_frame(self, z: Tensor, z2: Tensor, index: Tensor, names: Sequence[str]) -> pd.DataFrame:
        T = self.temperature
        own, own2 = z[:, index], z2[:, index]
        logp, logp2 = ((values / T).log_softmax(-1)[:, index] for values in (z, z2))
        columns = compare_logits(z, z2, T) | {
            "option_kl": kl(own, own2, T),
            "option_kl_estimate": second_order_kl(own, own2, T),
            "option_cos_p": cosine_of_probabilities(own, own2, T),
            "option_cos_z": torch.cosine_similarity(own, own2, dim=-1),
            "option_mass": logp.exp().sum(-1),
            "best_rank": (z > own.max(-1, keepdim=True).values).sum(-1),
            "choice": own.argmax(-1),
            "choice_other": own2.argmax(-1),
        }
        frame = pd.DataFrame({name: value.cpu().numpy() for name, value in columns.items()})
        frame["agree"] = frame.choice == frame.choice_other
        for i, name in enumerate(names):
            frame[f"logp_{name.strip()}"] = logp[:, i].cpu().numpy()
            frame[f"logp_other_{name.strip()}"] = logp2[:, i].cpu().numpy()
        return frame

    def _ready(self, other: nn.Module | None) -> nn.Module:
        if other is None:
            raise ConfigError("other: is no model; give the compressed one")
        return other.to(self.device).eval() if self.device is not None else other.eval()

    def _same_vocabulary(self, other: nn.Module) -> None:
        sizes = [int(model.config.vocab_size) for model in (self.model, other)]  # type: ignore[union-attr, arg-type]
        if sizes[0] != sizes[1]:
            raise DataError(f"vocabularies differ: {sizes[0]} and {sizes[1]} tokens; give models of one kind")


def option_tokens(tokenizer: Any, option_strings: Sequence[str]) -> list[int]:
    """The token of each option.

    Raises:
        ConfigError: fewer than two options, one of several tokens, or two that are the same token.
    """
    if len(option_strings) < 2:
        raise ConfigError(f"option_strings {list(option_strings)}: give at least two")
    found: list[int] = []
    for option in option_strings:
        tokens = tokenizer(option, add_special_tokens=False)["input_ids"]
        if len(tokens) != 1:
            raise ConfigError(f"option {option!r}: is {len(tokens)} tokens; give strings of a single token")
        if tokens[0] in found:
            raise ConfigError(f"option {option!r}: is the same token as another option")
        found.append(int(tokens[0]))
    return found


def _spread(rows: list[list[int]], starts: list[int], count: int) -> list[list[int]]:
    """At most `count` positions, evenly over all that may be looked at; by row."""
    allowed = [(i, place) for i, row in enumerate(rows) for place in range(starts[i], len(row))]
    if not allowed:
        raise DataError(f"no text has more than {MIN_CONTEXT} tokens; give longer ones")
    take = np.unique(np.linspace(0, len(allowed) - 1, min(count, len(allowed))).round().astype(int))
    picks: list[list[int]] = [[] for _ in rows]
    for number in take:
        row, place = allowed[number]
        picks[row].append(place)
    return picks


def _cut(frame: pd.DataFrame, lengths: list[int], first: int) -> pd.DataFrame:
    """Without the steps after a prompt's end of text; prompts numbered from `first`."""
    kept = frame[frame.step < np.array(lengths)[frame.prompt]]
    return kept.assign(prompt=kept.prompt + first)


def _finite(z: Tensor, z2: Tensor) -> None:
    for name, values in (("dense", z), ("other", z2)):
        if not bool(values.isfinite().all()):
            raise NumericalError(f"the {name} model's logits hold NaN or infinity")
