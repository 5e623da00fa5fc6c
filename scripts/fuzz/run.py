"""`make fuzz`: libFuzzer, guided by coverage, searches for bytes on which a decoder fails with an unexpected error.

    a finding    an error that the target does not expect, an input that takes more than 10 s, more than 1 GiB of memory

Targets: scripts/fuzz/targets.py. .run/fuzz keeps the corpus for the next run. A finding is a file there;
`python -m scripts.fuzz.run TARGET FILE` repeats it.
Exit codes: 0 no finding, 1 a finding, 2 wrong call.
"""

import argparse
import resource
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

FOLDER = Path(".run/fuzz")
SHARES = {"store": 6, "checkpoint": 2, "frame": 1, "journal": 1, "progress": 1, "headers": 1}
"""Share of the time for each target."""
RUNS = dict.fromkeys(SHARES, 200_000) | {"store": 5000, "checkpoint": 5000}
"""Inputs in one process."""
MOST_SECONDS = 10
MOST_MIB = 1024
_MOST_ADDRESS_BYTES = 8 << 30
"""Includes memory that is allocated at once and never touched."""


def search(seconds: int, targets: list[str]) -> int:
    """Fuzz the targets one after another. Return the exit code."""
    total = sum(SHARES[target] for target in targets)
    found = [target for target in targets if not is_clean(target, seconds * SHARES[target] // total)]
    print(f"{len(found)} of {len(targets)} targets have a finding {' '.join(found)}")
    return 1 if found else 0


def is_clean(target: str, seconds: int) -> bool:
    """Fuzz in one process after another, as libFuzzer's memory grows with each input."""
    corpus, findings = FOLDER / target, FOLDER / f"{target}-findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    flags = [
        *(f"-timeout={MOST_SECONDS}", f"-rss_limit_mb={MOST_MIB}", f"-runs={RUNS[target]}", "-max_len=4096"),
        *(f"-artifact_prefix={findings}/", "-print_final_stats=1"),
    ]
    end = time.monotonic() + seconds
    while (left := int(end - time.monotonic())) > 0:
        print(f"{target}: {left} s", flush=True)
        call = [sys.executable, "-m", "scripts.fuzz.run", target, str(corpus), f"-max_total_time={left}", *flags]
        if subprocess.run(call, check=False).returncode != 0:
            return False
    return True


def run_target(name: str, arguments: list[str]) -> None:
    """Run a target. Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["timer", "schemas", "kafka_timer", "bridge.recovery"]):
        from scripts.fuzz.targets import TARGETS
    target = TARGETS[name]
    corpus = Path(arguments[0])
    if corpus.is_dir():
        for seed in target.seeds():
            (corpus / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESS_BYTES, _MOST_ADDRESS_BYTES))
    atheris.Setup([sys.argv[0], *arguments], target.check)
    atheris.Fuzz()


def main() -> int:
    if len(sys.argv) > 2 and sys.argv[1] in SHARES:
        run_target(sys.argv[1], sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz.run", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600, help="in all (default: 600)")
    parser.add_argument("--target", choices=[*SHARES], action="append", help="only this one (default: all)")
    asked = parser.parse_args()
    return search(asked.seconds, asked.target or [*SHARES])


if __name__ == "__main__":
    sys.exit(main())
