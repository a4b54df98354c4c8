"""Options shared by `rookery anamnesis` commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from relay.cli.options import Number, anyway_option
from relay.client.anamnesis import OUTSIDE
from relay.memory.anamnesis.checks import MemoryType, time_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    MomentType = click.ParamType[int]
    FieldType = click.ParamType[tuple[str, object]]
else:
    MomentType = FieldType = click.ParamType  # takes no arguments in older versions of click

SHARE: Final = Number(0, 1)
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


class ContextField(FieldType):
    """`KEY=VALUE` of the context: a value that begins with `[` or `{` is JSON, another is text."""

    name = "field"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, object]:
        key, equals, text = value.partition("=")
        if not (key and equals):
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        if not text.startswith(("[", "{")):
            return key, text
        try:
            return key, orjson.loads(text)
        except orjson.JSONDecodeError as error:
            self.fail(f"{key}: not JSON: {error}", param, ctx)


context_option = click.option(
    "--context",
    "context_fields",
    type=ContextField(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Field of the context, text or a JSON array or object; repeatable.",
)

public_option = click.option(
    "--public",
    "group",
    flag_value=OUTSIDE,
    help="Not in a group; needed where others have the memory both in a group and outside.",
)


def said_in_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Who may read what is said of a memory."""
    group = click.option(
        "--group",
        metavar="G",
        help="Only members of this group may read it; default: the group of the memory.",
    )
    return group(public_option(command))


def given(
    context_fields: Sequence[tuple[str, object]], fields: Mapping[str, object]
) -> dict[str, Any]:
    """The options that were given, as fields of an entry."""
    every = {**fields, "context": dict(context_fields)}
    return {name: value for name, value in every.items() if value not in (None, (), {})}


def entry_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Fields of a new memory, for `remember` and `supersede`; those not given are None or ()."""
    for option in (
        click.option(
            "--platform", metavar="P", help="Author's platform; default: platform in client.toml."
        ),
        click.option(
            "--author-name", metavar="N", help="Author name; default: author_name in client.toml."
        ),
        click.option(
            "--author-id", metavar="I", help="Author id; default: author_id in client.toml."
        ),
        context_option,
        anyway_option,
        click.option(
            "--group",
            metavar="G",
            help="Only members of this group may read it; default: that of the superseded memory.",
        ),
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
            metavar="C",
            help="Confidence, 0 to 1; default: 0.5, or that of the superseded memory.",
        ),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            metavar="T",
            help="Tag; repeatable. Default: those of the superseded memory.",
        ),
        click.option(
            "--type",
            "memory_type",
            type=TYPE,
            help="Memory type; default: episodic, or that of the superseded memory.",
        ),
    ):
        command = option(command)
    return command
