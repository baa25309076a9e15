"""A registry of schemas for tests: a real HTTP server on this machine.

It follows Confluent's Schema Registry API reference: `GET /schemas/ids/{id}`,
`GET /subjects/{subject}/versions/{version}`, `POST /subjects/{subject}/versions` and `POST /subjects/{subject}`, with
their JSON, and the error codes 40401 to 40403.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote, urlsplit

TYPE: Final = "application/vnd.schemaregistry.v1+json"


class ServedRegistry:
    """Its schemas, and what it was asked for."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._ids: dict[int, Mapping[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.status = 200
        """Another one: each request fails with it."""
        self.answers = threading.Event()
        """Cleared: requests are taken, and not answered."""
        self.answers.set()
        self.url = ""

    def register(
        self, subject: str, schema: Any, kind: str = "AVRO", references: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """A new version of the subject. Returns the schema's id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry: dict[str, Any] = {"schema": text}
        if kind != "AVRO":
            entry["schemaType"] = kind
        if references:
            entry["references"] = list(references)
        schema_id = next((each for each, known in self._ids.items() if known == entry), len(self._ids) + 1)
        self._ids[schema_id] = entry
        versions = self._subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def answer(self, method: str, path: str, body: Any, authorization: str) -> tuple[int, Mapping[str, Any]]:
        self.asked.append(path)
        if self._user and authorization != "Basic " + base64.b64encode(self._user.encode()).decode():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if self.status != 200:
            return self.status, {"error_code": self.status * 100 + 1, "message": "Error in the backend data store"}
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            found = self._ids.get(int(match[1]))
            return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
        if match := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path):
            subject, version = unquote(match[1]), int(match[2])
            versions = self._subjects.get(subject)
            if versions is None:
                return 404, {"error_code": 40401, "message": "Subject not found"}
            if not 0 < version <= len(versions):
                return 404, {"error_code": 40402, "message": "Version not found"}
            return 200, self._version(subject, version)
        if method == "POST" and (match := re.fullmatch(r"/subjects/([^/]+)(/versions)?", path)):
            subject = unquote(match[1])
            given = body["schema"], body.get("schemaType", "AVRO"), body.get("references") or ()
            schema_id = self.register(subject, *given)
            return 200, self._version(subject, self._subjects[subject].index(schema_id) + 1)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _version(self, subject: str, version: int) -> Mapping[str, Any]:
        schema_id = self._subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": schema_id, **self._ids[schema_id]}


@contextmanager
def registry(user: str = "", context: ssl.SSLContext | None = None) -> Iterator[ServedRegistry]:
    """One that serves. `user`: USER:PASSWORD without which it refuses everybody. `context`: it speaks TLS."""
    served = ServedRegistry(user)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            told = self.headers.get("authorization") or ""
            status, answer = served.answer(self.command, urlsplit(self.path).path, body, told)
            served.answers.wait()
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", TYPE)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _serve  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients that are gone, or that distrust it, are no errors of the test."""

    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        served.url = f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield served
        finally:
            served.answers.set()
            server.shutdown()
            thread.join()
