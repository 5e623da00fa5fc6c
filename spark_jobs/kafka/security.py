"""Kafka connection and login, as settings of librdkafka and of Spark's Kafka client, which is Java's.

    sasl.mechanism, sasl.username, sasl.password   ->  sasl.mechanism, sasl.jaas.config
    ssl.ca.location = ca.pem                       ->  ssl.truststore.type = PEM, ssl.truststore.certificates = its text
    ssl.certificate.location, ssl.key.location     ->  ssl.keystore.type = PEM, its chain and its key as text

Files are read here, once, so that executors on other machines do not need them. A security setting that Java's client
lacks is refused; other settings are for librdkafka alone. Errors never quote a value.

Spark gets a file of Java's own properties (`--kafka-properties`) as it is: for Kerberos, OAuth, key stores and all else
that has no translation. If the file has security.protocol, nothing is translated. librdkafka, which looks up the
offsets, keeps its own settings.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafka_timer.kafka_client import with_token_function
from spark_jobs.errors import UsageError

_JAAS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.")
_JAAS_SETTINGS = ("sasl.mechanism", "sasl.username", "sasl.password")
_PEM = {
    "ssl.ca": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key": ("ssl.keystore.type", "ssl.keystore.key"),
}
_DEFAULTS_IN_JAVA = {"enable.ssl.certificate.verification": "true", "enable.sasl.oauthbearer.unsecure.jwt": "false"}
_OLD_KEYS = ("BEGIN RSA PRIVATE KEY", "BEGIN EC PRIVATE KEY")
_REMEDY = (
    "; use PLAIN or SCRAM, and certificates as PEM (ssl.ca.location, ssl.certificate.location, ssl.key.location),"
    " or give Java's settings with --kafka-properties FILE"
)


@dataclass(frozen=True)
class KafkaAccess:
    """Settings of librdkafka (`kafka`) and of Java's client, perhaps secrets. Raises UsageError for what Java lacks."""

    bootstrap_servers: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    java: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.bootstrap_servers.strip():
            raise UsageError("--bootstrap-servers is empty: give host:port")
        self.for_java()

    def for_librdkafka(self) -> dict[str, str | int]:
        """Return librdkafka's settings. Its log is off, as errors arrive as exceptions. Raises SettingsError."""
        return {**with_token_function(self.kafka), "bootstrap.servers": self.bootstrap_servers, "log_level": 0}

    def for_spark(self) -> dict[str, str]:
        return {f"kafka.{name}": value for name, value in self.for_java().items()}

    def for_java(self) -> dict[str, str]:
        protocol = self.java.get("security.protocol")
        if protocol not in (None, "PLAINTEXT") and "security.protocol" not in self.kafka:
            raise UsageError(
                "kafka: security.protocol is only in --kafka-properties, and librdkafka, which looks up the offsets,"
                " has settings of its own: give them in [kafka] of --config, as for the bridge, or with --kafka"
            )
        translated = self._translated() if protocol is None else {}
        return {**translated, **self.java, "bootstrap.servers": self.bootstrap_servers}

    def _translated(self) -> dict[str, str]:
        named = ((name.replace("mechanisms", "mechanism"), value) for name, value in self.kafka.items())  # an alias
        given = {name: value for name, value in named if name.startswith(_SECURITY) and value}
        found = _jaas(given)
        for name, value in given.items():
            if name not in _JAAS_SETTINGS:
                found |= _in_java(name, value)
        return found


def read_properties(file: Path) -> dict[str, str]:
    """Return the entries of a file in the format of java.util.Properties. Raises UsageError."""
    text = _read(file, f"--kafka-properties {file}", "a file of Java's properties")
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", text)  # a backslash at the end continues a line
    found = {}
    for line in joined.splitlines():
        entry = re.fullmatch(r"[ \t\f]*((?:\\.|[^\\=: \t\f])+)[ \t\f]*[=:]?[ \t\f]*(.*)", line)
        if entry is not None and not line.lstrip().startswith(("#", "!")):
            found[_unescaped(entry[1])] = _unescaped(entry[2])
    return found


def _unescaped(text: str) -> str:
    named = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
    escape = r"\\(?:u([0-9a-fA-F]{4})|(.))"
    return re.sub(escape, lambda found: chr(int(found[1], 16)) if found[1] else named.get(found[2], found[2]), text)


def _in_java(name: str, value: str) -> dict[str, str]:
    if name in ("security.protocol", "ssl.key.password"):
        return {name: value.upper() if name == "security.protocol" else value}
    if name == "ssl.endpoint.identification.algorithm":
        return {name: "" if value.lower() == "none" else value}
    kind, _, form = name.rpartition(".")
    if kind in _PEM and form in ("location", "pem"):
        type_, holds = _PEM[kind]
        return {type_: "PEM", holds: _pem(name, value, form)}
    if _DEFAULTS_IN_JAVA.get(name) == value.lower():
        return {}
    raise UsageError(f"kafka: {name}: Spark's Kafka client, which is Java's, has no such setting{_REMEDY}")


def _jaas(given: Mapping[str, str]) -> dict[str, str]:
    """Return Java's login settings; none if the protocol is without SASL."""
    if "SASL" not in given.get("security.protocol", "").upper():
        return {}
    mechanism = given.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _JAAS:
        raise UsageError(f"kafka: sasl.mechanism {mechanism} is not translated for Spark's Kafka client{_REMEDY}")
    missing = [name for name in ("sasl.username", "sasl.password") if name not in given]
    if missing:
        raise UsageError(f"kafka: {' and '.join(missing)} missing: {mechanism} needs both")
    user, password = (given[name].replace("\\", "\\\\").replace('"', '\\"') for name in _JAAS_SETTINGS[1:])
    config = f'{_JAAS[mechanism]} required username="{user}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": config}


def _read(file: Path, named: str, wanted: str) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as wrong:
        told = wrong.strerror if isinstance(wrong, OSError) else "no text"
        raise UsageError(f"{named}: {told}: give {wanted}") from wrong


def _pem(name: str, value: str, form: str) -> str:
    """Return the text. Raises UsageError for a key that is not PKCS #8, which Java's client cannot read."""
    text = value if form == "pem" else _read(Path(value), f"kafka: {name}: {value}", "a PEM file that may be read")
    if name.startswith("ssl.key.") and any(old in text for old in _OLD_KEYS):
        raise UsageError(
            f"kafka: {name}: Java reads only PKCS #8 keys: convert it with `openssl pkcs8 -topk8 -in KEY -out NEW`"
        )
    return text
