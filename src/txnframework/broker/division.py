"""The division of parts among members: a pure decision, which every member makes alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Member = TypeVar("Member", bound=Hashable)
Part = TypeVar("Part", bound=Hashable)


def divide(members: Sequence[Member], parts: Iterable[Part], held: Mapping[Part, Member]) -> dict[Part, Member]:
    """
    Return which member is to hold each part; the shares of the members differ by at most one part.

    A member keeps the parts that it holds, up to its share. So only parts above a share move, and while they move the
    result stays the same. Larger shares go to the members that hold most, then to the first ones.

    :param members: in an order that is the same for every member.
    :param parts: in an order that is the same for every member.
    :param held: the present holder of each part; a part without a holder, or with one that is no member, is free.
    """
    wanted = tuple(parts)
    if not members:
        return {}
    whole, rest = divmod(len(wanted), len(members))
    counts = Counter(held[part] for part in wanted if part in held)
    ranked = sorted(members, key=lambda member: -min(counts[member], whole + 1))
    room = {member: whole + (rank < rest) for rank, member in enumerate(ranked)}
    divided: dict[Part, Member] = {}
    for part in wanted:
        holder = held.get(part)
        if holder is not None and room.get(holder, 0):
            divided[part] = holder
            room[holder] -= 1
    having_room = [member for member in members for _ in range(room[member])]
    free = (part for part in wanted if part not in divided)
    return divided | dict(zip(free, having_room, strict=True))
