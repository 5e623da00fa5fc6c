"""Small files and folders of an audit, through Spark's Hadoop FileSystem: on any store that Spark can write.

Spark itself reads and writes the tables. A plan, a commit, a lock and the report need little more: these functions.
They need a Spark session. A path without a scheme is one of Hadoop's default file system, as for Spark's tables.
"""

import re
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark_jobs.errors import UsageError

_PUT_STORES = {"s3a", "s3", "s3n", "gs", "oss", "cosn", "obs", "wasb", "wasbs"}
"""Object stores: a file appears whole when it is closed, and a rename is a copy."""


class Uri(str):
    """A file or folder with a scheme: s3a://bucket/audits. Text, as pathlib would take `//` for `/`."""

    def __truediv__(self, name: str) -> "Uri":
        return Uri(f"{self.rstrip('/')}/{name}")

    @property
    def parent(self) -> "Uri":
        return Uri(self.rpartition("/")[0])


Location: TypeAlias = Path | Uri


def parse_location(text: str) -> Location:
    return Uri(text) if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text) else Path(text)


def read(path: Location) -> bytes | None:
    """Return the contents; None if there is no such file."""
    system, at = _resolved(path)
    if not system.exists(at):
        return None
    with closing(system.open(at)) as file:
        return bytes(_jvm().org.apache.commons.io.IOUtils.toByteArray(file))


def parquet_metadata(path: Location) -> dict[bytes, bytes]:
    """Return the metadata that the writer of a Parquet file added, without reading its rows."""
    found = _parquet_footer(path).getKeyValueMetaData()
    return {str(name).encode(): str(value).encode() for name, value in found.items()}


def parquet_columns(path: Location, wanted: Collection[str] = ()) -> tuple[dict[str, str], str]:
    """Return the type of each column of a Parquet file in its terms, and Spark's schema of those `wanted`, as JSON.

    Spark looks at no other column, as it may have a type that Spark lacks.
    """
    jvm, footer, kinds = _jvm(), _parquet_footer(path), {}
    chosen = jvm.java.util.ArrayList()
    for field in footer.getSchema().getFields():
        kind = field.getLogicalTypeAnnotation()
        kinds[str(field.getName())] = str(field if kind is None else kind.toString())
        if field.getName() in wanted:
            chosen.add(field)
    conf = SparkSession.active()._jsparkSession.sessionState().conf()  # noqa: SLF001
    converter = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter(conf)
    return kinds, str(converter.convert(jvm.org.apache.parquet.schema.MessageType("chosen", chosen)).json())


def _parquet_footer(path: Location) -> Any:
    system, at = _resolved(path)
    parquet = _jvm().org.apache.parquet.hadoop
    with closing(parquet.ParquetFileReader.open(parquet.util.HadoopInputFile.fromPath(at, system.getConf()))) as file:
        return file.getFooter().getFileMetaData()


def write(path: Location, data: bytes) -> None:
    """Write the file atomically: a reader finds the old contents or the new ones."""
    system, at = _resolved(path)
    if _scheme(system) in _PUT_STORES:
        _put(system, at, data)
        return
    draft = at.suffix(".new")
    _put(system, draft, data)
    if _scheme(system) == "file":
        system.rename(draft, at)
        return
    hadoop = _jvm().org.apache.hadoop.fs
    context: Any = SparkSession.active().sparkContext
    options = context._gateway.new_array(hadoop.Options.Rename, 1)  # noqa: SLF001
    options[0] = hadoop.Options.Rename.OVERWRITE
    hadoop.FileContext.getFileContext(system.getUri(), system.getConf()).rename(draft, at, options)


def create(path: Location, data: bytes) -> bool:
    """Write a new file; False if it exists. Two at once may both succeed on object stores, which overwrite."""
    system, at = _resolved(path)
    if _scheme(system) == "file":
        if not _jvm().java.io.File(at.toUri().getPath()).createNewFile():
            return False
        write(path, data)
        return True
    try:
        _put(system, at, data, overwrite=False)
    except Py4JJavaError as wrong:
        if "AlreadyExists" in wrong.java_exception.getClass().getName():
            return False
        raise
    return True


def qualified(path: Location) -> str:
    """Return the whole URI, as other programs need it: file:/audits for audits."""
    system, at = _resolved(path)
    return str(system.makeQualified(at))


def make_folder(out: Location) -> None:
    """Make the folder and those above it. Raises UsageError."""
    try:
        system, at = _resolved(out)
        done, why = system.mkdirs(at), "refused"
    except Py4JJavaError as wrong:
        done, why = False, wrong.java_exception.getMessage()
    if not done:
        raise UsageError(f"--out {out} cannot be made ({why}): give another folder")


def make_local_folder(out: Path) -> None:
    """Make the folder on this machine, without Spark. Raises UsageError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise UsageError(f"--out {out} cannot be made ({wrong.strerror}): give another folder") from wrong


def delete(*paths: Location) -> None:
    """Delete files and whole folders; those that do not exist are ignored."""
    for path in paths:
        system, at = _resolved(path)
        system.delete(at, True)


def found(folder: Location, pattern: str) -> list[str]:
    """Return the names below the folder that match, sorted."""
    return sorted(changed_ms(folder, pattern))


def changed_ms(folder: Location, pattern: str) -> dict[str, int]:
    """Return the names below the folder that match, and when each was changed."""
    system, at = _resolved(folder / pattern)
    depth = pattern.count("/") + 1
    statuses = system.globStatus(at) or ()
    return {"/".join(str(one.getPath()).split("/")[-depth:]): int(one.getModificationTime()) for one in statuses}


def exists(path: Location) -> bool:
    system, at = _resolved(path)
    return bool(system.exists(at))


def _put(system: Any, at: Any, data: bytes, *, overwrite: bool = True) -> None:
    with closing(system.create(at, overwrite)) as file:
        file.write(data)


def _resolved(path: Location) -> tuple[Any, Any]:
    """Return the file system and the path in it. The local one is used without its checksum files.

    These are renamed after their file, so that a killed process could leave a file that cannot be read.
    """
    at = _jvm().org.apache.hadoop.fs.Path(str(path))
    system = at.getFileSystem(SparkSession.active()._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    if _scheme(system) == "file":
        system = system.getRawFileSystem()
    return system, at


def _scheme(system: Any) -> str:
    return str(system.getUri().getScheme())


def _jvm() -> Any:
    return SparkSession.active().sparkContext._jvm  # noqa: SLF001
