"""Options shared by `rookery anamnesis` commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from relay.memory.anamnesis.checks import MemoryType, time_in

if TYPE_CHECKING:
    from collections.abc import Callable

    MomentType = click.ParamType[int]
else:
    MomentType = click.ParamType  # takes no arguments in older versions of click

SHARE: Final = click.FloatRange(0, 1)
TYPE: Final = click.Choice([each.value for each in MemoryType])


class Moment(MomentType):
    """Unix seconds, or an ISO 8601 date-time with zone."""

    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value.isascii() and value.isdigit() and len(value) < 16:
            return int(value)
        seconds = time_in(value)
        if seconds is None:
            self.fail(
                f"{value!r} is neither Unix seconds nor a time such as 2026-02-02T16:00:00Z",
                param,
                ctx,
            )
        return seconds


def entry_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Fields of a new memory, for `remember` and `supersede`."""
    for option in (
        click.option(
            "--author-name", metavar="N", help="Author name; default: author_name in client.toml."
        ),
        click.option(
            "--author-id", metavar="I", help="Author id; default: author_id in client.toml."
        ),
        click.option("--group", metavar="G", help="Only members of this group may read it."),
        click.option(
            "--anchor",
            "anchors",
            multiple=True,
            metavar="R",
            help="Reference to check it against, such as a URL or hash; repeatable.",
        ),
        click.option(
            "--confidence",
            type=SHARE,
            default=0.5,
            show_default=True,
            metavar="C",
            help="Confidence, 0 to 1.",
        ),
        click.option("--tag", "tags", multiple=True, metavar="T", help="Tag; repeatable."),
        click.option(
            "--type",
            "memory_type",
            type=TYPE,
            default=MemoryType.EPISODIC.value,
            show_default=True,
            help="Memory type.",
        ),
    ):
        command = option(command)
    return command
