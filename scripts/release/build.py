"""Build what a release publishes, try it, and say what goes where. `make release` brings what it needs.

python -m scripts.release.build

    kafka_timer_client-*, kafka_timer_bridge-*   sdists, and wheels that are built from the sdists
    timer-bridge-X.Y.Z.tgz                       the Helm chart
    site.tar.gz, sbom.json, SHA256SUMS
    bridge.tar, audit.tar                        images in OCI's format, if a Docker engine with buildx answers

Each Python on PATH from 3.11 on installs the wheels into an empty environment, with the packages of run.lock and their
hashes. Exit code 1 with the reason if the checkout has changes, or if something cannot be built or installed.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from scripts.release.sbom import write_sbom

ROOT = Path(__file__).parents[2]
_PROJECTS = ("kafka_timer", ".")
_NOT_SOURCE = shutil.ignore_patterns(".*", "dist", "build", "*.egg-info", "__pycache__")
_BUILD = "import sys; from setuptools import build_meta as by; print(getattr(by, sys.argv[1])(sys.argv[2]))"
_FIRST_MINOR, _LAST_MINOR = 11, 20


def run(*command: str | Path, at: Path = ROOT) -> str:
    """Return what the command prints. Ends the program if it fails, with the end of its messages."""
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = "\n".join((done.stderr or done.stdout).splitlines()[-20:])
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{told}")
    return done.stdout


def build_packages(out: Path) -> list[Path]:
    """Build both sdists, and from each its wheel. Return the wheels, the client's first."""
    wheels = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        shutil.copytree(ROOT, source, ignore=_NOT_SOURCE)
        for name in _PROJECTS:
            sdist = out / _built("build_sdist", source / name, out)
            with tarfile.open(sdist) as packed:
                packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python 3.11.2 has none
                packed.extractall(folder)
            wheels.append(out / _built("build_wheel", Path(folder, sdist.name.removesuffix(".tar.gz")), out))
    return wheels


def _built(hook: str, at: Path, out: Path) -> str:
    return run(sys.executable, "-c", _BUILD, hook, out.resolve(), at=at).splitlines()[-1]


def install(python: str, wheels: Iterable[Path], folder: Path) -> str:
    """Install wheels into an empty environment. Return what its `timer-bridge --version` prints."""
    run(python, "-m", "venv", folder)
    pip = (folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", ROOT / "requirements" / "run.lock")
    run(*pip, "--no-deps", *wheels)
    run(folder / "bin" / "python", "-c", "import kafka_timer.aio", at=folder)
    return run(folder / "bin" / "timer-bridge", "--version", at=folder).strip()


def pythons() -> list[str]:
    """Return the Pythons that a user may have, from 3.11 to the newest on PATH."""
    named = (shutil.which(f"python3.{minor}") for minor in range(_FIRST_MINOR, _LAST_MINOR))
    return [each for each in named if each is not None and _succeeds(each, "--version")] or [sys.executable]


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def pack(folder: Path, name: str, out: Path) -> None:
    """Write `folder` as a .tar.gz with the one top folder `name`, as `helm package` does for a chart."""
    with tarfile.open(out, "w:gz") as packed:
        packed.add(folder, name)


def build_images(out: Path, version: str) -> bool:
    """Build the images for both architectures. False if no Docker engine with buildx answers."""
    if not (shutil.which("docker") and _succeeds("docker", "info") and _succeeds("docker", "buildx", "version")):
        return False
    kept = [f"--set={name}.output=type=oci,dest={out / name}.tar" for name in ("bridge", "audit")]
    run("make", "bake", f"TAG={version}", f"ARGS={' '.join(kept)}")
    return True


def main() -> None:
    if changed := run("git", "status", "--porcelain"):
        sys.exit(f"the checkout has changes, and a release is of one commit; commit or stash them:\n{changed}")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    out = ROOT / ".run" / "release"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    wheels = build_packages(out)
    for python in pythons():
        with tempfile.TemporaryDirectory() as folder:
            print(f"{python}: {install(python, wheels, Path(folder, 'environment'))}")
    pack(ROOT / "charts" / "timer-bridge", "timer-bridge", out / f"timer-bridge-{version}.tgz")
    pack(ROOT / ".run" / "site", "site", out / "site.tar.gz")
    write_sbom(out / "sbom.json")
    has_images = build_images(out, version)
    built = sorted(each for each in out.iterdir() if each.is_file())
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in built]
    (out / "SHA256SUMS").write_text("".join(sums))
    images = "bridge.tar, audit.tar" if has_images else "nothing, as no Docker engine is here"
    print(f"""{out}: version {version} of {run("git", "rev-parse", "HEAD").strip()}; upload
  to the package index: kafka_timer_client-* first, then kafka_timer_bridge-*
  to the chart repository: timer-bridge-{version}.tgz
  to the web server: site.tar.gz, unpacked
  to the image registry: {images}
  to the page of the tag: wheels, sdists, sbom.json, SHA256SUMS""")


if __name__ == "__main__":
    main()
