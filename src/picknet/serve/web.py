"""The page of the service: files of the package, which need no build step and nothing from elsewhere."""

from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Response

PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Path -> file and media type. They are the same for everybody, so that they need no token."""

_HEADERS = {
    # Videos are played from the file that the browser has (blob), pictures come inside of events (data).
    "content-security-policy": "default-src 'self'; media-src 'self' blob:; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cache-control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    folder = files("picknet.serve") / "page"
    for path, (name, media_type) in PAGE_FILES.items():
        content = (folder / name).read_bytes()
        app.add_api_route(path, _answering(content, media_type), include_in_schema=False)


def _answering(content: bytes, media_type: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    async def page_file() -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    return page_file
