"""Tests of ninfer_jax and pallas_kernels; a package, so that suites import `tests.golden_cases` and `tests.oracle`."""
