"""Nodes come, speak, fall silent and go."""

from __future__ import annotations

from baton.core.errors import InvalidArgument, NotFound, Unavailable
from baton.core.load import LoadReport, Role
from baton.router.events import Effect, NodeInfo, Pair, Record, SetDrain, SetRole
from baton.router.fate import fail_attempt, no_word
from baton.router.nodes import Health, Node
from baton.router.state import State


def join(state: State, info: NodeInfo, now: float, out: list[Effect]) -> None:
    """A registration: of a new node, of another incarnation (the old one is lost), or the same again."""
    if not info.node_id or info.block_size < 1 or info.max_model_len < 1:
        raise InvalidArgument(f"node {info.node_id!r} registered nonsense", field="registration")
    registry = state.registry
    if registry.superseded(info):
        state.stale += 1
        return
    node = registry.get(info.node_id)
    if node is not None and node.info.incarnation == info.incarnation:
        registry.readd(node, info, now)
    else:
        if node is not None:
            lose(state, node, "another incarnation took its place", now, out, gone=True)
        node = registry.add(info, now)
    state.timers.set(("lease", node.id), now + state.config.lease_s)
    state.timers.clear(("forget", node.id))
    out.append(_record(node, "joined"))
    for mismatch in registry.mismatches(node):
        out.append(Pair(node.id, mismatch.other_id, mismatch.items))


def report(state: State, node: Node, load: LoadReport, now: float, out: list[Effect]) -> None:
    if not node.report(load, now, state.config.report_lag_s):
        state.stale += 1
    else:
        state.registry.learn(node, now)
        if node.wanted_role is None:
            state.timers.clear(("role", node.id))
    if node.health is not Health.UP:
        node.health = Health.UP
        node.touch()
        state.timers.set(("lease", node.id), now + state.config.lease_s)
        state.timers.clear(("forget", node.id))
        out.append(_record(node, "back"))


def lose(state: State, node: Node, reason: str, now: float, out: list[Effect], *, gone: bool) -> None:
    """What the node still owed is to be done elsewhere. gone: its stream broke, so it knows and drops it all;
    otherwise it may only be stuck, and is told to."""
    node.gone = node.gone or gone
    node.health = Health.LOST
    node.touch()
    state.registry.kv_changed(node, (), (), reset=True)
    state.timers.clear(("lease", node.id))
    state.timers.clear(("role", node.id))
    state.timers.set(("forget", node.id), now + state.config.forget_s)
    out.append(_record(node, "lost", reason=reason))
    there = [state.live[name] for name in dict.fromkeys((*node.prefill, *node.decode))]
    for live in sorted(there, key=lambda one: one.facts.arrived_s):
        attempt = live.attempt
        if attempt is None or node.id not in attempt.nodes:
            continue
        if live.owes(node.id):
            error = Unavailable(f"node {node.id} was lost: {reason}")
            fail_attempt(state, live, error, node.id, now, out)
            continue
        if attempt.decode_id == node.id:
            state.leave_decode(live, attempt)
        if attempt.prefill_id == node.id:
            no_word(state, live, attempt, now, out)


def check_lease(state: State, node: Node, now: float, out: list[Effect], *, slept: bool) -> None:
    """A lease timer fired. slept: it fired late, so it was this process that stood still, and the node's
    reports may lie unread: it gets another third of a lease."""
    lease_s = state.config.lease_s
    lost_s = node.reported_s + lease_s * state.config.lost_leases
    suspect_s = node.reported_s + lease_s
    if now < suspect_s:
        state.timers.set(("lease", node.id), suspect_s)
    elif slept:
        state.timers.set(("lease", node.id), now + lease_s / 3)
    elif now >= lost_s:
        lose(state, node, f"silent for {now - node.reported_s:.1f} s", now, out, gone=False)
    else:
        if node.health is Health.UP:
            node.health = Health.SUSPECT
            node.touch()
            out.append(_record(node, "suspect"))
        state.timers.set(("lease", node.id), lost_s)


def drain(state: State, node_id: str, draining: bool, out: list[Effect]) -> None:
    """Holds for this incarnation of the node."""
    node = _known(state, node_id)
    node.draining = draining
    node.touch()
    out.append(SetDrain(node_id, draining))
    out.append(_record(node, "draining" if draining else "resumed"))


def set_role(
    state: State, node_id: str, role: Role, now: float, out: list[Effect], why: str = "an operator said so"
) -> None:
    """From now on only what both roles allow is sent to it, until it reports the new one."""
    node = _known(state, node_id)
    node.wanted_role = None if node.load.role is role else role
    node.touch()
    if node.wanted_role is None:
        state.timers.clear(("role", node_id))
    else:
        state.timers.set(("role", node_id), now + state.config.lease_s)
    out.append(SetRole(node_id, role))
    out.append(_record(node, "role", old=node.load.role.value, role=role.value, why=why))


def give_up_role(node: Node, out: list[Effect]) -> None:
    """The node did not take the role within a lease: what it reports counts again."""
    if node.wanted_role is not None:
        out.append(_record(node, "role not taken", role=node.wanted_role.value))
        node.wanted_role = None
        node.touch()


def _known(state: State, node_id: str) -> Node:
    node = state.registry.get(node_id)
    if node is None or node.gone:
        raise NotFound(f"no node {node_id!r} is known here", field="node_id")
    return node


def _record(node: Node, what: str, **more: object) -> Record:
    return Record("node", {"node": node.id, "incarnation": node.info.incarnation, "what": what, **more})
