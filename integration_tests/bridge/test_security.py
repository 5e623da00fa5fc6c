"""A broker with TLS, SCRAM and ACLs that deny by default, and a bridge with the documented rights."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatch
from itertools import count, islice, product
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bridge.config.settings import load
from bridge.config.topic_requirements import DELIVERED, FILLED, FOLLOWED, GROWN, JOINED, LOGGED, MADE, PUBLISHED
from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from bridge.kafka.topics import findings
from integration_tests.conftest import ROOT, missing, started
from integration_tests.support.bridge_command import Names, command
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S, until
from kafka_timer import TimerProducer
from kafka_timer.headers import Headers
from scripts.common.processes import BridgeProcess

ADMIN = "admin"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
"""Its default login accepts unsigned tokens."""


class Certificates(NamedTuple):
    """A broker's key and certificate for 127.0.0.1, and the authority that signed it."""

    broker: Path
    authority: Path


def certificates(folder: Path) -> Certificates:
    if shutil.which("openssl") is None:
        missing("certificates are made with openssl, which is not there; on Debian: apt-get install openssl")
    key, authority, broker = folder / "authority.key", folder / "authority.pem", folder / "broker.pem"
    new = ["openssl", "req", "-x509", "-days", "2", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    for_broker = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    for_broker += ["-CA", str(authority), "-CAkey", str(key)]
    for more in (
        ["-subj", "/CN=authority", "-keyout", str(key), "-out", str(authority)],
        ["-subj", "/CN=broker", "-keyout", str(folder / "key"), "-out", str(folder / "signed"), *for_broker],
    ):
        subprocess.run([*new, *more], check=True, capture_output=True)
    broker.write_text((folder / "key").read_text() + (folder / "signed").read_text())
    return Certificates(broker, authority)


class Right(NamedTuple):
    """A row of the table in docs/security.md: operations on the resource that a setting names."""

    kind: str
    name: str
    setting: str
    operations: Sequence[str]


def documented() -> list[Right]:
    text = (ROOT / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| (\w+) \| `([^`]+)` \(`?([\w ]+)[^)]*\) \| ([\w ]+) \|", text, re.MULTILINE)
    return [Right(kind, name, setting, operations.split()) for kind, name, setting, operations in rows]


def documented_for(names: Names, *targets: str) -> list[tuple[str, str, str, str]]:
    """Return kind, name, setting and operation of each right that docs/security.md lists for a bridge with these names.

    The name of a prefix ends with *.
    """
    given = dict(zip(names.arguments[::2], names.arguments[1::2], strict=True))
    return [
        (kind, f"{each}-*" if name.endswith("-*") else each, setting, operation)
        for kind, name, setting, operations in documented()
        for each in [given.get(f"--{setting.replace('_', '-')}")]
        for each in (targets if each is None else [each])
        for operation in operations
    ]


def granted_by(options: str) -> Right:
    """Return the right that these options of kafka-acls.sh grant."""
    kinds = {"--topic": "Topic", "--group": "Group", "--transactional-id": "TransactionalId"}
    words = options.split()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    ((option, name),) = [each for each in pairs if each[0] in kinds]
    operations = [value for name, value in pairs if name == "--operation"]
    is_prefix = ("--resource-pattern-type", "prefixed") in pairs
    return Right(kinds[option], name + "*" * is_prefix, "", operations)


