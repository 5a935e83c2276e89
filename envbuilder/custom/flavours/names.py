"""The flavours there are."""

from typing import Literal, get_args

Flavour = Literal["estargz", "zstd-chunked"]
FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)
