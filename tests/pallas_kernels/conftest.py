"""Set-up of the kernel suites: threads for the interpreter, and a fixture that fails a test on a data race.

The interpreter runs every warpgroup and warp in a thread that blocks while it waits at a barrier. Some of those threads
belong to the CPU client's pool, which has one a core: on a small machine a kernel with many roles would wait forever.
NPROC sizes the pool and is read when the client is made.
"""

import os

import pytest

os.environ.setdefault("NPROC", "16")


@pytest.fixture
def no_races(capfd):
    """Fails the test where the interpreter reported a race."""
    yield
    assert "RACE DETECTED" not in capfd.readouterr().out