class Secured:
    """The broker and its users."""

    def __init__(self, broker: EmbeddedKafka, trusted: Certificates, admin_password: str) -> None:
        self.bootstrap_servers = broker.bootstrap_servers
        tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(trusted.authority)}
        as_admin = {"sasl.mechanism": "PLAIN", "sasl.username": ADMIN, "sasl.password": admin_password}
        self.cluster = Cluster(broker.bootstrap_servers, tls | as_admin)
        self._tls = tls

    def user(self) -> "User":
        """Create a user without rights."""
        user = User(f"user-{uuid4().hex[:8]}", uuid4().hex, self._tls)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        asked = UserScramCredentialUpsertion(user.name, info, user.password.encode())
        self.cluster.admin.alter_user_scram_credentials([asked])[user.name].result()
        return user

    def grant(self, user: "User", kind: str, name: str, *operations: str) -> None:
        acls = [AclBinding(*_right(user, kind, name, each)) for each in operations]
        for granted in self.cluster.admin.create_acls(acls).values() if acls else ():
            granted.result()

    def take(self, user: "User", kind: str, name: str, operation: str) -> None:
        asked = AclBindingFilter(*_right(user, kind, name, operation))
        (taken,) = self.cluster.admin.delete_acls([asked]).values()
        assert taken.result()

    def grant_documented(self, user: "User", names: Names, *targets: str) -> None:
        """Grant the rights that docs/security.md lists for a bridge with these names."""
        for kind, name, _, operation in documented_for(names, *targets):
            self.grant(user, kind, name, operation)

    def read(self, topic: str, count: int) -> list[Any]:
        """Return all committed records, at least `count`."""
        until(lambda: len(self.cluster.values(topic)) >= count)
        return self.cluster.read(topic)

    def codes(self, rejected: str, count: int) -> dict[bytes, str]:
        return {each.value(): dict(each.headers())["timer-error"].decode() for each in self.read(rejected, count)}

    def to_connect(self, user: "User") -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap_servers, **user.settings(), "sasl.password": user.password}

    def to(self, names: Names) -> list[str]:
        return ["--bootstrap-servers", self.bootstrap_servers, "--timer-topic", names.timers]

    def run(self, names: Names, folder: Path, config: Path, *more: str) -> "subprocess.CompletedProcess[str]":
        """A start that is to fail."""
        where = ["--bootstrap-servers", self.bootstrap_servers, "--data-dir", str(folder / "data")]
        return command("run", *where, *names.arguments, "--config", str(config), "--startup-timeout", "8s", *more)


class User(NamedTuple):
    name: str
    password: str
    tls: dict[str, str]

    def settings(self) -> dict[str, str]:
        """librdkafka's, but for the password."""
        return {**self.tls, "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": self.name}

    def config(self, folder: Path, password: str | None = None, **changed: str) -> Path:
        """A file of settings, the password in a file of its own."""
        secret = folder / f"secret-{uuid4().hex}"
        secret.write_text((self.password if password is None else password) + "\n")
        settings = self.settings() | {"sasl.password": f"file:{secret}"} | changed
        path = folder / f"{uuid4().hex}.toml"
        path.write_text("[kafka]\n" + "".join(f'{name} = "{value}"\n' for name, value in settings.items() if value))
        return path


