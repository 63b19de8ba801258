"""Writing: the golden files byte for byte from objects and from rows, in any order and from many threads; misuse."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.container import (
    Artifact,
    ArtifactWriter,
    MissingRange,
    ResourceEntry,
    TensorEntry,
    TensorObject,
    open_artifact,
    plan_artifact,
)
from ninfer_jax.errors import ArtifactError, LayoutError
from ninfer_jax.planes import GroupedPlanes, NVFP4Planes
from tests.container.helpers import VALID_V2, plan_of, valid_oracle, valid_path

NINE = "valid/v2_nine_formats.ninfer"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.ninfer"


@pytest.fixture(scope="module")
def nine():
    with open_artifact(valid_path(NINE)) as artifact:
        yield artifact


@pytest.fixture
def writer(out):
    with ArtifactWriter(out, plan_of(NINE)) as writer:
        yield writer


@pytest.mark.parametrize("file", VALID_V2)
@pytest.mark.parametrize("step", [7, 1 << 20])
def test_objects_in_any_order(file, step, out):
    plan, oracle = plan_of(file), valid_oracle(file)
    pieces = [(stored.name, at) for stored in plan.objects for at in range(0, stored.nbytes, step)]
    random.Random(step).shuffle(pieces)
    with ArtifactWriter(out, plan) as writer:
        for name, at in pieces:
            writer.write(name, at, oracle.payload(name)[at : at + step])
        assert writer.missing() == ()
        assert not out.exists()
        assert writer.publish() == out
    assert out.read_bytes() == valid_path(file).read_bytes()
    assert [path.name for path in out.parent.iterdir()] == [out.name]


@pytest.mark.parametrize("as_jax", [False, True])
@pytest.mark.parametrize("file", VALID_V2)
def test_rows_in_any_order(file, as_jax, out):
    plan = plan_of(file)
    with open_artifact(valid_path(file)) as golden, ArtifactWriter(out, plan) as writer:
        for stored in golden.resources.values():
            writer.write(stored.name, 0, golden.payload(stored.name))
        blocks = [(name, row) for name, tensor in golden.tensors.items() for row in row_starts(tensor)]
        random.Random(0).shuffle(blocks)
        for name, row in blocks:
            writer.write_rows(name, row, block(golden, name, row, as_jax))
        writer.publish()
    assert out.read_bytes() == valid_path(file).read_bytes()


def row_starts(tensor: TensorObject) -> range:
    return range(0, tensor.geometry.rows, tensor.geometry.row_block)


def block(artifact: Artifact, name: str, row: int, as_jax: bool) -> Any:
    """One row block of a tensor; scalars have one row."""
    planes = artifact.row_planes(name, row, row + artifact.tensors[name].geometry.row_block)
    return jax.tree.map(jnp.asarray, planes) if as_jax else planes


def test_many_threads(out):
    rows, k = 512, 256
    plan = plan_artifact(("m", "w"), [TensorEntry(f"t{index}", (rows, k), "Q6G64_F16S") for index in range(3)])
    rng = np.random.default_rng(0)
    base, high = rng.integers(0, 256, (rows, 128), np.uint8), rng.integers(0, 256, (rows, 64), np.uint8)
    scales = rng.integers(0, 1 << 16, (rows, 4), np.uint16)
    jobs = [(f"t{index}", row) for index in range(3) for row in range(0, rows, 4)]
    random.Random(1).shuffle(jobs)
    with ArtifactWriter(out, plan) as writer, ThreadPoolExecutor(8) as pool:

        def write(job):
            name, row = job
            part = slice(row, row + 4)
            writer.write_rows(name, row, GroupedPlanes(base[part], high[part], scales[part]))

        list(pool.map(write, jobs))
        writer.publish()
    with open_artifact(out) as artifact:
        for name in artifact.tensors:
            planes = artifact.planes(name)
            assert isinstance(planes, GroupedPlanes)
            for given, held in zip((base, high, scales), planes, strict=True):
                np.testing.assert_array_equal(given, held)


def test_closing_waits_for_other_threads(out):
    plan = plan_artifact(("m", "w"), [ResourceEntry("r", 1 << 20)])
    started, refused = threading.Event(), []

    def write_until_closed():
        try:
            while True:
                writer.write("r", 0, bytes(1 << 20))
                started.set()
        except ArtifactError as error:
            refused.append(str(error))

    writer = ArtifactWriter(out, plan)
    threads = [threading.Thread(target=write_until_closed) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    writer.abort()
    for thread in threads:
        thread.join()
    assert len(refused) == 4
    assert all("closed" in message for message in refused)
    assert list(out.parent.iterdir()) == []


def test_missing_bytes_are_counted(writer, nine, out):
    names = [stored.name for stored in nine]
    missing = writer.missing()
    assert {part.name for part in missing} == set(names)
    assert missing[0] == MissingRange("frontend/tokenizer.json", 0, 2)
    for name in names:
        if name != "w/q5":
            writer.write(name, 0, nine.payload(name))
    writer.write_rows("w/q5", 2, nine.row_planes("w/q5", 2, 3))
    # Three rows of 4 groups: base 3 * 128, high 3 * 32 at 512, scales 3 * 8 at 768; the padding is not asked for.
    assert writer.missing() == tuple(MissingRange("w/q5", *part) for part in [(0, 256), (512, 64), (768, 16)])
    with pytest.raises(ArtifactError, match=r"336 payload bytes of 1 objects.*\[0, 256\) of 'w/q5'"):
        writer.publish()
    assert not out.exists()
    writer.mark_written("w/q5", 0, 2)
    assert writer.missing() == ()


def test_marks(writer):
    writer.mark_written("frontend/tokenizer.json", 1, 2)
    assert writer.missing()[0] == MissingRange("frontend/tokenizer.json", 0, 1)
    for start, stop in [(0, 3), (1, 1), (-1, 1)]:
        with pytest.raises(ArtifactError, match="2 bytes"):
            writer.mark_written("frontend/tokenizer.json", start, stop)
    with pytest.raises(LayoutError):
        writer.mark_written("w/q4", 0, 4)
    with pytest.raises(LayoutError):
        writer.mark_written("w/nvfp4", 0, 64)


def test_bytes_outside_and_nonzero_padding(writer, nine):
    with pytest.raises(ArtifactError, match="no object"):
        writer.write("w/q7", 0, b"x")
    for offset, data in [(-1, b"xx"), (535, b"xx"), (537, b"")]:
        with pytest.raises(ArtifactError, match="536 payload bytes"):
            writer.write("w/q4", offset, data)
    payload = bytearray(nine.payload("w/q4"))
    payload[400] = 1
    with pytest.raises(ArtifactError, match=r"padding bytes \[384, 512\)"):
        writer.write("w/q4", 0, payload)
    with pytest.raises(ArtifactError, match="padding"):
        writer.write("w/q4", 400, b"\1")
    writer.write("w/q4", 384, bytes(128))


def test_planes_that_do_not_fit(writer, nine):
    q4, fp8 = nine.planes("w/q4"), nine.planes("w/fp8")
    wrong = {
        "is NVFP4 with planes codes, scales, divisor; given base, scales": ("w/nvfp4", 0, q4),
        "given words": ("w/q4", 0, np.zeros((1, 128), np.uint8)),
        "with planes base, high, scales; given base, scales": ("w/q6", 0, q4),
        "plane scales is float16": ("w/q4", 0, q4._replace(scales=q4.scales.view(np.float16))),
        r"plane codes is uint8 \[3, 76\]; needed uint8 \[rows, 77\]": (
            "w/fp8",
            0,
            fp8._replace(codes=fp8.codes[:, 1:]),
        ),
        "differ in rows": ("w/q4", 0, q4._replace(scales=q4.scales[:2])),
        "is a resource": ("frontend/tokenizer.json", 0, np.zeros(2, np.uint8)),
        r"plane words is uint32 \[2\]; needed uint16 \[rows, 3\]": ("d/bf16", 0, np.zeros(2, np.uint32)),
    }
    for message, arguments in wrong.items():
        with pytest.raises(ArtifactError, match=message):
            writer.write_rows(*arguments)
    for row in (-1, 1, 3):
        with pytest.raises(LayoutError):
            writer.write_rows("w/q4", row, q4)
    with pytest.raises(LayoutError):
        writer.write_rows("w/q4", 0, GroupedPlanes(q4.base[:0], None, q4.scales[:0]))


def test_rows_of_one_tensor_share_their_divisor(out):
    plan = plan_artifact(("m", "w"), [TensorEntry("t", (256, 64), "NVFP4")])
    codes, scales = np.zeros((128, 32), np.uint8), np.zeros((1, 1, 32, 4, 4), np.uint8)
    with ArtifactWriter(out, plan) as writer:
        writer.write_rows("t", 128, NVFP4Planes(codes, scales, np.asarray(0x3F800000, np.uint32)))
        with pytest.raises(ArtifactError, match="divisor bytes 00000040 differ from 0000803f"):
            writer.write_rows("t", 0, NVFP4Planes(codes, scales, np.asarray(0x40000000, np.uint32)))
        writer.write_rows("t", 0, NVFP4Planes(codes, scales, np.asarray(0x3F800000, np.uint32)))
        writer.publish()


def test_closed_writer(out, nine):
    with ArtifactWriter(out, plan_of(NINE)) as writer:
        pass
    with pytest.raises(ArtifactError, match="closed"):
        writer.write("w/q4", 0, nine.payload("w/q4"))
    writer.close()
    writer.abort()
