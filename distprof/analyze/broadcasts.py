"""Who waits for whom in gloo's broadcast.

It goes down a tree, and gloo does not send before the receiver has come: so a rank waits for all above it, which hand
the data down, and for its own receivers. That is why the root, too, can be held up by another rank.
"""

from __future__ import annotations

from collections.abc import Iterator


def needed_in_broadcast(member: int, members: int) -> Iterator[int]:
    """Those that must have come before a member's broadcast is over, itself among them.

    All are positions in a group of `members` ranks; the root is 0.
    """
    above = member
    while above:
        yield above
        above ^= 1 << (above.bit_length() - 1)  # who sends to it: its number without the highest bit
    yield 0
    bit = 1 << member.bit_length()
    while member + bit < members:
        yield member + bit
        bit *= 2
