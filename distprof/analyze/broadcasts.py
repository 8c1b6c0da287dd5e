"""Who waits for whom in gloo's broadcast.

It goes down a tree, and gloo does not send before the receiver has come: so a rank waits for all above it, which hand
the data down, and for its own receivers. That is why the root, too, can be held up by another rank.
"""

from __future__ import annotations


def needed_in_broadcast(members: int) -> list[tuple[int, int]]:
    """Pairs (member, one that must have come before its broadcast is over, itself among them).

    Both are positions in a group of `members` ranks; the root is 0.
    """
    pairs = [(member, member) for member in range(members)]
    for member in range(1, members):
        pairs.append((_sender(member), member))
        above = member
        while above:
            above = _sender(above)
            pairs.append((member, above))
    return pairs


def _sender(member: int) -> int:
    """Who sends to a member: its number without the highest bit."""
    return member ^ (1 << (member.bit_length() - 1))
