"""Whether a waiting prompt may start: room for its export, blocks, and fairness among those without."""

from __future__ import annotations

from array import array

from baton.core.errors import InvalidArgument
from baton.core.kvcache import KvCache
from baton.core.phase import Move
from baton.core.request import Request
from baton.prefill_node.jobs import Job, Stages
from baton.prefill_node.limits import PrefillLimits

MAX_BLOCKED = 32  # a step does not look further once so many did not fit


def check_fits(request: Request, limits: PrefillLimits, kv: KvCache) -> None:
    """Raise InvalidArgument if the request could not be served here even alone."""
    tokens = request.prefill_tokens
    if not request.prompt_ids:
        raise InvalidArgument("must hold at least one token", field="prompt")
    if tokens + 1 > limits.max_model_len:
        raise InvalidArgument(
            f"has {tokens} tokens, at most {limits.max_model_len - 1} leave room for an output token",
            field="prompt",
        )
    if kv.blocks_for(tokens) > kv.pool.usable:
        raise InvalidArgument(
            f"needs {kv.blocks_for(tokens)} KV blocks, this node has {kv.pool.usable}", field="prompt"
        )
    if len(request.output_ids) >= request.output_limit(limits.max_model_len):
        raise InvalidArgument(
            f"{len(request.output_ids)} output tokens leave none to make", field="max_tokens"
        )


class Admission:
    """Starts prompts. All blocks of a prompt are taken at its start, so that once it runs it cannot get
    stuck, nor preempt itself, for want of its own next block."""

    def __init__(self, kv: KvCache, limits: PrefillLimits, revision: str, stages: Stages) -> None:
        self._kv = kv
        self._limits = limits
        self._revision = revision
        self._stages = stages
        self._blocked: list[Job] = []  # this step: turned away for want of blocks, best rank first
        self.starving: Job | None = None  # was bypassed often enough: nobody else starts

    def new_step(self) -> None:
        self._blocked = []
        if self.starving is not None and self.starving.seq.key not in self._stages.waiting:
            self.starving = None

    def start(self, job: Job, keep_blocks: int) -> bool:
        """Give the job its blocks, those with its cached prefix first. False: not now; nothing changed."""
        if self.starving not in (None, job) or len(self._blocked) >= MAX_BLOCKED:
            return False
        if job.pinned and self._stages.kept >= self._limits.max_exporting:
            return False  # not for want of blocks: others that stay here need not wait for this one
        if not self._export_room(job) or not self._take_blocks(job, keep_blocks):
            self._blocked.append(job)
            return False
        if self.starving is job:
            self.starving = None
        for other in self._blocked:
            other.bypassed += 1
            if other.bypassed >= self._limits.max_bypass and self.starving is None:
                self.starving = other
        job.bypassed = 0
        job.seq.move(Move.START)
        self._stages.move(job, self._stages.running)
        return True

    def wanted_blocks(self) -> int:
        """What the starving prompt needs, 0 if none starves."""
        job = self.starving
        if job is None or job.seq.key not in self._stages.waiting:
            return 0
        return self._kv.blocks_for(len(job.seq.token_ids))

    def _export_room(self, job: Job) -> bool:
        kept = self._stages.kept_blocks
        if not job.pinned or kept == 0:
            return True
        need = self._kv.blocks_for(len(job.seq.token_ids))
        return kept + need <= self._limits.max_exporting_share * self._kv.pool.usable

    def _take_blocks(self, job: Job, keep_blocks: int) -> bool:
        """At least the last token is computed, for its logits; all are where prompt logprobs are wanted."""
        kv, seq = self._kv, job.seq
        total = len(seq.token_ids)
        cached: list[int] = []
        if not job.wants_prompt_logprobs:
            seq.extend_keys(kv.block_size, total - 1, self._revision)
            cached = kv.match(seq.keys[: (total - 1) // kv.block_size])
        need = kv.blocks_for(total) - len(cached)
        if need + keep_blocks > kv.available:
            kv.release(cached)
            return False
        seq.blocks = array("q", cached + kv.allocate(need))
        seq.computed = len(cached) * kv.block_size
        seq.published = len(cached)
        return True
