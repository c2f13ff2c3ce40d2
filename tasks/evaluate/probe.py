"""The representation probe as a part of evaluate: a compressed model against the model that it was made from.

Any two folders with one vocabulary: pruned, dropped, packed below one bit. It says where they part (states, logits,
probabilities; at equal inputs and in generation) and which kinds of tasks are likely to survive.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError, DataError

PROMPT_CHARACTERS = 300
LETTERS = (" A", " B", " C", " D", " E")


def probe_candidate(
    network: Any,
    tokenizer: Any,
    dense: Any,
    *,
    prompts: int,
    steps: int,
    tasks: Path,
    split: str,
    documents: list[str],
    out: Path,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Probe a compressed model.

    Args:
        network: the compressed model.
        tokenizer: of both.
        dense: the model that it was made from.
        prompts: starts of text that both continue; four times as many questions are asked.
        steps: tokens that are written after each.
        tasks: folder of task sets; its multiple-choice items become lettered questions.
        split: the part of the task sets.
        documents: held-out text; without any, the prompts are those of the task sets.
        out: gets `probe_steps.csv` and `probe_options.csv`.

    Returns:
        metrics `probe/...`, and the outlook: kind of task, `keeps`, `at risk` or `fails`, the number and its reason.

    Raises:
        DataError: another vocabulary, or nothing to continue.
        NumericalError: logits with NaN or infinity.
    """
    from methods.pruning_representations import RepresentationProbe
    from methods.pruning_representations.verdict import task_verdict

    probe = RepresentationProbe(dense, tokenizer)
    items = _items(tasks, split)
    starts = _starts(documents or [item["context"] for item in items], prompts)
    table = probe.decoding(starts, network, max_new_tokens=steps)
    table.frame.to_csv(out / "probe_steps.csv", index=False, float_format="%.6g")
    decoding = table.summary()
    metrics = {f"probe/{name}": value for name, value in decoding.items()}
    options = None
    asked = _lettered(items, 4 * prompts)
    letters = _letters(tokenizer, max((count for _, count in asked), default=0))
    if letters:
        answers = probe.options([text for text, _ in asked], letters, network)
        answers.frame.to_csv(out / "probe_options.csv", index=False, float_format="%.6g")
        options = answers.summary()
        metrics |= {f"probe/options/{name}": value for name, value in options.items()}
    return metrics, [asdict(item) for item in task_verdict(decoding, options)]


def _letters(tokenizer: Any, count: int) -> tuple[str, ...]:
    """The options as this tokenizer writes them in one token; nothing when it cannot, or there are none."""
    from methods.pruning_representations.probe import option_tokens

    for strings in (LETTERS[:count], tuple(letter.strip() for letter in LETTERS[:count])):
        try:
            option_tokens(tokenizer, strings)
        except ConfigError:
            continue
        return strings
    return ()


def _starts(documents: list[str], count: int) -> list[str]:
    """The first words of each document; of one long text, of its parts."""
    pieces = [
        text[start : start + PROMPT_CHARACTERS].strip()
        for text in documents
        for start in range(0, max(1, len(text) - PROMPT_CHARACTERS), PROMPT_CHARACTERS)
    ]
    whole = [piece for piece in pieces if piece]
    if not whole:
        raise DataError("probe_prompts: there is no text to continue; give held-out text, or set it to 0")
    every = max(1, len(whole) // count)
    return whole[::every][:count]


def _items(tasks: Path, split: str) -> list[dict[str, Any]]:
    from datasets import load_from_disk

    from tasks.evaluate.harness import task_folders

    sets = [list(load_from_disk(str(folder))) for folder in task_folders(tasks, split).values()]
    # Item by item from each set, so that the first ones are of all.
    longest = max(len(rows) for rows in sets)
    return [dict(rows[i]) for i in range(longest) for rows in sets if i < len(rows)]


def _lettered(items: list[dict[str, Any]], count: int) -> list[tuple[str, int]]:
    """Multiple choice as questions whose answer is a letter, all with the same number of options."""
    found: list[tuple[str, int]] = []
    for item in items:
        choices = [str(choice).strip() for choice in item["choices"]]
        if not 2 <= len(choices) <= len(LETTERS) or (found and found[0][1] != len(choices)):
            continue
        listed = "\n".join(f"{x.strip()}. {text}" for x, text in zip(LETTERS, choices, strict=False))
        question = item["context"].removesuffix("Answer:").strip()
        found.append((f"{question}\n{listed}\nAnswer:", len(choices)))
        if len(found) == count:
            break
    return found
