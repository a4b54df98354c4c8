"""Options of `rookery anamnesis` that several of its commands take."""

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
            self.fail(f"{value!r} is neither Unix seconds nor as 2026-02-02T16:00:00Z", param, ctx)
        return seconds


def entry_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `remember` and `supersede` say of a memory."""
    for option in (
        click.option("--author-name", metavar="N", help="Else author_name of client.toml."),
        click.option("--author-id", metavar="I", help="Else author_id of client.toml."),
        click.option("--group", metavar="G", help="Only its members read it."),
        click.option(
            "--anchor",
            "anchors",
            multiple=True,
            metavar="R",
            help="What it can be checked against: a URL, a hash.",
        ),
        click.option(
            "--confidence",
            type=SHARE,
            default=0.5,
            show_default=True,
            metavar="C",
            help="How sure it is.",
        ),
        click.option("--tag", "tags", multiple=True, metavar="T", help="A topic."),
        click.option(
            "--type",
            "memory_type",
            type=TYPE,
            default=MemoryType.EPISODIC.value,
            show_default=True,
            help="What kind of memory it is.",
        ),
    ):
        command = option(command)
    return command
