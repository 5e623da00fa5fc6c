"""A software bill of materials (CycloneDX 1.6, JSON) of what users install: the package, its extra `spark`, and jars.

Python packages come from this environment (licences, dependencies), limited to run.lock and spark.lock. The jars are
those that `timer-bridge dev` and the Spark jobs fetch, with the SHA-512 that is checked at each use.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from bridge.dev.kafka_jars import JARS as KAFKA
from schemas.maven_jars import JarList
from spark_jobs.platform.session import jar_list


def locked() -> set[str]:
    """Return the normalised names of the packages, with our own client."""
    text = "".join(Path(f"requirements/{name}.lock").read_text() for name in ("run", "spark"))
    return {"kafka-timer-client", *re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)}


def limited(bom: dict[str, Any], names: set[str], jars: list[dict[str, Any]]) -> dict[str, Any]:
    """Return `bom` with only these packages, and with `jars` as components that the root depends on."""
    root = bom["metadata"]["component"]["bom-ref"]
    kept = [each for each in bom["components"] if re.sub(r"[-_.]+", "-", each["name"]).lower() in names]
    known = {root, *(each["bom-ref"] for each in kept)}
    refs = [jar["bom-ref"] for jar in jars]
    dependencies = [{"ref": ref} for ref in refs]
    for each in bom["dependencies"]:
        if (ref := each["ref"]) in known:
            on = [other for other in each.get("dependsOn", []) if other in known]
            dependencies.append({"ref": ref, "dependsOn": on + refs if ref == root else on})
    return bom | {"components": kept + jars, "dependencies": dependencies}


def components(*lists: JarList) -> list[dict[str, Any]]:
    """Return one component for each jar, also if several lists have it."""
    made = []
    for jar, sha512 in {jar: sha512 for asked in lists for jar, sha512 in asked.sha512.items()}.items():
        group, name, version = jar.split(":")
        about = {"type": "library", "group": group, "name": name, "version": version, "scope": "optional"}
        purl, hashes = f"pkg:maven/{group}/{name}@{version}", [{"alg": "SHA-512", "content": sha512}]
        made.append({**about, "bom-ref": purl, "purl": purl, "hashes": hashes})
    return made


def write_sbom(out: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    environment = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", "pyproject.toml"]
    environment += ["--sv", "1.6", "--of", "JSON", sys.executable]
    done = subprocess.run(environment, capture_output=True, check=True)
    text = json.dumps(limited(json.loads(done.stdout), locked(), components(KAFKA, jar_list())), indent=1)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        sys.exit(f"{out}: not valid CycloneDX 1.6: {wrong}")
    out.write_text(text)
