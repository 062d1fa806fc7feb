"""Rates of machines: what a level gives to one core and to several, names of numbers, and what is refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import TargetError
from weft.rates import GENERIC, MemoryRate, Rates, numbers, read_numbers, with_numbers

POSITIVE = st.floats(min_value=1e-12, max_value=1e15)


@given(POSITIVE, POSITIVE, st.integers(1, 256))
def test_cores_share_a_level(one: float, together: float, cores: int) -> None:
    rate = MemoryRate(one, together)
    assert rate.read(cores) <= one and rate.read(cores) * cores <= together * (1 + 1e-12)
    assert rate.read(cores) >= rate.read(cores + 1)
    assert rate.exchange(cores) == rate.read(cores)  # nothing else is said
    assert MemoryRate(one).read(cores) == one
    assert MemoryRate(one, together, 0.0, one / 2, together / 4).exchange(cores) == min(one / 2, together / 4 / cores)


@given(st.dictionaries(st.sampled_from(sorted(numbers(GENERIC))), POSITIVE, max_size=5))
def test_numbers_come_back_by_their_names(values: dict[str, float]) -> None:
    if "grid.busy_threads" in values:
        values["grid.busy_threads"] = float(max(1, round(values["grid.busy_threads"])))
    changed = with_numbers(GENERIC, read_numbers(json.dumps(values)))
    assert numbers(changed) == {**numbers(GENERIC), **values}
    assert with_numbers(changed, numbers(GENERIC)) == GENERIC


def test_tables_in_cycles_come_back_as_they_were() -> None:
    rates = Rates()
    assert rates.cycles(rates.fork_seconds + rates.join_seconds) == 1 << 14
    assert [rates.per_cycle(c.read()) for c in (*rates.caches, rates.memory)] == [64, 28, 22, 5]
    assert rates.per_cycle(rates.memory.read(4)) == 3.125 and rates.per_cycle(rates.third_cache.exchange(4)) == 8
    assert rates.load_cycles == 0.5 and math.isinf(rates.third_cache.cores_bytes_per_second)


@pytest.mark.parametrize(
    ("text", "what", "more"),
    [
        ("{", "rates of a machine do not parse", "line 1"),
        ("[1]", "rates of a machine are a JSON object", "got list"),
        ('{"clock": 3e9}', "there is no rate 'clock'", "did you mean 'clock_hz'?"),
        ('{"memory": 3e9}', "there is no rate 'memory'", "memory"),
        ('{"memory.bandwidth": 1}', "there is no rate 'memory.bandwidth'", "memory."),
        ('{"clock_hz.x": 1}', "there is no rate 'clock_hz.x'", "clock_hz"),
        ('{"clock_hz": 0}', "rate 'clock_hz' is 0", "a rate is a number above 0"),
        ('{"clock_hz": true}', "rate 'clock_hz' is True", "a rate is a number above 0"),
        ('{"clock_hz": "3 GHz"}', "rate 'clock_hz' is '3 GHz'", "a rate is a number above 0"),
        ('{"clock_hz": 1' + "0" * 400 + "}", "rate 'clock_hz' is 1" + "0" * 39 + "…" + "0" * 40, "to 1e+18"),
        ('{"clock_hz": NaN}', "rate 'clock_hz' is nan", "a rate is a number above 0"),
    ],
)
def test_what_is_no_rate(text: str, what: str, more: str) -> None:
    with pytest.raises(TargetError) as caught:
        read_numbers(text, "rates.json")
    assert caught.value.what == what and caught.value.where == "rates.json" and more in str(caught.value)
