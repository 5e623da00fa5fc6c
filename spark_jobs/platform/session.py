"""The Spark session: the caller's if there is one, the cluster's under spark-submit, else a local one.

The JVM writes to stderr before Spark can silence it. It inherits our stderr at its start, so stderr points to a log
file for that moment.

Its connector to Kafka, which PySpark lacks: spark-submit fetches it (--packages KAFKA_PACKAGE). For a JVM that we start
spark-jars/<release>.txt lists the jars; they are fetched once, and checked before each start. With --jars DIR no
network is used.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kafka_timer
import schemas
import spark_jobs
from schemas.maven_jars import JarList, JarsError, archive_options, ensure
from spark_jobs.errors import JobFailedError, reason_of
from spark_jobs.platform import files
from spark_jobs.platform.files import Location
from spark_jobs.platform.flags import JobArguments

RELEASE = pyspark.__version__
KAFKA_PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{RELEASE}"
"""Maven coordinates for spark-submit, which fetches the connector and its dependencies itself."""
_LISTS = Path(__file__).with_name("spark-jars")
_COMMON_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # A broadcast table is some ten times as large in the driver as the size that this limit counts.
    "spark.sql.autoBroadcastJoinThreshold": "1m",
    # Kafka's v2 source: the default v1 source turns each row into objects and back.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # Most of the cached data is hashes and digests, which do not compress.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # A cached consumer keeps its fetched records in memory, for a task that may read the same partition.
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    # Java never compiles a longer method by default; with this limit Spark splits it.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # The claims to be copies are few: a filter of at most 8 MB spares the other requests the sort for a join with them.
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "10m",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "1t",
    # More partitions than this are written to one file. By default, a task has a file and a compressor for each of up
    # to 200.
    "spark.shuffle.sort.bypassMergeThreshold": "10",
    # Rows that are kept apart are written to several open files. Otherwise Spark sorts them first.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # Spark would derive filters from the constraints on columns: much time of the driver, and no task gets cheaper, as
    # our joins leave out rows without a key themselves.
    "spark.sql.constraintPropagation.enabled": "false",
    # Otherwise each Column operation asks the JVM 15 times for its call site: a third of a small audit's time.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_INITIAL_PARTITIONS = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_FEW_RECORDS = 10_000
_FOR_FEW_RECORDS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""To compile queries, and to plan them again while they run, would take longer than the work."""
_SIZED_BY = {_INITIAL_PARTITIONS, *_FOR_FEW_RECORDS}
_IS_SIZED = "spark.timerbridge.fitPartitions"
_LOG = "spark.timerbridge.log"
_LEAST_PARTITIONS, _RECORDS_PER_PARTITION = 8, 100_000
_JAVA_OPTIONS = (
    "-XX:+UseParallelGC",
    # Ten times Java's defaults for its second compiler. Most code belongs to plans and soon ends; loops over rows reach
    # these values.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    # Methods of more than 8,000 bytes, too: the audit's rules are one of 16,000.
    "-XX:-DontCompileHugeMethods",
)
_JAVA_OPTIONS_FOR_FEW_RECORDS = ("-XX:+UseParallelGC", "-XX:TieredStopAtLevel=1")
"""The second compiler would take a quarter of the time, and its code would soon end."""
_LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    # The longest that Java has. In a split method, each part copies the whole row.
    "spark.sql.codegen.hugeMethodLimit": "65535",
    # For jobs that do not say how many records they have: a task sorts in its share of that memory.
    "spark.sql.shuffle.partitions": "64",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    "spark.ui.enabled": "false",
    # Spark makes a text of each plan for its page, also without one: this form takes it the least time.
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def job_session(job: str, out: Location, arguments: JobArguments, records: int | None = None) -> Iterator[SparkSession]:
    """Open the session of `timer-bridge <job>` and make `out`. Raises JobFailedError if Spark fails, UsageError.

    The JVM's log is in `out` if that is a path and we start the JVM, else on stderr. records: on the timer topic.
    """
    log: Path | None = None
    if isinstance(out, Path) and not _is_submitted() and SparkSession.getActiveSession() is None:
        files.make_local_folder(out)
        log = out / "spark.log"
    few = records is not None and records < _FEW_RECORDS
    with session(f"timer-bridge {job}", master=arguments.master, log=log, jars=arguments.jars, few=few) as spark:
        if log is not None:
            spark.conf.set(_LOG, str(log))
        told = spark.conf.get(_LOG, "")  # also of a session that a caller has opened
        try:
            files.make_folder(out)
            yield spark
        except (PySparkException, Py4JError) as wrong:
            where = f" (log: {told})" if told else ""
            raise JobFailedError(f"Spark could not finish the {job}: {reason_of(wrong)}{where}") from wrong


