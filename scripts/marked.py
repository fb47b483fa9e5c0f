"""Tables that a script writes into a document, between markers that stay.

In: a document, a name, a table. Out: the document with the table between <!-- NAME --> and <!-- /NAME -->. Must not: make a marker.
"""

import pathlib
import re
import sys


def enter(path: pathlib.Path, name: str, table: str) -> None:
    """Enters the table; ends the script when the document lacks the markers."""
    text = path.read_text()
    made, places = re.subn(f"(?s)<!-- {name} -->.*<!-- /{name} -->", lambda _: f"<!-- {name} -->\n\n{table}\n\n<!-- /{name} -->", text)
    if places != 1:
        sys.exit(f"{sys.argv[0]}: {path} lacks the markers <!-- {name} --> and <!-- /{name} -->: add them where the table belongs")
    path.write_text(made)
