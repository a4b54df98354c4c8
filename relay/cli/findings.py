"""What `rookery doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    """Something does not work, or is readable by others."""
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    text: str
    """One sentence with file and value."""
    cure: str
    """A command or a setting."""


def error(text: str, cure: str) -> Finding:
    return Finding(Severity.ERROR, text, cure)


def warning(text: str, cure: str) -> Finding:
    return Finding(Severity.WARNING, text, cure)
