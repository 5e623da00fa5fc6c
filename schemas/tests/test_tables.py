"""The two forms of a table say the same."""

import pyarrow as pa
import pytest

from schemas.tables import REQUESTS, TOPICS, AuditClass, Table


@pytest.mark.parametrize("table", [REQUESTS, TOPICS], ids=lambda table: table.name)
def test_both_forms_have_the_same_columns_in_order(table: Table) -> None:
    spark_names = [column.split("`")[1] for column in table.spark_ddl().split(", ")]
    assert spark_names == table.arrow().names
    assert len(set(spark_names)) == len(spark_names)


def test_forms_of_each_kind() -> None:
    assert "`due_ms` BIGINT" in REQUESTS.spark_ddl()
    assert "`faults` ARRAY<STRING>" in REQUESTS.spark_ddl()
    assert REQUESTS.arrow().field("due_ms").type == pa.int64()
    assert REQUESTS.arrow().field("partition").type == pa.int32()


def test_every_class_is_counted_by_topic() -> None:
    assert {c.column for c in AuditClass} <= set(TOPICS.arrow().names)
    assert AuditClass.REJECTED_BUT_DELIVERED.column == "rejected_but_delivered"


def test_every_column_has_a_meaning() -> None:
    assert all(column.meaning for table in (REQUESTS, TOPICS) for column in table.columns)
