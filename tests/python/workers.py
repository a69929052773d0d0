"""What lets a suite run in several processes (pytest-xdist), each with servers of its own.

Tests that share a server go to one process, so that no server is started twice and no test meets another process's tests on
its server. All other tests go to whichever process is free.
"""

ROW = "row of figures"


class Test:
    """A test as its name tells: module, function, parameters."""

    def __init__(self, nodeid):
        path, _, name = nodeid.partition("::")
        self.nodeid, self.module = nodeid, path.rpartition("/")[2].removesuffix(".py")
        self.function, _, parameters = name.partition("[")
        self.parameters = parameters.removesuffix("]").split("-")

    def of(self, choices):
        """Which of these its parameters are, in the order of `choices`."""
        return [choice for choice in choices if choice in self.parameters]


def scheduler(config, log, place_of):
    """Hands out tests; those of which `place_of(test)` gives the same words stay together."""
    from xdist.scheduler import LoadScopeScheduling

    class Places(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            words = place_of(Test(nodeid))
            return " ".join(words) if words else nodeid

    return Places(config, log)


class Table:
    """Figures of one test: each row begins with its headline. They go with the test's report, so they also come from
    another process."""

    def __init__(self, item):
        self.item = item

    def append(self, head, cells):
        self.item.user_properties.append((ROW, [list(head), [str(cell) for cell in cells]]))


class Figures:
    """Prints the rows of all tests when they are over, those under one headline together."""

    def __init__(self):
        self.rows = {}

    def pytest_runtest_logreport(self, report):
        rows = [value for name, value in report.user_properties if name == ROW]
        if rows:
            # The report on the end of a test has all that the earlier ones have.
            self.rows[report.nodeid] = rows

    def pytest_terminal_summary(self, terminalreporter):
        tables = {}
        for head, cells in (row for rows in self.rows.values() for row in rows):
            tables.setdefault(tuple(head), []).append(cells)
        for head, rows in tables.items():
            for cells in (head, ["---"] * len(head), *rows):
                terminalreporter.write_line(f"| {' | '.join(cells)} |")
