"""Which uploads to S3 were begun and never finished, and how do they go?

The parts of an upload in parts are stored, and paid for, from the moment they arrive; a process
that is killed cannot abort its uploads, and no list of objects shows them. obstore has no request
for them, so these two are signed and sent here.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import html
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from urllib.parse import quote, urlsplit

from shardkeep.errors import StorageError
from shardkeep.storage.protocols import Upload
from shardkeep.storage.urls import Address, AwsAccess

_ATTEMPTS = 5
_SECONDS = 60.0
_UPLOAD = re.compile(r"<Upload>(.*?)</Upload>", re.DOTALL)
_KEY = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_ID = re.compile(r"<UploadId>(.*?)</UploadId>", re.DOTALL)
_NEXT = re.compile(r"<Next(Key|UploadId)Marker>(.*?)</Next\1Marker>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class S3Uploads:
    """The unfinished uploads below an address."""

    address: Address
    access: AwsAccess

    def list(self) -> list[Upload]:
        """All of them."""
        prefix = f"{self.address.prefix}/" if self.address.prefix else ""
        found: list[Upload] = []
        query = {"uploads": "", "prefix": prefix}
        while True:
            answer = self._ask("GET", "", query).decode("utf-8", "replace")
            found += [one for one in map(_parse, _UPLOAD.findall(answer), repeat(prefix)) if one]
            if "<IsTruncated>true</IsTruncated>" not in answer:
                return found
            marks = {name: html.unescape(value) for name, value in _NEXT.findall(answer)}
            query |= {"key-marker": marks["Key"], "upload-id-marker": marks["UploadId"]}

    def abort(self, upload: Upload) -> None:
        """Free its parts; gone already: no matter."""
        path = f"{self.address.prefix}/{upload.key}" if self.address.prefix else upload.key
        self._ask("DELETE", path, {"uploadId": upload.upload_id})

    def _ask(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        for attempt in range(_ATTEMPTS):
            url, headers = sign(method, self.address.host, path, query, self.access)
            try:
                with urlopen(Request(url, method=method, headers=headers), timeout=_SECONDS) as got:
                    return got.read()
            except HTTPError as error:
                if error.code == 404:
                    return b""
                if error.code < 500 or attempt == _ATTEMPTS - 1:
                    raise self._failure(error.code, str(error)) from error
            except (URLError, OSError) as error:
                if attempt == _ATTEMPTS - 1:
                    raise self._failure(0, str(error)) from error
            time.sleep(random.uniform(0.5, 1.0) * 0.1 * 2**attempt)
        raise AssertionError("the attempts have an end")

    def _failure(self, status: int, said: str) -> StorageError:
        number = errno.EACCES if status in (401, 403) else errno.EIO
        return StorageError(number, f"looking for unfinished uploads: {said}", self.address.url)


def _parse(text: str, prefix: str) -> Upload | None:
    """One upload as the answer lists it; None if it is not right below the prefix."""
    key, upload_id = _KEY.search(text), _ID.search(text)
    name = html.unescape(key[1]) if key else ""
    if upload_id is None or not name.startswith(prefix) or "/" in name[len(prefix) :]:
        return None
    return Upload(name[len(prefix) :], html.unescape(upload_id[1]))


def sign(
    method: str, bucket: str, path: str, query: Mapping[str, str], access: AwsAccess
) -> tuple[str, dict[str, str]]:
    """The URL and the headers of a request, by Signature Version 4; it has no body."""
    place = urlsplit(access.endpoint or f"https://s3.{access.region}.amazonaws.com")
    where = quote(f"/{bucket}/{path}" if path else f"/{bucket}")
    words = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in sorted(query.items()))
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    nothing = hashlib.sha256(b"").hexdigest()
    headers = {"host": place.netloc, "x-amz-content-sha256": nothing, "x-amz-date": now}
    if access.session_token:
        headers["x-amz-security-token"] = access.session_token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join([method, where, words, lines, names, nothing])
    scope = f"{now[:8]}/{access.region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
    key = f"AWS4{access.secret_access_key}".encode()
    for part in (now[:8], access.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access.access_key_id}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return f"{place.scheme}://{place.netloc}{where}?{words}", headers
