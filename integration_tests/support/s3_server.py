"""An S3 server on loopback, in memory, with one bucket: what Hadoop's client asks for small files, path style.

with s3_server() as settings:      Spark's settings for s3a://audits

No multipart uploads, lists in parts, versions or signatures. A put, a copy and a list are atomic and seen at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import gmtime, strftime, time
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree as ET

from bridge.dev.embedded_kafka import HOST

_BUCKET = "audits"


class _Object(NamedTuple):
    data: bytes
    changed_s: float

    @property
    def tag(self) -> str:
        return f'"{md5(self.data, usedforsecurity=False).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, _Object]

    def do_PUT(self) -> None:
        source = self.headers.get("x-amz-copy-source")
        found = _Object(self._body() if source is None else self.objects[_key(source)].data, time())
        self.objects[_key(self.path)] = found
        self._answer(200, _xml("CopyObjectResult", ETag=found.tag) if source else b"", ETag=found.tag)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query))
        if "list-type" in asked:
            self._answer(200, _listed(self.objects, asked))
            return
        found = self.objects.get(_key(self.path))
        if found is None:
            self._answer(404, _xml("Error", Code="NoSuchKey"))
            return
        told = {"ETag": found.tag, "Last-Modified": formatdate(found.changed_s, usegmt=True)}
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        data = found.data[int(first or 0) : int(last) + 1 if last else None]
        if first:
            told["Content-Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{len(found.data)}"
        self._answer(206 if first else 200, data, **told)

    def do_DELETE(self) -> None:
        self.objects.pop(_key(self.path), None)
        self._answer(204)

    def do_POST(self) -> None:
        """Delete several."""
        for element in ET.fromstring(self._body()).iter():  # noqa: S314 - of a client on this machine
            if element.tag.endswith("Key"):
                self.objects.pop(element.text or "", None)
        self._answer(200, _xml("DeleteResult"))

    def _body(self) -> bytes:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
            return data
        whole = b""
        while data:  # 1f;chunk-signature=...  bytes  ...  0;chunk-signature=...
            size, _, data = data.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            whole, data = whole + data[:length], data[length + 2 :] if length else b""
        return whole

    def _answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _key(path: str) -> str:
    return unquote(urlsplit(path).path).lstrip("/").removeprefix(f"{_BUCKET}/")


def _listed(objects: dict[str, _Object], asked: dict[str, str]) -> bytes:
    """Return all of a list, though the client may ask for fewer."""
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    found: dict[str, _Object | None] = {}
    for name, one in sorted([*objects.items()]):
        if name.startswith(prefix):
            head, more, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            found[prefix + head + more if more else name] = None if more else one
    told = {"Prefix": quote(prefix), "EncodingType": "url", "KeyCount": str(len(found)), "IsTruncated": "false"}
    answer = _element("ListBucketResult", **told)
    for name, kept in found.items():
        if kept is None:
            answer.append(_element("CommonPrefixes", Prefix=quote(name)))
            continue
        when = strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(kept.changed_s))
        values = {"Key": quote(name), "LastModified": when, "ETag": kept.tag, "Size": str(len(kept.data))}
        answer.append(_element("Contents", **values))
    return ET.tostring(answer)


def _xml(tag: str, **values: str) -> bytes:
    return ET.tostring(_element(tag, **values))


def _element(tag: str, **values: str) -> ET.Element:
    element = ET.Element(tag)
    for name, text in values.items():
        ET.SubElement(element, name).text = text
    return element


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Run the server. Yield Spark's settings for it."""
    handler = type("Handler", (_Handler,), {"objects": {}})
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        settings = {"endpoint": f"http://{HOST}:{server.server_port}", "endpoint.region": "us-east-1"}
        settings |= {"path.style.access": "true", "access.key": "any", "secret.key": "any"}
        try:
            yield {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
        finally:
            server.shutdown()
            serving.join()
