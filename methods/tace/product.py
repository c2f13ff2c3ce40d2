"""The tensor product of irreducible Cartesian tensors, with the interface and the normalisation of e3nn's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import torch
from e3nn import o3
from torch import Tensor, nn

from methods.common.errors import ConfigError, DataError
from methods.tace.irreps import Basis, check_features, irreps, project, size_of, to_cartesian, to_spherical
from methods.tace.paths import coupling as wigner
from methods.tace.symbols import Symbol, cartesian_3j, contract, contract_one, contraction_of, size_factor

Backend = Literal["auto", "contraction", "dense", "spherical"]
MODES = ("uvw", "uvu", "uvv", "uuw", "uuu", "uvuv")
PAIRED = ("uuw", "uuu")  # channel by channel
SUMS = {  # of the coupled channels with the weights; z: rows
    "uvw": "zuvk,{z}uvw->zwk",
    "uvu": "zuvk,{z}uv->zuk",
    "uvv": "zuvk,{z}uv->zvk",
    "uvuv": "zuvk,{z}uv->zuvk",
    "uuw": "zuk,{z}uw->zwk",
    "uuu": "zuk,{z}u->zuk",
}


class _Step(NamedTuple):
    """One instruction as it is computed."""

    first: int
    second: int
    out: int
    mode: str
    weights: tuple[int, ...]  # shape; empty without weights
    scale: float
    ranks: tuple[int, int, int]


class TensorProduct(nn.Module):
    """Weighted couplings of two Cartesian features, path by path, as e3nn's `TensorProduct` for spherical ones.

    With canonical symbols it is the same function of the same weights: to the Cartesian form of e3nn's inputs it gives
    the Cartesian form of e3nn's output. Inputs must be irreducible.

    Args:
        irreps_in1, irreps_in2, irreps_out: irreps of inputs and output.
        instructions: (i_in1, i_in2, i_out, mode, has_weight[, path_weight]); modes uvw, uvu, uvv, uuw, uuu, uvuv.
        irrep_normalization: "component", "norm" or "none"; counts 2 l + 1 numbers a tensor, not 3^l.
        path_normalization: "element", "path" or "none".
        internal_weights: hold the weights; False takes them at each call.
        shared_weights: the same weights for every row; False takes (rows, weight_numel).
        project: give irreducible tensors; False leaves that to `irreps.project`, once, behind sums and linear maps.
        backend: "contraction" contracts axes; "dense" builds the symbols; "spherical" changes basis, couples there, and
            changes back; "auto" is "contraction".
        symbol: "path" scales each path as the published symbol does, "contraction" as TACE's contractions.
        basis: "spherical" takes and gives e3nn's features, for twins of one class; `backend` is then of no matter.

    Raises:
        ConfigError: a setting that is none of these, an instruction that names no irrep, that breaks the triangle rule
            or the parity, or a mode whose multiplicities differ.
    """

    def __init__(
        self,
        irreps_in1: Any,
        irreps_in2: Any,
        irreps_out: Any,
        instructions: Sequence[tuple[Any, ...]],
        *,
        irrep_normalization: str = "component",
        path_normalization: str = "element",
        internal_weights: bool = True,
        shared_weights: bool = True,
        project: bool = True,
        backend: Backend = "auto",
        symbol: Symbol = "canonical",
        basis: Basis = "cartesian",
    ) -> None:
        super().__init__()
        self.irreps_in1, self.irreps_in2 = irreps(irreps_in1, "irreps_in1"), irreps(irreps_in2, "irreps_in2")
        self.irreps_out = irreps(irreps_out, "irreps_out")
        if internal_weights and not shared_weights:
            raise ConfigError("internal_weights=True: held weights are shared; set shared_weights=True")
        for name, value, allowed in (
            ("backend", backend, get_args(Backend)),
            ("symbol", symbol, get_args(Symbol)),
            ("basis", basis, get_args(Basis)),
            ("irrep_normalization", irrep_normalization, ("component", "norm", "none")),
            ("path_normalization", path_normalization, ("element", "path", "none")),
        ):
            if value not in allowed:
                raise ConfigError(f"{name} {value!r}: give one of {', '.join(allowed)}")
        items = [self._checked(number, item, symbol) for number, item in enumerate(instructions)]
        self.basis, self.project, self.shared_weights = basis, project, shared_weights
        chosen = "contraction" if backend == "auto" else backend
        self.form = "spherical" if basis == "spherical" else chosen
        # e3nn knows every normalisation; its kernel, whose constants have the default dtype, is not built.
        reference = o3.TensorProduct(
            self.irreps_in1,
            self.irreps_in2,
            self.irreps_out,
            items,
            irrep_normalization=irrep_normalization,
            path_normalization=path_normalization,
            internal_weights=False,
            shared_weights=shared_weights,
            compile_left_right=False,
            compile_right=False,
        )
        self.steps = [self._step(item) for item in reference.instructions]
        self.weight_numel = int(reference.weight_numel)
        self.weight = nn.Parameter(torch.randn(self.weight_numel)) if internal_weights else None

    def _checked(self, number: int, item: tuple[Any, ...], symbol: Symbol) -> tuple[Any, ...]:
        """The instruction with its path weight, which the published symbol's size multiplies."""
        if len(item) not in (5, 6):
            raise ConfigError(
                f"instruction {number} {item}: give (i_in1, i_in2, i_out, mode, has_weight) or a path weight behind"
            )
        *places, mode, weighted = item[:5]
        parts = []
        for name, place, of in zip(
            ("i_in1", "i_in2", "i_out"),
            places,
            (self.irreps_in1, self.irreps_in2, self.irreps_out),
            strict=True,
        ):
            if not 0 <= place < len(of):
                raise ConfigError(f"instruction {number}: {name} {place} is no irrep of {of}")
            parts.append(of[place])
        (u, one), (v, two), (w, out) = parts
        if out not in one * two:
            raise ConfigError(
                f"instruction {number}: {one} times {two} has no {out}; rank or parity forbids it"
            )
        if mode not in MODES:
            raise ConfigError(f"instruction {number}: mode {mode!r}; give one of {', '.join(MODES)}")
        fits = {
            "uvw": True,
            "uvu": w == u,
            "uvv": w == v,
            "uvuv": w == u * v,
            "uuw": u == v,
            "uuu": u == v == w,
        }
        if not fits[mode]:
            raise ConfigError(f"instruction {number}: multiplicities {u}, {v}, {w} do not fit mode {mode}")
        if mode in ("uvw", "uuw") and not weighted:
            raise ConfigError(
                f"instruction {number}: mode {mode} mixes channels by weights; set has_weight=True"
            )
        size = size_factor(symbol, one.l, two.l, out.l) ** 2
        return (*places, mode, bool(weighted), (item[5] if len(item) == 6 else 1.0) * size)

    def _step(self, item: Any) -> _Step:
        ranks = (
            self.irreps_in1[item.i_in1].ir.l,
            self.irreps_in2[item.i_in2].ir.l,
            self.irreps_out[item.i_out].ir.l,
        )
        shape = tuple(item.path_shape) if item.has_weight else ()
        mode = str(item.connection_mode)
        return _Step(item.i_in1, item.i_in2, item.i_out, mode, shape, float(item.path_weight), ranks)

    def forward(self, first: Tensor, second: Tensor, weight: Tensor | None = None) -> Tensor:
        """Couple row by row.

        Args:
            first, second: (..., width of their irreps in the basis), the same leading axes.
            weight: (weight_numel,) where shared, else (..., weight_numel); None takes the held ones.

        Returns:
            (..., width of the output).

        Raises:
            DataError: another size; TypeError: no floating-point numbers.
        """
        check_features(first, self.irreps_in1, self.basis, "first")
        check_features(second, self.irreps_in2, self.basis, "second")
        lead = first.shape[:-1]
        if second.shape[:-1] != lead:
            raise DataError(
                f"second {tuple(second.shape)}: its leading axes must be {tuple(lead)}, as those of first"
            )
        weights = self._weights(weight, lead)
        if weights is not None and not self.shared_weights:
            weights = weights.reshape(lead.numel(), self.weight_numel)
        around = self.basis == "cartesian" and self.form == "spherical"
        if around:
            first, second = to_spherical(first, self.irreps_in1), to_spherical(second, self.irreps_in2)
        found = self._coupled(
            first.reshape(lead.numel(), first.shape[-1]),
            second.reshape(lead.numel(), second.shape[-1]),
            weights,
        )
        if around:
            found = to_cartesian(found, self.irreps_out)
        elif self.project and self.form == "contraction":
            found = project(found, self.irreps_out)
        return found.reshape(*lead, found.shape[-1])

    def _weights(self, weight: Tensor | None, lead: torch.Size) -> Tensor | None:
        if weight is None:
            if self.weight is None and self.weight_numel:
                raise DataError(f"weight: this product holds none; give {self.weight_numel} numbers")
            return self.weight
        expected = (self.weight_numel,) if self.shared_weights else (*lead, self.weight_numel)
        if tuple(weight.shape) != expected:
            raise DataError(f"weight {tuple(weight.shape)}: must be {tuple(expected)}")
        return weight

    def _coupled(self, first: Tensor, second: Tensor, weights: Tensor | None) -> Tensor:
        rows = first.shape[0]
        inner: Basis = "spherical" if self.form == "spherical" else "cartesian"
        parts1, parts2 = self.irreps_in1.parts(inner), self.irreps_in2.parts(inner)
        sums: list[Tensor | None] = [None] * len(self.irreps_out)
        place = 0
        for step in self.steps:
            one = first[:, parts1[step.first]].unflatten(
                1, (self.irreps_in1[step.first].mul, size_of(step.ranks[0], inner))
            )
            two = second[:, parts2[step.second]].unflatten(
                1, (self.irreps_in2[step.second].mul, size_of(step.ranks[1], inner))
            )
            coupled, scale = self._couple(one, two, step)
            if step.weights:
                assert weights is not None
                count = int(torch.Size(step.weights).numel())
                own = weights[..., place : place + count] * (scale * step.scale)
                place += count
                letter = "" if own.ndim == 1 else "z"
                own = own.reshape(*([rows] if letter else []), *step.weights)
                coupled = torch.einsum(SUMS[step.mode].format(z=letter), coupled, own)
            else:
                axes = {"uvu": 2, "uvv": 1}.get(step.mode)
                coupled = (coupled if axes is None else coupled.sum(axes)) * (scale * step.scale)
            flat = coupled.flatten(1)
            before = sums[step.out]
            sums[step.out] = flat if before is None else before + flat
        return torch.cat(
            [first[:, :0]]
            + [
                first.new_zeros(rows, mul * size_of(ir.l, inner)) if part is None else part
                for part, (mul, ir) in zip(sums, self.irreps_out, strict=True)
            ],
            dim=1,
        )

    def _couple(self, one: Tensor, two: Tensor, step: _Step) -> tuple[Tensor, float]:
        """The channels coupled, and the number that makes it the canonical product."""
        paired = step.mode in PAIRED
        if self.form == "contraction":
            plan = contraction_of(*step.ranks)
            coupling = contract_one if paired else contract
            return coupling(one, two, step.ranks[0], step.ranks[1], plan.pairs, plan.crossed), plan.scale
        symbol = _symbol(self.form, step.ranks, one.dtype, one.device)
        half = torch.tensordot(two, symbol, ([2], [1]))  # rows, v, i, k
        if paired:
            return (one.unsqueeze(2) @ half).squeeze(2), 1.0
        rows, v, i, k = half.shape
        found = torch.bmm(one, half.transpose(1, 2).reshape(rows, i, v * k))
        return found.reshape(rows, one.shape[1], v, k), 1.0


@cache
def _symbol(form: str, ranks: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    symbol = wigner(*ranks) if form == "spherical" else cartesian_3j(*ranks)
    return symbol.to(dtype=dtype, device=device)
