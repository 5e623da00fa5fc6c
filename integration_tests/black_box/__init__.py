"""Tests that know only headers, topics and the command line, as a user does who has read README.md and docs/.

They import the standard library, pytest, confluent_kafka and the client that users import (`kafka_timer`);
`make check` fails on any other import, so these tests do not change when modules of ours move or are renamed.

    processes.py   `timer-bridge` processes, and waits for conditions
    history.py     one timer topic, the bridges of its group, and the check that each timer came once
"""

import pytest

# Failed assertions in these modules show their values, as in a test.
pytest.register_assert_rewrite(f"{__name__}.history", f"{__name__}.processes")
