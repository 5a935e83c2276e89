"""Debian packages as data: what ``dpkg`` and the maintainer scripts would make, made without running them.

Never starts a program, never trusts a script: what a script does is read from a table of reviewed ones.
"""
