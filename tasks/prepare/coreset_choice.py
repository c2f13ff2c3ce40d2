"""Training examples chosen by a coreset of their texts: small groups of similar texts get more than their share."""

from __future__ import annotations

from collections.abc import Sequence

from methods.approx_coresets import ApproxCoreset
from methods.common.errors import DataError
from tasks.prepare.bundled_tasks import Example

CLUSTERS = 20  # more would divide the large groups and give each its share again
VOCABULARY = 50_000


def spread_first(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """The examples with `count` of them first that were drawn by the coreset; the rest follow in their order.

    The draw is the one for clustering (`ApproxCoreset`) on the texts' words (tf-idf): half of it goes by groups of
    similar texts, whatever their size, and by how far a text is from its group. Small groups get up to about twice
    their share, no more: it thins what is common, it does not balance. The coreset's weights are not used, every
    chosen example counts once in training.

    Args:
        examples: in an order that does not depend on the order of the data.
        count: how many are wanted.
        seed: of the draw.

    Raises:
        DataError: the texts hold no words.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    if count >= len(examples):
        return list(examples)
    texts = [example.context + example.choices[example.gold] for example in examples]
    try:
        words = TfidfVectorizer(max_features=VOCABULARY, sublinear_tf=True).fit_transform(texts)
    except ValueError as error:
        raise DataError(f"training=coreset: the texts hold no words ({error}); choose random") from None
    clusters = max(1, min(CLUSTERS, count // 5))
    drawn = ApproxCoreset(clusters, size=count, random_state=seed).fit(words)
    # Equal draws are one example: those that are missing are the next in the order given.
    first = set(drawn.indices_.tolist())
    chosen = [example for i, example in enumerate(examples) if i in first]
    return chosen + [example for i, example in enumerate(examples) if i not in first]
