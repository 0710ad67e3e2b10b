"""The metrics of routers and nodes: one registry per process, vLLM's names where the meaning is the same.

Times are measured by the caller on one monotonic clock. What was not measured is None and adds no sample; a
figure that cannot be a duration (NaN, negative) is counted as bad and adds none either, so sums and
counts always agree and nothing here is ever NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.process_collector import ProcessCollector

from baton.core.load import LoadReport, Role

# Fine enough to tell 1 ms per token from 1.25 ms, wide enough for a queue of minutes.
TOKEN_BUCKETS_S = (
    *(i * 0.00025 for i in range(1, 9)),
    *(0.0025, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
REQUEST_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0),
)
LEGS = ("queue", "prefill", "transfer", "decode_wait", "tpot")


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """One request that ended. Seconds on the router's clock; None: never happened."""

    reason: str  # core.FinishReason's value
    prompt_tokens: int
    output_tokens: int
    total_s: float
    queue_s: float | None = None
    prefill_s: float | None = None
    transfer_s: float | None = None
    decode_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None  # None with fewer than two tokens
    retries: int = 0


class _Base:
    def __init__(self, model_name: str, process: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model_name
        ProcessCollector(registry=self.registry)
        Info("baton_process", "Which process this is.", registry=self.registry).info({"name": process})
        self._rpcs = Counter("baton_rpcs", "RPCs served.", ("method", "code"), registry=self.registry)
        self.bad_measurements = Counter(
            "baton_bad_measurements",
            "Durations that were NaN or negative and left out.",
            registry=self.registry,
        )

    def rpc(self, method: str, code: str) -> None:
        """An RPC ended. method: "package.Service/Method"; code: its status."""
        self._rpcs.labels(method, code).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ("model_name", *labels), registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, ("model_name", *labels), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, ("model_name", *labels), buckets=buckets, registry=self.registry)

    def _observe(self, histogram: Histogram, seconds: float | None, times: int = 1) -> None:
        if seconds is None:
            return
        if not math.isfinite(seconds) or seconds < 0:
            self.bad_measurements.inc()
            return
        for _ in range(times):
            histogram.observe(seconds)