def _spelled(name: str) -> str:
    """Return DescribeConfigs as DESCRIBE_CONFIGS."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def _right(user: User, kind: str, name: str, operation: str) -> tuple[Any, ...]:
    """Return the fields of an ACL. A name that ends with * is a prefix."""
    pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
    who = ResourceType[_spelled(kind)], name.removesuffix("*"), pattern, f"User:{user.name}", "*"
    return *who, AclOperation[_spelled(operation)], AclPermissionType.ALLOW


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    trusted, password = certificates(tmp_path_factory.mktemp("tls")), uuid4().hex
    broker = started(
        "secured",
        {
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(trusted.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted.authority),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": f'{_PLAIN} username="{ADMIN}" password="{password}"'
            f' user_{ADMIN}="{password}";',
            "listener.name.plaintext.scram-sha-512.sasl.jaas.config": _SCRAM,
            "listener.name.plaintext.oauthbearer.sasl.jaas.config": f"{_OAUTH};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:ANONYMOUS",  # the controller's listener has no users
        },
    )
    yield Secured(broker, trusted, password)
    broker.stop()


def soon(target: str, delay_ms: int = 200) -> Headers:
    return [("timer-topic", target.encode()), ("timer-delay-ms", b"%d" % delay_ms)]


def test_the_documented_rights_are_those_that_a_start_looks_at() -> None:
    needed = {"timer_topic": LOGGED | MADE, "journal_topic": LOGGED | MADE | GROWN, "control_topic": FOLLOWED | MADE}
    needed |= {"rejected_topic": FILLED | MADE, "receipts_topic": FILLED | MADE, "each target topic": DELIVERED}
    found = {(right.kind, right.setting): set(map(_spelled, right.operations)) for right in documented()}
    others = {("Group", "group"): JOINED, ("TransactionalId", "group"): PUBLISHED}
    assert found == {("Topic", setting): each for setting, each in needed.items()} | others


def test_the_acl_commands_grant_the_documented_rights_and_no_others() -> None:
    text = (ROOT / "docs" / "clusters.md").read_text().replace("\\\n", " ")
    granted = [granted_by(line) for line in re.findall(r"^ +\$acl (.+)$", text, re.MULTILINE)]
    of_prefix: dict[tuple[str, str], set[str]] = {}
    for right in documented():
        (own,) = (each for each in granted if each.kind == right.kind and fnmatch(right.name.rstrip("*"), each.name))
        of_prefix.setdefault(own[:2], set()).update(right.operations)
    assert of_prefix == {each[:2]: set(each.operations) for each in granted}
    acl = r"^ +- {resource: {type: (\w+), name: (\S+?)(, patternType: prefix)?}, operations: \[(.+)\]}$"
    of_strimzi = [
        Right(kind[0].upper() + kind[1:], name + "*" * bool(prefix), "", operations.split(", "))
        for kind, name, prefix, operations in re.findall(acl, text, re.MULTILINE)
    ]
    assert of_strimzi == granted


@pytest.mark.broker
def test_a_bridge_and_a_sender_log_in_with_tokens_of_a_function(
    secured: Secured, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, target = secured.user(), secured.cluster.topic("orders")
    secured.grant_documented(user, names, target)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    login = {"sasl.mechanism": "OAUTHBEARER", "sasl.username": "", "sasl.password": ""}
    function = {"oauth_cb": "integration_tests.support.tokens:token", "sasl.oauthbearer.config": user.name}
    config = str(user.config(tmp_path, **login, **function))
    with BridgeProcess(tmp_path, secured.bootstrap_servers, [*names.arguments, "--config", config]):
        sent = command("send", target, "hello", "--in", "100ms", *secured.to(names), "--config", config)
        assert (sent.returncode, sent.stderr) == (0, "")
        assert [record.value() for record in secured.read(target, 1)] == [b"hello"]


@pytest.mark.broker
@pytest.mark.slow  # rights that a start does not look up: it makes topics, and joins the group
@pytest.mark.parametrize(
    "at", [at for at, right in enumerate(documented_for(Names())) if right[0] != "Topic" or right[3] == "Create"]
)
def test_a_right_that_is_missing_is_told(secured: Secured, names: Names, tmp_path: Path, at: int) -> None:
    """The others, by the broker's word: bridge/config/tests/test_topic_setup.py."""
    user, rights = secured.user(), documented_for(names)
    for kind, name, _, operation in rights[:at] + rights[at + 1 :]:
        secured.grant(user, kind, name, operation)
    ended = secured.run(names, tmp_path, user.config(tmp_path))
    assert (ended.returncode, "right (an ACL)" in ended.stderr) == (1, True), ended.stderr


