"""A cluster of processes on this machine."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[tuple[Any, list[Path]]]:
    """A cluster whose two workers have build folders of their own, which are returned beside it."""
    folders = [tmp_path / "worker-0", tmp_path / "worker-1"]
    with started(folders) as found:
        yield found, folders


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head without cores and two workers with one each, of which one may take times; ten seconds to start."""
    with started([None, None]) as found:
        yield found


@contextmanager
def started(builds: Sequence[Path | None]) -> Iterator[Any]:
    """Start a cluster with a worker for each build folder; None: the driver's own."""
    from ray.cluster_utils import Cluster

    from pipeline.execution.elsewhere import BUILD_VARIABLE
    from pipeline.execution.ray import machine_resource

    # What the workers import.
    folders = (REPOSITORY, REPOSITORY / "tests", REPOSITORY / "tests" / "cluster")
    paths = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for number, build in enumerate(builds):
            if build:
                patch.setenv(BUILD_VARIABLE, str(build))
            cluster.add_node(num_cpus=1, resources={} if number else {machine_resource(): 1})
        cluster.wait_for_nodes()
        yield cluster
        cluster.shutdown()
