"""Correctly rounded binary floating point on int64 significands: value = sig * 2**exp, vectorised, no float operation.

A `Binary` names an interchange format by its precision and its smallest quantum. Non-negative finite values only; signs
are carried by the callers.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

Integers: TypeAlias = np.ndarray | int


class Binary(NamedTuple):
    """`precision` significand bits, quantum 2**min_exp of the subnormals, word of +infinity, sign bit."""

    precision: int
    min_exp: int
    infinity: int
    sign: int


F32 = Binary(24, -149, 0x7F800000, 0x80000000)
F16 = Binary(11, -24, 0x7C00, 0x8000)
BF16 = Binary(8, -133, 0x7F80, 0x8000)

# Finite E4M3FN magnitudes by the same scheme: 4 significand bits, quantum 2**-9; 0x7f is NaN and there is no infinity.
E4M3FN = Binary(4, -9, 0x7F, 0x80)
# E2M1 magnitudes: 2 significand bits, quantum 1/2; every word is finite.
E2M1 = Binary(2, -1, 0x8, 0x8)


def split(words: np.ndarray, binary: Binary) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sign (bool), significand and exponent of finite words: `(-1)**sign * sig * 2**exp`, exactly."""
    words = np.asarray(words).astype(np.int64)
    magnitude = words & (binary.sign - 1)
    if np.any(magnitude >= binary.infinity):
        raise ValueError("only finite words have a significand")
    fraction_bits = binary.precision - 1
    field = magnitude >> fraction_bits
    fraction = magnitude & ((1 << fraction_bits) - 1)
    normal = field > 0
    sig = np.where(normal, fraction + (1 << fraction_bits), fraction)
    exp = np.where(normal, field - 1, 0) + binary.min_exp
    return (words & binary.sign) != 0, sig, exp


def bit_length(sig: Integers) -> np.ndarray:
    """Bits of non-negative integers below 2**62: the smallest L with sig < 2**L."""
    length = np.zeros(np.shape(sig), np.int64)
    rest = np.asarray(sig, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >> step > 0
        length += np.where(big, step, 0)
        rest = np.where(big, rest >> step, rest)
    return length + (rest > 0)


def round_at(sig: Integers, exp: Integers, quantum: Integers, sticky: np.ndarray | bool = False) -> np.ndarray:
    """Nearest multiple of 2**quantum, ties to even, counted in quanta.

    The value lies in [sig, sig + 1) * 2**exp, above sig * 2**exp where `sticky`; then quantum has to exceed exp.
    """
    shift = np.asarray(quantum - exp, np.int64)
    if np.any((shift <= 0) & sticky):
        raise ValueError("too few bits to round an inexact value")
    right = np.clip(shift, 0, 62)
    kept = sig >> right
    rest = sig - (kept << right)
    half = np.where(right > 0, 1 << np.maximum(right - 1, 0), 1)
    up = (rest > half) | ((rest == half) & (sticky | (kept & 1 == 1)))
    return np.where(shift > 0, kept + up, sig << np.clip(-shift, 0, 62))


def round_word(sig: Integers, exp: Integers, binary: Binary, sticky: np.ndarray | bool = False) -> np.ndarray:
    """The word of a non-negative value rounded to nearest, ties to even: gradual underflow, overflow to infinity."""
    quantum = np.maximum(exp + bit_length(sig) - binary.precision, binary.min_exp)
    kept = round_at(sig, exp, quantum, sticky)
    # A significand of 2**precision carries into the exponent field, which is what the next binade needs.
    word = ((quantum - binary.min_exp) << (binary.precision - 1)) + kept
    return np.where(kept == 0, 0, np.minimum(word, binary.infinity))


def divide_word(num: Integers, num_exp: Integers, den: Integers, den_exp: Integers, binary: Binary) -> np.ndarray:
    """The word of `(num * 2**num_exp) / (den * 2**den_exp)`, rounded once; 0 < den < 2**25, num < 2**61."""
    shift = 61 - bit_length(num)  # a quotient of 36 bits or more, whatever num is
    scaled = np.asarray(num, np.int64) << shift
    return round_word(scaled // den, num_exp - den_exp - shift, binary, scaled % den != 0)
