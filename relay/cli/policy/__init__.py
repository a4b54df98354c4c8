"""`rookery policy`: check, show, explain, test, compare and distribute policy files.

`check`, `show` and `test` read files alone. `explain` and `diff` ask the folder's store as well,
through the control socket while a relay runs there; `log` asks the relay that runs. `push`, `pull`
and `versions` ask the database.
"""

from __future__ import annotations

import click

from relay.cli.options import CommandGroup
from relay.cli.policy.cases import cases_command
from relay.cli.policy.check import check_command
from relay.cli.policy.diff import diff_command
from relay.cli.policy.explain import explain_command
from relay.cli.policy.log import log_command
from relay.cli.policy.pull import pull_command
from relay.cli.policy.push import push_command
from relay.cli.policy.show import show_command
from relay.cli.policy.sweep import sweep_command
from relay.cli.policy.versions import versions_command


@click.group("policy", cls=CommandGroup, epilog="Example: rookery policy check ./data/policies")
def policy() -> None:
    """Check, show, explain, test, compare and distribute the policies."""


for _command in (
    check_command,
    show_command,
    explain_command,
    cases_command,
    diff_command,
    log_command,
    sweep_command,
    push_command,
    pull_command,
    versions_command,
):
    policy.add_command(_command)
