"""`make fuzz`: libFuzzer, guided by coverage, searches for bytes on which a decoder fails with an unexpected error.

    a finding    an error that the target does not expect, an input that takes more than 10 s, more than 1 GiB of memory

Targets: scripts/fuzz/targets.py. .run/fuzz keeps the corpus for the next run. A finding is a file there;
`python -m scripts.fuzz.run TARGET FILE` repeats it. Exit codes: 0 no finding, 1 a finding, 2 wrong call.
"""

import argparse
import resource
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

FOLDER = Path(".run/fuzz")
SHARES = {"store": 6, "checkpoint": 2, "frame": 1, "journal": 1, "progress": 1}
"""Share of the time for each target."""
RUNS = dict.fromkeys(SHARES, 200_000) | {"store": 5000, "checkpoint": 5000}
"""Inputs in one process: libFuzzer's memory grows with each."""
_MOST_ADDRESS_BYTES = 8 << 30
"""Includes memory that is allocated at once and never touched."""


def is_clean(target: str, seconds: int) -> bool:
    corpus, findings = FOLDER / target, FOLDER / f"{target}-findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    flags = ["-timeout=10", "-rss_limit_mb=1024", f"-runs={RUNS[target]}", "-max_len=4096", "-print_final_stats=1"]
    call = [sys.executable, "-m", "scripts.fuzz.run", target, str(corpus), f"-artifact_prefix={findings}/", *flags]
    end = time.monotonic() + seconds
    while (left := int(end - time.monotonic())) > 0:
        print(f"{target}: {left} s", flush=True)
        if subprocess.run([*call, f"-max_total_time={left}"], check=False).returncode != 0:
            return False
    return True


def run_target(name: str, arguments: list[str]) -> None:
    """Run a target. Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["timer", "schemas", "kafka_timer", "bridge.partition"]):
        from scripts.fuzz.targets import TARGETS, without_checksums
    if (corpus := Path(arguments[0])).is_dir():
        with without_checksums():
            for seed in TARGETS[name].seeds():
                (corpus / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESS_BYTES, _MOST_ADDRESS_BYTES))
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name].check)
    with without_checksums():
        atheris.Fuzz()


def main() -> int:
    if len(sys.argv) > 2 and sys.argv[1] in SHARES:
        run_target(sys.argv[1], sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz.run", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600, help="in all (default: 600)")
    seconds, total = parser.parse_args().seconds, sum(SHARES.values())
    found = [target for target, share in SHARES.items() if not is_clean(target, seconds * share // total)]
    print(f"{len(found)} of {len(SHARES)} targets have a finding {' '.join(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
