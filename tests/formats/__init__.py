"""Tests of `ninfer_jax.formats`."""
