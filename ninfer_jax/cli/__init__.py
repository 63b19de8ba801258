"""The command line: `ninfer-jax COMMAND`, also `python -m ninfer_jax`."""

from ninfer_jax.cli.main import main as main
