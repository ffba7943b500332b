"""Fail if a pytest report holds no test, or a skip for a reason that is not on the list.

    python .ci/skips.py REPORT.xml

Tests that need a GPU or much time are deselected by their marks and do not appear in a report at all.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree

ALLOWED = (
    # Unprivileged namespaces are a setting of the machine; the tier without them is tested all the same.
    r"bubblewrap: .+",
    # Where Python lives in a home directory, user `nobody` cannot start it.
    r"no Python here that every user may execute",
    r"only root can become another user",
    r"only CAP_SYS_RESOURCE can fix the score",
)
"""Patterns of whole reasons, each for something that a machine may lack."""


def main(path: str) -> int:
    """0 if tests ran and every skip is expected."""
    cases = ElementTree.parse(path).getroot().findall(".//testcase")
    # An expected failure is reported as a skip of another type; it did run.
    marked = [(case, skip) for case in cases for skip in case.findall("skipped") if skip.get("type") != "pytest.xfail"]
    skipped = [(case, skip.get("message", "")) for case, skip in marked]
    unexpected = [(c, m) for c, m in skipped if not any(re.fullmatch(a, m, re.DOTALL) for a in ALLOWED)]
    for case, message in unexpected:
        print(f"skipped without leave: {case.get('classname')}::{case.get('name')}: {message}", file=sys.stderr)
    ran = len(cases) - len(skipped)
    print(f"{ran} tests ran, {len(skipped)} skipped, {len(unexpected)} of them without leave")
    if ran == 0:
        print("no test ran", file=sys.stderr)
    return 1 if unexpected or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
