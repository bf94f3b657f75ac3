"""The place of a transaction: one broker, one connection, which its first producer or consumer decides.

Invariants: all members are attached over that connection; nothing moves once there is a member: a transaction whose
topic moved, or whose connection is lost, is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from danubius.client.connection.session import ignore
from danubius.errors import InvalidArgument, TransactionAborted
from danubius.wire.commands import AbortTransaction, BeginTransaction, TransactionBegun

if TYPE_CHECKING:
    from danubius.client.connection.attachment import Attachment
    from danubius.client.connection.connections import Connections
    from danubius.client.connection.link import Link
    from danubius.client.connection.session import Session
    from danubius.wire.commands import ProducerOpened, Subscribed

    Member = Attachment[ProducerOpened] | Attachment[Subscribed]


class _Begun(NamedTuple):
    """What a broker gave: it ends with this connection."""

    link: Link
    session: Session
    number: int


class Membership:
    """The broker of one transaction, and who takes part."""

    def __init__(self, connections: Connections, timeout_ms: int, begun: _Begun) -> None:
        self.connections = connections
        self._timeout_ms = timeout_ms
        self._members: set[Member] = set()
        self.link, self.session, self.number = begun

    @classmethod
    async def begin(cls, connections: Connections, timeout_ms: int) -> Membership:
        """Begin a transaction on the connection there is, or the next one."""
        return cls(connections, timeout_ms, await _begin(connections.home, timeout_ms))

    @property
    def is_connected(self) -> bool:
        """Whether the broker still has it, as far as is known here."""
        return self.link.session_or_none is self.session

    async def join(self, member: Member, what: str) -> None:
        """Let a producer or consumer take part, where it is attached. One that is on its way comes again.

        Raises:
            InvalidArgument: it is of another client, or of another broker than those that take part already.
            TransactionAborted: its topic moved to another broker.
        """
        held = member.held
        if held is None:
            return
        if held.session is not self.session:
            # Whatever is attached over a lost connection is told at once: this is no old one.
            link = self.connections.link_of(held.session)
            if link is None:
                raise InvalidArgument(
                    f"{what} belongs to another client than transaction {self.number}"
                )
            self._check_free(member, what, link)
            await self._move(link)
        self._members.add(member)

    def _check_free(self, member: Member, what: str, link: Link) -> None:
        if member in self._members:
            raise TransactionAborted(
                f"transaction {self.number} was aborted: {what} moved to {link.address.url} with its topic;"
                " begin another"
            )
        if self._members:
            raise InvalidArgument(
                f"{what} is at {link.address.url}, and transaction {self.number} at {self.link.address.url}: the topics"
                " of one transaction have to be served by one broker; use one transaction for each"
            )

    async def _move(self, link: Link) -> None:
        """Nothing is in it yet: it is begun where its first topic is."""
        begun = await _begin(link, self._timeout_ms)
        self.session.call(AbortTransaction(self.number), ignore)
        self.link, self.session, self.number = begun


async def _begin(link: Link, timeout_ms: int) -> _Begun:
    begun, _ = await link.request(BeginTransaction(timeout_ms), TransactionBegun)
    session = link.session_or_none
    if session is None:
        raise lost(begun.transaction)
    return _Begun(link, session, begun.transaction)


def lost(number: int) -> TransactionAborted:
    """The error of a transaction whose connection is gone."""
    return TransactionAborted(
        f"transaction {number} was aborted: the connection to the broker was lost; begin another"
    )
