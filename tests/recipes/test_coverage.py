"""Rows that the objects of a recipe leave out are named."""

import numpy as np
import pytest

from ninfer_jax.recipes import load_recipe, resolve
from ninfer_jax.sources import open_checkpoint
from tests.checkpoints import fp8_group, fp8_parts, quantization_config, write_checkpoint

HEAD = '[identity]\nmodel_id = "m"\nweights_id = "w"\n'


def notes(tmp_path, steps: list[str], source: str = "a.weight", storage: str = 'format = "FP32"') -> tuple[str, ...]:
    objects = [
        f'[[object]]\nname = "o{i}"\n{storage}\nsource = "{source}"\nsteps = [{text}]\n' for i, text in enumerate(steps)
    ]
    (tmp_path / "r.toml").write_text(HEAD + "".join(objects))
    with open_checkpoint(tmp_path / "c") as checkpoint:
        return resolve(load_recipe(tmp_path / "r.toml"), checkpoint).notes


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([""], None),
        (["{ slice = [0, 5] }", "{ slice = [5, 12] }"], None),
        (["{ slice = [6, 12] }", "{ slice = [0, 8] }"], None),
        (["{ slice = [0, 5] }", "{ slice = [6, 12] }"], "1 of its 12 rows are in no object, first rows [5, 6)"),
        (["{ slice = [2, 12] }"], "2 of its 12 rows are in no object, first rows [0, 2)"),
        (["{ slice = [0, 11] }"], "1 of its 12 rows are in no object, first rows [11, 12)"),
        ([f"{{ deinterleave = {{ heads = 2, part = {part}, of = 3 }} }}" for part in (0, 1, 2)], None),
        (
            [f"{{ deinterleave = {{ heads = 2, part = {part}, of = 3 }} }}" for part in (0, 2)],
            "4 of its 12 rows are in no object, first rows [2, 4)",
        ),
        (["{ slice = [0, 6] }, { slice = [0, 3] }", "{ slice = [3, 12] }"], None),
        (
            ["{ slice = [0, 6] }, { slice = [0, 3] }", "{ slice = [6, 12] }"],
            "3 of its 12 rows are in no object, first rows [3, 6)",
        ),
        (["{ transpose = [1, 0] }"], None),
        (["{ transpose = [1, 0] }, { slice = [0, 2] }"], None),  # not followed
        (["{ reshape = [6, 8] }, { slice = [0, 5] }"], "2 of its 12 rows are in no object, first rows [10, 12)"),
    ],
)
def test_rows_in_no_object_are_named(tmp_path, steps, missing):
    write_checkpoint(tmp_path / "c", {"a.weight": np.ones((12, 4), np.float32)})
    expected = () if missing is None else (f"a.weight: {missing}",)
    assert notes(tmp_path, steps) == expected


@pytest.mark.parametrize("encoder", ["", '\nencoder = "FP8_ROW_MAXABS_BF16_V1"'])
def test_rows_of_quantized_words_too(tmp_path, encoder):
    write_checkpoint(tmp_path / "c", fp8_parts(12, 64).tensors("a"), quantization_config(fp8_group(["Linear"])))
    storage = 'format = "FP8_E4M3FN_ROW_BF16S"' + encoder
    assert notes(tmp_path, ["{ slice = [0, 10] }"], storage=storage) == (
        "a.weight: 2 of its 12 rows are in no object, first rows [10, 12)",
    )