@pytest.mark.broker
def test_a_check_of_the_cluster_prints_a_command_for_each_missing_right(
    secured: Secured, names: Names, tmp_path: Path
) -> None:
    """And a bridge with the documented rights, which are all of these, works, also beside a check."""
    user, target = secured.user(), secured.cluster.topic("orders")
    config = user.config(tmp_path)
    running = [*names.arguments, "--config", str(config), "--roll-window", "1s"]
    where = ["--bootstrap-servers", secured.bootstrap_servers, *running]
    needed = {(kind, name, operation) for kind, name, _, operation in documented_for(names, target)}
    granting = f"kafka-acls.sh --bootstrap-server {secured.bootstrap_servers} --add --allow-principal User:{user.name} "

    def printed(lines: Sequence[str]) -> list[tuple[str, str, str]]:
        rights = [granted_by(each.removeprefix(granting)) for each in lines if each.startswith("kafka-acls.sh")]
        return [(right.kind, right.name, each) for right in rights for each in right.operations]

    def check() -> "subprocess.CompletedProcess[str]":
        return command("check-config", *where, "--connect", "--target", target)

    def missing() -> list[tuple[str, str, str]]:
        """As `check` prints, without the start of a process."""
        given = dict(zip(where[::2], where[1::2], strict=True))
        flags = {name[2:].replace("-", "_"): value for name, value in given.items() if name != "--config"}
        lines: list[str] = []
        with suppress(BridgeError):
            lines.extend(findings(load(flags, {}, config), [target], user.name))
        return printed(lines)

    def prints_each_that_is_taken(rights: Iterable[tuple[str, str, str]]) -> None:
        for right in rights:
            secured.take(user, *right)
            until(lambda right=right: missing() == [right], f"{right} alone is printed")  # type: ignore[misc]
            secured.grant(user, *right)
        until(lambda: missing() == [])

    denied = check()
    commands = printed(denied.stdout.splitlines())
    assert (denied.returncode, len(commands), set(commands)) == (1, len(needed), needed), denied
    assert denied.stderr.endswith("rights are missing: grant them by the kafka-acls.sh commands above\n")
    assert user.password not in denied.stdout + denied.stderr
    for right in commands:
        secured.grant(user, *right)
    prints_each_that_is_taken(sorted(each for each in needed if each[2] == "Create"))
    granted = check()
    assert (granted.returncode, printed(granted.stdout.splitlines())) == (0, []), granted
    own = {names.timers, names.journal, names.rejected, names.receipts, names.control}
    (absent,) = re.findall("not tried: Read and Write on topics that do not exist: (.*)", granted.stdout)
    assert set(absent.split(", ")) == own
    existing = secured.cluster.admin.list_topics(timeout=PATIENCE_S).topics.keys()
    assert existing.isdisjoint(own)
    noted = secured.cluster.read("__transaction_state", "__consumer_offsets")
    assert [record for record in noted if names.group.encode() in record.key()] == []

    with BridgeProcess(tmp_path, secured.bootstrap_servers, running) as bridge:
        secured.cluster.send(names.timers, b"soon", headers=soon(target))
        secured.cluster.send(names.timers, b"rolls", headers=soon(target, 3000))
        secured.cluster.send(names.timers, b"ended", headers=[*soon(target, 60_000), ("timer-id", b"x")])
        secured.cluster.send(names.timers, None, headers=[("timer-action", b"cancel"), ("timer-id", b"x")])
        secured.cluster.send(names.timers, b"bad")
        secured.cluster.flush()
        assert [record.value() for record in secured.read(target, 2)] == [b"soon", b"rolls"]
        assert [record.value() for record in secured.read(names.rejected, 1)] == [b"bad"]
        said = {json.loads(record.value())["kind"] for record in secured.read(names.receipts, 2)}
        assert said == {"cancelled", "rejected"}
        beside = check()
        assert (beside.returncode, printed(beside.stdout.splitlines())) == (0, []), beside
        assert "do not exist" not in beside.stdout
        secured.cluster.send(names.timers, b"later", headers=soon(target, 3000))
        secured.cluster.flush()
        assert "fenced" not in bridge.log_path.read_text()
    shutil.rmtree(tmp_path / "timer-data")  # so that the journal is read
    secured.cluster.grow(names.timers, 3)  # and so that it grows
    with BridgeProcess(tmp_path, secured.bootstrap_servers, running):
        assert [record.value() for record in secured.read(target, 3)] == [b"soon", b"rolls", b"later"]
    superfluous = {each for each in needed if each[2] in ("Create", "Alter")}
    prints_each_that_is_taken(sorted(needed - superfluous))
    for right in superfluous:
        secured.take(user, *right)
    until(lambda: missing() == [])
    secured.cluster.grow(names.timers, 4)
    until(lambda: missing() == [("Topic", names.journal, "Alter")])