class RouterMetrics(_Base):
    """What a router knows: requests as clients see them."""

    def __init__(self, model_name: str, process: str = "router") -> None:
        super().__init__(model_name, process)
        model = {"model_name": model_name}
        self.running = self._gauge("vllm:num_requests_running", "Requests on nodes.").labels(**model)
        self.waiting = self._gauge("vllm:num_requests_waiting", "Requests in the router's queue.").labels(
            **model
        )
        self._success = self._counter("vllm:request_success", "Requests that ended well.", "finished_reason")
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens of ended requests.").labels(**model)
        self._output = self._counter("vllm:generation_tokens", "Tokens delivered.").labels(**model)
        self._legs(model)
        self._itl = self._histogram(
            "vllm:inter_token_latency_seconds", "Time between tokens of one request.", TOKEN_BUCKETS_S
        ).labels(**model)
        self._tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean over one request, first token left out.",
            TOKEN_BUCKETS_S,
        ).labels(**model)  # fmt: skip
        self._rejected = self._counter(
            "baton_requests_rejected", "Requests that ended with an error.", "code"
        )
        self._http = self._counter(
            "baton_http_requests", "HTTP requests answered; 499: the client left.", "route", "status"
        )
        self._retries = self._counter("baton_request_retries", "Attempts after the first.").labels(**model)
        self._nodes = self._gauge("baton_nodes", "Known nodes.", "role", "state")
        self._roles: dict[str, str] = {}
        self._node_role = self._gauge("baton_node_role", "1 for the role that a node plays.", "node", "role")
        self._role_changes = self._counter("baton_role_changes", "Roles given to nodes.", "old", "new")
        self._error = self._histogram(
            "baton_prediction_error_seconds",
            "Distance between predicted and measured, per leg.",
            REQUEST_BUCKETS_S,
            "leg",
        )

    def _legs(self, model: dict[str, str]) -> None:
        def legs(name: str, text: str) -> Histogram:
            return self._histogram(name, text, REQUEST_BUCKETS_S).labels(**model)

        self._ttft = legs("vllm:time_to_first_token_seconds", "Arrival to first token.")
        self._e2e = legs("vllm:e2e_request_latency_seconds", "Arrival to end.")
        self._queue = legs("vllm:request_queue_time_seconds", "Arrival to dispatch.")
        self._prefill = legs("vllm:request_prefill_time_seconds", "Dispatch to first token.")
        self._transfer = legs("baton_request_transfer_time_seconds", "First token to decode's start.")
        self._decode = legs("vllm:request_decode_time_seconds", "Decode's start to last token.")

    def tokens_delivered(self, count: int, interval_s: float | None) -> None:
        """`count` tokens of one request came `interval_s` after its last ones (None: these are its first).

        Tokens that come together share the interval: three after 30 ms are three samples of 10 ms. Of the
        first ones, those behind the very first are not told apart in time and add no sample.
        """
        self._output.inc(count)
        if interval_s is not None and count:
            self._observe(self._itl, interval_s / count, count)

    def request_ended(self, figures: RequestFigures) -> None:
        """A request that was answered, cancelled ones included."""
        self._success.labels(self._model, figures.reason).inc()
        self._prompt.inc(figures.prompt_tokens)
        self._retries.inc(figures.retries)
        self._observe(self._e2e, figures.total_s)
        self._observe(self._ttft, figures.ttft_s)
        self._observe(self._queue, figures.queue_s)
        self._observe(self._prefill, figures.prefill_s)
        self._observe(self._transfer, figures.transfer_s)
        self._observe(self._decode, figures.decode_s)
        if figures.output_tokens >= 2:
            self._observe(self._tpot, figures.tpot_s)

    def request_rejected(self, code: str) -> None:
        """A request that ended with an error; code: the canonical status code's name."""
        self._rejected.labels(self._model, code).inc()

    def http_request(self, route: str, status: int) -> None:
        """An HTTP request ended. route: "POST /v1/completions", or "other"."""
        self._http.labels(self._model, route, str(status)).inc()

    def predicted(self, leg: str, predicted_s: float | None, measured_s: float | None) -> None:
        """leg: one of LEGS."""
        if predicted_s is not None and measured_s is not None:
            self._observe(self._error.labels(self._model, leg), abs(predicted_s - measured_s))

    def set_nodes(self, counts: dict[tuple[str, str], int]) -> None:
        """(role, state) -> number; what is not named is 0."""
        self._nodes.clear()
        for (role, state), number in counts.items():
            self._nodes.labels(self._model, role, state).set(number)

    def set_roles(self, roles: dict[str, str]) -> None:
        """Node id -> role; of the nodes that are there."""
        for node_id, role in self._roles.items():
            if roles.get(node_id) != role:
                self._node_role.remove(self._model, node_id, role)
        for node_id, role in roles.items():
            if self._roles.get(node_id) != role:
                self._node_role.labels(self._model, node_id, role).set(1)
        self._roles = roles

    def role_changed(self, old: str, new: str) -> None:
        """A node was told to play another role, by an operator or the planner."""
        self._role_changes.labels(self._model, old, new).inc()


