"""Getting chunks: which are next, ranged reads, verification, the stream of a hot bundle."""
