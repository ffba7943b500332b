"""What the executors share: places that take one order at a time, and a spool that results go through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from taskfactory.fleet.orders import Delivery, Order
from taskfactory.fleet.spool import Spool


class Place:
    """Where one grading at a time is done: a GPU, or a CPU worker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.order: Order | None = None
        self.retired = False

    @property
    def idle(self) -> bool:
        """Whether it may be given an order."""
        return self.order is None and not self.retired


P = TypeVar("P", bound=Place)


class Pool(Generic[P]):
    """Half of an `Executor`: the half that does not depend on how work is handed over."""

    def __init__(self, spool: Spool, places: Sequence[P]) -> None:
        self.spool, self.places = spool, list(places)

    def slots(self) -> Sequence[str]:
        """Names of the places that are not retired."""
        return [place.name for place in self.places if not place.retired]

    def idle(self) -> list[P]:
        """The places that would take an order now."""
        return [place for place in self.places if place.idle]

    def free(self) -> int:
        """How many those are."""
        return len(self.idle())

    def retire(self, slot: str) -> None:
        """Give the place of this name nothing more."""
        for place in self.places:
            if place.name == slot:
                place.retired = True

    def leftovers(self) -> Iterator[Delivery]:
        """What the spool still holds."""
        return self.spool.waiting()

    def acknowledge(self, key: str) -> None:
        """Forget a delivery that is stored."""
        self.spool.remove(key)