class NodeMetrics(_Base):
    """What a node knows: its engine, its pool, its transfers."""

    def __init__(self, model_name: str, process: str = "node") -> None:
        super().__init__(model_name, process)
        model = {"model_name": model_name}
        gauge, counter = self._gauge, self._counter
        self._running = gauge("vllm:num_requests_running", "Requests in the batch.").labels(**model)
        self._waiting = gauge("vllm:num_requests_waiting", "Requests that wait on this node.").labels(**model)
        self._usage = gauge("vllm:kv_cache_usage_perc", "Part of the KV blocks in use; 1 is all.").labels(
            **model
        )
        self._queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up, once each.").labels(
            **model
        )
        self._hits = counter("vllm:prefix_cache_hits", "Prompt tokens found.").labels(**model)
        self._preemptions = counter("vllm:num_preemptions", "Requests that gave their KV back.").labels(
            **model
        )
        self._role = gauge("baton_role", "1 for the role that the node plays.", "role")
        self._shown_role: Role | None = None
        self._draining = gauge("baton_draining", "1 while no new requests are taken.").labels(**model)
        self._leases = gauge("baton_leases", "Reservations for KV that is on its way.").labels(**model)
        self._exporting = gauge("baton_exporting", "Prompts done whose KV is not handed off yet.").labels(
            **model
        )
        self._orphaned = gauge("baton_orphaned_blocks", "KV blocks in quarantine.").labels(**model)
        self._step = self._histogram("baton_step_seconds", "One engine step.", TOKEN_BUCKETS_S, "kind")
        self._tokens = counter("baton_step_tokens", "Tokens computed.", "kind")
        self._bytes = counter("baton_transfer_bytes", "KV bytes written to other nodes.", "transport")
        self._transfer = self._histogram(
            "baton_transfer_seconds", "One KV write.", REQUEST_BUCKETS_S, "transport"
        )
        self._stale = counter("baton_stale_messages", "Hand-off messages that came too late.", "reason")
        self._failed = counter("baton_transfer_failures", "KV writes that did not arrive.", "transport")
        self._fetches = counter(
            "baton_fetches", "Prompts for which another node was asked for KV.", "outcome"
        )
        self._fetched = counter("baton_fetched_tokens", "Prompt tokens whose KV another node lent.").labels(
            **model
        )
        self._lent = counter("baton_lent_tokens", "Tokens whose KV was lent to another node.").labels(**model)

    def load(self, report: LoadReport) -> None:
        """The node's state, as it is told to routers."""
        self._running.set(report.running)
        self._waiting.set(report.waiting)
        used = report.blocks_total - report.blocks_free
        self._usage.set(used / report.blocks_total if report.blocks_total else 0.0)
        if report.role is not self._shown_role:
            self._shown_role = report.role
            for role in Role:
                self._role.labels(self._model, role.value).set(int(role is report.role))
        self._draining.set(int(report.draining))
        self._leases.set(report.reserved)
        self._exporting.set(report.exporting)
        self._orphaned.set(report.quarantined)

    def prefix_lookup(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Once per request, however often it was scheduled or preempted."""
        self._queries.inc(prompt_tokens)
        self._hits.inc(cached_tokens)

    def fetched(self, tokens: int) -> None:
        """A prompt begins, with what another node lent for it; 0: nothing came, or nothing was lacking."""
        self._fetches.labels(self._model, "lent" if tokens else "nothing").inc()
        self._fetched.inc(tokens)

    def lent(self, tokens: int) -> None:
        self._lent.inc(tokens)

    def preempted(self, count: int = 1) -> None:
        self._preemptions.inc(count)

    def step(self, kind: str, seconds: float, tokens: int) -> None:
        """kind: prefill, decode or mixed."""
        self._observe(self._step.labels(self._model, kind), seconds)
        self._tokens.labels(self._model, kind).inc(tokens)

    def transferred(self, transport: str, payload_bytes: int, seconds: float) -> None:
        self._bytes.labels(self._model, transport).inc(payload_bytes)
        self._observe(self._transfer.labels(self._model, transport), seconds)

    def stale(self, reason: str) -> None:
        """A hand-off message of another incarnation, or of a transfer that is over, was dropped."""
        self._stale.labels(self._model, reason).inc()

    def transfer_failed(self, transport: str) -> None:
        self._failed.labels(self._model, transport).inc()
