"""`load`: every format from a written artifact, placement, nesting, and what is refused."""

from pathlib import Path
from typing import Any

import jax
import jaxtyping
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ninfer_jax.arrays import QuantizedTensor, load, nest, partition_specs, shard_counts, shardings
from ninfer_jax.container import ArtifactWriter, Identity, ResourceEntry, TensorEntry, plan_artifact
from ninfer_jax.errors import ArtifactError, LayoutError, UnsupportedError
from ninfer_jax.layouts import planes_to_payload

QUANTIZED = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S", "NVFP4", "FP8_E4M3FN_ROW_BF16S")
N, K = 128, 192


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """An artifact with every format and a resource, and what it holds."""
    rng = np.random.default_rng(0)
    source = rng.standard_normal((N, K)).astype(np.float32)
    held: dict = {f"layer.{format}.weight": QuantizedTensor.quantize(source, format) for format in QUANTIZED}
    held["norm"] = rng.standard_normal(K).astype(ml_dtypes.bfloat16)
    held["bias"] = rng.standard_normal((2, 3)).astype(np.float32)
    held["ids"] = rng.integers(-5, 5, (), np.int32)
    direct = {"bfloat16": ("BF16", "uint16"), "float32": ("FP32", "uint32"), "int32": ("I32", "int32")}
    payloads, entries = {"config.json": np.frombuffer(b"{}", np.uint8)}, []
    for name, value in held.items():
        if isinstance(value, QuantizedTensor):
            payloads[name], format = value.to_payload(), value.format
        else:
            format, words = direct[value.dtype.name]
            value = np.asarray(value)
            payloads[name] = planes_to_payload(value.view(words), format, value.shape)
        entries.append(TensorEntry(name, tuple(value.shape), format))
    entries.append(ResourceEntry("config.json", 2))
    path = tmp_path_factory.mktemp("arrays") / "all.ninfer"
    with ArtifactWriter(path, plan_artifact(Identity("test", "all"), entries)) as writer:
        for name, payload in payloads.items():
            writer.write(name, 0, payload)
        writer.publish()
    return path, held


def test_load_gives_the_exact_bytes(stored: tuple[Path, dict]) -> None:
    path, held = stored
    loaded = load(path)
    assert list(loaded) == list(held)
    for name, value in held.items():
        found = loaded[name]
        if isinstance(found, QuantizedTensor):
            assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
            np.testing.assert_array_equal(found.to_payload(), value.to_payload())
        else:
            assert isinstance(found, jax.Array)
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(np.asarray(found), value)


def test_names_and_nesting(stored: tuple[Path, dict]) -> None:
    path, _ = stored
    some = load(path, ["norm", "layer.NVFP4.weight"])
    assert list(some) == ["norm", "layer.NVFP4.weight"]
    tree = nest(some)
    assert set(tree) == {"norm", "layer"}
    assert isinstance(tree["layer"]["NVFP4"]["weight"], QuantizedTensor)
    with pytest.raises(ArtifactError, match=r"no tensor 'config\.json'"):
        load(path, ["config.json"])
    for names in (["a", "a.b"], ["a.b", "a"]):
        with pytest.raises(ArtifactError, match="cannot be nested"):
            nest(dict.fromkeys(names, 0))


def test_placement(stored: tuple[Path, dict]) -> None:
    path, held = stored
    mesh = jax.make_mesh((1,), ("model",))
    rows = NamedSharding(mesh, PartitionSpec("model"))
    by_name: dict[str, Any] = load(path, shardings={"layer.NVFP4.weight": rows})
    assert by_name["layer.NVFP4.weight"].planes.codes.sharding.spec == PartitionSpec("model", None)
    by_rule: dict[str, Any] = load(path, shardings=lambda name, shape: rows if shape == (N, K) else None)
    for format in QUANTIZED:
        w = by_rule[f"layer.{format}.weight"]
        assert w.planes[0].sharding.spec[0] == "model"
        np.testing.assert_array_equal(w.to_payload(), held[f"layer.{format}.weight"].to_payload())
    everywhere: dict[str, Any] = load(path, ["norm"], shardings=NamedSharding(mesh, PartitionSpec()))
    assert everywhere["norm"].sharding == NamedSharding(mesh, PartitionSpec())


def test_placements_that_are_refused(stored: tuple[Path, dict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user, whom no annotation check guards
    path, _ = stored
    mesh = jax.make_mesh((1,), ("model",))
    with pytest.raises(LayoutError, match=r"norm \[192\]: .* is of more axes; a function of name and shape"):
        load(path, shardings=NamedSharding(mesh, PartitionSpec(None, "model")))
    with pytest.raises(ArtifactError, match=r"no tensor 'layer\.NVFP4\.wieght'"):
        load(path, shardings={"layer.NVFP4.wieght": NamedSharding(mesh, PartitionSpec("model"))})
    for wrong in (PartitionSpec("model"), "model"):
        with pytest.raises(UnsupportedError, match="cannot be placed by"):
            load(path, ["layer.NVFP4.weight"], shardings=wrong)
    with pytest.raises(ArtifactError, match="one string; give a list of names"):
        load(path, "norm")
    assert load(path, ["norm"], shardings=jax.devices()[0])["norm"].shape == (K,)


def test_shard_counts_and_specs() -> None:
    assert shard_counts("Q4G64_F16S", 512) == (1, 2, 4)
    assert shard_counts("Q4G64_F16S", 4304) == (1,)
    assert shard_counts("NVFP4", 192) == (1, 3)
    assert shard_counts("FP8_E4M3FN_ROW_BF16S", 6) == (1, 2, 3, 6)
    w = QuantizedTensor.quantize(np.ones((N, K), np.float32), "NVFP4")
    specs = partition_specs(w, PartitionSpec("a", "b"))
    assert specs.planes.scales == PartitionSpec("a", "b", None, None, None)
    assert specs.planes.divisor == PartitionSpec()
    mesh = jax.make_mesh((1,), ("a",))
    assert shardings(w, NamedSharding(mesh, PartitionSpec("a"))).planes.codes.spec == PartitionSpec("a", None)
    with pytest.raises(LayoutError, match="more entries"):
        partition_specs(w, PartitionSpec("a", "b", None))
