"""A verb whose last words are a command of their own, options and all."""

from __future__ import annotations

import click


class CommandLast(click.Command):
    """Our options stand before or behind REF; from COMMAND on, or from ``--`` on, every word is the command's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_value = {
            name for each in self.params if isinstance(each, click.Option) and not each.is_flag for name in each.opts
        }
        options: list[str] = []
        reference: list[str] = []
        words = list(args)
        while words:
            word = words.pop(0)
            if word == "--":
                break
            if word.startswith("-"):
                options.append(word)
                options += [words.pop(0)] if word in with_value and words else []
            elif not reference:
                reference.append(word)
            else:
                words.insert(0, word)
                break
        return super().parse_args(ctx, [*options, "--", *reference, *words])
