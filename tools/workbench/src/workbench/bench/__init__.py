"""The benchmark harness: a package and its peers, side by side in one run.

`definitions` reads what a benchmark file declares, `peers` builds the peers' environments,
`worker` runs one side in its own interpreter, `sides` drives it over pipes, `measure` takes the
numbers and `report` writes them down.
"""

__all__: list[str] = []
