"""The processes that convert together: which one this is, and barriers between their steps.

`Group` is one process alone. Several processes of `jax.distributed` on a shared file system are in
`ninfer_jax.convert.distributed`.
"""


class Group:
    """One process, alone.

    Attributes:
        index: index of this process.
        count: number of processes.
    """

    index: int = 0
    count: int = 1

    def barrier(self, name: str, same: str = "") -> None:
        """Wait until every process is here.

        Args:
            name: what holds then, for errors.
            same: what must be the same in every process.

        Raises:
            LostProcessError: a process is gone.
            ConversionError: the processes were started with different commands.
        """
