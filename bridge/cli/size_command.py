"""`timer-bridge size`: resources for a load, calculated from the costs that the last published bench measured."""

import json
import math
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from bridge.capacity.sizing import Model, Sizing
from bridge.capacity.sizing import size as size_of
from bridge.cli.output import table
from bridge.cli.shared_options import duration_ms
from bridge.config.settings import Settings
from schemas.durations import span_text

commands = typer.Typer()


@commands.command(epilog="Example: timer-bridge size --rate 10000 --pending 10000000 --helm")
def size(
    rate: Annotated[int, typer.Option("--rate", min=1, help="Messages a second, on the average of a day.")],
    pending: Annotated[int, typer.Option("--pending", min=0, help="Timers that wait at a time.")],
    body_bytes: Annotated[int, typer.Option("--body-bytes", min=0, help="Size of a message's key and value.")] = 256,
    window: Annotated[str, typer.Option("--roll-window", help="The bridge's roll_window.")] = "2d",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    as_helm: Annotated[bool, typer.Option("--helm", help="As values of the Helm chart, with a pod to spare.")] = False,
) -> None:
    """Calculate the resources for a load: bridges of a core each, memory, disk, brokers, and what a lost disk costs.

    Calculated from the costs in docs/capacity.md, as if all timers waited equally long and partitions were equally
    full. Your machines are different: measure with your load before you rely on it.
    """
    model = Model.published().for_bodies(body_bytes)
    needs = size_of(model, rate, pending, duration_ms("--roll-window", window, 1_000) / 1000)
    if as_json:
        typer.echo(json.dumps(asdict(needs), indent=2))
    elif as_helm:
        typer.echo(_helm_values(needs, rate, pending))
    else:
        is_measured = needs.instances == 1 and pending <= model.most_pending and not needs.rolls_per_s
        Console().print(table(("", "needs"), _rows(needs), title=f"{rate:,} messages/s, {pending:,} pending"))
        typer.echo("Within what was measured." if is_measured else "Beyond what was measured: calculated.")


def _rows(needs: Sizing) -> list[tuple[str, str]]:
    return [
        ("bridges, or workers, of one core", f"{needs.instances:,}"),
        ("partitions of the timer topic, at least", f"{needs.partitions:,}"),
        ("memory of each", f"{needs.memory_mb_each:,.0f} MB"),
        ("disk of each", f"{needs.disk_gb_each:,.1f} GB"),
        ("rolls", f"{needs.rolls_per_s:,.0f}/s"),
        ("brokers write, all copies", f"{needs.broker_mb_per_s:,.1f} MB/s"),
        ("timer topic, all copies", f"{needs.topic_tb:,.2f} TB"),
        ("a lost disk is rebuilt in", span_text(needs.rebuild_s * 1000)),
        ("at most, if a few timers wait long", span_text(needs.longest_rebuild_s * 1000)),
    ]


def _helm_values(needs: Sizing, rate: int, pending: int) -> str:
    """Return YAML. Memory for peaks and recovery; twice the disk, as delivered timers are not cleared away at once."""
    memory_mib = 256 * math.ceil(1.5 * needs.memory_mb_each / 256)
    disk_gib = 4 * math.ceil((2e9 * needs.disk_gb_each + Settings.model_fields["min_free_bytes"].default) / 2**30 / 4)
    return "\n".join(
        (
            f"# timer-bridge size --rate {rate} --pending {pending}",
            f"# Pods that carry the load: {needs.instances}. One is to spare.",
            f"# Set `partitions` in `settings` to at least {max(needs.partitions, needs.instances + 1)}.",
            f"replicas: {needs.instances + 1}",
            "workers: 1",
            "resources:",
            f'  requests: {{cpu: "1", memory: {memory_mib}Mi}}',
            f"  limits: {{memory: {2 * memory_mib}Mi}}",
            "storage:",
            f"  size: {disk_gib}Gi",
        )
    )
