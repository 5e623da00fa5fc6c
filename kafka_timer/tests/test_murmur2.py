"""Values of Kafka's own tests (UtilsTest.testMurmur2), which other languages agree with."""

import pytest

from kafka_timer.murmur2 import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_has_the_hash_that_java_gives_it(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % (1 << 32)
    assert partition_of(key, 7) == (signed & 0x7FFFFFFF) % 7
