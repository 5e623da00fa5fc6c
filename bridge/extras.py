"""Optional parts of the installation: pip install 'kafka-timer-bridge[page]'. Others import none of their libraries.

The bridge alone delivers timers and serves probes and metrics. pyproject.toml lists the packages of each extra.
Only commands import bridge.page; `page()` loads it by its name.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bridge.config.settings import Settings
from bridge.errors import BridgeError

_MODULES = {
    "page": ("fastapi", "h11", "itsdangerous", "jinja2", "starlette", "uvicorn"),
    "rocksdb": ("rocksdict",),
    "export": ("pyarrow",),
    "registry": ("fastavro", "google.protobuf"),
    "msk": ("aws_msk_iam_sasl_signer",),
    "tracing": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk"),
    "spark": ("matplotlib", "pandas", "pyarrow", "pyspark"),
}


def page() -> Any:
    """Return the module bridge.page.app."""
    return import_module("bridge.page.app")


def missing(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [name for name in _MODULES[extra] if not _is_installed(name)]


def require(extra: str, wanted_for: str) -> None:
    """Raise BridgeError if a module of the extra is not installed. wanted_for: the setting or command."""
    if absent := missing(extra):
        raise BridgeError(
            f"{wanted_for}: {', '.join(absent)} not installed; run pip install 'kafka-timer-bridge[{extra}]'"
        )


def require_for(settings: Settings) -> None:
    """Raise BridgeError if a setting needs an extra that is not installed."""
    if settings.page or settings.has_tokens:
        require("page", "page")
    if settings.workers > 1:  # their supervisor asks them by HTTP
        require("page", "more than one worker")
    if settings.schema_registry is not None:
        require("registry", "schema_registry")
    if settings.audit_tables is not None:
        require("export", "audit_tables")
    if settings.tracing:
        require("tracing", "tracing")
    if any(topic.engine == "rocksdb" for topic in settings.timer_topics().values()):
        require("rocksdb", "engine rocksdb")


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
