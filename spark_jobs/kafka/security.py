"""Where Kafka is and who we are there, in librdkafka's words and in those of Spark's Kafka client, which is Java's.

    sasl.mechanism, sasl.username, sasl.password   ->  sasl.mechanism, sasl.jaas.config
    ssl.ca.location = ca.pem                       ->  ssl.truststore.type = PEM, ssl.truststore.certificates = its text
    ssl.certificate.location, ssl.key.location     ->  ssl.keystore.type = PEM, its chain and its key as text

Files are read here, once, so that executors on other machines need none of them. What Java's client has no word for is
refused; settings that are not about security are for librdkafka alone. Values are never shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_jobs.errors import UsageError

_JAAS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.")
_ALIASES = {"sasl.mechanisms": "sasl.mechanism"}
_AS_IT_IS = ("security.protocol", "ssl.key.password")
_JOINED = ("sasl.mechanism", "sasl.username", "sasl.password")
_PEM = {
    "ssl.ca": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key": ("ssl.keystore.type", "ssl.keystore.key"),
}
_MEANS_NOTHING_HERE = {"enable.ssl.certificate.verification": "true", "enable.sasl.oauthbearer.unsecure.jwt": "false"}
_OLD_KEYS = ("BEGIN RSA PRIVATE KEY", "BEGIN EC PRIVATE KEY")
_INSTEAD = "; use PLAIN or SCRAM, and certificates as PEM (ssl.ca.location, ssl.certificate.location, ssl.key.location)"


@dataclass(frozen=True)
class KafkaAccess:
    """`kafka`: librdkafka's settings; they may be secrets. Raises UsageError for what Java's client cannot be told."""

    bootstrap_servers: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.bootstrap_servers.strip():
            raise UsageError("--bootstrap-servers is empty: give host:port")
        self.for_java()

    def for_librdkafka(self) -> dict[str, str | int]:
        """Errors come as exceptions: librdkafka's own lines on stderr would only repeat them."""
        return {**self.kafka, "bootstrap.servers": self.bootstrap_servers, "log_level": 0}

    def for_spark(self) -> dict[str, str]:
        """Options of Spark's Kafka source and sink."""
        return {f"kafka.{name}": value for name, value in self.for_java().items()}

    def for_java(self) -> dict[str, str]:
        """Of Java's client."""
        given = {_ALIASES.get(n, n): v for n, v in self.kafka.items() if n.startswith(_SECURITY) and v}
        found = {"bootstrap.servers": self.bootstrap_servers, **_jaas(given)}
        for name, value in given.items():
            if name not in _JOINED:
                found |= _in_java(name, value)
        return found


def _in_java(name: str, value: str) -> dict[str, str]:
    if name in _AS_IT_IS:
        return {name: value.upper() if name == "security.protocol" else value}
    if name == "ssl.endpoint.identification.algorithm":
        return {name: "" if value.lower() == "none" else value}
    kind, _, form = name.rpartition(".")
    if kind in _PEM and form in ("location", "pem"):
        type_, holds = _PEM[kind]
        return {type_: "PEM", holds: _pem(name, value if form == "pem" else _read(name, value))}
    if _MEANS_NOTHING_HERE.get(name) == value.lower():
        return {}
    raise UsageError(f"kafka: {name}: Spark's Kafka client, which is Java's, has no such setting{_INSTEAD}")


def _jaas(given: Mapping[str, str]) -> dict[str, str]:
    """The login as Java has it, where the protocol asks for one."""
    if "SASL" not in given.get("security.protocol", "").upper():
        return {}
    mechanism = given.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _JAAS:
        raise UsageError(f"kafka: sasl.mechanism {mechanism}: Spark's Kafka client cannot be told of it here{_INSTEAD}")
    missing = [name for name in ("sasl.username", "sasl.password") if name not in given]
    if missing:
        raise UsageError(f"kafka: {' and '.join(missing)} missing: {mechanism} needs both")
    user, password = (given[name].replace("\\", "\\\\").replace('"', '\\"') for name in _JOINED[1:])
    config = f'{_JAAS[mechanism]} required username="{user}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": config}


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as wrong:
        told = wrong.strerror if isinstance(wrong, OSError) else "no text"
        raise UsageError(f"kafka: {name}: {path}: {told}: give a PEM file that may be read") from wrong


def _pem(name: str, text: str) -> str:
    """Java's client reads PKCS #8 keys alone."""
    if name.startswith("ssl.key.") and any(old in text for old in _OLD_KEYS):
        raise UsageError(
            f"kafka: {name}: Java reads keys in PKCS #8 alone: write it anew by `openssl pkcs8 -topk8 -in KEY -out NEW`"
        )
    return text
