"""What a launcher says to each process that it starts: its rank, of how many, and of which launch.

A launcher that starts `rltrace wrap` once a rank has one run for all (`rltrace.trace.ranks`).
"""

from __future__ import annotations

import os

# Rank, number of ranks, rank on the node, and what tells a launch from others. What is set by the
# job itself, or by the launcher within another, comes first.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", ("MASTER_ADDR", "MASTER_PORT")),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMIX_NAMESPACE",),
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ("PALS_APID",)),
)


class Launch:
    """This process's place: `rank` of `ranks`, and `local` among those of its node (-1: unknown).
    `id` tells the launch from others as far as the launcher does; `is_known`: it is like no
    other's."""

    __slots__ = ("id", "is_known", "local", "rank", "ranks")

    def __init__(self, rank: int, ranks: int, local: int, words: list[str], is_known: bool) -> None:
        self.rank = rank
        self.ranks = ranks
        self.local = local
        self.id = "-".join(words)
        self.is_known = is_known


def launch() -> Launch | None:
    """The place of this process in its launch; None where nobody says one."""
    for rank, ranks, local, names in _LAUNCHERS:
        place, size = _number(rank), _number(ranks)
        if place >= 0 and size >= 0:
            words = [os.environ[name] for name in names if os.environ.get(name)]
            kind = rank.partition("_")[0].lower()
            known = len(words) == len(names)
            # A batch script is no rank of a step, though Slurm gives it numbers, too.
            on_node = _number(local) if known or kind == "rank" else -1
            return Launch(place, size, on_node, [kind, *words], known)
    return None


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
