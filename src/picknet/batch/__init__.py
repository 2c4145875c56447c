"""Many clips as a table: any number of them, on one machine or on a Ray cluster, none lost and none twice."""

from picknet.batch.run import Summary, run
from picknet.batch.sources import BadSource, Clip, Shard, list_clips
from picknet.batch.table import SCHEMA_VERSION, Kind, schema
from picknet.batch.work import DescribeClips, Work

__all__ = [
    "SCHEMA_VERSION",
    "BadSource",
    "Clip",
    "DescribeClips",
    "Kind",
    "Shard",
    "Summary",
    "Work",
    "list_clips",
    "run",
    "schema",
]
