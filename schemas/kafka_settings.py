"""librdkafka's settings from file, environment and flags; the flag wins, then the environment.

    sasl.password = "x" in the table [kafka]    TIMER_BRIDGE_KAFKA_SASL_PASSWORD=x    --kafka sasl.password=x

The value `file:/run/secrets/password` means the content of that file. Errors never quote a value: it may be a secret.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

PREFIX = "TIMER_BRIDGE_"
IN_A_FILE = "file:"
_SERVICE_VARIABLE = re.compile(
    r"[^=]*(_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)="
    r"|[^=]*_PORT=(tcp|udp|sctp)://"
)
"""What Kubernetes sets for a Service `timer-bridge...`, which has our prefix, too."""


def by_full_name(table: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return the settings by full name: in TOML, `sasl.username = "x"` is a table within a table."""
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= by_full_name(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def from_file(file: Path) -> dict[str, object]:
    """Return every setting of a TOML file. Raises ValueError."""
    try:
        return tomllib.loads(file.read_text())
    except OSError as wrong:
        raise ValueError(f"{file}: {wrong.strerror}: give the path of a TOML file") from wrong
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise ValueError(f"{file}: {wrong}: fix the TOML") from wrong


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Return our settings of the environment, with librdkafka's in the table `kafka`."""
    given: dict[str, object] = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and not _SERVICE_VARIABLE.match(f"{name}={value}")
    }
    kafka_names = [name for name in given if name.startswith("kafka_")]
    table = {name.removeprefix("kafka_").replace("_", "."): given.pop(name) for name in kafka_names}
    return {"kafka": table, **given} if table else given


def merged(tables: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """Merge the tables, later over earlier, and read the files that values name. Raises ValueError."""
    found: dict[str, str] = {}
    for table in tables:
        found |= by_full_name(table)
    return {name: _from_its_file(name, value) for name, value in found.items()}


def _from_its_file(name: str, value: str) -> str:
    """Return the value, or the content of the file that it names, without its final line end."""
    if not value.startswith(IN_A_FILE):
        return value
    path = Path(value.removeprefix(IN_A_FILE))
    try:
        text = path.read_text()
    except OSError as wrong:
        raise ValueError(f"kafka: {name}: {path}: {wrong.strerror}: give a file that may be read") from wrong
    except UnicodeDecodeError as wrong:
        raise ValueError(f"kafka: {name}: {path} is no UTF-8 text: write the plain value into it") from wrong
    if not text.strip():
        raise ValueError(f"kafka: {name}: {path} is empty: write the value into it")
    return text.removesuffix("\n").removesuffix("\r")
