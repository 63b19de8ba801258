"""The support matrix: every format, regime and registered name, and the command that prints it."""

import json

from click.testing import CliRunner

from ninfer_jax.cli.support import support_command
from ninfer_jax.ops import IMPLEMENTATIONS, support_table
from tests.ops.weights import FORMATS


def test_every_combination_has_a_row_and_a_reason() -> None:
    rows = support_table()
    assert {row.format for row in rows} == set(FORMATS)
    assert len(rows) == len(FORMATS) * 3 * len(IMPLEMENTATIONS)
    assert all(row.detail for row in rows)
    assert all(row.supported for row in rows if row.implementation == "xla")


def test_command_prints_the_table() -> None:
    plain = CliRunner().invoke(support_command)
    assert plain.exit_code == 0
    assert plain.output.count("mosaic_gpu") == 18
    rows = json.loads(CliRunner().invoke(support_command, ["--json"]).output)
    assert len(rows) == 18 * len(IMPLEMENTATIONS)