def _is_submitted() -> bool:
    """Return True if spark-submit has started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(
    app: str, *, master: str | None = None, log: Path | None = None, jars: Path | None = None, few: bool = False
) -> Iterator[SparkSession]:
    """Yield the active session, left running; else a new one, stopped at the end.

    `master` None: spark-submit's if it started us, else local[*]. `jars`: folder with the Kafka connector. `few`: a JVM
    for few records. Raises JobFailedError if Spark does not start.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    spark = _start(app, master, log, jars, few=few)
    try:
        with TemporaryDirectory(prefix="timer-bridge-") as folder:
            if master is not None and not master.startswith("local"):  # spark-submit ships our packages by --py-files
                spark.sparkContext.addPyFile(str(write_zip(Path(folder) / "timer-bridge.zip")))
            yield spark
    finally:
        spark.stop()


def _start(app: str, master: str | None, log: Path | None, jars: Path | None, *, few: bool) -> SparkSession:
    submitted = _is_submitted()
    if master is None and not submitted:
        master = "local[*]"
    builder = SparkSession.builder.appName(app)
    given = operator_settings(submitted=submitted)
    settings = dict(_COMMON_SETTINGS)
    if not submitted:
        try:
            settings["spark.jars"] = ",".join(jar.resolve().as_uri() for jar in connector_jars(jars))
        except (JarsError, OSError, RuntimeError) as wrong:
            raise JobFailedError(f"Spark did not start: its Kafka connector: {wrong}") from wrong
    if not given & _SIZED_BY:
        settings[_IS_SIZED] = "true"
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            options = " ".join([*(_JAVA_OPTIONS_FOR_FEW_RECORDS if few else _JAVA_OPTIONS), *_archive_options()])
            settings |= _LOCAL_SETTINGS | {"spark.driver.extraJavaOptions": options}
            python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's default: python3 in PATH
            if which(python) is None:
                raise JobFailedError(f"PYSPARK_PYTHON is {python}, and there is no such program: correct or unset it")
    builder = builder.config(map={name: value for name, value in settings.items() if name not in given})
    try:
        with nullcontext() if log is None else _stderr_to(log):
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError, RuntimeError, TypeError) as wrong:
        where = f"; its log: {log}" if log else ""
        raise JobFailedError(f"Spark did not start: {_remedy()}{where} ({wrong})") from wrong
    spark.sparkContext.setLogLevel("ERROR" if log is None else "WARN")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return spark


def _archive_options() -> Sequence[str]:
    """Return the options for an archive of Spark's classes. It may not hold a folder of settings in the class path."""
    if any(name.endswith(("_CONF_DIR", "_CLASSPATH")) for name in os.environ) or not _cache().is_dir():
        return ()
    return archive_options(_cache(), os.environ.get("SPARK_HOME", pyspark.__file__), _java())


