"""Set-up of the kernel suites: a fixture that fails a test on a data race."""

import pytest


@pytest.fixture
def no_races(capfd):
    """Fails the test where the interpreter reported a race."""
    yield
    assert "RACE DETECTED" not in capfd.readouterr().out
