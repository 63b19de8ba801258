# A type checker without triton takes this package for it.
# pyright: reportAttributeAccessIssue=false
"""The Triton kernels: a product with a packed weight, and a gather of its rows. Neither has run on a GPU.

    y[m, n] = sum_k x[m, k] * w[n, k],    z[t, k] = w[ids[t], k]

The product has the weight on the row side of the tensor core tile (`w @ x.T`, swapped), where 16 rows are the least, so
that few tokens waste nothing, and it is unpacked straight into the operand's registers. Columns come 64 at a time. A
byte holds two neighbouring columns: its low nibbles are one operand and its high nibbles another, and the caller has x
in that order, so nothing is shuffled. Codes are whole in bfloat16; the scales of the grouped kinds are applied to each
group's float32 sum, those of fp8 and the divisor of nvfp4 to the last one.

DOT is the operands' dtype: bfloat16, or float32 for an interpreter that multiplies the bits of bfloat16. Shapes are
constants of the program. Leaves out the choice of blocks (plan) and the calls from jax (dispatch). Importing this
module needs triton. Source: storage-layouts, gpu-kernels.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from pallas_kernels.triton._decode import brain, e2m1, e4m3, half, nvfp4_scale_offset, signed


@triton.jit
def _activations(x, tokens, column, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """[WIDTH, BLOCK_M] of x.T."""
    return tl.load(x + tokens[None, :] * COLUMNS + (column + tl.arange(0, WIDTH))[:, None])


@triton.jit
def _high_bits(high, rows, block, lanes, ROW: tl.constexpr, BITS: tl.constexpr):
    """The bits above the fourth of columns 2 * lane and 2 * lane + 1 of a block, in place."""
    width: tl.constexpr = BITS - 4
    lanes_a_byte: tl.constexpr = 4 // width
    word = tl.load(high + rows[:, None] * ROW + block * (8 * width) + lanes[None, :] // lanes_a_byte).to(tl.int32)
    pair = word >> (lanes[None, :] % lanes_a_byte * (2 * width))
    mask: tl.constexpr = (1 << width) - 1
    return (pair & mask) << 4, (pair >> width & mask) << 4


@triton.jit
def _nibble_step(acc, x, codes, high, scales, rows, tokens, block, K: tl.constexpr, COLUMNS: tl.constexpr,
                 BITS: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    groups: tl.constexpr = (K + 127) // 128 * 2
    lanes = tl.arange(0, 32)
    word = tl.load(codes + rows[:, None] * (groups * 32) + block * 32 + lanes[None, :]).to(tl.int32)
    even, odd = word & 15, word >> 4
    if BITS > 4:
        even_high, odd_high = _high_bits(high, rows, block, lanes, groups * 8 * (BITS - 4), BITS)
        even, odd = even | even_high, odd | odd_high
    even, odd = signed(even, BITS).to(tl.float32).to(DOT), signed(odd, BITS).to(tl.float32).to(DOT)
    part = tl.dot(even, _activations(x, tokens, block * 64, COLUMNS, 32), input_precision="ieee")
    part = tl.dot(odd, _activations(x, tokens, block * 64 + 32, COLUMNS, 32), part, input_precision="ieee")
    return acc + part * half(tl.load(scales + rows * groups + block))[:, None]


@triton.jit
def _w8_step(acc, x, codes, scales, rows, tokens, block, K: tl.constexpr, COLUMNS: tl.constexpr, DOT: tl.constexpr):
    groups: tl.constexpr = (K + 127) // 128 * 4
    for part in tl.static_range(2):
        group = block * 2 + part
        word = tl.load(codes + rows[:, None] * (groups * 32) + group * 32 + tl.arange(0, 32)[None, :])
        operand = word.to(tl.int8, bitcast=True).to(tl.float32).to(DOT)
        total = tl.dot(operand, _activations(x, tokens, group * 32, COLUMNS, 32), input_precision="ieee")
        acc += total * half(tl.load(scales + rows * groups + group))[:, None]
    return acc


@triton.jit
def _nvfp4_step(acc, x, codes, scales, rows, tokens, block, K: tl.constexpr, COLUMNS: tl.constexpr, DOT: tl.constexpr):
    lanes = tl.arange(0, 32)
    word = tl.load(codes + rows[:, None] * (K // 2) + block * 32 + lanes[None, :]).to(tl.int32)
    groups = block * 4 + lanes // 8
    scale = e4m3(tl.load(scales + nvfp4_scale_offset(rows[:, None], groups[None, :], K)))
    even, odd = (e2m1(word & 15) * scale).to(DOT), (e2m1(word >> 4) * scale).to(DOT)
    acc = tl.dot(even, _activations(x, tokens, block * 64, COLUMNS, 32), acc, input_precision="ieee")
    return tl.dot(odd, _activations(x, tokens, block * 64 + 32, COLUMNS, 32), acc, input_precision="ieee")


@triton.jit
def _fp8_step(acc, x, codes, rows, tokens, block, K: tl.constexpr, COLUMNS: tl.constexpr, DOT: tl.constexpr):
    columns = block * 64 + tl.arange(0, 64)
    pointers = codes + rows[:, None] * K + columns[None, :]
    # x is padded with zeros, the plane of codes is not.
    word = tl.load(pointers) if K % 64 == 0 else tl.load(pointers, mask=columns[None, :] < K, other=0)
    operand = e4m3(word).to(DOT)
    return tl.dot(operand, _activations(x, tokens, block * 64, COLUMNS, 64), acc, input_precision="ieee")


@triton.jit
def matmul_kernel(x, codes, high, scales, divisor, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                  KIND: tl.constexpr, BITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
                  SPLIT: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Program (i, j, s): rows i of w times tokens j, over part s of the columns, to out[s, tokens, rows]."""
    blocks: tl.constexpr = (K + 63) // 64
    blocks_a_part: tl.constexpr = (blocks + SPLIT - 1) // SPLIT
    columns: tl.constexpr = blocks * 64
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    part = tl.program_id(2)
    # The last row and token again where there are no more, rather than a mask in the loop.
    rows, tokens = tl.minimum(row, N - 1), tl.minimum(token, M - 1)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for block in range(part * blocks_a_part, tl.minimum(part * blocks_a_part + blocks_a_part, blocks)):
        if KIND == "fp8":
            acc = _fp8_step(acc, x, codes, rows, tokens, block, K, columns, DOT)
        elif KIND == "nvfp4":
            acc = _nvfp4_step(acc, x, codes, scales, rows, tokens, block, K, columns, DOT)
        elif KIND == "w8":
            acc = _w8_step(acc, x, codes, scales, rows, tokens, block, K, columns, DOT)
        else:
            acc = _nibble_step(acc, x, codes, high, scales, rows, tokens, block, K, columns, BITS, DOT)
    if KIND == "fp8":
        acc *= brain(tl.load(scales + rows))[:, None]
    if KIND == "nvfp4":
        acc = acc / tl.load(divisor).to(tl.float32, bitcast=True)
    pointers = out + (part.to(tl.int64) * M + token[None, :]) * N + row[:, None]
    tl.store(pointers, acc.to(out.dtype.element_ty), mask=(row[:, None] < N) & (token[None, :] < M))