REMEDIES: dict[str, dict[str, str]] = {
    r"authentication failed.*look at .*sasl\.password": {},
    r"certificate.*look at .*ssl\.ca\.location": {"ssl.ca.location": ""},
    r"security\.protocol": {"security.protocol": "SASL_PLAINTEXT"},
}
"""What is told of changed settings; without any, the password is wrong."""


@pytest.mark.broker
def test_who_is_not_let_in_ends_with_the_remedy(secured: Secured, names: Names, tmp_path: Path) -> None:
    """All of them at once, as each waits for the end of its start time-out."""
    user, wrong = secured.user(), uuid4().hex

    def start(told: str) -> "subprocess.CompletedProcess[str]":
        changed = REMEDIES[told]
        (folder := tmp_path / str(list(REMEDIES).index(told))).mkdir()
        config = user.config(folder, user.password if changed else wrong, **changed)
        return secured.run(names, folder, config, "--kafka", "debug=security,broker,protocol,conf")

    with ThreadPoolExecutor() as starts:
        ends = zip(REMEDIES, starts.map(start, REMEDIES), strict=True)
    for told, ended in ends:
        assert ended.returncode == 1
        *logged, last = ended.stderr.splitlines()
        for told_in in (last, "\n".join(logged)):
            assert re.search(told, told_in, re.IGNORECASE), ended.stderr
        assert "Traceback" not in ended.stderr
        for secret in (user.password, wrong):
            assert secret not in ended.stdout + ended.stderr


@pytest.mark.broker
def test_a_target_whose_right_comes_and_goes_gets_each_record_once_or_it_is_parked(
    secured: Secured, names: Names, tmp_path: Path
) -> None:
    """In the middle of transactions too. The bridge goes on, and the other target gets all of its own."""
    user, flaps, stays = secured.user(), secured.cluster.topic("flaps"), secured.cluster.topic("stays")
    secured.grant_documented(user, names, flaps, stays)
    numbers = count()

    def ask() -> None:
        for number, target in product(islice(numbers, 5), (flaps, stays)):
            secured.cluster.send(names.timers, b"%d" % number, headers=soon(target, 50), partition=number % 2)
        secured.cluster.flush()

    def settled(*topics: str) -> list[int]:
        return sorted(int(value or b"") for value in secured.cluster.values(*topics))

    with BridgeProcess(tmp_path, secured.bootstrap_servers, [*names.arguments, "--config", str(user.config(tmp_path))]):
        for _ in range(8):
            ask()
            secured.take(user, "Topic", flaps, "Write")
            ask()
            secured.grant(user, "Topic", flaps, "Write")
        secured.take(user, "Topic", flaps, "Write")
        while not secured.cluster.values(names.rejected):
            ask()
        secured.grant(user, "Topic", flaps, "Write")
        before = len(secured.cluster.values(flaps))
        while len(secured.cluster.values(flaps)) == before:
            ask()
        asked = next(numbers)
        until(lambda: min(len(settled(flaps, names.rejected)), len(settled(stays))) >= asked)
    assert settled(flaps, names.rejected) == settled(stays) == list(range(asked))
    assert set(secured.codes(names.rejected, 1).values()) == {"not-authorized"}


