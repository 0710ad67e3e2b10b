"""The planner's eyes and hands: what the registry knows as a Situation, and which node changes."""

from __future__ import annotations

from baton.core.load import Role
from baton.router import cluster
from baton.router.events import Effect, Record
from baton.router.nodes import Node
from baton.router.planner import Move, Situation, Split, after, pressure
from baton.router.state import PLAN_TIMER, State


def start(state: State, now: float) -> None:
    """Look for the first time some while after the first node came."""
    if state.planner is not None and PLAN_TIMER not in state.timers:
        state.timers.set(PLAN_TIMER, now + state.planner.config.every_s)


def plan(state: State, now: float, out: list[Effect]) -> None:
    planner = state.planner
    assert planner is not None
    state.timers.set(PLAN_TIMER, now + planner.config.every_s)
    if any(node.wanted_role is not None for node in state.registry):
        return  # one at a time
    situation = situation_of(state, now)
    move = planner.look(now, situation)
    node = None if move is None else _mover(state, move)
    if move is None or node is None:
        return
    before = pressure(situation, situation.split)
    data: dict[str, object] = {
        "node": node.id,
        "old": move.old.value,
        "new": move.new.value,
        "pressure": before,
        "prompts": situation.prompts,
        "rows": situation.rows,
        "rows_each": situation.rows_each,
    }
    out.append(Record("plan", data))
    then = pressure(situation, after(situation.split, move))
    load = f"prompts keep {situation.prompts:.2f} nodes busy, {situation.rows:.0f} requests decode"
    why = f"pressure {before:.2f} falls to {then:.2f}: {load}, {situation.rows_each:.0f} fit a node"
    cluster.set_role(state, node.id, move.new, now, out, why)


def situation_of(state: State, now: float) -> Situation:
    """Looks at every node: to be asked now and then."""
    nodes = [node for node in state.registry if node.serving]
    roles = [node.load.role for node in nodes]
    split = Split(roles.count(Role.PREFILL), roles.count(Role.DECODE), roles.count(Role.BOTH))
    demand = state.demand
    decoding = [node for node in nodes if node.load.role.decodes]
    rows = float(sum(node.decode_rows for node in decoding))
    context = sum(node.context_tokens for node in decoding)
    each = context / rows if rows else 0.0
    rows_each = _rows_each(state, decoding or nodes, each)
    cost = state.registry.average
    mean_rows = max(1, round(rows / max(1, len(decoding))))
    step_s = cost.decode_mean_s(mean_rows, round(mean_rows * each))
    return Situation(
        split=split,
        prompts=demand.nodes(now),
        prompt_s=demand.mean_s(now),
        variation=demand.variation(now),
        ttft_s=demand.ttft_s(now),
        rows=rows,
        rows_each=rows_each,
        drain_s=state.output_tokens * step_s,
    )


def _rows_each(state: State, nodes: list[Node], context: float) -> float:
    """The most rows of that context that a usual node can run: by memory, by its limit, by their target."""
    if not nodes:
        return 1.0
    usual = nodes[0].load
    most = float(usual.max_running or 256)
    if usual.blocks_total and context > 0.0:
        most = min(most, usual.blocks_total * max(1, usual.block_size) / context)
    targets = [target for node in nodes if (target := node.decode.tightest_s) is not None]
    if targets:
        fixed_s, row_s, token_s = state.registry.average.as_prior().decode
        each_s = row_s + token_s * context
        if each_s > 0.0:
            most = min(most, (min(targets) - fixed_s) / each_s)
    return max(1.0, most)


def _mover(state: State, move: Move) -> Node | None:
    """The node that has least to finish."""
    nodes = [node for node in state.registry if node.serving and node.load.role is move.old]
    return min(nodes, key=lambda node: (node.in_flight, node.number), default=None)
