"""The study's rows against the claims: one number a seed, the bar, and whether it holds.

Redundancies are bits a byte over the model's own expected cost; a seed is another place of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from methods.common.claims import Claim

Rows = Sequence[Mapping[str, Any]]
OURS = "companded"


def claims(parts: Mapping[str, Rows]) -> list[Claim]:
    """All claims for which the parts have rows."""
    makers = {
        "design": _design,
        "sizes": _sizes,
        "violations": _violations,
        "robust": _robust,
        "llm": _llm,
    }
    return [claim for part, maker in makers.items() if part in parts for claim in maker(parts[part])]


def _seeds(rows: Rows) -> list[int]:
    return sorted({int(row["seed"]) for row in rows})


def by_seed(rows: Rows, value: str, **where: Any) -> tuple[float, ...]:
    """One value a seed, of the rows that fit."""
    chosen = {
        int(row["seed"]): float(row[value])
        for row in rows
        if all(row[name] == wanted for name, wanted in where.items())
    }
    return tuple(chosen[seed] for seed in sorted(chosen))


def _ratio(top: tuple[float, ...], bottom: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(top, bottom, strict=True))


# -- expected redundancy --------------------------------------------------------------------------------------------


def slope(rows: Rows, seed: int, tree: str, design: str, low: float = 1e-6, high: float = 1e-3) -> float:
    """Of log redundancy against log delta."""
    points = [
        (float(np.log(row["delta"])), float(np.log(row["redundancy"])))
        for row in rows
        if (row["seed"], row["tree"], row["design"]) == (seed, tree, design)
        and low <= row["delta"] <= high * 1.01
    ]
    return float(np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0])


def _design(rows: Rows) -> list[Claim]:
    seeds, found = _seeds(rows), []
    deltas = sorted({row["delta"] for row in rows})

    def cost(design: str, delta: float, tree: str = "flat") -> tuple[float, ...]:
        return by_seed(rows, "redundancy", tree=tree, design=design, delta=delta)

    for delta, bar in ((1e-5, 0.15), (1e-3, 0.25), (1e-2, 0.35)):
        if delta not in deltas:
            continue
        found.append(
            Claim(
                f"design/share_of_base/{delta:g}",
                f"expected redundancy of the default design over base PMATIC's at its best r, both on the flat tree, "
                f"delta {delta:g}",
                _ratio(cost(OURS, delta), cost("base", delta)),
                bar,
                "<=",
            )
        )
        found.append(
            Claim(
                f"design/share_of_base_huffman/{delta:g}",
                f"the same with the Huffman tree, base PMATIC on its own flat tree, delta {delta:g}",
                _ratio(cost(OURS, delta, "huffman"), cost("base", delta)),
                bar,
                "<=",
            )
        )
        found.append(
            Claim(
                f"design/adaptive_helper_gain/{delta:g}",
                f"base PMATIC's redundancy with a counted helper probability over that with its fixed delta / r, "
                f"delta {delta:g}",
                _ratio(cost("base_adaptive", delta), cost("base", delta)),
                rule="report",
            )
        )
    base = tuple(slope(rows, seed, "flat", "base") for seed in seeds)
    ours = tuple(slope(rows, seed, "flat", OURS) for seed in seeds)
    found += [
        Claim(
            "design/slope/base",
            "base: slope of log redundancy against log delta is at least 0.35",
            base,
            0.35,
        ),
        Claim("design/slope/base_at_most", "base: that slope is at most 0.55", base, 0.55, "<="),
        Claim("design/slope/ours", "the default design: that slope is at least 0.50", ours, 0.50),
        Claim(
            "design/slope/gain",
            "its slope is at least 0.1 above the base's",
            tuple(a - b for a, b in zip(ours, base, strict=True)),
            0.1,
        ),
    ]
    shared = [delta for delta in deltas if cost("dp", delta)]
    worst = tuple(
        max(
            cost(OURS, delta, tree)[i] / cost("dp", delta, tree)[i]
            for delta in shared
            if delta <= 1e-2
            for tree in ("flat", "huffman")
        )
        for i in range(len(seeds))
    )
    found.append(
        Claim(
            "design/companded_over_dp",
            "companding is within 1.6 times of dynamic programming for Delta 4e-4 to 4e-2 (largest ratio)",
            worst,
            1.6,
            "<=",
        )
    )
    rates = [
        row["helper_rate"] / row["declared_rate"]
        for row in rows
        if row["design"] == "base_paper_r" and row["tree"] == "flat"
    ]
    if rates:
        found.append(
            Claim(
                "design/base_helper_rate_over_declared",
                "base PMATIC's helper rate stays below the declared delta / r at the paper's three settings (largest "
                "ratio)",
                (max(rates),),
                1.0,
                "<=",
            )
        )
    return found


# -- sizes of real archives -----------------------------------------------------------------------------------------


def _sizes(rows: Rows) -> list[Claim]:
    archives = [row for row in rows if "archive" in row]
    peers = [row for row in rows if "peer" in row]

    def bits(archive: str, delta: float | None = None) -> tuple[float, ...]:
        where = {"archive": archive} if delta is None else {"archive": archive, "delta": delta}
        return by_seed(archives, "bits_per_byte", **where)

    found = []
    for delta, low, high in ((1e-5, 0.0, 0.12), (1e-3, 0.2, 1.2), (1e-2, 0.8, 2.5)):
        over = _base_over_plain(archives, delta)
        if low:
            found.append(
                Claim(
                    f"sizes/base_over_plain_at_least/{delta:g}",
                    f"base PMATIC at the paper's r is at least {low:.0%} over plain arithmetic coding, delta {delta:g}",
                    over,
                    low,
                )
            )
        found.append(
            Claim(
                f"sizes/base_over_plain/{delta:g}",
                f"base PMATIC at the paper's r is at most {high:.0%} over plain arithmetic coding, delta {delta:g}",
                over,
                high,
                "<=",
            )
        )
        found.append(
            Claim(
                f"sizes/ours_over_plain/{delta:g}",
                f"ours over plain arithmetic coding, codec and header included, delta {delta:g}",
                by_seed(archives, "over_plain", archive="ours", delta=delta),
                rule="report",
            )
        )
    ours = bits("ours", 1e-3)
    found.append(Claim("sizes/ours/1e-3", "ours at delta 1e-3, all of 64 KiB, bits a byte", ours, 2.06, "<="))
    for peer in ("xz", "zstd", "brotli", "ppmd"):
        known = by_seed(peers, "bits_per_byte", peer=peer, known=True)
        found.append(
            Claim(
                f"sizes/ours_minus_{peer}",
                f"ours at delta 1e-3 less {peer} with the same text known, bits a byte",
                tuple(a - b for a, b in zip(ours, known, strict=True)),
                0.0,
                "<=",
                "each" if peer != "ppmd" else "report",
            )
        )
    measured = bits("ours_measured")
    for peer in ("xz", "zstd", "brotli"):
        known = by_seed(peers, "bits_per_byte", peer=peer, known=True)
        found.append(
            Claim(
                f"sizes/measured_minus_{peer}",
                f"ours at the measured bound less {peer} with the same text known, bits a byte",
                tuple(a - b for a, b in zip(measured, known, strict=True)),
                0.0,
                "<=",
            )
        )
    ppmd = by_seed(peers, "bits_per_byte", peer="ppmd", known=True)
    found.append(
        Claim(
            "sizes/measured_minus_ppmd",
            "ours at the measured bound less PPMd with the same text known, bits a byte",
            tuple(a - b for a, b in zip(measured, ppmd, strict=True)),
            rule="report",
        )
    )
    model = by_seed(peers, "bits_per_byte", peer="model", known=False)
    alone = by_seed(peers, "bits_per_byte", peer="ppmd", known=False)
    found.append(
        Claim(
            "sizes/with_model_over_ppmd_alone",
            "with the model shipped as well, ours over PPMd alone (times)",
            tuple((a + m) / p for a, m, p in zip(ours, model, alone, strict=True)),
            rule="report",
        )
    )
    back = [row["read_back"] for row in archives if "read_back" in row]
    found.append(
        Claim(
            "sizes/read_back",
            "archives that were read back by single steps are equal",
            (float(all(back)),),
            1.0,
        )
    )
    return found


def _base_over_plain(archives: Rows, delta: float) -> tuple[float, ...]:
    """Size over plain coding with the paper's r; delta and r say all of its table: 16 bytes count for it."""
    plain = by_seed(archives, "bytes", archive="plain")
    base = by_seed(archives, "bytes", archive="base_paper_r", delta=delta)
    codec = by_seed(archives, "codec_bytes", archive="base_paper_r", delta=delta)
    return tuple((b - c + 16) / p - 1 for b, c, p in zip(base, codec, plain, strict=True))


