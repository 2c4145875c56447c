"""`picknet serve`."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from picknet.cli.arguments import BadUsage, MaxPixels, Model, Quiet, Style, needing
from picknet.cli.terminal import note

ACCESS, LIMITS = "Access", "Limits"
MB = 1_000_000
DAY = 86_400.0
"""Seconds."""


def serve(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen at this address.", rich_help_panel=ACCESS)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="0 for any free port.", rich_help_panel=ACCESS)
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN", envvar="PICKNET_TOKEN", help="Answer only requests with this token. Better set in the "
            "environment, where other users cannot see it.", rich_help_panel=ACCESS, show_default="none",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Let other machines in without a token.", rich_help_panel=ACCESS
        ),
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Clients may name files in this folder, instead of sending them.", show_default="none",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    allow_sources: Annotated[
        str,
        typer.Option(
            metavar="HOST[,HOST]", help="Clients may name http(s) addresses at these hosts, instead of sending files.",
            show_default="none", rich_help_panel=ACCESS,
        ),
    ] = "",
    samples: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The page offers the videos in this folder to try.", show_default="one of its own",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=256, help="Requests at work at a time.", show_default="number of cores",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    queue: Annotated[
        int, typer.Option(metavar="N", min=0, max=10_000, help="Requests that may wait.", rich_help_panel=LIMITS)
    ] = 16,
    max_upload: Annotated[
        int, typer.Option(metavar="MB", min=1, help="Size of an upload, in megabytes.", rich_help_panel=LIMITS)
    ] = 1000,
    max_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Length of a video.", rich_help_panel=LIMITS)
    ] = 14400.0,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, max=DAY, help="Time for a caption, or for frames.", rich_help_panel=LIMITS
        ),
    ] = 60.0,
    job_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, max=7 * DAY, help="Time for a timeline.", rich_help_panel=LIMITS),
    ] = 3600.0,
    memory: Annotated[
        int,
        typer.Option(
            metavar="MB", min=64, help="Memory that decoding a video may take, in megabytes; on Linux.",
            rich_help_panel=LIMITS,
        ),
    ] = 2000,
    max_pixels: MaxPixels = None,
    quiet: Quiet = False,
    model: Model = None,
    style: Style = None,
) -> None:  # fmt: skip
    """Answer requests over HTTP: captions, frames, timelines and live streams.

    \b
    Examples:
      picknet serve
      PICKNET_TOKEN=$(openssl rand -hex 16) picknet serve --host 0.0.0.0
      picknet serve --root films --workers 4
    """
    with needing("serve", sentence="the service needs {}, which is not installed;"):
        from picknet.serve.server import check_address, run
        from picknet.serve.service import SAMPLES, Limits, Service

    from picknet.captioner import load
    from picknet.files import remove_abandoned

    check_address(host, token=token, insecure=insecure)
    for name, folder in (("root", root), ("samples", samples)):
        if folder and not folder.is_dir():
            raise BadUsage(f"--{name} {folder}: no such folder")
    limits = Limits(
        workers=workers or 0,
        queue=queue,
        upload=max_upload * MB,
        duration=max_seconds,
        timeout=timeout,
        job_timeout=job_timeout,
        memory=memory * MB,
    )
    remove_abandoned(tempfile.gettempdir(), is_fresh=True)  # uploads of a service that was killed
    service = Service(
        load(model, style=style, side_by_side=True),
        limits,
        root=root,
        allow_sources=allow_sources.split(","),
        samples=samples or SAMPLES,
    )
    run(service, host=host, port=port, token=token, ready=lambda address: note(f"serving at {address}"))