@pytest.mark.broker
def test_the_client_and_the_commands_are_let_in_by_the_same_settings(
    secured: Secured, names: Names, tmp_path: Path
) -> None:
    sender, stranger = secured.user(), secured.user()
    secured.cluster.create(names.timers, 2)
    secured.grant(sender, "Topic", names.timers, "Write")
    config = secured.to_connect(sender)
    with TimerProducer(config, timer_topic=names.timers) as timers:
        timers.schedule("orders", b"by the client", delay="1h", id="a")
    secret = tmp_path / "secret"
    secret.write_text(sender.password)
    environment = {
        "TIMER_BRIDGE_KAFKA_" + name.upper().replace(".", "_"): value for name, value in sender.settings().items()
    }
    environment["TIMER_BRIDGE_KAFKA_SASL_PASSWORD"] = f"file:{secret}"
    by_config = ["--config", str(sender.config(tmp_path))]
    for sent in (
        command("send", "orders", "by a command", "--in", "1h", *secured.to(names), *by_config),
        command("cancel", "a", *secured.to(names), **environment),
    ):
        assert (sent.returncode, sent.stderr) == (0, "")
    assert set(secured.cluster.values(names.timers)) == {b"by the client", b"by a command", None}

    as_stranger = ["--config", str(stranger.config(tmp_path))]
    refused = command("send", "orders", "v", "--in", "1h", *secured.to(names), *as_stranger)
    assert refused.returncode == 1
    assert "give the sender the right (an ACL) to write to it" in refused.stderr
    wrong = uuid4().hex
    impatient = {**config, "sasl.password": wrong, "message.timeout.ms": 10_000}
    with (
        pytest.raises(BridgeError, match=r"(?i)authentication failed.*look at .*sasl\.password") as unheard,
        TimerProducer(impatient, timer_topic=names.timers) as timers,
    ):
        timers.schedule("orders", b"v", delay="1h")
    for shown in (refused.stdout, refused.stderr, str(unheard.value)):
        for secret_ in (sender.password, stranger.password, wrong):
            assert secret_ not in shown


@pytest.mark.broker
def test_a_sender_that_waits_for_the_outcome_needs_read_on_three_topics(
    secured: Secured, names: Names, tmp_path: Path
) -> None:
    sender, followed = secured.user(), (names.receipts, names.rejected, names.target)
    for topic in (names.timers, *followed):
        secured.cluster.create(topic, 1)
    secured.grant(sender, "Topic", names.timers, "Write")
    asked = ["send", names.target, "v", "--in", "1h", "--wait", "--timeout", "1s", *secured.to(names)]
    asked += ["--config", str(sender.config(tmp_path))]
    topics = {"TIMER_BRIDGE_RECEIPTS_TOPIC": names.receipts, "TIMER_BRIDGE_REJECTED_TOPIC": names.rejected}
    for topic in followed:
        denied = command(*asked, **topics)
        assert (denied.returncode, f"{topic}: cannot be read" in denied.stderr) == (1, True), denied
        secured.grant(sender, "Topic", topic, "Read")
    assert secured.cluster.values(names.timers) == [], "nothing is sent by a sender that could not follow it"
    waited = command(*asked, **topics)  # no bridge runs
    assert (waited.returncode, waited.stderr.startswith("no outcome within 1s")) == (5, True), waited


