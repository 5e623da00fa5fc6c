"""librdkafka's settings in the words of Java's client, and Java's own; errors show no value."""

from pathlib import Path

import pytest

from spark_jobs.audit_run.arguments import parse
from spark_jobs.errors import JobFailedError, UsageError
from spark_jobs.kafka.admin import Cluster
from spark_jobs.kafka.security import KafkaAccess, read_properties

SCRAM = {"security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "a"}


def test_a_login_and_certificates(tmp_path: Path) -> None:
    authority, chain, key = tmp_path / "ca", tmp_path / "chain", tmp_path / "key"
    for file in (authority, chain, key):
        file.write_text(f"-----BEGIN {file.name}-----")
    given = SCRAM | {
        "sasl.password": 'p"w\\d',
        "ssl.ca.location": str(authority),
        "ssl.certificate.location": str(chain),
        "ssl.key.pem": key.read_text(),
        "ssl.key.password": "k",
        "ssl.endpoint.identification.algorithm": "none",
        "linger.ms": "5",
    }
    assert KafkaAccess("b:1", given).for_java() == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="a" password="p\\"w\\\\d";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN ca-----",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----BEGIN chain-----",
        "ssl.keystore.key": "-----BEGIN key-----",
        "ssl.key.password": "k",
        "ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism GSSAPI .* use PLAIN or SCRAM.* --kafka-properties FILE"),
        (SCRAM, "sasl.password missing"),
        ({"ssl.ca.location": "/no/such"}, "/no/such: No such file or directory: give a PEM file"),
        ({"ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----"}, "openssl pkcs8 -topk8"),
        ({"ssl.cipher.suites": "hush"}, "ssl.cipher.suites: Spark's Kafka client"),
        ({"enable.ssl.certificate.verification": "false"}, "has no such setting"),
    ],
)
def test_a_setting_that_java_lacks_is_refused(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        KafkaAccess("b:1", wrong)
    assert "hush" not in str(refused.value)


KERBEROS = r"""
# As for --command-config of Kafka's own tools.
security.protocol=SASL_SSL
sasl.mechanism : GSSAPI
sasl.kerberos.service.name kafka
sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required \
    useKeyTab=true keyTab="/etc/audit.keytab" principal="audit@EXAMPLE";
ssl.truststore.password=a\u00e4\\=b\
"""


def test_properties_of_java_reach_spark_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(KERBEROS.removesuffix("\\\n"))
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required "
        'useKeyTab=true keyTab="/etc/audit.keytab" principal="audit@EXAMPLE";',
        "ssl.truststore.password": "a\u00e4\\=b",
    }
    assert read_properties(file) == given
    of_librdkafka = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "/k"}
    kafka = [word for name, value in of_librdkafka.items() for word in ("--kafka", f"{name}={value}")]
    flags = ["--out", str(tmp_path), "--bootstrap-servers", "b:1", "--kafka-properties", str(file), *kafka]
    access = parse(flags, {})[0].access
    assert access.for_java() == {**given, "bootstrap.servers": "b:1"}
    assert access.for_spark()["kafka.sasl.mechanism"] == "GSSAPI"
    assert access.for_librdkafka().items() >= of_librdkafka.items()
    with pytest.raises(UsageError, match=r"only in --kafka-properties.* give them in \[kafka\]"):
        KafkaAccess("b:1", {}, given)


def test_properties_without_a_protocol_are_added_to_what_is_translated() -> None:
    found = KafkaAccess("b:1", SCRAM | {"sasl.password": "p"}, {"max.poll.records": "9", "bootstrap.servers": "c:1"})
    assert found.for_java().items() >= {"max.poll.records": "9", "sasl.mechanism": "SCRAM-SHA-512"}.items()
    assert found.for_java()["bootstrap.servers"] == "b:1"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"security.protocol": "SASL_SSL"}, "has no Kerberos.* --no-binary confluent-kafka"),
        ({"security.protocol": "hush"}, "librdkafka refuses its settings .*security.protocol.*: correct"),
    ],
)
def test_what_librdkafka_cannot_do_is_told_with_its_remedy(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(JobFailedError, match=told) as refused:
        Cluster(KafkaAccess("b:1", wrong, {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}))
    assert "hush" not in str(refused.value)


def test_flag_over_environment_over_file_and_secrets_from_files(tmp_path: Path) -> None:
    secret, config = tmp_path / "secret", tmp_path / "bridge.toml"
    secret.write_text("from a file\n")
    config.write_text(
        'bootstrap_servers = "file:1"\ntimer_topic = "t.file"\nrejected_topic = "r.file"\n'
        f'[kafka]\nsasl.username = "file"\nlinger.ms = 5\nsasl.password = "file:{secret}"\n'
    )
    environment = {"TIMER_BRIDGE_TIMER_TOPIC": "t.env", "TIMER_BRIDGE_KAFKA_SASL_USERNAME": "env"}
    given = ["--out", str(tmp_path), "--config", str(config), "--bootstrap-servers", "flag:1"]
    (found,) = parse([*given, "--kafka", "client.id=flag"], environment)
    assert (found.timer_topic, found.rejected_topic, found.receipts_topic) == ("t.env", "r.file", "timer.receipts")
    assert found.access.bootstrap_servers == "flag:1"
    assert found.access.kafka == {
        "sasl.username": "env",
        "linger.ms": "5",
        "sasl.password": "from a file",
        "client.id": "flag",
    }
    assert "from a file" not in repr(found)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--bootstrap-servers", " "], "--bootstrap-servers is empty"),
        ([], "--bootstrap-servers is missing"),
        (["--config", "/no/such.toml"], "^--config /no/such.toml: No such file or directory: give the path of a TOML"),
        (["--bootstrap-servers", "b:1", "--kafka", "hush"], "write name=value"),
        (["--bootstrap-servers", "b:1", "--kafka-properties", "/no/such"], "--kafka-properties /no/such: No such file"),
        (["--bootstrap-servers", "b:1", "--kafka", "sasl.password=file:/no/such"], "/no/such: No such file"),
    ],
)
def test_wrong_flags_are_named(wrong: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        parse(["--out", str(tmp_path), *wrong], {})
    assert "hush" not in str(refused.value)
