"""What the router's machine may be told. All durations on the machine's own clock."""

from __future__ import annotations

from dataclasses import dataclass

from baton.router.planner import PlannerConfig


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Limits and weights of the scheduling machine.

    lease_s: a node silent for that long is suspect (gets nothing new), after `lost_leases` of them lost.
    max_queued: central queue length beyond which arrivals are shed. max_queue_wait_s: shed when the
    predicted wait is longer. aging_s: one level of priority is worth this many seconds of waiting.
    max_node_wait_s: predicted prefill queue on a node beyond which nothing more is sent to it.
    no_node_wait_s: how long a request waits for a node that could run it to appear.
    """

    lease_s: float = 3.0
    lost_leases: float = 2.0
    max_queued: int = 1024
    max_queue_wait_s: float = 60.0
    aging_s: float = 5.0
    starve_s: float = 2.0  # a request passed over for that long lets nobody pass any more
    lookahead: int = 16  # how many requests that cannot run now others may pass
    max_node_wait_s: float = 0.1
    max_node_requests: int = 256
    decode_slack: int = 2  # requests a decode node may have beyond its batch, so that slots never idle
    no_node_wait_s: float = 10.0
    forget_s: float = 600.0  # how long a lost node stays in view
    max_retries: int = 3
    max_refusals: int = 16  # RESOURCE_EXHAUSTED answers by nodes; these are no fault and cost no retry
    retry_backoff_s: float = 0.05
    word_wait_s: float = 1.0  # a whole answer waits so long, at most, for the figures of its hand-off
    fetch: bool = True  # KV that another node has, where that is faster than computing it
    report_lag_s: float = 0.02  # a report says nothing of what was sent this long before it came
    policy: str = "latency"
    planner: PlannerConfig | None = None  # None: roles change by operators alone
    quantile: float = 0.7  # predictions are taken so that this share of measurements stays below
    miss_s: float = 10.0  # a target missed is worth so many seconds of others' waiting
    order: str = "slack"  # of the queue: by due date, those in vain last; or "fcfs": by arrival
    margin: float = 0.05  # that share of a target is kept in hand when the queue is sorted
    late_share: float = 0.1  # of the work done goes to requests in vain that have waited
    late_wait_s: float = 30.0  # for so long
    admission: str = "defer"  # "reject": turn away who has less than `least_chance` of its targets
    least_chance: float = 0.5
    damping: float = 0.5  # how much of the decode work that will have ended by a hand-off is believed to
    ttft_s: float | None = None  # targets of requests that bring none
    tpot_s: float | None = None
    decode_weight: float = 0.1  # what a second of decode is worth against one of TTFT
    tie_fraction: float = 0.02  # scores this close count as equal,
    tie_s: float = 0.001  # and so do scores this close: predictions are no better
