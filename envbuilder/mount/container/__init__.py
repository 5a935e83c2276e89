"""Containers over a mounted tree: configuration, devices, users, runtimes, one run."""
