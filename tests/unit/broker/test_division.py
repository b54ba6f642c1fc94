"""The division of parts among members, and reading the leases of a shared subscription."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from txnframework.broker.dispatch.subscription_shares import view_of
from txnframework.broker.division import divide
from txnframework.broker.lease_names import dispatching_lease, is_lease_of, member_lease, member_of
from txnframework.model import Record
from txnframework.model.names import TopicName
from txnframework.model.paths import lease_key

TOPIC = TopicName("topic", "public", "default", "orders")


@pytest.mark.parametrize(("members", "parts"), [(1, 16), (2, 16), (3, 16), (10, 16), (17, 16), (5, 1), (3, 0)])
def test_it_is_fair(members: int, parts: int) -> None:
    """Each part has one member, and shares differ by at most one, for any earlier division."""
    chance = Random(members * 100 + parts)
    for _ in range(50):
        held = {part: chance.randrange(members + 1) for part in range(parts) if chance.random() < 0.7}
        divided = divide(range(members), range(parts), held)
        shares = Counter(divided.values())
        assert set(divided) == set(range(parts))
        assert max((shares[one] for one in range(members)), default=0) - min(shares[one] for one in range(members)) <= 1


def test_nobody_is_there() -> None:
    """Without members nothing is divided."""
    assert divide((), range(3), {}) == {}


def test_only_what_is_above_a_share_moves() -> None:
    """When a member comes or goes, the others give up only the parts that it should hold."""
    chance = Random(7)
    for _ in range(200):
        parts, members = range(chance.randint(1, 20)), list(range(chance.randint(1, 5)))
        held = divide(members, parts, {})
        joined = divide([*members, 9], parts, held)
        assert {joined[part] for part in parts if joined[part] != held[part]} <= {9}
        gone = members[1:] or [9]
        left = divide(gone, parts, held)
        moved = [part for part in parts if left[part] != held[part]]
        assert all(held[part] not in gone for part in moved)


def test_the_result_stays_while_parts_move() -> None:
    """For any intermediate state the decision is the same, so no part moves back and forth."""
    chance = Random(8)
    for _ in range(500):
        parts, members = range(chance.randint(1, 12)), list(range(chance.randint(1, 4)))
        held = {part: chance.choice(members) for part in parts if chance.random() < 0.8}
        final = divide(members, parts, held)
        given_up = {part: holder for part, holder in held.items() if final[part] == holder or chance.random() < 0.5}
        assert divide(members, parts, given_up) == final
        # If a free part was already taken by its new member, no member gives anything up.
        taken = {part: final[part] for part in parts if part in given_up or chance.random() < 0.5}
        again = divide(members, parts, taken)
        assert all(again[part] == taken[part] for part in taken)


def test_what_the_leases_say() -> None:
    """The leases show members by session, and holders of segments; leases of other subscriptions are ignored."""

    def lease(name: str, holder: str) -> tuple[str, Record]:
        return name, Record(lease_key(name), msgspec.json.encode({"format": 1, "holder": holder}), 1)

    names = [f"segment://public/default/orders/{one}" for one in ("0000-7fff-1", "8000-bfff-3", "c000-ffff-4")]
    leases = dict(
        [
            lease(member_lease(TOPIC, "billing", "s1"), "worker-1 on billing@web-1:1 in s1"),
            lease(member_lease(TOPIC, "billing", "s2"), "on billing@web-2:1 in s2"),
            lease(dispatching_lease(names[0], "billing"), "on billing@web-2:1 in s2"),
            lease(dispatching_lease(names[1], "billing"), "worker-1 on billing@web-1:2 in s0"),
            lease(dispatching_lease(names[2], "billing"), "spark s9"),
        ]
    )
    view = view_of(TOPIC, "billing", "s2", leases)
    assert sorted(view.members) == ["s1", "s2"]
    # The earlier process with a consumer called worker-1 is replaced by the later one.
    assert view.holders == {names[0]: "s2", names[1]: "s1", names[2]: "spark s9"}
    assert view.divided(names, frozenset({names[0]})) == {names[0]: "s2", names[1]: "s1"}
    assert all(is_lease_of(one, TOPIC, "billing") for one in leases)
    # A process that uses the subscription with another type is about to be refused, and gets no segments.
    leases.update([lease(member_lease(TOPIC, "billing", "s4"), "on billing@web-4:1 in s4 as key_shared")])
    for kind, members in (("shared", ["s1", "s2"]), ("key_shared", ["s1", "s2", "s4"])):
        assert sorted(view_of(TOPIC, "billing", "s2", leases, kind).members) == members
    other = member_lease(TopicName("topic", "public", "default", "invoices"), "billing of x", "s3")
    assert member_of(other, TOPIC, "billing") is None
    longer = TopicName("persistent", "public", "default", "orders-2")
    for one in (other, member_lease(longer, "billing", "s1"), dispatching_lease(str(longer), "billing")):
        assert not is_lease_of(one, TopicName("persistent", "public", "default", "orders"), "billing")
