"""Device records, and what the kernels say of a device that has none."""

import dataclasses

import pytest

from pallas_kernels import H100, H200, KNOWN_HARDWARE, visible_hardware
from pallas_kernels.hardware import Hardware


def test_records_are_hoppers_and_differ_where_the_parts_do():
    assert KNOWN_HARDWARE["h100"] is H100
    assert KNOWN_HARDWARE["h200"] is H200
    assert H100.compute_capability == H200.compute_capability == (9, 0)
    assert H100.capability == "9.0"
    assert H200.memory_bandwidth > H100.memory_bandwidth
    assert H200.bf16_flops == H100.bf16_flops
    assert H100.smem_per_block < H100.smem_per_sm
    with pytest.raises(TypeError):
        KNOWN_HARDWARE["mine"] = H100  # type: ignore[index]


def test_roofline_times_are_the_definitions():
    simple = Hardware("x", (9, 0), 2, 1, 1, 1, 1, memory_bandwidth=10.0, bf16_flops=100.0, clock_hz=4.0)
    assert simple.memory_seconds(50) == 5.0
    assert simple.tensor_seconds(2, 5, 10) == 2.0
    assert simple.issue_seconds(1024, 3.0) == 3.0  # 2 multiprocessors issue 256 instructions a cycle


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        H100.sms = 1  # type: ignore[misc]


def test_a_machine_without_a_gpu_has_no_record(monkeypatch):
    import jax

    def none(platform):
        raise RuntimeError(f"Unknown backend {platform}")

    monkeypatch.setattr(jax, "devices", none)
    assert visible_hardware() is None


@pytest.mark.parametrize(
    ("kind", "capability", "name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", "NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA H800", "9.0", "NVIDIA H800", (9, 0)),
        ("NVIDIA A100", "8.0", "NVIDIA A100", (8, 0)),
        ("Odd device", "none", "Odd device", (0, 0)),
    ],
)
def test_a_visible_device_is_described_under_its_own_name(monkeypatch, kind, capability, name, expected):
    import jax

    class Device:
        device_kind = kind
        compute_capability = capability
        core_count = 100

    monkeypatch.setattr(jax, "devices", lambda platform: [Device()])
    found = visible_hardware()
    assert found is not None
    assert (found.name, found.compute_capability) == (name, expected)
    assert found.sms == (132 if found is H100 else 100)
