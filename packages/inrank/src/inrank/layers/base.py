r"""What every low-rank layer is: two factors, an active number of directions, and exact ways to change it.

    D = U V,   U (m, k), V (k, n),   k = rank + buffer active directions,

    W = W_0 + D  (plain InRank; W_0 is a frozen buffer)     or     W = U V  (InRank-Efficient).

Zhao et al. 2023 (arXiv:2306.11250), sections 4.1 and 4.2. Of the official code's factors, B is U and A is V. Growing
appends orthonormal rows to V and zero columns to U: the function does not change (to the bit in float64, else up to
the order in which a wider matrix product sums), and the new directions learn from the next step on, since the gradient
of U's new columns is not zero.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from inrank.config import InRankConfig
from inrank.initialization import derived_generator, fresh_directions, initial_factors
from inrank.layers.factor_change import FactorChange, balanced
from inrank.layers.sharding import read_whole, write_whole
from inrank.spectrum import difference_factors, product_singular_values

__all__ = ["FLOATS", "LowRankLayer"]

# What factors can be made of: torch also calls 8-bit types floating, but computes little with them.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Directions that are computed at once in float64.
_BLOCK = 32

# Errors of the rank check's singular values (docs/decisions/021). Those of D may be larger: its factors are nearer to
# dependent, and no rule sees 1e-5 of the largest.
_TOLERANCE, _UPDATE_TOLERANCE = 1e-6, 1e-5


class LowRankLayer(nn.Module, abc.ABC):
    """Base of all low-rank layers.

    Attributes:
        u: Parameter (m, capacity); with groups, rows in blocks of m / groups.
        v: Parameter (capacity, n), or (groups, capacity, n) if groups > 1.
        weight0: W_0 in the layout of the replaced layer (buffer), or None.
        bias: Parameter or None.
        rank: Directions that count, r.
        active: Directions that are computed and trained: r + buffer, padded.
        max_rank: Largest rank.
        growing: Whether a controller may change the rank.
        starts_at_zero: Whether U V was zero at the start, so that it is the update D.
        config: What the layer was made with.
    """

    keeps_dense: ClassVar[bool] = False
    u: nn.Parameter
    v: nn.Parameter
    weight0: Tensor | None
    initial_u: Tensor | None
    initial_v: Tensor | None

    def __init__(
        self,
        dense: Tensor,
        *,
        config: InRankConfig,
        groups: int = 1,
        name: str = "",
        generator: torch.Generator | None = None,
    ) -> None:
        """Make the factors.

        Args:
            dense: The weight that is replaced, in matrix form (groups, m / groups, n).
            config: Ranks and initialization; whether W_0 is kept is a matter of the class, not of config.mode.
            groups: Independent blocks that share one rank.
            name: Of the layer, for messages and seeds.
            generator: Source of randomness on the CPU; default: seeded by config.seed and the name.

        Raises:
            TypeError: If the weight's type is not among `FLOATS`.
            ValueError: If rank + buffer do not fit, or W = U V would start at zero.
        """
        super().__init__()
        config = dataclasses.replace(config, mode="full" if self.keeps_dense else "efficient")
        if not self.keeps_dense and (config.resolved_init == "zero" or config.init_scale == 0):
            raise ValueError(
                f"{name or type(self).__name__}: without W_0 the layer would start at W = U V = 0; two such layers in "
                'a row are a saddle whose gradients are zero for ever: choose another init or mode="full"'
            )
        if dense.dtype not in FLOATS:
            raise TypeError(
                f"{name or 'the layer'}: the weight is {dense.dtype}; low-rank factors need a floating type"
            )
        self.config, self.groups, self.name = config, groups, name
        self.rows, self.columns = dense.shape[1] * groups, dense.shape[2]
        self.full_rank = min(dense.shape[1], dense.shape[2])
        self.buffer_size = config.buffer_of(self.full_rank)
        self.max_rank = config.max_rank_of(self.full_rank)
        self.rank = config.rank
        self.growing = True
        self._check_ranks()
        self.active = self.padded(self.rank + self.buffer_size)
        stored = self.largest_active if config.storage == "reserve" else self.active
        generator = generator or derived_generator(config.seed, name)
        init = config.resolved_init
        # the official code draws all R directions at once and exposes more of them as it grows
        drawn = stored if config.strict else self.active
        u, v = initial_factors(
            init, dense, drawn, allocated=self.max_rank, scale=config.init_scale, generator=generator
        )
        u = torch.nn.functional.pad(u, (0, stored - drawn))
        v = torch.nn.functional.pad(v, (0, 0, 0, stored - drawn))
        self.u = nn.Parameter(u.reshape(self.rows, stored).contiguous())
        self.v = nn.Parameter((v if groups > 1 else v[0]).contiguous())
        # D = U V - U_0 V_0 needs the initial product, where there is one and its spectrum is asked for
        self.starts_at_zero = init == "zero"
        keeps_initial = config.resolved_spectrum == "update" and not self.starts_at_zero
        first = u[..., : self.active].clone(memory_format=torch.contiguous_format)
        self.register_buffer("initial_u", first if keeps_initial else None)
        first = v[..., : self.active, :].clone(memory_format=torch.contiguous_format)
        self.register_buffer("initial_v", first if keeps_initial else None)

    @classmethod
    def from_dense(
        cls, dense: Any, config: InRankConfig, *, name: str = "", generator: torch.Generator | None = None
    ) -> Self:
        """The low-rank layer that replaces a dense one, whose bias and, in full mode, weight it copies.

        Args:
            dense: The layer.
            config: Ranks and initialization.
            name: Of the layer, for messages and seeds.
            generator: Source of randomness on the CPU.

        Raises:
            TypeError: If the weight's type is not among `FLOATS`.
            ValueError: If ranks do not fit or a setting of the layer has no low-rank counterpart.
        """
        layer = cls.__new__(cls)
        layer._build(dense, config, name, generator)
        return layer

    @abc.abstractmethod
    def _build(self, dense: Any, config: InRankConfig, name: str, generator: torch.Generator | None) -> None:
        """Initialize from a dense layer."""

    def _copy(self, dense: Any) -> None:
        """W_0, the bias and the mode of a dense layer."""
        self.register_buffer("weight0", dense.weight.detach().clone() if self.keeps_dense else None)
        bias = getattr(dense, "bias", None)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
        self.train(dense.training)

    def _check_ranks(self) -> None:
        name = self.name or type(self).__name__
        if self.rank > self.max_rank:
            raise ValueError(
                f"{name}: rank {self.rank} exceeds max_rank {self.max_rank} of a {self.rows} x {self.columns} weight; "
                "lower rank or raise max_rank"
            )
        limit = self.max_rank if self.config.strict else self.full_rank
        if self.rank + self.buffer_size > limit:
            raise ValueError(
                f"{name}: rank {self.rank} + buffer {self.buffer_size} exceeds {limit}, the limit of a "
                f"{self.rows} x {self.columns} weight; lower rank or buffer, or exclude the layer"
            )

    # -- sizes ---------------------------------------------------------------------------------------------------

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(m, n): rows of U and columns of V."""
        return self.rows, self.columns

    @property
    def largest_active(self) -> int:
        """Directions at the largest rank: beyond the break-even only if the configuration's ranks ask for it.

        The official release has R for rank and buffer together.
        """
        if self.config.strict:
            return self.max_rank
        most = min(self.max_rank + self.buffer_size, self.full_rank)
        m, n = self.rows // self.groups, self.columns
        break_even = m * n // (m + n)
        if self.keeps_dense or self.max_rank > break_even:
            return most
        return min(most, max(break_even, self.config.rank + self.buffer_size))

    @property
    def capacity(self) -> int:
        """Directions that are stored."""
        return self.u.shape[-1]

    @property
    def buffer(self) -> int:
        """Directions that are trained beyond the rank."""
        return self.active - self.rank

    def padded(self, directions: int) -> int:
        """The number of active directions for this many wanted ones."""
        multiple = self.config.pad_to
        return min(-(-directions // multiple) * multiple, max(self.largest_active, self.rank))

    # -- values --------------------------------------------------------------------------------------------------

    def factors(self) -> tuple[Tensor, Tensor]:
        """The active factors, detached: (groups, m / groups, active) and (groups, active, n)."""
        u = read_whole(self.u).detach()[:, : self.active]
        v = read_whole(self.v).detach()
        v = v if self.groups > 1 else v[None]
        return self._grouped(u), v[:, : self.active]

    def _grouped(self, u: Tensor) -> Tensor:
        """(m, k) as (groups, m / groups, k)."""
        return u.reshape(self.groups, self.rows // self.groups, u.shape[-1])

    def active_factors(self) -> tuple[Tensor, Tensor]:
        """The factors that the forward pass uses: (m, active) and (active, n) or (groups, active, n)."""
        if self.active == self.capacity:
            return self.u, self.v
        return self.u[:, : self.active], self.v[..., : self.active, :]

    def direction_blocks(self) -> list[tuple[Tensor, Tensor]]:
        """The active factors as the forward pass adds them up: U V = sum_j U_j V_j.

        One block; in float64, where growth is to leave every bit of the output as it is, blocks of a fixed width, the
        last filled up with zeros: growth then only turns zeros of V into numbers that meet zeros of U, or adds blocks
        that add zero. (A wider matrix product may sum in another order and differ in the last bits.)
        """
        u, v = self.active_factors()
        if self.active and u.dtype != torch.float64:
            return [(u, v)]
        blocks = max(1, -(-self.active // _BLOCK))
        spare = blocks * _BLOCK - self.active
        u, v = torch.nn.functional.pad(u, (0, spare)), torch.nn.functional.pad(v, (0, 0, 0, spare))
        return list(zip(torch.split(u, _BLOCK, -1), torch.split(v, _BLOCK, -2), strict=True))

    def update_factors(self) -> tuple[Tensor, Tensor]:
        """Factors of D, the update since the start: U, V, or if it was not zero those of U V - U_0 V_0.

        Raises:
            ValueError: If the initial factors would be needed and are not there.
        """
        u, v = self.factors()
        if self.initial_u is None or self.initial_v is None:
            if not self.starts_at_zero:
                raise ValueError(
                    f"layer {self.name or type(self).__name__}: the initial factors are not kept, so that the update "
                    'since the start is not known (spectrum="product", or finalized)'
                )
            return u, v
        return difference_factors(u, v, self.initial_u, self.initial_v)

    def singular_values(self, spectrum: str | None = None, method: str | None = None) -> Tensor:
        """Singular values (groups, min(m / groups, n)), zeros included, that the rank rule looks at.

        Args:
            spectrum: ``"product"`` (U V) or ``"update"`` (D); default: the configuration's.
            method: See `inrank.spectrum.product_singular_values`; default: the configuration's.

        Raises:
            FloatingPointError: If a factor is not finite; names the layer.
        """
        update = (spectrum or self.config.resolved_spectrum) == "update"
        u, v = self.update_factors() if update else self.factors()
        try:
            return product_singular_values(
                u,
                v,
                method=method or self.config.method,
                generator=torch.Generator(u.device).manual_seed(self.config.seed),
                tolerance=_UPDATE_TOLERANCE if update else _TOLERANCE,
                floor=update,  # rounding errors are left where U V and U_0 V_0 are equal
            )
        except FloatingPointError as error:
            raise FloatingPointError(f"layer {self.name or type(self).__name__}: {error}") from error

    def product(self) -> Tensor:
        """U V in at least float32, (groups, m / groups, n)."""
        u, v = self.factors()
        dtype = torch.promote_types(u.dtype, torch.float32)
        with torch.autocast(u.device.type, enabled=False):
            return u.to(dtype) @ v.to(dtype)

    @abc.abstractmethod
    def as_matrix(self, weight: Tensor) -> Tensor:
        """A weight in the replaced layer's layout as (groups, m / groups, n)."""

    @abc.abstractmethod
    def as_weight(self, matrix: Tensor) -> Tensor:
        """The inverse of `as_matrix`."""

    def dense_weight(self, dtype: torch.dtype | None = None) -> Tensor:
        """W in the layout of the replaced layer, summed in at least float32 and then cast.

        Args:
            dtype: Of the result; default: that of the factors.
        """
        product = self.as_weight(self.product())
        if self.weight0 is not None:
            product = product + read_whole(self.weight0).to(product)
        return product.to(dtype or self.u.dtype)

    @property
    def weight(self) -> Tensor:
        """W, differentiable: for code that reads a layer's weight by itself (T5, nn.TransformerEncoderLayer).

        The dense matrix is built at every access; the layer's own forward pass never does so.
        """
        u, v = self.active_factors()
        product = self.as_weight(self._grouped(u) @ (v if self.groups > 1 else v[None]))
        return product if self.weight0 is None else product + self.weight0

    @abc.abstractmethod
    def to_dense(self) -> nn.Module:
        """The layer with a dense weight, of the type that was replaced."""

    # -- changes -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def resize(
        self,
        rank: int,
        buffer: int | None = None,
        *,
        how: str = "append",
        generator: torch.Generator | None = None,
    ) -> FactorChange:
        """Set the rank, changing the parameters in place (their identity is kept, their gradients are dropped).

        Args:
            rank: New rank.
            buffer: Directions beyond it; default: the configuration's, as far as there is room.
            how: ``"append"``: fresh directions with U = 0 after the present ones, or none; never drops one: the
                function is exactly unchanged. ``"svd"``: balanced singular directions, U = P sqrt(S),
                V = sqrt(S) Q^T, the smallest ones dropped: the function changes by what was dropped only.
                ``"slice"``: the official release: the first ones are kept as they are, reserved ones are exposed.
            generator: Of fresh directions, on the CPU; default: seeded by config.seed, the name and `active`.

        Returns:
            What was done, for the optimizer's state.

        Raises:
            ValueError: If the rank does not fit or `how` cannot do it.
        """
        if not isinstance(rank, int) or not 0 <= rank <= self.full_rank:
            raise ValueError(f"layer {self.name}: rank {rank} is not in 0..{self.full_rank}")
        if how not in ("append", "svd", "slice"):
            raise ValueError(f"unknown how {how!r}; known: append, svd, slice")
        if buffer is not None and buffer < 0:
            raise ValueError(f"layer {self.name}: buffer {buffer} is negative")
        old, old_limit = self.active, self.max_rank
        self.max_rank = max(self.max_rank, rank)
        if buffer is None:
            new = self.padded(max(min(rank + self.buffer_size, self.largest_active), rank))
        else:
            new = max(min(rank + buffer, self.full_rank), rank)
        if how == "append":
            new = max(new, old)
        if new > self.capacity and (how == "slice" or self.config.storage == "reserve"):
            self.max_rank = old_limit
            raise ValueError(
                f"layer {self.name}: {new} directions do not fit into {self.capacity} stored ones; "
                "raise max_rank when the model is wrapped"
            )
        if how == "append":
            change = FactorChange(old, new, kept=old)
            u, v = self.factors()
            u, v = self._appended(u, v, new - old, generator)
        elif how == "svd":
            u, v, change = balanced(*self.factors(), min(new, old), new)
            u, v = self._appended(u, v, change.added, generator)
        else:
            self.rank, self.active = rank, new
            return FactorChange(old, new, kept=new)
        self.rank, self.active = rank, new
        self._store(u, v)
        return change

    def _appended(self, u: Tensor, v: Tensor, added: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        if not added:
            return u, v
        generator = generator or derived_generator(self.config.seed, self.name, self.active)
        fresh = fresh_directions(v, added, generator=generator)
        return torch.nn.functional.pad(u, (0, added)), torch.cat([v, fresh], -2)

    def _store(self, u: Tensor, v: Tensor) -> None:
        spare = self.capacity - u.shape[-1] if self.config.storage == "reserve" else 0
        u = torch.nn.functional.pad(u, (0, spare)).flatten(0, 1)
        v = torch.nn.functional.pad(v, (0, 0, 0, spare))
        write_whole(self.u, u)
        write_whole(self.v, v if self.groups > 1 else v[0])

    # -- saving --------------------------------------------------------------------------------------------------

    def ranks(self) -> dict[str, Any]:
        """What JSON must say of the layer so that it can be built again (`restore_ranks`)."""
        return {
            "rank": self.rank,
            "active": self.active,
            "capacity": self.capacity,
            "max_rank": self.max_rank,
            "growing": self.growing,
            "initial": None if self.initial_u is None else self.initial_u.shape[-1],
        }

    @torch.no_grad()
    def restore_ranks(self, ranks: dict[str, Any]) -> None:
        """Give the factors the sizes of a saved layer; their values are to be loaded next."""
        self.rank, self.active = ranks["rank"], ranks["active"]
        self.max_rank, self.growing = ranks["max_rank"], ranks["growing"]
        capacity = ranks["capacity"]
        if capacity != self.capacity:
            write_whole(self.u, self.u.new_zeros(self.rows, capacity))
            write_whole(self.v, self.v.new_zeros(*self.v.shape[:-2], capacity, self.columns))
        count = ranks["initial"]
        dtype, device = self.u.dtype, self.u.device  # new_zeros of a sharded factor would be sharded
        shape_u, shape_v = (self.groups, self.rows // self.groups, count), (self.groups, count, self.columns)
        self.initial_u = None if count is None else torch.zeros(shape_u, dtype=dtype, device=device)
        self.initial_v = None if count is None else torch.zeros(shape_v, dtype=dtype, device=device)

    def extra_repr(self) -> str:
        """Shape and ranks."""
        kind = "W_0 + U V" if self.weight0 is not None else "U V"
        return f"{self.rows} x {self.columns}, {kind}, rank {self.rank} + {self.buffer} of {self.full_rank}"
