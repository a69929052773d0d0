"""When crons fire, against a reader of schedules that is not ours. Instants near a change of the clock are left out
here, because there the two mean different things; unit tests say what ours are."""

import json
import random
import subprocess
import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest
from croniter import croniter

from harness import binary

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Casablanca"]
MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
DAYS = "SUN MON TUE WED THU FRI SAT".split()


def fires(schedule, zone, after, count):
    """What `towpath cron` says, or None where it refuses."""
    command = [binary(), "cron", schedule, "--timezone", zone, "--after", after.isoformat()]
    done = subprocess.run([*command, "--count", str(count), "--output", "json"], capture_output=True, text=True)
    if done.returncode == 2:
        return None
    assert done.returncode == 0, done.stderr
    return [datetime.fromisoformat(time) for time in json.loads(done.stdout)]


def field(random, least, most, words=None):
    """A field as people write them."""

    def value(number=None):
        number = random.randint(least, most) if number is None else number
        return words[number - least] if words and random.random() < 0.4 else str(number)

    def part():
        kind = random.random()
        if kind < 0.3:
            return value()
        if kind < 0.6:
            # Never from a value to itself: that is one value, and not, as the other reader has it, all of them.
            return "-".join(map(value, random.sample(range(least, most + 1), 2)))
        if kind < 0.75:
            return f"*/{random.randint(1, most)}"
        low, high = sorted(random.sample(range(least, most + 1), 2))
        return f"{low}-{high}/{random.randint(1, max(1, most // 3))}"

    if random.random() < 0.35:
        return "*"
    return ",".join(part() for _ in range(random.choice([1, 1, 1, 2, 3])))


def near_a_change(zone, time):
    zone = zoneinfo.ZoneInfo(zone)
    offsets = {(time + timedelta(hours=h)).astimezone(zone).utcoffset() for h in (-26, 0, 26)}
    return len(offsets) > 1


@pytest.mark.parametrize("seed", range(150))
def test_random_schedules(seed):
    chance = random.Random(seed)
    fields = [
        field(chance, 0, 59),
        field(chance, 0, 23),
        field(chance, 1, 31),
        field(chance, 1, 12, MONTHS),
        field(chance, 0, 6, DAYS),
    ]
    if seed % 2:
        fields.append(field(chance, 0, 59))
    schedule = " ".join(fields)
    zone = chance.choice(ZONES)
    after = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=chance.randint(0, 3 * 365 * 86_400))
    ours = fires(schedule, zone, after, 12)
    assert ours is not None, f"{schedule} is refused"
    theirs = croniter(schedule, after.astimezone(zoneinfo.ZoneInfo(zone)))
    for index, time in enumerate(ours):
        expected = theirs.get_next(datetime).astimezone(UTC)
        if near_a_change(zone, time) or near_a_change(zone, expected):
            break
        assert time == expected, f"{schedule} in {zone} after {after}: number {index}"


@pytest.mark.parametrize(
    "schedule",
    ["0 0 L * *", "0 12 * * 5#2", "0 0 * * MON#1", "@daily", "@hourly", "@weekly", "@monthly", "@yearly", "0 0 29 2 *",
     "5/15 * * * *", "0 0 ? * 1-5", "0 22-2 * * *", "0 0 28-3 * *", "0 0 * nov-feb *", "0 0 1,15 * MON", "0 0 * * 5-1",
     "0 0 * * 7", "0 0 * * 0-7", "0 0 30 2 1", "* * * * * */15", "0 0 1 * * 5,55", "*/10 * * * * 40-20/10",
     "0 0 1 1 * 0 2027-2040", "30 6 29 2 * 30 2028-2099/4", "* * * * * 59 *"],
)
def test_written_schedules(schedule):
    after = datetime(2026, 2, 26, 10, 7, 30, tzinfo=UTC)
    theirs = croniter(schedule, after)
    assert fires(schedule, "UTC", after, 6) == [theirs.get_next(datetime) for _ in range(6)]


@pytest.mark.parametrize(
    "schedule",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 32 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "a * * * *",
     "* * * * FOO", "1- * * * *", "* * * * 5#6", "* * * * * 60", "* * * * * 0 1969", "* * * * * 0 2100",
     "* * * * * 0 2026 1"],
)
def test_what_both_refuse(schedule):
    assert not croniter.is_valid(schedule)
    assert fires(schedule, "UTC", datetime(2026, 1, 1, tzinfo=UTC), 1) is None


def test_a_date_that_never_comes():
    assert fires("0 0 31 2 *", "UTC", datetime(2026, 1, 1, tzinfo=UTC), 1) == []
