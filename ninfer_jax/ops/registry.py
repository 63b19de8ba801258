"""The implementations of `matmul` by name, what each supports, and the choice among them.

Names are registered unconditionally; whether one can run is asked of it, for one problem and one device. Nothing here
multiplies.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from jaxtyping import Array

from ninfer_jax.errors import UnsupportedError
from ninfer_jax.ops.epilogue import Epilogue

DECODE_ROWS = 16
Device: TypeAlias = Any
"""A `jax.Device`, which type checkers take for a variable; its `platform` and `device_kind` are used."""
Regime = Literal["decode", "prefill"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """One product, as the implementations see it.

    Attributes:
        format: canonical name of the weight's format.
        m: rows of x, elements.
        n: rows of the weight, elements.
        k: columns of the weight, elements.
        x_dtype: dtype name of x.
        out_dtype: dtype name of y.
        epilogue: what is done to the sums before they are rounded to y.
    """

    format: str
    m: int
    n: int
    k: int
    x_dtype: str
    out_dtype: str
    epilogue: Epilogue = Epilogue()  # noqa: RUF009, frozen

    @property
    def sums(self) -> "Problem":
        """The product alone: with an epilogue to come, its sums in float32."""
        return dataclasses.replace(self, out_dtype="float32", epilogue=Epilogue()) if self.epilogue else self

    @property
    def regime(self) -> Regime:
        """`decode` for M <= 16, where reading the weight is all the time there is, else `prefill`."""
        return "decode" if self.m <= DECODE_ROWS else "prefill"


class Implementation(ABC):
    """One way to compute the product; stateless.

    Attributes:
        name: what it is asked for by.
        by_name_only: whether it is left out unless it is named, because its results answer to another criterion.
    """

    name: ClassVar[str]
    by_name_only: ClassVar[bool] = False

    @abstractmethod
    def supports(self, problem: Problem, device: Device) -> str | None:
        """Why it cannot run the problem on the device, or None where it can."""

    @abstractmethod
    def describe(self, problem: Problem, device: Device) -> str:
        """One line on how it runs a problem that it supports."""

    def cannot_fuse(self, problem: Problem, device: Device) -> str | None:
        """Why the epilogue of a problem, whose product it supports, is no part of it; None where it is."""
        return f"{self.name} has products alone"

    @abstractmethod
    def product(
        self, x: Array, planes: Any, problem: Problem, platform: str, operands: tuple[Array, ...] = ()
    ) -> Array:
        """`y[m, n] = sum_k x[m, k] * w[n, k]` on local arrays, in `problem.out_dtype`.

        Args:
            x: [M, columns], columns with or without the padding.
            planes: of the weight.
            problem: the product, with an epilogue only where `cannot_fuse` gives no reason.
            platform: where it runs.
            operands: of the epilogue, in the order of `Epilogue.terms`.
        """


Choice = str | Sequence[str] | None


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Which implementation a product takes, and why; printing it gives the same in words.

    Attributes:
        problem: the product.
        device: the device it was asked for.
        implementation: name of the one chosen.
        how: one line on how it runs.
        rejected: for each name tried before it, the reason why it cannot run.
        apart: why an epilogue is not part of the product but follows it, or None where it is, or there is none.
    """

    problem: Problem
    device: str
    implementation: str
    how: str
    rejected: Mapping[str, str]
    apart: str | None = None

    def __str__(self) -> str:
        p = self.problem
        head = f"{p.format} [{p.n}, {p.k}], M = {p.m} ({p.regime}), {p.x_dtype} -> {p.out_dtype} on {self.device}"
        lines = [head, f"  {self.implementation}: {self.how}"]
        if p.epilogue:
            where = "in the kernel" if self.apart is None else f"after float32 sums, by XLA ({self.apart})"
            lines.append(f"  {p.epilogue}: {where}")
        return "\n".join(lines + [f"  not {name}: {reason}" for name, reason in self.rejected.items()])


def choose(
    implementations: Mapping[str, Implementation], problem: Problem, device: Device, choice: Choice
) -> Explanation:
    """The first implementation, in the order given or registered, that supports the problem on the device.

    Args:
        implementations: registered ones by name, in order of preference.
        problem: the product; an implementation without its epilogue is taken for the product alone.
        device: where it is to run.
        choice: None for all that need not be named, one name, or a sequence of names in order of preference.

    Raises:
        UnsupportedError: for an unknown name, or where none of those asked for can run; with every reason.
    """
    what = f"multiply {problem.format} [{problem.n}, {problem.k}] by M = {problem.m} of {problem.x_dtype}"
    name, rejected = first_supported(implementations, problem.sums, device, choice, what)
    chosen = implementations[name]
    apart = chosen.cannot_fuse(problem, device) if problem.epilogue else None
    how = chosen.describe(problem.sums if apart else problem, device)
    return Explanation(problem, device_text(device), name, how, rejected, apart)


def first_supported(
    implementations: Mapping[str, Any], problem: Any, device: Device, choice: Choice, what: str
) -> tuple[str, dict[str, str]]:
    """The name that `choose` explains, and the reasons why those tried before it cannot run.

    Args:
        implementations: registered ones by name, in order of preference; each with `by_name_only` and `supports`.
        problem: what `supports` is asked about.
        device, choice: as in `choose`.
        what: what is to be done, for the message.

    Raises:
        UnsupportedError: as `choose`.
    """
    if not isinstance(choice, str | Sequence | None):
        raise UnsupportedError(f"implementation {choice!r}: give a name, a sequence of names, or None")
    unnamed = [name for name, implementation in implementations.items() if not implementation.by_name_only]
    names = unnamed if choice is None else [choice] if isinstance(choice, str) else list(choice)
    rejected: dict[str, str] = {}
    for name in names:
        if name not in implementations:
            raise UnsupportedError(f"unknown implementation {name!r}; registered: {', '.join(implementations)}")
        reason = implementations[name].supports(problem, device)
        if reason is None:
            return name, rejected
        rejected[name] = reason
    reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items()) or "no name given"
    raise UnsupportedError(
        f"no implementation asked for can {what} on {device_text(device)} ({reasons});"
        " implementation=None takes the first that can"
    )


def device_text(device: Device) -> str:
    """Platform and kind of a device."""
    kind = getattr(device, "device_kind", "")
    return device.platform if kind in ("", device.platform) else f"{device.platform} ({kind})"
