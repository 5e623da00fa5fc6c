"""docs/settings.md, written from the fields of `Settings`: `make docs`."""

from bridge.cli.shared_options import GROUPS, default_of, kind_of
from bridge.config.settings import Settings

_OPENING = """\
# Settings

`timer-bridge run` and `check-config` read all settings, other commands those that they need. A setting is an option, a
variable or a line of `--config bridge.toml`; the first one wins: `--max-delay 30d`, `TIMER_BRIDGE_MAX_DELAY=30d`,
`max_delay = "30d"`. A switch is `--page` or `--no-page`, and `true` or `false` elsewhere. A list is `a,b`, in the file
`["a", "b"]`. A duration has a unit (`500ms`, `5s`, `2h30m`, `2d`). `make docs` writes this page from the code."""


def page() -> str:
    lines = [_OPENING]
    for name, field in Settings.model_fields.items():
        lines += [f"\n## {GROUPS[name]}\n"] if name in GROUPS else []
        lines.append(f"- `{name}` ({kind_of(name, field)}, `{default_of(field)}`): {field.description}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
