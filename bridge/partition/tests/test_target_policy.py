"""Patterns of targets: the names that they match, and errors for patterns without effect."""

import pytest

from bridge.partition.options import Policy, check_policy

OWN = frozenset({"timer.requests", "timer.journal"})


def taken(policy: Policy, *targets: str) -> list[str]:
    return [target for target in targets if policy.refusal(target) is None]


def test_by_default_every_target_is_taken() -> None:
    assert Policy().is_open
    assert taken(Policy(), "orders", "a.b-c_d") == ["orders", "a.b-c_d"]


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("orders", ["orders"], ["orders.eu", "my.orders", "Orders"]),
        ("orders.*", ["orders.eu", "orders.eu.west", "orders."], ["orders", "ordersXeu"]),
        ("*.dlq", ["a.dlq", "a.b.dlq", ".dlq"], ["dlq", "a.dlqs"]),
        ("bill?", ["bills", "bill."], ["bill", "billss"]),
        ("a*b*c", ["abc", "a1b2c", "abbcc"], ["ab", "acb", "abcd"]),
        ("*", ["orders", "a_b", "a.b"], []),
    ],
)
def test_a_pattern_matches_the_whole_name(pattern: str, matches: list[str], others: list[str]) -> None:
    assert taken(Policy(allow=(pattern,)), *matches, *others) == matches
    assert taken(Policy(deny=(pattern,)), *matches, *others) == others


def test_deny_wins_and_the_refusal_names_the_remedy() -> None:
    policy = Policy(("orders.*", "bills"), ("*.secret", "orders.eu"))
    assert taken(policy, "orders.us", "orders.eu", "orders.secret", "bills", "other") == ["orders.us", "bills"]
    refusal = policy.refusal("orders.eu")
    assert refusal is not None
    assert refusal.code == "denied-target"
    assert "orders.eu is no target of this timer topic" in refusal.detail
    assert "allow and deny changed" in refusal.detail


@pytest.mark.parametrize(
    "target", ["_schemas", "_confluent-command", "connect-offsets", "timer.lateness", "timer.control", "eu.journal"]
)
def test_internal_topics_are_denied_unless_allow_names_them_exactly(target: str) -> None:
    assert taken(Policy(), target) == []
    assert taken(Policy(allow=("*", f"{target}*")), target) == []
    assert taken(Policy(allow=("*", target)), target) == [target]
    assert taken(Policy(allow=("*", target), deny=("*" + target[1:],)), target) == []


@pytest.mark.parametrize("actions", [(), ("cancel", "skip"), ("",)])
def test_unknown_actions_are_refused(actions: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"actions is \[.*\]: write a list of schedule, cancel, replace, move, pause"):
        check_policy(Policy(actions=actions), OWN)


def test_no_name_takes_long_to_match() -> None:
    policy = Policy(allow=("*a*a*a*a*a*a*a*a*b",))
    assert taken(policy, "a" * 249) == []  # backtracking would take years


@pytest.mark.parametrize(
    ("allow", "deny", "told"),
    [
        ([], [], "allow is empty, so nothing could be sent: leave it out"),
        ([""], [], "allow: '' matches no topic"),
        (["orders.[ab]"], [], r"allow: 'orders.\[ab\]' matches no topic: write a name of letters"),
        (["*"], ["or ders"], "deny: 'or ders' matches no topic"),
        (["__consumer_offsets"], [], "allow: '__consumer_offsets' is internal or the bridge's own, never a target"),
        (["__*"], [], r"'__\*' is internal"),
        (["timer.journal"], [], "'timer.journal' is internal or the bridge's own"),
        ([".."], [], "never a target"),
        (["o" * 250], [], "never a target"),
        (["orders"], ["*"], r"allow: 'orders' is denied as a whole by '\*' of deny: take one of them out"),
        (["orders.eu.*"], ["orders.*"], r"'orders.eu.\*' is denied as a whole by 'orders.\*'"),
        (["bill?"], ["bill*"], r"'bill\?' is denied as a whole"),
        (["*", "connect-o*"], [], r"allow: 'connect-o\*' matches internal topics only: name each of them exactly"),
        (["timer.*"], [], "matches internal topics only"),
    ],
)
def test_a_pattern_without_effect_is_refused(allow: list[str], deny: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_policy(Policy(tuple(allow), tuple(deny)), OWN)


@pytest.mark.parametrize(
    ("allow", "deny"),
    [
        (["*"], []),
        (["*"], ["__*", "timer.*"]),
        (["orders.*"], ["orders.eu"]),
        (["orders.*"], ["*.secret"]),
        (["bill*"], ["bill?"]),
        (["*", "_schemas", "connect-offsets"], []),
    ],
)
def test_patterns_with_an_effect_are_accepted(allow: list[str], deny: list[str]) -> None:
    check_policy(Policy(tuple(allow), tuple(deny)), OWN)
