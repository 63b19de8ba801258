"""What the benchmarks are given to measure: legal words, true byte counts, and a check that sees a wrong product."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import bench_decode, bench_experts, bench_load, machine, matmul_records
from benchmarks.cases import EMBEDDING_CASES, LLAMA_8B_CASES, WEIGHT_CASES, WeightCase
from benchmarks.harness import time_in_turns
from benchmarks.machine import better_of
from benchmarks.random_weights import FORMATS_OF_KINDS, random_dense, random_host_planes, random_weight
from benchmarks.suite import Settings
from ninfer_jax.arrays import load
from ninfer_jax.codecs import check_words
from ninfer_jax.layouts import encoded_size, unpack
from ninfer_jax.models.generation import generate_tokens
from ninfer_jax.models.llama import LlamaConfig
from ninfer_jax.ops import matmul

FORMATS = tuple(FORMATS_OF_KINDS.values())
TINY = bench_decode.Decoder("tiny", LlamaConfig(256, 128, 2, 4, 2, 32, 10000.0, 1e-5), 128, 8, 3)


@pytest.mark.parametrize("format", FORMATS)
def test_random_weights_are_legal(format):
    check_words(unpack(random_host_planes(format, 128, 192), format, 192), format)


def test_stacked_layers_lie_in_memory_of_their_own():
    w = random_weight("Q4G64_F16S", 128, 128, layers=3)
    assert w.shape == (3, 128, 128)
    assert w.nbytes == 3 * random_weight("Q4G64_F16S", 128, 128).nbytes
    assert random_dense(600, 128, layers=2).shape == (2, 600, 128)


def test_case_names_are_unique_and_every_kind_has_a_quick_case():
    cases = WEIGHT_CASES + LLAMA_8B_CASES
    assert len({case.name for case in cases}) == len(cases)
    assert {c.kind for c in cases if c.name in matmul_records.QUICK_NAMES} == set(FORMATS_OF_KINDS)
    assert [case.name for case in EMBEDDING_CASES] == ["27b head", "35b head", "llama-8b head"]


def test_the_check_of_a_product_sees_a_wrong_one():
    case = WeightCase("tiny", "q5", 128, 256)
    w = random_weight("Q5G64_F16S", case.n, case.k)
    x = jax.random.normal(jax.random.key(0), (2, case.k), jnp.bfloat16)
    y = matmul(x, w)
    assert matmul_records.relative_error(y, x, w, case) <= 1 / 256
    assert matmul_records.relative_error(y.at[0, 0].add(1 + abs(y).max()), x, w, case) == float("inf")
    assert matmul_records.relative_error(y.at[1, 0].set(jnp.nan), x, w, case) == float("inf")
    assert matmul_records.relative_error(y * 1.01, x, w, case) > 1 / 256


@pytest.mark.parametrize("format", ["Q4G64_F16S", "NVFP4", bench_decode.DENSE])
def test_bytes_of_a_token_are_those_of_the_layouts(format):
    shapes = 2 * [(256, 128), (128, 128), (256, 128), (128, 128)] + [(256, 128)]
    size = lambda n, k: encoded_size(format, (n, k))
    params = bench_decode.random_params(TINY, format)
    norms = 2 * (2 * 2 + 1) * 128
    weights = sum(size(*shape) for shape in shapes) + norms
    cache = 2 * 2 * (2 * 8 * 2 * 32)
    assert bench_decode.weight_bytes(params) == weights
    assert bench_decode.bytes_of_a_token(TINY, params) == weights + size(256, 128) // 256 + cache
    assert bench_decode.model_bytes(TINY, format) == weights - norms + size(256, 128)
    assert bench_decode.weight_count(TINY) == sum(n * k for n, k in shapes)


def test_the_timed_program_decodes_what_generation_does():
    params = bench_decode.random_params(TINY, bench_decode.DENSE)
    timed = jax.jit(bench_decode.decode_tokens, static_argnames="decoder")(params, jnp.asarray([7]), decoder=TINY)
    generate = jax.jit(generate_tokens, static_argnames=("config", "max_new_tokens", "dtype"))
    tokens = generate(
        params,
        TINY.config,
        jnp.asarray([[7]]),
        jnp.asarray([1]),
        jnp.asarray(-1),
        jnp.asarray(0.0),
        jax.random.key(0),
        max_new_tokens=TINY.context - 1,
        dtype=jnp.bfloat16,
    )
    assert np.array_equal(timed, tokens[0, : TINY.tokens])


def test_the_artifact_of_the_load_benchmark_loads(tmp_path):
    weights = {"a": WeightCase("a", "q4", 128, 256), "b": WeightCase("b", "q6", 64, 128)}
    loaded = load(bench_load.write_artifact(tmp_path / "model.ninfer", weights))
    assert {name: w.shape for name, w in loaded.items()} == {"a": (128, 256), "b": (64, 128)}
    expected = random_host_planes("Q6G64_F16S", 64, 128)
    assert jax.tree.all(jax.tree.map(np.array_equal, jax.tree.leaves(loaded["b"]), jax.tree.leaves(expected)))


def test_the_quick_model_is_a_part_of_the_full_one():
    quick, full = bench_load.model_weights(quick=True), bench_load.model_weights(quick=False)
    assert quick.keys() < full.keys()
    assert all(dataclasses.replace(full[name], n=full[name].n // 4) == case for name, case in quick.items())


def test_candidates_take_turns():
    calls = []
    timings = time_in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b"] * 3
    assert all(0 <= t.best <= t.median for t in timings.values())


def test_what_does_not_fit_is_left_out_with_the_sizes(monkeypatch):
    monkeypatch.setattr(machine, "_free_bytes", lambda: 8_000_000_000)
    assert machine.too_large(4e9) is None
    assert machine.too_large(16e9) == "needs 16.0 GB at once, and may take half of the 8.0 GB that are free"
    settings = Settings(quick=False)
    monkeypatch.setattr(bench_decode, "FULL_FORMATS", ("W8G32_F16S",))
    assert list(bench_decode.run(settings)) == []
    assert list(settings.refusals) == ["decode 8B, context 1024, W8G32_F16S", "decode 8B, context 1024 BF16"]


def test_free_memory_is_that_of_this_machine():
    free = machine._free_bytes()
    assert free is None or 1e6 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_better_figure_of_the_machine_is_kept():
    assert better_of({"x": 1.0, "y": 5.0}, {"x": 2.0, "y": 4.0}) == {"x": 2.0, "y": 5.0}


def test_rows_of_experts_add_up():
    counts = bench_experts.group_sizes(16, 512)
    assert counts.shape == (16,)
    assert counts.sum() == 512
    assert counts.dtype == np.int32
