"""The `rookery anamnesis` commands that need no relay (X-20, X-21)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from relay.cli.options import WholeNumber, json_option, print_json, printable
from relay.cli.tables import Column, Holds, print_table
from relay.client.anamnesis import validate
from relay.errors import UserError
from relay.memory.fields import NOT_AN_OBJECT
from relay.nostr.event import object_in

if TYPE_CHECKING:
    from relay.memory.anamnesis.bench import Report


_MAX_DOCUMENTS: Final = 16 << 20
"""Bytes that `validate` reads: a pipe may have no end."""
_MAX_ERRORS: Final = 10_000


@click.command("validate", epilog="Example: rookery anamnesis validate entry.json")
@click.argument("file", type=click.File("rb"), metavar="FILE")
@json_option
def validate_file(file: Any, *, as_json: bool) -> int:
    """Validate an entry document, or a file with one per line, up to 16 MiB; `-` reads stdin."""
    raw = file.read(_MAX_DOCUMENTS + 1)
    if len(raw) > _MAX_DOCUMENTS:
        raise UserError(f"over {_MAX_DOCUMENTS >> 20} MiB: validate it in parts")
    errors, warnings = _faults_of(raw.decode(errors="replace"))
    if as_json:
        print_json({"valid": not errors, "errors": errors, "warnings": warnings})
    else:
        for line in ["invalid", *errors] if errors else ["valid"]:
            click.echo(printable(line))
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
    return 1 if errors else 0


@click.command("schema", epilog="Example: rookery anamnesis schema > memory-entry-schema.json")
def schema() -> None:
    """Print the JSON Schema of an entry."""
    from relay.memory.anamnesis.schema import ENTRY_SCHEMA

    click.echo(orjson.dumps(ENTRY_SCHEMA, option=orjson.OPT_INDENT_2).decode())


_COLUMNS: Final = {
    "K": "sessions of unrelated talk between the facts and the questions",
    "Exact": "answers that contain the planted fact: 1 all of it, 0.5 half of its words",
    "Semantic": "likeness of answer and fact: F1 of their words, 0 to 1",
    "Calibration": "whether sure answers are right: correlation of confidence and Exact, -1 to 1;"
    " – without a difference",
    "False": "answers to questions about what was never planted; fewer is better",
    "Decay": "loss of Exact since the first K; 0 is best",
}


@click.command("bench", epilog="Example: rookery anamnesis bench --seed 7")
@click.option("--seed", type=WholeNumber(min=0), default=1, show_default=True, metavar="N")
@json_option
def bench(seed: int, *, as_json: bool) -> None:
    """Measure recall offline: planted facts are queried after sessions of unrelated talk.

    Each system receives facts, then K sessions of filler, then the questions. The columns are
    explained below the table. The same seed produces the same numbers.
    """
    from relay.memory.anamnesis.bench import report_of

    report = report_of(seed)
    if as_json:
        print_json(report.fields())
    else:
        _draw_report(report)


def _faults_of(text: str) -> tuple[list[str], list[str]]:
    """(errors, warnings) of one document, or of one per line."""
    fields = object_in(text)
    if fields is not None:
        validity = validate(fields)
        return list(validity.errors), list(validity.warnings)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) < 2 or object_in(lines[0][1]) is None:
        return [NOT_AN_OBJECT], []
    errors: list[str] = []
    warnings: list[str] = []
    for number, line in lines:
        if len(errors) + len(warnings) >= _MAX_ERRORS:
            errors.append(f"line {number} and those after it are not looked at")
            break
        for target, found in zip((errors, warnings), _faults_of(line), strict=True):
            target += [f"line {number}: {each}" for each in found]
    return errors, warnings


def _draw_report(report: Report) -> None:
    click.echo(
        f"seed {report.seed}: {report.planted} facts planted, {report.never_told} never planted"
    )
    rows: list[tuple[str, ...]] = []
    for column in report.columns:
        for scores, decay in zip(column.scores, column.decay, strict=True):
            calibration = "–" if scores.calibration is None else f"{scores.calibration:.3f}"
            rows.append(
                (
                    column.system,
                    str(scores.sessions),
                    f"{scores.exact:.3f}",
                    f"{scores.semantic:.3f}",
                    calibration,
                    str(scores.false_memories),
                    f"{decay:.3f}",
                )
            )
    numbers = (Column(name, Holds.NUMBER) for name in _COLUMNS)
    print_table((Column("System", Holds.KEY), *numbers), rows)
    for name, meaning in _COLUMNS.items():
        click.echo(f"{name}: {meaning}")
