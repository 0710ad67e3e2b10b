"""What runs a batch. The torch runner is in `torch_runner`, a fake for tests in `tests/fakes.py`."""

from __future__ import annotations

from typing import Protocol

from baton.core.batch import Batch, StepOutput
from baton.core.model import ModelInfo


class ModelRunner(Protocol):
    info: ModelInfo

    def run(self, batch: Batch) -> StepOutput:
        """Clear `batch.clear`, run the rows, choose tokens. Blocking; called from one thread only."""

    def close(self) -> None: ...
