"""Lazy root file systems: chunk store, ranged reads, FUSE, EROFS mounts, run."""
