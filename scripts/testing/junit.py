"""JUnit reports: what nextest, pytest and our own runners write, read as one list of cases."""

import dataclasses
import pathlib
import re
import xml.etree.ElementTree as xml

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# Characters that XML cannot hold.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclasses.dataclass(frozen=True)
class Case:
    """One test: its name says where it is, as its runner does."""

    name: str
    seconds: float
    state: str
    message: str = ""
    output: str = ""


def read(path: pathlib.Path) -> list[Case]:
    """The cases of a report, in its order; none where there is no report or half of one."""
    try:
        root = xml.parse(path).getroot()
    except (OSError, xml.ParseError):
        return []
    cases = {}
    for element in root.iter("testcase"):
        case = read_case(element)
        before = cases.get(case.name)
        if before and FAILED in (before.state, case.state):
            # pytest reports a test twice that fails and whose fixtures then fail too.
            worse = before if before.state == FAILED else case
            case = dataclasses.replace(worse, seconds=before.seconds + case.seconds)
        elif before:
            case = dataclasses.replace(case, name=f"{case.name} ({len(cases)})")
        cases[case.name] = case
    return list(cases.values())


def read_case(element) -> Case:
    state, message = PASSED, ""
    for tag, meaning in (("skipped", SKIPPED), ("failure", FAILED), ("error", FAILED)):
        found = element.find(tag)
        if found is not None:
            text = (found.text or "").strip()
            state, message = meaning, found.get("message") or text
            if "panicked at" in message:
                message = panic(text) or message
    place = element.get("classname") or ""
    output = "".join(part.text or "" for tag in ("system-out", "system-err") for part in element.iter(tag))
    name = f"{place}::{element.get('name')}" if place else str(element.get("name"))
    return Case(name, float(element.get("time") or 0), state, message, output)


def panic(text: str) -> str | None:
    """Where a Rust test panicked, with the line behind that: it says why."""
    lines = text.splitlines()
    found = next((number for number, line in enumerate(lines) if "panicked at" in line), None)
    return None if found is None else " ".join(lines[found : found + 2])


def write(path: pathlib.Path, suite: str, cases: list[Case]):
    """A report of `cases`."""
    root = xml.Element("testsuites")
    counts = {state: str(sum(case.state == state for case in cases)) for state in (FAILED, SKIPPED)}
    total = f"{sum(case.seconds for case in cases):.3f}"
    parent = xml.SubElement(
        root, "testsuite", name=suite, tests=str(len(cases)), failures=counts[FAILED], skipped=counts[SKIPPED], time=total
    )
    for case in cases:
        place, _, name = case.name.rpartition("::")
        element = xml.SubElement(parent, "testcase", classname=place, name=name, time=f"{case.seconds:.3f}")
        if case.state != PASSED:
            tag = "failure" if case.state == FAILED else "skipped"
            xml.SubElement(element, tag, message=printable(case.message))
        if case.output:
            xml.SubElement(element, "system-out").text = printable(case.output)
    xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def printable(text: str) -> str:
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
