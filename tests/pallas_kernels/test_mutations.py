"""Tests of the tests: deliberate mistakes in the prefill kernel have to be noticed by what the other suites check.

Mistakes in synchronization run in processes of their own (mutants): they are caught by the race detector, by the
interpreter's barriers, or by never ending. Mistakes in arithmetic are patched in and caught by the criterion.
"""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from pallas_kernels.hardware import H100
from pallas_kernels.mosaic_gpu import _epilogue, _prefill_plan, _unpack, _unpack_tile, _weight_tiles, prefill_sm90
from pallas_kernels.tiling import PrefillConfig
from tests.pallas_kernels.interpreted import run, with_sms
from tests.pallas_kernels.mutants import MUTATIONS
from tests.pallas_kernels.weights import check_close

pytestmark = pytest.mark.timeout(180)

#: The one mutation that leaves nothing to report: everyone waits. The unmutated process takes three seconds.
DEADLOCK, DEADLOCK_SECONDS = "the consumers never release a stage", 15
OTHERS = [name for name in MUTATIONS if name not in ("nothing", DEADLOCK)]


def mutant(name, seconds=120):
    """Exit status and output of a mutation; raises `TimeoutExpired`."""
    command = [sys.executable, "-m", "tests.pallas_kernels.mutants", name]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, env=environment, text=True, timeout=seconds)
    return done.returncode, done.stdout + done.stderr


def test_the_unmutated_kernel_passes_in_a_process_of_its_own():
    status, output = mutant("nothing")
    assert status == 0
    assert "RACE DETECTED" not in output
    assert float(output.split()[-1]) <= 1 / 256


@pytest.mark.parametrize("name", OTHERS)
def test_a_missing_wait_or_commit_is_a_race(name):
    assert "RACE DETECTED" in mutant(name)[1]


def test_a_missing_release_is_a_deadlock():
    with pytest.raises(subprocess.TimeoutExpired):
        mutant(DEADLOCK, DEADLOCK_SECONDS)


def swap_nibbles(monkeypatch):
    original = _weight_tiles.WeightTiles.views

    def views(self, planes, padded_rows):
        codes = np.asarray(planes.codes)
        return original(self, planes._replace(codes=(codes >> 4) | (codes << 4)), padded_rows)

    monkeypatch.setattr(_weight_tiles.WeightTiles, "views", views)


def forget_group_scales(monkeypatch):
    original = _unpack_tile.tile_pairs
    ones = lambda kind, parts, high, scales, *rest: original(kind, parts, high, [s * 0 + 0x3C00 for s in scales], *rest)
    monkeypatch.setattr(_unpack_tile, "tile_pairs", ones)


def use_the_last_steps_scales(monkeypatch):
    original = _weight_tiles.WeightTiles.fetch_scales
    late = lambda self, gmem, row, step, interpret: original(self, gmem, row, jnp.maximum(step - 1, 0), interpret)
    monkeypatch.setattr(_weight_tiles.WeightTiles, "fetch_scales", late)


def forget_what_follows_the_accumulator(monkeypatch):
    monkeypatch.setattr(_epilogue.Epilogue, "_affine", lambda self, accumulator, gmem, row: accumulator)


def forget_the_high_bits(monkeypatch):
    original = _unpack_tile.nibble_pairs
    lower = lambda kind, words, high, ops: original(kind, words, high * 0, ops)
    monkeypatch.setattr(_unpack_tile, "nibble_pairs", lower)


def leave_x_in_its_own_order(monkeypatch):
    monkeypatch.setattr(_unpack, "order_columns", lambda kind, x: x)


def forget_the_power_of_two(monkeypatch):
    monkeypatch.setattr(prefill_sm90, "factor", lambda kind, parts: 1.0)


def stop_one_step_early(monkeypatch):
    original = _prefill_plan.PrefillPlan.__init__

    def shortened(self, *args):
        original(self, *args)
        self.steps -= 1

    monkeypatch.setattr(_prefill_plan.PrefillPlan, "__init__", shortened)


@pytest.mark.parametrize(
    ("mistake", "kind"),
    [
        (swap_nibbles, "q4"),
        (swap_nibbles, "nvfp4"),
        (forget_group_scales, "w8"),
        (use_the_last_steps_scales, "q4"),
        (forget_what_follows_the_accumulator, "fp8"),
        (forget_what_follows_the_accumulator, "nvfp4"),
        (forget_the_high_bits, "q5"),
        (leave_x_in_its_own_order, "w8"),
        (forget_the_power_of_two, "q4"),
        (stop_one_step_early, "q6"),
    ],
)
def test_a_mistake_in_the_arithmetic_is_noticed(mistake, kind, monkeypatch):
    mistake(monkeypatch)
    interpret = plgpu.InterpretGPUParams()  # pyright: ignore[reportAttributeAccessIssue]
    config = PrefillConfig(32, 128, 2, consumers=1)
    y, reference = run(prefill_sm90, kind, 32, 128, 384, config, hardware=with_sms(H100, 1), interpret=interpret)
    with pytest.raises(AssertionError):
        check_close(y, reference)
