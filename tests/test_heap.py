"""What is let go when memory is given back."""

from __future__ import annotations

from commtrace.heap import give_back, passing


class _Counted:
    made = 0

    @passing
    def number(self) -> int:
        """How often it was made."""
        self.made += 1
        return self.made


def test_what_is_passing_is_made_once_until_memory_is_given_back() -> None:
    its, other = _Counted(), _Counted()
    assert (its.number, its.number, other.number) == (1, 1, 1)
    give_back()
    assert (its.number, its.number, other.number) == (2, 2, 2)


def test_what_is_passing_keeps_nobody_alive() -> None:
    its = _Counted()
    assert its.number == 1
    before = len(passing.known)
    del its
    assert len(passing.known) < before
