"""Ask a picknet service, which `picknet serve` starts, for the caption, the timeline or the frames of a video.

    python examples/client.py caption samples/cockatoo.mp4
    python examples/client.py timeline film.mp4 --format srt
    python examples/client.py frames film.mp4 --budget 8 --out frames

It needs nothing but Python. A film that takes long is a job of the service; its progress is shown on standard error.
"""

import argparse
import base64
import contextlib
import http.client
import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CHUNK = 1 << 20
KINDS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class ServiceError(Exception):
    """What the service, or the way to it, has against a request."""


class Client:
    """A picknet service at an address."""

    Error = ServiceError

    def __init__(self, address: str, *, token: str | None = None, timeout: float = 120.0) -> None:
        self._address = urlsplit(address)
        if self._address.scheme not in KINDS or not self._address.hostname:
            raise ServiceError(f"{address}: not an address such as http://127.0.0.1:8000")
        if not (token or "").isascii():
            raise ServiceError("the token has a character that is not ASCII")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = timeout

    def caption(self, video: Path, **settings: Any) -> dict[str, Any]:
        """What `picknet caption --format json` prints."""
        return self._json(self._send("/v1/captions", video, settings))

    def frames(self, video: Path, **settings: Any) -> Any:
        """What `picknet pick --budget` prints."""
        return self._json(self._send("/v1/frames", video, settings))

    def timeline(self, video: Path, *, format: str = "json", **settings: Any) -> str:
        """What `picknet timeline` prints, however long it takes."""
        answer = self._send("/v1/timelines", video, {**settings, "format": format})
        if answer.status != 202:
            return answer.read().decode()
        job = self._json(answer)["id"]
        for event, data in self.events(job):
            if event == "progress":
                print(f"{data['seconds']:.0f} s of {data['total_seconds'] or 0:.0f} s", file=sys.stderr)
        return self._request("GET", f"/v1/jobs/{job}/result?format={format}").read().decode()

    def events(self, job: str) -> Iterator[tuple[str, Any]]:
        """The server-sent events of a job: name and data."""
        event = ""
        for line in self._request("GET", f"/v1/jobs/{job}/events"):
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                yield event, json.loads(value)

    def cancel(self, job: str) -> dict[str, Any]:
        return self._json(self._request("DELETE", f"/v1/jobs/{job}"))

    def _send(self, path: str, video: Path, settings: dict[str, Any]) -> http.client.HTTPResponse:
        """A form with the settings and the file, which is read while it is sent."""
        boundary = secrets.token_hex(16)
        name = json.dumps(video.name, ensure_ascii=False)  # quotes and backslashes are escaped
        start = "".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
            for key, value in settings.items()
            if value is not None
        )
        start += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename={name}\r\n\r\n'
        parts = [start.encode(), f"\r\n--{boundary}--\r\n".encode()]
        with video.open("rb") as file:
            size = sum(map(len, parts)) + os.fstat(file.fileno()).st_size

            def body() -> Iterator[bytes]:
                yield parts[0]
                while chunk := file.read(CHUNK):
                    yield chunk
                yield parts[1]

            headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Content-Length": str(size)}
            return self._request("POST", path, body(), headers)

    def _request(
        self, method: str, path: str, body: Iterator[bytes] | None = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        connection = KINDS[self._address.scheme](self._address.netloc, timeout=self._timeout)
        try:
            connection.connect()
        except ConnectionRefusedError as error:
            address = self._address.geturl()
            raise ServiceError(f"no service answers at {address}: start one with `picknet serve`") from error
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused early: the answer says why
            place = self._address.path.rstrip("/") + path  # behind a proxy, a service may have a prefix
            connection.request(method, place, body, {**self._headers, **(headers or {})})
        answer = connection.getresponse()
        if answer.status >= 400:
            raise ServiceError(self._json(answer)["error"]["message"])
        return answer

    def _json(self, answer: http.client.HTTPResponse) -> Any:
        try:
            return json.loads(answer.read())
        except ValueError as error:
            raise ServiceError(f"{self._address.geturl()}: what answers there is no picknet service") from error


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["caption", "timeline", "frames"])
    parser.add_argument("video", type=Path)
    parser.add_argument("--address", default="http://127.0.0.1:8000", help="of the service (default: %(default)s)")
    parser.add_argument("--token", default=os.environ.get("PICKNET_TOKEN"), help="default: $PICKNET_TOKEN")
    parser.add_argument("--format", default="text", help="of a timeline: text, json, jsonl, csv, srt or vtt")
    parser.add_argument("--min-confidence", type=float, help="leave out captions below it: 0.5, say")
    parser.add_argument("--budget", type=int, default=8, help="at most this many frames (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("frames"), help="folder for frames (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        client = Client(options.address, token=options.token)
        if options.what == "caption":
            caption = client.caption(options.video, min_confidence=options.min_confidence)
            print(caption["caption"] or "not sure")
        elif options.what == "timeline":
            settings = {"format": options.format, "min_confidence": options.min_confidence}
            print(client.timeline(options.video, **settings), end="")
        else:
            options.out.mkdir(parents=True, exist_ok=True)
            for number, frame in enumerate(client.frames(options.video, budget=options.budget), start=1):
                path = options.out / f"{number:04d}.jpg"
                path.write_bytes(base64.b64decode(frame["data"]))
                print(path)
    except (ServiceError, OSError) as error:
        sys.exit(f"client.py: {error}")


if __name__ == "__main__":
    main()
