"""Images that others built: tables of contents, spans and checkpoints of their layers."""
