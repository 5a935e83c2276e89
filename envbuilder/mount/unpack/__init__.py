"""Trees on disk: layers unpacked into a directory, and paths that never leave it."""
