"""The headless contract: how a benchmark is started in an app that nobody touches, what it writes, and how it can end.

A run is a folder. Whoever starts it puts `request.json` into the folder and starts the app with the folder's name:

=========  ===========================================================  ==============================================
where      how                                                          the folder
=========  ===========================================================  ==============================================
Android    intent extra `pocketbert.run` (a string) for the activity    `<external files of the app>/runs/<run_id>/`
iOS        launch argument `-pocketbert.run <run_id>`                   `<Documents>/runs/<run_id>/`
a command  `--pocketbert-run <folder>`                                  that folder
=========  ===========================================================  ==============================================

The app writes `status.json` (in one rename, at least every `HEARTBEAT_S` seconds) and, before it says `finished`,
`record.json`, a `BenchmarkRecord`. A status that is not final and has not changed for three heartbeats is of an app
that was killed, has crashed or was put to sleep.
"""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

RUN = "pocketbert.run"
"""Name of the intent extra, and of the launch argument."""
FOLDER = "runs"
MODELS = "models"
"""Folder in a run's own: models that were pushed with it, as in an app's, `models.json` included. Without it the app's
own are measured. They are verified as those are, and a release takes only what its maker has signed."""
REQUEST, STATUS, RECORD = "request.json", "status.json", "record.json"
HEARTBEAT_S = 5.0
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A plain name, which cannot lead out of the folder of runs."""

ComputeUnits = Literal["ALL", "CPU_AND_NE", "CPU_AND_GPU", "CPU_ONLY"]
"""Where Core ML may run a model, by the members of `coremltools.ComputeUnit`; the iOS app takes the same words."""

State = Literal["cooling", "running", "finished", "refused", "failed", "cancelled", "out_of_time", "too_hot"]
FINAL: frozenset[State] = frozenset(("finished", "refused", "failed", "cancelled", "out_of_time", "too_hot"))


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BenchmarkRequest(_Frozen):
    """What `request.json` asks for: one shipped model, on one runtime."""

    schema_version: Literal[1] = 1
    run_id: str
    model: str
    """The model's folder as `models.json` names it: `<recipe>/<target>`."""
    compute_units: str | None
    """As the runtime names them, and among those that `shipped.json` lists; None for the first of them."""
    threads: int = Field(ge=1, le=64)
    lengths: list[int]
    """Full rows of these lengths are timed, in tokens."""
    texts: list[str]
    """Real texts, timed as they come; the first is the one of the first inference."""
    rounds: int = Field(ge=1)
    """Passes over the lengths; the first run of each is for warming up and is not kept."""
    runs_per_round: int = Field(ge=1)
    round_ms: float = Field(ge=0)
    """Each length runs at least so long in each round."""
    text_passes: int = Field(ge=1)
    """Passes over the texts that are kept; one for warming up comes before."""
    time_limit_s: float = Field(gt=0)
    start_below_c: float | None
    """Wait until the temperature is lower; None does not wait. Not reached within the time limit: `too_hot`."""
    start_thermal: str | None = None
    """Wait until the thermal state is this or cooler, in the system's own words (`nominal`, `light`): iOS tells an app
    no temperature. None does not wait. Not reached within the time limit: `too_hot`."""
    sustained_s: float = Field(default=0.0, ge=0, le=86_400)
    """After all else, one inference after another at the longest length for so long; 0 leaves it out."""
    sustained_part_s: float = Field(default=60.0, gt=0)
    """How long the parts are for which medians are written."""


class BenchmarkStatus(_Frozen):
    """What `status.json` says while a run goes on, and when it has ended.

    `cooling` and `running` go on; `finished` has a record. `refused`: the request or the model cannot be used here.
    `failed`: the runtime or the disk did not do what it should. `cancelled`: by the user or the system. `out_of_time`:
    the limit passed. `too_hot`: the phone did not cool down in time.
    """

    schema_version: Literal[1] = 1
    run_id: str
    state: State
    done: float = Field(ge=0, le=1)
    """Share of the work that is done."""
    doing: str
    """What is being done, for a progress line."""
    message: str | None
    """Why it ended, where it did not finish."""
    beats: int = Field(ge=0)
    """Rises with every write: a reader tells a slow run from a dead one without comparing two clocks."""
