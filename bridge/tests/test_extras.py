"""The bridge alone, in a process where the libraries of all extras are missing."""

import subprocess
import sys
from textwrap import dedent

from integration_tests.support.patience import PATIENCE_S

BLOCKED = dedent(
    """
    import sys
    MISSING = {"fastapi", "h11", "itsdangerous", "jinja2", "starlette", "uvicorn", "rocksdict", "pyarrow", "fastavro",
               "google", "matplotlib", "pandas", "pyspark"}

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in MISSING:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Blocker())
    """
)


def run_alone(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", BLOCKED + dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_the_bridge_delivers_and_answers_probes_without_extras() -> None:
    done = run_alone(
        """
        import socket, urllib.error, urllib.request
        from bridge.process import run  # what `timer-bridge run` imports
        from bridge.observe.metrics import Metrics
        from bridge.observe.prometheus import AlertLimits, Exposition
        from bridge.observe.status import Status
        from bridge.probes import MAX_CONNECTIONS, serving_probes
        from bridge.testing.timer_world import TimerWorld
        from kafka_timer.origin import TimerPartition

        world = TimerWorld("orders")
        world.producer.produce("timer.requests", b"hello", headers={"timer-topic": "orders", "timer-delay-ms": "5000"})
        world.pass_time(ms=4_999)
        early = len(world.read("orders"))
        world.pass_time(ms=1)
        print(early, [record.value for record in world.read("orders")])

        def get(path, host=None, headers={}):
            headers = {**headers, "Host": host or "localhost"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read()

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        status = Status()
        exposition = Exposition(Metrics(lambda: 0.0, status.traffic), status, AlertLimits("1", 0, 0))
        with serving_probes("127.0.0.1", port, status, exposition.text, ["bridge.example"]):
            print(get("/health/live")[0], get("/health/ready")[0])
            status.partition_running(TimerPartition("timer.requests", 0))
            print(get("/health/ready", "bridge.example"))
            print(get("/metrics")[0], b"timer_bridge_ready 1.0" in get("/metrics")[1])
            print(get("/pending")[0], b"extra 'page'" in get("/pending")[1], get("/metrics", "evil.example")[0])
            print(get("/health/live", None, {"Content-Length": "1", "Transfer-Encoding": "chunked"})[0])
            slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * MAX_CONNECTIONS)]
            print(get("/health/live")[0])
            for each in slow:
                each.close()
        """
    )
    assert done.stdout.splitlines() == [
        "0 [b'hello']",
        "200 503",
        '(200, b\'{"status": "ok", "shards": {"timer.requests/0": "running"}}\')',
        "200 True",
        "404 True 403",
        "400",
        "200",
    ], done.stderr
    assert done.returncode == 0


CHECK = "check-config --bootstrap-servers 127.0.0.1:9"
NEEDED = {
    f"{CHECK} --http-port 8321": "",
    f"{CHECK} --http-port 8321 --page": "page",
    f"{CHECK} --http-port 8321 --workers 2": "page",
    f"{CHECK} --workers 2": "page",
    f"{CHECK} --engine rocksdb": "rocksdb",
    f"{CHECK} --http-port 8321 --page --audit-tables /tmp/audit": "page",
    **dict.fromkeys(("audit", "backfill", "archive", "import"), "spark"),
}
"""The extra that a call needs."""


def test_a_setting_or_command_that_needs_an_extra_names_it() -> None:
    done = run_alone(
        """
        import contextlib, io
        from bridge.cli import main

        for call in sys.argv[1:]:
            sys.argv = ["timer-bridge", *call.split()]
            said, code = io.StringIO(), 0
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                try:
                    main()
                except SystemExit as ended:
                    code = ended.code or 0
            print(code, " ".join(said.getvalue().split()))
        """,
        *NEEDED,
    )
    said = done.stdout.splitlines()
    assert len(said) == len(NEEDED), done.stderr
    for line, (call, extra) in zip(said, NEEDED.items(), strict=True):
        wanted = ("1", f" not installed; run pip install 'kafka-timer-bridge[{extra}]'") if extra else ("0", "")
        assert (line[0], wanted[1] in line) == (wanted[0], True), f"{call}: {line}"