def _remedy() -> str:
    """Return what to do if the JVM does not start: the environment first, as Java is there more often than not."""
    home, own = os.environ.get("SPARK_HOME"), Path(pyspark.__file__).parent
    if home is not None and Path(home).resolve() != own:
        return f"SPARK_HOME is {home}, and PySpark {pyspark.__version__} has a Spark of its own: unset it"
    given = os.environ.get("PYSPARK_SUBMIT_ARGS")
    if given is not None and "pyspark-shell" not in given.split():
        return "PYSPARK_SUBMIT_ARGS lacks its last word: add pyspark-shell, or unset it"
    return "it needs Java 17 or 21"


def operator_settings(*, submitted: bool) -> set[str]:
    """Return the names of Spark settings that the operator gives: they win over ours.

    spark-submit has put its own into the JVM. Otherwise they are in PYSPARK_SUBMIT_ARGS, or in spark-defaults.conf of
    the folder SPARK_CONF_DIR, which the JVM will read.
    """
    if submitted:
        SparkContext._ensure_initialized()  # noqa: SLF001 - connects to the JVM that runs us
        return {name for name, _ in SparkConf().getAll()}
    given = set(re.findall(r"--conf[ =][\"']?([\w.]+)=", os.environ.get("PYSPARK_SUBMIT_ARGS", "")))
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder and (file := Path(folder, "spark-defaults.conf")).is_file():
        given |= set(re.findall(r"^\s*(spark\.[\w.]+)[\s=:]", file.read_text(encoding="utf-8"), re.MULTILINE))
    return given


def fit_plans(records: int) -> None:
    """Plan the next queries for this many records, unless an operator has set how.

    Spark joins small shuffle partitions. Too few would sort on disk, and too many would be most of the time of a batch.
    """
    conf = SparkSession.active().conf
    if conf.get(_IS_SIZED, "false") != "true":
        return
    conf.set(_INITIAL_PARTITIONS, max(_LEAST_PARTITIONS, records // _RECORDS_PER_PARTITION))
    for name, value in _FOR_FEW_RECORDS.items():
        if records < _FEW_RECORDS:
            conf.set(name, value)
        else:
            conf.unset(name)


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    sys.stderr.flush()
    ours = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def write_zip(path: Path) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as made:
        for package in (kafka_timer, schemas, spark_jobs):
            folder = Path(package.__path__[0])
            for file in sorted(folder.rglob("*")):
                if file.suffix in (".py", ".html") and file.parent.name != "tests":
                    made.write(file, file.relative_to(folder.parent))
    return path


def jar_list(release: str = RELEASE) -> JarList:
    """Return the jars for a release of PySpark. Raises JarsError if none are listed."""
    file = _LISTS / f"{release}.txt"
    if not file.exists():
        raise JarsError(
            f"no jars are listed for PySpark {release}, only for {', '.join(listed_releases())}: install one of these,"
            f" or give a folder that has {KAFKA_PACKAGE} and its dependencies with --jars"
        )
    return JarList("Spark's Kafka connector", release, file)


def listed_releases() -> list[str]:
    return sorted(path.stem for path in _LISTS.glob("*.txt"))


def connector_jars(given: Path | None = None) -> Sequence[Path]:
    """Return the jars: those of the folder `given`, else the listed ones, fetched if missing. Raises JarsError."""
    if given is None:
        return sorted(fetched().glob("*.jar"))
    needed = [f"spark-{part}-kafka-0-10_*-{RELEASE}.jar" for part in ("sql", "token-provider")]
    missing = [one for one in (*needed, "kafka-clients-*.jar", "commons-pool2-*.jar") if not any(given.glob(one))]
    if missing:
        raise JarsError(
            f"--jars {given}: {', '.join(missing)} missing; `python -m spark_jobs.fetch` on a machine with a network"
            f" and PySpark {RELEASE} prints the folder with the jars: copy it"
        )
    return sorted(given.glob("*.jar"))


def fetched() -> Path:
    """Return the folder with the listed jars, fetched if they are missing. Raises JarsError."""
    return ensure(jar_list(), _cache(), java=_java())


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timer-bridge" / "spark-jars"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"
