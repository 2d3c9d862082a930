"""What each path does: the JSON API's objects and uploads, downloads by signed URL, bare files."""

import re
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.google.cloud_storage.buckets import Conditions, Refusal, writable
from tests.google.cloud_storage.exchange import MOST_JSON, Exchange, Query, Route
from tests.google.cloud_storage.state import State
from tests.google.cloud_storage.uploads import QUANTUM, Part, Upload, two_parts

# Bytes of an upload that comes in one request with its metadata.
_MOST_AT_ONCE = 64 << 20


class Routes(Exchange):
    """Answers requests."""

    @property
    def cloud(self) -> State:
        """What the server knows."""
        return cast(State, super().cloud)

    def authorize(self, route: Route) -> None:
        """Check the token, except for routes that need none."""
        if route not in _OPEN:
            self.cloud.accounts.check(self.headers.get("Authorization"))

    # --- buckets and objects -----------------------------------------------------------------

    def _create_bucket(self, _: "re.Match[str]", query: Query) -> None:
        self.send_json(self.cloud.buckets.create(str(self.json().get("name"))))

    def _show_bucket(self, match: "re.Match[str]", query: Query) -> None:
        self.send_json(self.cloud.buckets.described(unquote(match[1])))

    def _delete_bucket(self, match: "re.Match[str]", _: Query) -> None:
        self.cloud.buckets.delete_bucket(unquote(match[1]))
        self.send(204, {})

    def _list_objects(self, match: "re.Match[str]", query: Query) -> None:
        most = int(query.get("maxResults", "1000"))
        prefix, token = query.get("prefix", ""), query.get("pageToken", "")
        page = self.cloud.buckets.page(unquote(match[1]), prefix, token, most)
        document: dict[str, Any] = {"kind": "storage#objects"}
        if page.objects:
            document["items"] = [stored.resource for stored in page.objects]
        if page.token is not None:
            document["nextPageToken"] = page.token
        self.send_json(document)

    def _show_object(self, match: "re.Match[str]", query: Query) -> None:
        bucket, name = unquote(match[1]), unquote(match[2])
        stored = self.cloud.buckets.get(bucket, name, _generation(query), Conditions.of(query))
        if query.get("alt") == "media":
            self.send_object(stored)
        else:
            self.send_json(stored.resource)

    def _patch_object(self, match: "re.Match[str]", query: Query) -> None:
        bucket, name, conditions = unquote(match[1]), unquote(match[2]), Conditions.of(query)
        stored = self.cloud.buckets.patch(bucket, name, self.json(), _generation(query), conditions)
        self.send_json(stored.resource)

    def _delete_object(self, match: "re.Match[str]", query: Query) -> None:
        bucket, name = unquote(match[1]), unquote(match[2])
        self.cloud.buckets.delete(bucket, name, _generation(query), Conditions.of(query))
        self.send(204, {})

    def _rewrite_object(self, match: "re.Match[str]", query: Query) -> None:
        bucket, name, to_bucket, to_name = (unquote(part) for part in match.groups())
        own = self.json()
        if writable(own) and "contentType" not in own:
            message = "You must specify the content type of the destination object."
            raise Refusal(400, "required", message)
        generation = _generation(query, "sourceGeneration")
        source = self.cloud.buckets.get(bucket, name, generation, Conditions.of(query, "Source"))
        before, done = self.cloud.rewrites.pop(query.get("rewriteToken", ""), (source, 0))
        if before.generation != source.generation:
            raise Refusal(400, "invalid", "The rewrite token is of another object.")
        done = min(source.size, done + self.cloud.rewrite_bytes)
        answer: dict[str, Any] = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(done),
            "objectSize": str(source.size),
            "done": done == source.size,
        }
        if done == source.size:
            kept = self.cloud.buckets.copy(source, to_bucket, to_name, own, Conditions.of(query))
            answer["resource"] = kept.resource
        else:
            token = f"{source.generation}.{done}.{len(self.cloud.requests)}"
            self.cloud.rewrites[token] = (source, done)
            answer["rewriteToken"] = token
        self.send_json(answer)

    # --- uploads -----------------------------------------------------------------------------

    def _upload(self, match: "re.Match[str]", query: Query) -> None:
        bucket = unquote(match[1])
        self.cloud.buckets.described(bucket)
        match query.get("uploadType"):
            case "resumable":
                self._begin_upload(bucket, query)
            case "multipart":
                own, data = two_parts(
                    self.body(_MOST_AT_ONCE), self.headers.get("Content-Type", "")
                )
                self._insert(bucket, own, data, query)
            case other:
                raise Refusal(400, "badRequest", f"Unknown uploadType {other}")

    def _insert(self, bucket: str, own: dict[str, Any], data: bytes, query: Query) -> None:
        file = self.cloud.buckets.new_file()
        file.write_bytes(data)
        try:
            name = str(own.get("name") or query["name"])
            stored = self.cloud.buckets.insert(bucket, name, file, own, Conditions.of(query))
        except (Refusal, KeyError) as error:
            file.unlink()
            if isinstance(error, KeyError):
                raise Refusal(400, "required", "Required parameter: name") from error
            raise
        self.send_json(stored.resource)

    def _begin_upload(self, bucket: str, query: Query) -> None:
        own = self.json()
        if kind := self.headers.get("X-Upload-Content-Type"):
            own.setdefault("contentType", kind)
        name = own.get("name") or query.get("name")
        if not name:
            raise Refusal(400, "required", "Required parameter: name")
        file, conditions = self.cloud.buckets.new_file(), Conditions.of(query)
        made = self.cloud.uploads.begin(bucket, str(name), own, conditions, file)
        where = f"{self.cloud.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable"
        self.send(200, {"Location": f"{where}&upload_id={made.id}"})

    def _upload_part(self, _: "re.Match[str]", query: Query) -> None:
        upload = self.cloud.uploads.get(query.get("upload_id", ""))
        with upload.lock:
            if upload.done is None:
                part = Part.of(self.headers.get("Content-Range"), self.left)
                if part.start is not None:
                    self._take_part(upload, part.start, part.total)
                if part.total is None or upload.kept < part.total:
                    kept = {"Range": f"bytes=0-{upload.kept - 1}"} if upload.kept else {}
                    self.send(308, kept)
                    return
                self._finish_upload(upload)
            else:
                self.body(_MOST_AT_ONCE)
            assert upload.done is not None
            self.send_json(upload.done.resource)

    def _take_part(self, upload: Upload, start: int, total: int | None) -> None:
        if start > upload.kept:
            raise Refusal(400, "badContentRange", f"{upload.kept} bytes are here, not {start}")
        with upload.file.open("r+b") as sink:
            sink.seek(upload.kept)
            try:
                self.receive(sink, upload.kept - start)
            finally:
                sink.flush()
                size = sink.tell()
                upload.kept = size if size == total else max(upload.kept, size - size % QUANTUM)
                sink.truncate(upload.kept)

    def _finish_upload(self, upload: Upload) -> None:
        own = dict(upload.own)
        if sums := re.search(r"crc32c=([\w+/=]+)", self.headers.get("X-Goog-Hash", "")):
            own["crc32c"] = sums[1]
        try:
            upload.done = self.cloud.buckets.insert(
                upload.bucket, upload.name, upload.file, own, upload.conditions
            )
        except Refusal:
            self.cloud.uploads.forget(upload)
            raise

    # --- the rest ----------------------------------------------------------------------------

    def _token(self, _: "re.Match[str]", query: Query) -> None:
        asked = dict(parse_qsl(self.body(MOST_JSON).decode()))
        self.send_json(self.cloud.accounts.token(asked.get("assertion", "")))

    def _signed(self, match: "re.Match[str]", query: Query) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = urlsplit(self.path).path
        self.cloud.accounts.check_signature(self.command, path, query, headers)
        bucket, name = unquote(match[1]), unquote(match[2])
        self.send_object(self.cloud.buckets.get(bucket, name, _generation(query)))

    def _bare_put(self, match: "re.Match[str]", _: Query) -> None:
        with (self.cloud.folder / f"bare-{match[1]}").open("wb") as sink:
            self.receive(sink)
        self.send(200, {})

    def _bare_get(self, match: "re.Match[str]", _: Query) -> None:
        with (self.cloud.folder / f"bare-{match[1]}").open("rb") as file:
            size = file.seek(0, 2)
            self.send(200, {"Content-Length": str(size)})
            self.send_bytes(file, 0, size)


