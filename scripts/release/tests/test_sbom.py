"""The bill of materials: only packages that users install, and each jar with its hash."""

from typing import Any

from bridge.dev.kafka_jars import JARS as KAFKA
from scripts.release.sbom import components, limited, locked
from spark_jobs.platform.connector import jar_list

BOM: dict[str, Any] = {
    "metadata": {"component": {"bom-ref": "root"}},
    "components": [
        {"name": "Prometheus_Client", "bom-ref": "j"},
        {"name": "pydantic_core", "bom-ref": "p"},
        {"name": "pytest", "bom-ref": "t"},
    ],
    "dependencies": [
        {"ref": "root", "dependsOn": ["j", "t"]},
        {"ref": "j", "dependsOn": ["t", "p"]},
        {"ref": "t"},
        {"ref": "p"},
    ],
}


def test_tools_are_left_out_and_the_graph_is_whole() -> None:
    jars = components(KAFKA, jar_list())[:1]
    made = limited(BOM, locked(), jars)
    assert [each["bom-ref"] for each in made["components"]] == ["j", "p", jars[0]["bom-ref"]]
    assert made["dependencies"] == [
        {"ref": "root", "dependsOn": ["j", jars[0]["bom-ref"]]},
        {"ref": "j", "dependsOn": ["p"]},
        {"ref": "p", "dependsOn": []},
        {"ref": jars[0]["bom-ref"]},
    ]


def test_each_jar_is_listed_once_with_its_sum() -> None:
    made = components(KAFKA, jar_list())
    assert len({each["purl"] for each in made}) == len(made) == len(KAFKA.sha512.keys() | jar_list().sha512.keys())
    (found,) = (each for each in made if each["purl"] == "pkg:maven/org.apache.kafka/kafka_2.13@4.3.0")
    assert found["hashes"] == [{"alg": "SHA-512", "content": KAFKA.sha512["org.apache.kafka:kafka_2.13:4.3.0"]}]