# -- noise and real computations ------------------------------------------------------------------------------------


def _violations(rows: Rows) -> list[Claim]:
    def share(count: str, kind: str, factor: float) -> float:
        row = next(r for r in rows if (r["noise"], r["times"]) == (kind, factor))
        return float(row[count]) / float(row["streams"])

    inside = min(share("decoded", kind, 1.0) for kind in ("spread", "aimed"))
    return [
        Claim(
            "violations/decoded_at_bound",
            "noise of exactly the bound: share of streams decoded",
            (inside,),
            1.0,
        ),
        Claim(
            "violations/told_at_1.6",
            "aimed noise of 1.6 times the bound: share of streams reported",
            (share("told", "aimed", 1.6),),
            0.95,
        ),
        Claim(
            "violations/wrong",
            "streams decoded to wrong data without a word, any noise",
            (float(sum(row["wrong"] for row in rows)),),
            0.0,
            "<=",
        ),
        Claim(
            "violations/decoded_at_1.6_spread",
            "noise of 1.6 times the bound that is not aimed: share still decoded",
            (share("decoded", "spread", 1.6),),
            rule="report",
        ),
    ]


def _robust(rows: Rows) -> list[Claim]:
    found = []
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    for name in pairs:
        mine = [row for row in rows if row["pair"] == name]
        pair = name.replace(",", "")  # no comma in the names of metrics
        decoded = tuple(float(row["pmatic_decoded"]) / row["pmatic_files"] for row in mine)
        failed = tuple(1 - float(row["plain_decoded"]) / row["plain_files"] for row in mine)
        found += [
            Claim(f"robust/{pair}/decoded", f"{pair}: share of files decoded", decoded, 1.0),
            Claim(
                f"robust/{pair}/plain_fails",
                f"{pair}: share of files on which plain arithmetic coding fails",
                failed,
                1.0 if "16" in pair else 0.5,
                rule="each",
            ),
            Claim(
                f"robust/{pair}/mismatch",
                f"{pair}: largest move of a bit's log-odds on calibration text, nats",
                tuple(float(row["mismatch_largest"]) for row in mine),
                rule="report",
            ),
            Claim(
                f"robust/{pair}/overhead",
                f"{pair}: size over plain arithmetic coding, payloads",
                tuple(float(row["pmatic_bytes"]) / row["plain_bytes"] - 1 for row in mine),
                rule="report",
            ),
        ]
    return found


