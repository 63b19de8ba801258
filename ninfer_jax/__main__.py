"""`python -m ninfer_jax`: the same as the command `ninfer-jax`."""

from ninfer_jax.cli import main

if __name__ == "__main__":
    main()