@pytest.mark.broker
def test_the_acls_of_two_timer_topics_decide_who_may_send_where(secured: Secured, names: Names, tmp_path: Path) -> None:
    bridge, ordering, paying = secured.user(), secured.user(), secured.user()
    orders, paid, payments = secured.cluster.topic("orders"), secured.cluster.topic("paid"), f"{names.timers}-payments"
    secured.grant_documented(bridge, names, orders, paid)
    secured.grant(bridge, "Topic", payments, "Read", "Write", "DescribeConfigs", "Create")
    secured.grant(bridge, "Topic", f"{payments}.journal", "Read", "Write", "DescribeConfigs", "Create", "Alter")
    secured.grant(ordering, "Topic", names.timers, "Write")
    secured.grant(paying, "Topic", payments, "Write")
    config = bridge.config(tmp_path)
    tables = f'[topics."{payments}"]\nallow = ["{paid}"]\n'
    config.write_text(f'allow_targets = ["{orders}"]\n{config.read_text()}{tables}')

    def ask(user: User, timers: str, target: str) -> str | None:
        """What the broker says of it; nobody is told by an error here that a target is not theirs."""
        told: list[Any] = []
        producer = Producer({**secured.to_connect(user), "message.timeout.ms": 60_000})
        value = f"{'orders' if user is ordering else 'payments'} to {target}"
        producer.produce(timers, value, headers=list(soon(target)), on_delivery=lambda error, _: told.append(error))
        assert producer.flush(PATIENCE_S) == 0
        (error,) = told
        return None if error is None else error.name()

    arguments = [*names.arguments, "--config", str(config)]
    with BridgeProcess(tmp_path, secured.bootstrap_servers, arguments):
        for user, own, other in (ordering, names.timers, payments), (paying, payments, names.timers):
            for target in (orders, paid):
                assert ask(user, own, target) is None
                assert ask(user, other, target) == "TOPIC_AUTHORIZATION_FAILED"
        assert [each.value() for each in secured.read(orders, 1)] == [f"orders to {orders}".encode()]
        assert [each.value() for each in secured.read(paid, 1)] == [f"payments to {paid}".encode()]
        denied = {f"orders to {paid}".encode(): "denied-target", f"payments to {orders}".encode(): "denied-target"}
        assert secured.codes(names.rejected, 2) == denied
    assert len(secured.cluster.values(orders, paid)) == 2


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
def test_the_audit_is_let_in_by_the_same_settings_and_tells_no_secret(
    secured: Secured, names: Names, tmp_path: Path
) -> None:
    auditor, target = secured.user(), secured.cluster.topic("orders")
    for topic in (names.timers, names.rejected, names.receipts):
        secured.cluster.create(topic, 2, message_timestamp_type="LogAppendTime")
    for topic in (names.timers, names.rejected, names.receipts, target):
        secured.grant(auditor, "Topic", topic, "Read")
    secured.cluster.send(names.timers, b"v", headers=soon(target, 0))
    secured.cluster.send(names.timers, b"v", headers=soon(target, 3_600_000))
    added = [("timer-origin", f"{names.timers}/0/1".encode()), ("timer-rolls", b"0"), ("timer-released-ms", b"1")]
    secured.cluster.send(target, b"v", headers=[("timer-deliver-ms", b"1"), *added])
    secured.cluster.flush()
    events, spark_settings = tmp_path / "events", tmp_path / "spark"
    for folder in (events, spark_settings):
        folder.mkdir()
    (spark_settings / "spark-defaults.conf").write_text(f"spark.eventLog.enabled true\nspark.eventLog.dir {events}\n")
    where = [*secured.to(names), "--rejected-topic", names.rejected, "--receipts-topic", names.receipts]
    given = [*where, "--out", str(tmp_path / "audit"), "--config", str(auditor.config(tmp_path)), "--settle-ms", "0"]
    ended = command("audit", *given, SPARK_CONF_DIR=str(spark_settings))
    assert (ended.returncode, ended.stderr) == (3, ""), ended.stdout
    assert "missing: 1" in ended.stdout
    assert "early: 1" in ended.stdout
    written = [path.read_bytes() for folder in (events, tmp_path / "audit") for path in folder.rglob("*.*")]
    assert len(written) > 3
    assert all(auditor.password.encode() not in each for each in [*written, ended.stdout.encode()])

    stranger = auditor.config(tmp_path, uuid4().hex)
    refused = command("audit", *where, "--out", str(tmp_path / "none"), "--config", str(stranger))
    assert refused.returncode == 1
    assert "refuses the login: check sasl.mechanism, sasl.username, sasl.password in [kafka]" in refused.stderr