@triton.jit
def gather_kernel(ids, codes, high, scales, divisor, out, N: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr,
                  BITS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Program (t, j): columns j of row ids[t], decoded in float32 and rounded once, to out[t]."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < K
    row = tl.minimum(tl.maximum(tl.load(ids + token), 0), N - 1).to(tl.int64)
    padded: tl.constexpr = (K + 127) // 128 * 128
    if KIND == "fp8":
        value = e4m3(tl.load(codes + row * K + columns, mask=inside, other=0)) * brain(tl.load(scales + row))
    elif KIND == "nvfp4":
        word = tl.load(codes + row * (K // 2) + columns // 2, mask=inside, other=0).to(tl.int32)
        scale = tl.load(scales + nvfp4_scale_offset(row, columns // 16, K), mask=inside, other=0)
        product = e2m1(word >> (columns % 2 * 4) & 15) * e4m3(scale)
        value = tl.div_rn(product, tl.load(divisor).to(tl.float32, bitcast=True))
    elif KIND == "w8":
        word = tl.load(codes + row * padded + columns, mask=inside, other=0).to(tl.int8, bitcast=True)
        scale = half(tl.load(scales + row * (padded // 32) + columns // 32, mask=inside, other=0))
        value = word.to(tl.float32) * scale
    else:
        word = tl.load(codes + row * (padded // 2) + columns // 2, mask=inside, other=0).to(tl.int32)
        code = word >> (columns % 2 * 4) & 15
        if BITS > 4:
            width: tl.constexpr = BITS - 4
            a_byte: tl.constexpr = 8 // width
            word = tl.load(high + row * (padded // a_byte) + columns // a_byte, mask=inside, other=0).to(tl.int32)
            code |= (word >> (columns % a_byte * width) & ((1 << width) - 1)) << 4
        scale = half(tl.load(scales + row * (padded // 64) + columns // 64, mask=inside, other=0))
        value = signed(code, BITS).to(tl.float32) * scale
    tl.store(out + token * K + columns, value.to(out.dtype.element_ty), mask=inside)
