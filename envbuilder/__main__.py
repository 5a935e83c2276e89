"""``python -m envbuilder``: the same as the ``envbuilder`` command."""

from envbuilder.cli.main import main

if __name__ == "__main__":
    main()
