"""The files for clusters: what can be checked of them without one. And the documentation of the table."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from picknet.batch import SCHEMA_VERSION, Kind, schema
from picknet.cli import app

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "examples" / "cluster"
RAY = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]  # type: ignore[index]


def parsed(command: str) -> dict[str, Any]:
    """The options of a picknet command; a usage error if it does not parse."""
    program, name, *rest = shlex.split(command)
    assert program == "picknet"
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    with commands[name].make_context(name, rest) as context:
        return dict(context.params)


def test_ray_accepts_the_file_for_ray_up() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util", reason="Ray is not installed")
    text = (CLUSTER / "ray-up.yaml").read_text()
    config = util.prepare_config(yaml.safe_load(text))
    util.validate_config(config)
    workers = config["available_node_types"]["worker"]
    (command,) = re.findall(r"'(picknet .+)'", text)
    assert parsed(command)["jobs"] == workers["max_workers"] * workers["resources"]["CPU"]
    with pytest.raises(Exception, match="max_worker"):
        util.validate_config(util.prepare_config(yaml.safe_load(text.replace("max_workers: 16", "max_worker: 16", 1))))


def test_the_job_for_kubernetes_is_of_the_version_of_ray_that_is_tested() -> None:
    job, claim = yaml.safe_load_all((CLUSTER / "rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == RAY
    assert f"rayproject/ray:{RAY}-" in (CLUSTER / "Dockerfile").read_text()
    options = parsed(job["spec"]["entrypoint"])
    (workers,) = cluster["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert options["jobs"] == workers["maxReplicas"] * int(container["resources"]["limits"]["cpu"])
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert str(options["out"]).startswith(head["volumeMounts"][0]["mountPath"])  # on the volume, not in the pod
    (volume,) = cluster["headGroupSpec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


@pytest.mark.parametrize("kind", Kind)
def test_every_column_is_documented(kind: Kind) -> None:
    text = (ROOT / "docs" / "many-clips.md").read_text(encoding="utf-8")
    assert f"version {SCHEMA_VERSION} of the schema" in text
    assert [name for name in schema(kind).names if f"`{name}`" not in text] == []
