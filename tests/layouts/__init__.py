"""Tests of `ninfer_jax.layouts`."""
