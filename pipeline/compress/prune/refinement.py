"""Bring a pruned student's embeddings back near the whole student's: a few minutes of updates on unlabelled texts.

Least squares fit one linear after the other, token by token (`reconstruction`). The embedding of a long text is a mean
over its tokens, in which noise cancels, and what all its tokens are wrong about in common does not: so passages drift
further from the whole student's than sentences do, and only the whole pruned student can make up for it. Half of the
rows are therefore passages, joined of texts in a row where these are short. Many texts that are read once do more than
few that are read often: MiniLM's half finds 87.8 % of XQuAD's paragraphs first after a pass or two over Wikipedia, a
novel and STS-B's sentences, and 86.4 % after eight over passages of STS-B's sentences alone (82.9 % before).

Source: Reimers and Gurevych 2020 (distance of embeddings, without labels); Jiao et al. 2020 (TinyBERT) for the last
hidden states beside it.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pipeline import architectures, heads, tasks
from pipeline.data import corpus
from pipeline.data.calibration import Batches
from pipeline.data.corpus import Unlabelled
from pipeline.execution.worker import tell
from pipeline.recipe.compression import PruneSection
from pipeline.recipe.fields import Updates
from pipeline.text import tokenizers
from pipeline.text.encoding import Encoder, Row

LEARNING_RATE = 2e-4
_BATCH = 16
_MOST_PASSES = 20
"""Passes over the rows at most, since more of a few texts would say nothing new."""
_HELD_OUT = 64
"""Most passages, and most single texts, that are held out, on which the cosine is measured."""
_HELD_OUT_SHARE = 0.1
VECTORS, HIDDEN = "vectors", "hidden_states"


def refine(full: Any, pruned: Any, folder: Path, texts: Sequence[Unlabelled], section: PruneSection) -> dict[str, Any]:
    """Train a pruned embedding model on the whole one's embeddings, in place.

    Args:
        full: the model before pruning, the reference.
        pruned: the model after pruning and least squares.
        folder: the checkpoint of `full`, which has the tokenizer.
        texts: the calibration set, without labels.
        section: `[prune]` of the recipe.

    Returns:
        Rows and updates, and the mean cosine of the two models' embeddings of held-out passages and single texts,
        before and after.
    """
    from pipeline.train import loop

    rows = encoded(full, folder, texts, section)
    assert section.refine
    most = _MOST_PASSES * -(-(len(rows[0]) + len(rows[1])) // _BATCH)
    settings = Updates(
        steps=min(section.refine, most),
        batch_size=_BATCH,
        learning_rate=LEARNING_RATE,
        weight_decay=0.0,
        dropout=0.0,
        max_length=section.max_length,
        seed=section.seed,
        precision=section.refine_precision,
    )
    # A run of minutes is not worth a checkpoint.
    with tempfile.TemporaryDirectory() as nowhere:
        key = "prune.refine_precision"
        plan = loop.RunPlan("refine", Path(nowhere), settings, "prune.refine", settings.passes, precision_key=key)
        with loop.open_accelerator(plan) as accelerator:
            objective = _Refinement(full, pruned, rows, accelerator)
            before = objective.cosines(accelerator.device)
            finished = loop.run(objective, plan, accelerator, tell)
            after = objective.cosines(accelerator.device)
    pruned.cpu().eval().requires_grad_(False)
    full.cpu()
    return {
        "rows": len(objective.lengths),
        "steps": finished.steps,
        "passage_cosine_before": before[0],
        "passage_cosine": after[0],
        "text_cosine_before": before[1],
        "text_cosine": after[1],
    }


def encoded(
    full: Any, folder: Path, texts: Sequence[Unlabelled], section: PruneSection
) -> tuple[list[Row], list[Row], Batches]:
    """Return passages, as many single texts, both in a random order and no more than are read, and their padding."""
    row, config = architectures.get(full.config.model_type), full.config
    encoder = Encoder(tokenizers.load_tokenizer(folder), section.max_length)
    single = list(dict.fromkeys(text for one in texts for text in ((one,) if isinstance(one, str) else one)))
    single = [text for text in single if text.strip()]
    long = corpus.passages(single, section.max_length)
    draw, most = np.random.default_rng(section.seed), _BATCH * (section.refine or 0)
    drawn = [
        [some[number] for number in draw.permutation(len(some))[:count]]
        for some, count in ((long, most), (single, max(min(len(long), most), _BATCH)))
    ]
    rows = [[encoder.encode(text) for text in some] for some in drawn]
    return rows[0], rows[1], Batches((), row.inputs, int(config.pad_token_id or 0))


class _Student(nn.Module):
    """The pruned model; `forward` returns the sum of each loss over its items."""

    def __init__(self, pruned: Any) -> None:
        super().__init__()
        self.student = pruned.requires_grad_(True)
        for module in pruned.modules():
            if isinstance(module, nn.Embedding):
                # What few texts say of few tokens would leave the others behind.
                module.requires_grad_(False)
        self._head = heads.of(tasks.get("embedding"), pruned)

    def forward(self, inputs: Mapping[str, Tensor], vectors: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        output, mask = self.student(**inputs), inputs["attention_mask"].float()
        mine = self._head.outputs(output, mask)[0]
        each = (output.last_hidden_state - hidden).square().mean(-1)
        return {VECTORS: (mine - vectors).square().sum(), HIDDEN: (each * mask).sum()}


class _Refinement:
    """The objective, for `pipeline.train.loop`."""

    uses_all_parameters = False
    near = None
    weights: Mapping[str, float] = {VECTORS: 1.0, HIDDEN: 1.0}

    def __init__(
        self, full: Any, pruned: Any, rows: tuple[list[Row], list[Row], Batches], accelerator: Accelerator
    ) -> None:
        device, self._autocast = accelerator.device, accelerator.autocast
        self._full = full.to(device).eval().requires_grad_(False)
        self._head = heads.of(tasks.get("embedding"), full)
        self.model = _Student(pruned).to(device)
        *kinds, self._padding = rows
        self._rows: list[Row] = []
        self._held_out: list[list[Row]] = []
        for some in kinds:
            count = min(_HELD_OUT, round(_HELD_OUT_SHARE * len(some)))
            self._held_out.append(some[:count])
            self._rows += some[count:]
        self.lengths: NDArray[np.int64] = np.array([len(row) for row in self._rows], np.int64)

    def count_items(self, rows: NDArray[np.int64], step: int) -> Mapping[str, int]:
        """Return the number of items of each loss in all rows of an update."""
        return {VECTORS: len(rows), HIDDEN: int(self.lengths[rows].sum())}

    def losses(self, wrapped: Any, rows: NDArray[np.int64], step: int, device: torch.device) -> Mapping[str, Tensor]:
        """Return the sum of each loss over some rows of an update."""
        inputs = self._inputs([self._rows[number] for number in rows], device)
        with torch.no_grad(), self._autocast():
            output = self._full(**inputs)
            vectors = self._head.outputs(output, inputs["attention_mask"].float())[0]
        sums: Mapping[str, Tensor] = wrapped(inputs, vectors.float(), output.last_hidden_state.float())
        return sums

    def _inputs(self, rows: Sequence[Row], device: torch.device) -> dict[str, Tensor]:
        batch = Batches((tuple(rows),), self._padding.names, self._padding.pad_token_id)
        return {name: torch.from_numpy(array).to(device) for name, array in batch.arrays(0).items()}

    def dev_metric(self, device: torch.device) -> float | None:
        """Return None: nothing is chosen by it."""
        return None

    @torch.no_grad()
    def cosines(self, device: torch.device) -> list[float | None]:
        """Return the mean cosine of held-out passages, and of held-out single texts; None where there are none."""
        self.model.eval()
        means: list[float | None] = []
        for rows in self._held_out:
            found = []
            for start in range(0, len(rows), _BATCH):
                inputs = self._inputs(rows[start : start + _BATCH], device)
                mask = inputs["attention_mask"].float()
                mine, theirs = (self._head.outputs(one(**inputs), mask)[0] for one in (self.model.student, self._full))
                found.append(functional.cosine_similarity(mine, theirs, dim=-1))
            means.append(float(torch.cat(found).mean()) if found else None)
        self.model.train()
        return means
