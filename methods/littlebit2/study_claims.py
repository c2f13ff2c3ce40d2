"""The study's frames against the paper's claims: values, a bar, and whether it holds.

Errors are relative squared errors, ||W - W_hat||^2 / ||W||^2. Perplexities compare students of one seed and one
size that read the same data for the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from methods.common.claims import Claim

Frames = Mapping[str, pd.DataFrame]
INITS = ("joint_itq", "random_rotation", "svd", "admm")


def claims(frames: Frames) -> list[Claim]:
    """All claims for which the frames hold data."""
    found: list[Claim] = []
    if "layers" in frames:
        found += _layer_claims(frames["layers"])
    if "synthetic" in frames:
        found += _synthetic_claims(frames["synthetic"])
    if "iterations" in frames:
        found += _iteration_claims(frames["iterations"])
    if "small" in frames:
        found += _small_claims(frames["small"])
    if "model" in frames:
        found += _model_claims(frames["model"])
    if "rates" in frames:
        found += _rate_claims(frames["rates"])
    return found


def errors_by_method(layers: pd.DataFrame, bpp: float, residual: bool) -> pd.DataFrame:
    """One row a layer, one column a method, at one point; layers without all of its methods are left out."""
    part = layers[(layers.bpp == bpp) & (layers.residual == residual)]
    return part.pivot_table(index="layer", columns="method", values="error", sort=False)


def _layer_claims(layers: pd.DataFrame) -> list[Claim]:
    found = []
    main = errors_by_method(layers, 0.55, False)
    ordered = (main.joint_itq < main.random_rotation) & (main.random_rotation < main.svd)
    every = len(main)
    found += [
        Claim("weights/ordering", f"error of Joint-ITQ < random rotation < SVD, share of {every} layers at 0.55 bpp",
              (float(ordered.mean()),), 0.99),
        Claim("weights/over_fp16", f"Joint-ITQ below an fp16 low-rank product of equal bits, share of {every} layers",
              (float((main.joint_itq < main.fp16_low_rank).mean()),), 0.95),
        Claim("weights/gain_055", "mean gain of Joint-ITQ over SVD at 0.55 bpp",
              (float((main.svd - main.joint_itq).mean()),), 0.05),
    ]  # fmt: skip
    for method in main.columns:
        if not main[method].isna().any():
            found.append(
                Claim(
                    f"weights/error_055/{method}",
                    f"mean error of {method} at 0.55 bpp",
                    (float(main[method].mean()),),
                )
            )
    chosen = layers[(layers.method == "joint_itq") & (layers.bpp == 0.55) & ~layers.residual]
    size = chosen.outputs * chosen.inputs
    found.append(
        Claim("weights/stored_055", "stored bits per weight of all linear layers at 0.55 nominal",
              (float((chosen.stored_bpp * size).sum() / size.sum()),), 0.62, "<=")
    )  # fmt: skip
    wide = errors_by_method(layers, 1.0, False)
    if len(wide):
        found.append(
            Claim("weights/gain_100", f"mean gain of Joint-ITQ over SVD at 1.0 bpp, {len(wide)} layers",
                  (float((wide.svd - wide.joint_itq).mean()),), 0.08)
        )  # fmt: skip
        found += _haar_claims(layers)
        found += _peer_claims(layers)
    return found


def _haar_claims(layers: pd.DataFrame) -> list[Claim]:
    probed = set(layers[(layers.bpp == 1.0) & ~layers.residual].layer)
    part = layers[(layers.method == "random_rotation") & ~layers.residual & layers.layer.isin(probed)]
    away = (part.error / part.haar_error - 1).abs()
    count = f"{len(probed)} layers x {part.bpp.nunique()} bpp"
    return [
        Claim("weights/haar_mean", f"random rotation against the closed form, mean relative deviation, {count}",
              (float(away.mean()),), 0.01, "<="),
        Claim("weights/haar_worst", f"the same, largest of {count}", (float(away.max()),), 0.01, "<="),
        Claim("weights/haar_heavy", "the same, largest where gamma is below 0.6",
              (float(away[part.gamma < 0.6].max()),)),
        Claim("weights/haar_share", f"share of {count} within 1 %", (float((away <= 0.01).mean()),)),
    ]  # fmt: skip


def _peer_claims(layers: pd.DataFrame) -> list[Claim]:
    found = []
    one = layers[layers.method == "onebit"].set_index("layer").error
    residual = errors_by_method(layers, 1.0, True)
    ratio = (residual.joint_itq / one).dropna()
    found.append(
        Claim("weights/over_onebit", "error of Joint-ITQ (1.0 bpp, residual) over OneBit's (1.03 to 1.11 bpp), mean",
              (float(ratio.mean()),), 1.15, "<=")
    )  # fmt: skip
    for bpp, both in ((0.3, False), (0.55, False), (1.0, True)):
        table = errors_by_method(layers, bpp, both)
        if "admm" in table:
            table = table.dropna()
            name = f"weights/over_admm_{round(100 * bpp):03d}"
            text = (
                f"error of Joint-ITQ over ADMM's at equal stored bits, {bpp} bpp, mean of {len(table)} layers"
            )
            found.append(Claim(name, text, (float((table.joint_itq / table.admm).mean()),), 1.0, "<="))
    at_two = errors_by_method(layers, 2.5, True)
    if "joint_itq" in at_two:
        two = layers[layers.method == "hqq_2bit"].set_index("layer").error
        for method in ("joint_itq", "admm"):
            ratio = (at_two[method] / two).dropna()
            text = f"error of {method} (2.5 bpp, residual) over 2-bit HQQ's at equal stored bits, mean"
            found.append(Claim(f"weights/over_hqq/{method}", text, (float(ratio.mean()),)))
    low, high = errors_by_method(layers, 0.3, False), errors_by_method(layers, 0.3, True)
    both_ways = (low["joint_itq"] - high["joint_itq"]).dropna()
    found.append(
        Claim(
            "weights/residual_030", "error saved by the residual branch at 0.3 bpp (negative: it costs)",
            (float(both_ways.mean()),),
        )
    )  # fmt: skip
    single, double = errors_by_method(layers, 1.0, False), errors_by_method(layers, 1.0, True)
    found.append(
        Claim("weights/residual_100", "error saved by the residual branch at 1.0 bpp",
              (float((single["joint_itq"] - double["joint_itq"]).dropna().mean()),))
    )  # fmt: skip
    return found


def _synthetic_claims(frame: pd.DataFrame) -> list[Claim]:
    table = frame.pivot_table(index=["seed", "gamma"], columns=["basis", "method"], values="error")
    svd = table[("coherent", "svd")] - table[("incoherent", "svd")]
    itq = (table[("coherent", "joint_itq")] / table[("incoherent", "joint_itq")] - 1).abs()
    heavy = itq[itq.index.get_level_values("gamma") <= 0.6]
    found = [
        Claim("synthetic/svd_rise", "SVD's error rises with coherence: smallest rise over gammas, by seed",
              _by_seed(svd, "min"), 0.0),
        Claim("synthetic/itq_change", "Joint-ITQ's error changes by at most 2 % with coherence: largest, by seed",
              _by_seed(itq, "max"), 0.02, "<="),
        Claim("synthetic/itq_change_heavy", "the same for gamma <= 0.6", _by_seed(heavy, "max"), 0.02, "<="),
    ]  # fmt: skip
    away = []
    rotated = frame[(frame.method == "random_rotation") & (frame.basis == "incoherent")]
    for _, group in rotated.groupby("seed"):
        group = group.sort_values("gamma")
        difference = (group.error - group.low_rank_error).to_numpy()
        cross = float(np.interp(0.0, difference, group.gamma.to_numpy()))
        away.append(abs(cross - float(group.break_even.iloc[0])))
    found.append(
        Claim("synthetic/crossover", "distance of the measured fp16 / binary crossover from the predicted gamma",
              tuple(away), 0.05, "<=")
    )  # fmt: skip
    return found


def _by_seed(values: pd.Series, how: str) -> tuple[float, ...]:
    return tuple(float(v) for v in values.groupby(level="seed").agg(how))


def _iteration_claims(frame: pd.DataFrame) -> list[Claim]:
    table = frame.pivot_table(index="layer", columns="n_iter", values="error")
    share = (table[0] - table[20]) / (table[0] - table[50])
    return [
        Claim("iterations/by_20", "share of the gain of 50 iterations over a random start that 20 reach, least layer",
              (float(share.min()),), 0.9)
    ]  # fmt: skip


def final_nats(small: pd.DataFrame) -> pd.DataFrame:
    """Held-out nats after distillation: rows (bpp, residual, seed), columns methods."""
    last = small[small.step == small.groupby(["method", "bpp", "residual", "seed"]).step.transform("max")]
    return last.pivot_table(index=["bpp", "residual", "seed"], columns="method", values="nats")


def _small_claims(small: pd.DataFrame) -> list[Claim]:
    found = []
    table = final_nats(small)
    for bpp in (0.55, 0.3):
        at = table.xs((bpp, False), level=("bpp", "residual"))
        name = f"small/bpp_{round(100 * bpp):03d}"

        # Perplexity saved against another start, in parts of it.
        gap = {
            other: tuple(float(v) for v in 1 - np.exp((at["joint_itq"] - at[other]).to_numpy()))
            for other in INITS
        }
        found += [
            Claim(f"{name}/over_svd", f"{bpp} bpp distilled alike: perplexity saved by Joint-ITQ against SVD",
                  gap["svd"], 0.0),
            Claim(f"{name}/over_svd_mean", "the same, mean of at least 3 %", gap["svd"], 0.03, rule="mean"),
            Claim(f"{name}/over_random", f"{bpp} bpp distilled alike: against a random rotation",
                  gap["random_rotation"], 0.0),
            Claim(f"{name}/over_admm", f"{bpp} bpp distilled alike: against the start from ADMM",
                  gap["admm"], 0.0),
        ]  # fmt: skip
        for method in INITS:
            values = tuple(float(np.exp(v)) for v in at[method])
            found.append(Claim(f"{name}/perplexity/{method}", f"perplexity per byte from {method}", values))
    one = table.xs(True, level="residual").joint_itq
    other = table.onebit.dropna().droplevel("residual")
    values = tuple(float(v) for v in np.exp(one.to_numpy() - other.to_numpy()) - 1)
    found.append(
        Claim("small/over_onebit", "perplexity of Joint-ITQ (residual) above OneBit at its size, distilled alike, mean",
              values, 0.02, "<=", rule="mean")
    )  # fmt: skip
    before = small[(small.step == 0) & (small.method == "joint_itq") & (small.bpp == 0.55)]
    found.append(
        Claim("small/undistilled", "perplexity per byte of Joint-ITQ at 0.55 bpp before distillation",
              tuple(float(np.exp(v)) for v in before.sort_values("seed").nats))
    )  # fmt: skip
    teachers = small.groupby("seed").teacher_nats.first()
    found.append(
        Claim("small/teacher", "perplexity per byte of the teachers", tuple(np.exp(teachers).astype(float)))
    )
    return found


def _model_claims(model: pd.DataFrame) -> list[Claim]:
    found = []
    packed = model[model.step == -1].set_index("method")
    for method, row in packed.iterrows():
        found.append(
            Claim(f"model/perplexity/{method}", f"held-out perplexity of {method}", (float(row.perplexity),))
        )
        found.append(
            Claim(f"model/megabytes/{method}", f"weight files of {method} in MB", (row.file_bytes / 1e6,))
        )
        found.append(
            Claim(
                f"model/stored_bpp/{method}", "stored bits a weight of its layers", (float(row.stored_bpp),)
            )
        )
        found.append(
            Claim(f"model/whole_bits/{method}", "bits a parameter of all", (float(row.whole_model_bits),))
        )
    if {"joint_itq", "svd"} <= set(packed.index):
        gap = 1 - packed.perplexity["joint_itq"] / packed.perplexity["svd"]
        found.append(
            Claim("model/over_svd", "perplexity saved by Joint-ITQ against SVD, distilled alike", (gap,), 0.0)
        )
    first = model[(model.step == 0)].set_index("method").perplexity
    for method, value in first.items():
        found.append(
            Claim(f"model/undistilled/{method}", f"perplexity of {method} before distillation", (value,))
        )
    if "embedding_share" in packed and "joint_itq" in packed.index:
        found.append(
            Claim("model/embedding_share", "share of the file that embedding and head take",
                  (float(packed.embedding_share["joint_itq"]),))
        )  # fmt: skip
    return found


def _rate_claims(rates: pd.DataFrame) -> list[Claim]:
    """Short runs of the whole model: the chosen learning rates, and the gap of each seed at these."""
    chosen = rates[rates.chosen]
    found = [
        Claim(f"model/rate/{method}", f"learning rate chosen for {method}", (float(part.rate.iloc[0]),))
        for method, part in chosen.groupby("method", sort=False)
    ]
    table = chosen.pivot_table(index="seed", columns="method", values="nats")
    found += [
        Claim(f"model/short/{method}", f"perplexity of {method} after a short run, by seed",
              tuple(float(np.exp(v)) for v in table[method]))
        for method in table
    ]  # fmt: skip
    if {"joint_itq", "svd"} <= set(table):
        gap = tuple(float(v) for v in 1 - np.exp(table.joint_itq - table.svd))
        found.append(
            Claim(
                "model/short/over_svd",
                "perplexity saved by Joint-ITQ against SVD in short runs, each seed",
                gap,
                0.0,
            )
        )
    return found
