"""The limit of wrong tokens, minute by minute."""

from bridge.page.sessions import MAX_WRONG_PER_ADDRESS, MAX_WRONG_TOTAL, WrongTokens


class Now:
    s = 6_000.0

    def __call__(self) -> float:
        return self.s


def test_an_address_waits_for_the_next_minute_and_others_do_not() -> None:
    now = Now()
    limit = WrongTokens(now)
    for _ in range(MAX_WRONG_PER_ADDRESS):
        assert limit.wait_s("a") == 0
        limit.count("a", is_right=False)
        now.s += 1
    assert (limit.wait_s("a"), limit.wait_s("b")) == (60 - MAX_WRONG_PER_ADDRESS, 0)
    now.s = 6_059.9
    assert limit.wait_s("a") == 1
    now.s = 6_060
    assert limit.wait_s("a") == 0
    for _ in range(MAX_WRONG_PER_ADDRESS):
        limit.count("a", is_right=False)
    now.s = 100
    assert limit.wait_s("a") == 0, "a clock that was set back ends the wait as well"


def test_many_addresses_together_are_limited_and_lock_out_none_that_gave_a_right_token() -> None:
    now = Now()
    limit = WrongTokens(now)
    limit.count("operator", is_right=True)
    tried = 0
    for number in range(10_000):
        if limit.wait_s(f"10.0.0.{number}") == 0:
            limit.count(f"10.0.0.{number}", is_right=False)
            tried += 1
    assert tried == MAX_WRONG_TOTAL
    assert len(limit._wrong) <= MAX_WRONG_TOTAL + 1, "memory"
    assert limit.wait_s("operator") == 0
    for _ in range(MAX_WRONG_PER_ADDRESS):
        limit.count("operator", is_right=False)
    assert limit.wait_s("operator") == 60
    for number in range(5000):
        limit.count(f"10.1.0.{number}", is_right=True)
    assert len(limit._trusted) == 1000