def _generation(query: Query, name: str = "generation") -> int | None:
    return int(query[name]) if name in query else None


_OBJECT = r"/storage/v1/b/([^/]+)/o/([^/]+)"
Routes.table = (
    ("POST", r"/storage/v1/b", Routes._create_bucket),
    ("GET", r"/storage/v1/b/([^/]+)", Routes._show_bucket),
    ("DELETE", r"/storage/v1/b/([^/]+)", Routes._delete_bucket),
    ("GET", r"/storage/v1/b/([^/]+)/o", Routes._list_objects),
    ("GET", rf"(?:/download)?{_OBJECT}", Routes._show_object),
    ("PATCH", _OBJECT, Routes._patch_object),
    ("DELETE", _OBJECT, Routes._delete_object),
    ("POST", rf"{_OBJECT}/rewriteTo/b/([^/]+)/o/([^/]+)", Routes._rewrite_object),
    ("POST", r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o", Routes._upload),
    ("PUT", r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o", Routes._upload_part),
    ("POST", r"/token", Routes._token),
    ("PUT", r"/bare/([\w.-]+)", Routes._bare_put),
    ("GET", r"/bare/([\w.-]+)", Routes._bare_get),
    ("GET", r"/([^/]+)/(.+)", Routes._signed),
    ("HEAD", r"/([^/]+)/(.+)", Routes._signed),
)
# They need no token.
_OPEN = (Routes._token, Routes._signed, Routes._bare_put, Routes._bare_get)
