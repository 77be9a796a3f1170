"""A cluster of processes on this machine."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head without cores and two workers with one each, of which one may take times; ten seconds to start."""
    from ray.cluster_utils import Cluster

    from pipeline.execution.ray import machine_resource

    # What the workers import.
    folders = (REPOSITORY, REPOSITORY / "tests", REPOSITORY / "tests" / "cluster")
    paths = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        started.add_node(num_cpus=1, resources={machine_resource(): 1})
        started.add_node(num_cpus=1)
        started.wait_for_nodes()
        yield started
        started.shutdown()
