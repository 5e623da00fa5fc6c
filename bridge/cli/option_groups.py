"""Let commands share options: a dataclass is a group, each of its fields an option.

@dataclass class ClusterOptions: bootstrap_servers: Servers = None ...
app.command()(with_groups(cancel))

    def cancel(id_: Id, cluster: ClusterOptions)  ->  timer-bridge cancel ID --bootstrap-servers ...
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any


def with_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` with each dataclass parameter replaced by its fields.

    typer reads options from a signature alone and has no groups of its own.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            parameters += inspect.signature(group).parameters.values()
        else:
            parameters.append(parameter)

    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    return command