def _llm(rows: Rows) -> list[Claim]:
    pairs = {row["pair"]: row for row in rows if "pair" in row}
    sizes = {row["archive"]: row for row in rows if "archive" in row}
    found = []
    for name, row in pairs.items():
        pair = name.replace(",", "")
        overhead = float(row["pmatic_bytes"]) / row["plain_bytes"] - 1
        cached = pair == "cached steps"
        found += [
            Claim(
                f"llm/{pair}/decoded",
                f"SmolLM2, {pair}: share of files decoded",
                (float(row["pmatic_decoded"]) / row["pmatic_files"],),
                1.0,
            ),
            Claim(
                f"llm/{pair}/overhead",
                f"SmolLM2, {pair}: size over plain arithmetic coding, payloads",
                (overhead,),
                0.05 if cached else None,
                "<=",
            ),
            Claim(
                f"llm/{pair}/plain_fails",
                f"SmolLM2, {pair}: share of files on which plain arithmetic coding fails",
                (1 - float(row["plain_decoded"]) / row["plain_files"],),
                rule="report",
            ),
            Claim(
                f"llm/{pair}/mismatch",
                f"SmolLM2, {pair}: largest move of a bit's log-odds on calibration text, nats",
                (float(row["mismatch_largest"]),),
                rule="report",
            ),
        ]
    if "ours_2e-4" in sizes:
        found.append(
            Claim(
                "llm/bits_per_byte",
                "SmolLM2 at Delta 2e-4: archive of the test text, bits a byte",
                (float(sizes["ours_2e-4"]["bits_per_byte"]),),
                1.0,
                "<=",
            )
        )
    found += [
        Claim(
            f"llm/sizes/{name}",
            f"SmolLM2, {name}: bits a byte",
            (float(row["bits_per_byte"]),),
            rule="report",
        )
        for name, row in sizes.items()
    ]
    return found
