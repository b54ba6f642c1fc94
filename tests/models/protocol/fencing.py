"""
A row of ledgers on a stream is one log, and every change of it is fenced by the log's own end
(``txnframework_nats.ledgers`` follows this).

Who takes part: two *writers*, who append an entry of the same sequence; a *sealer*, who appends the seal; and a
*reader*, who asks for the tail. Each reads the log, decides by what it has read, and sends one record with an
expectation: the number of records that it has read. The *server* appends the record if the log has exactly so many
records, and otherwise refuses it. Anybody may be paused between any two of these steps. A request may arrive late,
after its sender has given up waiting, and a reply may be lost; then the sender reads the log and finds out. Reads by
anyone but the leader of the stream may be stale.

The rule: a record is stored only directly behind what its writer has read. So what was decided by the read is still
true where the record is stored, and a record of a paused writer can only be refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

AFTER_THE_SEAL = "an entry is stored after the seal"
STORED_TWICE = "an entry is stored twice"
NOT_STORED = "an append is confirmed whose entry is not at its position"
MISSED = "a reader misses an entry that was confirmed before it asked"


class Rule(StrEnum):
    """What fences a paused writer, and distinguishes a lost reply from a refusal."""

    BEHIND_WHAT_WAS_READ = "a record is stored only directly behind what its writer has read"
    DECIDED_AGAIN = "after a refusal the writer reads the log and decides again"
    SEAL_IN_THE_LOG = "the seal is a record of the log that it ends"
    SAME_EXPECTATION = "a record without a reply is sent again with the expectation that it had"
    KNOWN_BY_ITS_TOKEN = "a record whose reply was lost is recognized by its token"
    ASKED_AT_THE_LEADER = "the tail is read at the leader of the stream"


HARM = {
    Rule.BEHIND_WHAT_WAS_READ: STORED_TWICE,
    Rule.DECIDED_AGAIN: STORED_TWICE,
    Rule.SEAL_IN_THE_LOG: AFTER_THE_SEAL,
    Rule.SAME_EXPECTATION: STORED_TWICE,
    Rule.KNOWN_BY_ITS_TOKEN: NOT_STORED,
    Rule.ASKED_AT_THE_LEADER: MISSED,
}
STATES_MIN = 10_000

SEAL = "seal"
CONTENTS = ("s", "s", SEAL)
"""The appended data: both writers send the same sequence, as a repeated send does; and the seal."""
SENDS_MAX = 2
"""How often one process sends a record: enough for a retry after a refusal or a lost reply."""


class Stored(NamedTuple):
    """A record of the log, and who sent it; the two together are its token."""

    content: str
    sender: int


class Request(NamedTuple):
    """A record on its way, with the number of records that its sender expects in the log."""

    content: str
    sender: int
    expected: int


class Process(NamedTuple):
    """
    ``done``: it has its answer. ``read``: the records that it has read. ``sent``: the request whose
    outcome it waits for. ``reply``: what the server answered. ``sends``: how many requests it has sent.
    """

    done: bool = False
    read: int = 0
    sent: Request | None = None
    reply: bool | None = None
    in_doubt: bool = False
    sends: int = 0


class State(NamedTuple):
    """
    ``confirmed``: the highest number of records that any confirmed append made. ``sealed_beside``: the number of
    records when the seal was noted elsewhere than in the log.
    """

    log: tuple[Stored, ...] = ()
    network: frozenset[Request] = frozenset()
    processes: tuple[Process, ...] = (Process(),) * len(CONTENTS)
    confirmed: int = 0
    sealed_beside: int | None = None
    harm: str | None = None


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for request in sorted(state.network):
            yield from self._server(state, request)
        for number, process in enumerate(state.processes):
            if process.sent is None:
                yield from self._sending(state, number, process)
            else:
                yield from self._waiting(state, number, process, process.sent)
        yield from self._asking(state)

    def _server(self, state: State, request: Request) -> Iterator[tuple[str, State]]:
        """The server takes a request; a copy of it may be in the network still."""
        checked = self._without is not Rule.BEHIND_WHAT_WAS_READ
        taken = not checked or request.expected == len(state.log)
        log = (*state.log, Stored(request.content, request.sender)) if taken else state.log
        following = state._replace(network=state.network - {request}, log=log)
        process = state.processes[request.sender]
        text = "stores" if taken else "refuses"
        yield f"the server {text} {request.content} of {request.sender}, and the reply is lost", following
        if process.sent == request and not process.in_doubt and process.reply is None:
            replied = _with(following, request.sender, process._replace(reply=taken))
            yield f"the server {text} {request.content} of {request.sender}", replied

    def _sending(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        if process.done:
            return
        for upto in range(process.read, len(state.log) + 1):
            if upto > process.read:
                yield f"{number} reads up to {upto}", _with(state, number, process._replace(read=upto))
        if process.sends < SENDS_MAX:
            yield from self._decide(state, number, process, process.read)

    def _decide(self, state: State, number: int, process: Process, expected: int) -> Iterator[tuple[str, State]]:
        """Decide by what was read whether the next record of the plan is sent."""
        content = CONTENTS[number]
        known = state.log[: process.read]
        if content == SEAL and self._without is Rule.SEAL_IN_THE_LOG:
            sealed = _with(state, number, process._replace(done=True))
            yield f"{number} notes the seal beside the log", sealed._replace(sealed_beside=len(state.log))
        elif any(one.content == SEAL for one in known) or state.sealed_beside is not None:
            yield f"{number} finds the seal", _with(state, number, process._replace(done=True))
        elif content == "s" and any(one.content == "s" for one in known):
            yield f"{number} finds a duplicate", _with(state, number, process._replace(done=True))
        else:
            request = Request(content, number, expected)
            sent = process._replace(sent=request, reply=None, in_doubt=False, sends=process.sends + 1)
            following = _with(state, number, sent)
            yield f"{number} sends {content} behind {expected}", following._replace(network=state.network | {request})

    def _waiting(self, state: State, number: int, process: Process, sent: Request) -> Iterator[tuple[str, State]]:
        if process.reply:
            yield f"{number} is told that {sent.content} is stored", self._confirm(state, number, sent.expected)
        elif process.reply is False:
            if self._without is Rule.DECIDED_AGAIN:
                # Only the expectation is renewed, not what was decided.
                if process.sends < SENDS_MAX:
                    yield from self._send_again(state, number, process, sent._replace(expected=len(state.log)))
            else:
                yield f"{number} is told that {sent.content} is refused", _with(state, number, _free(process))
        elif not process.in_doubt:
            yield f"{number} gives up waiting", _with(state, number, process._replace(in_doubt=True))
        else:
            yield from self._find_out(state, number, process, sent)

    def _find_out(self, state: State, number: int, process: Process, sent: Request) -> Iterator[tuple[str, State]]:
        """Read the log after a lost reply: the record at the expected place, or at any other, decides."""
        if self._without is Rule.SAME_EXPECTATION:
            if process.sends < SENDS_MAX:
                yield from self._send_again(state, number, process, sent._replace(expected=len(state.log)))
            return
        if len(state.log) > sent.expected:
            own = state.log[sent.expected] == Stored(sent.content, number)
            if own or self._without is Rule.KNOWN_BY_ITS_TOKEN:
                yield f"{number} finds its {sent.content}", self._confirm(state, number, sent.expected)
            else:
                yield f"{number} finds that {sent.content} was not stored", _with(state, number, _free(process))
        elif process.sends < SENDS_MAX:
            yield from self._send_again(state, number, process, sent)

    def _send_again(self, state: State, number: int, process: Process, request: Request) -> Iterator[tuple[str, State]]:
        again = process._replace(sent=request, reply=None, in_doubt=False, sends=process.sends + 1)
        following = _with(state, number, again)._replace(network=state.network | {request})
        yield f"{number} sends {request.content} again, behind {request.expected}", following

    def _confirm(self, state: State, number: int, place: int) -> State:
        """Report the append of a process as done, at the place of its record."""
        process = state.processes[number]
        assert process.sent is not None
        following = _with(state, number, _free(process)._replace(done=True))
        if self._without is Rule.BEHIND_WHAT_WAS_READ:
            return following
        if state.log[place] != Stored(process.sent.content, number):
            return following._replace(harm=NOT_STORED)
        return following._replace(confirmed=max(state.confirmed, place + 1))

    def _asking(self, state: State) -> Iterator[tuple[str, State]]:
        """A reader asks for the tail; at another server than the leader, it may get any earlier one."""
        if self._without is Rule.ASKED_AT_THE_LEADER:
            for found in range(len(state.log)):
                harm = MISSED if found < state.confirmed else None
                yield f"a reader is told that the tail is {found}", state._replace(harm=harm)


def _with(state: State, number: int, process: Process) -> State:
    processes = (*state.processes[:number], process, *state.processes[number + 1 :])
    return state._replace(processes=processes)


def _free(process: Process) -> Process:
    return process._replace(sent=None, reply=None, in_doubt=False)


def wrong(state: State) -> str | None:
    if state.harm:
        return state.harm
    contents = [one.content for one in state.log]
    if state.sealed_beside is not None and len(contents) > state.sealed_beside:
        return AFTER_THE_SEAL
    if SEAL in contents and contents.index(SEAL) < len(contents) - 1:
        return AFTER_THE_SEAL
    if contents.count("s") > 1:
        return STORED_TWICE
    return None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong)
