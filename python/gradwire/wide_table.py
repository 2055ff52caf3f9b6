"""Tables for people, also on a terminal that is too narrow for them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

_ENDLESS = 10_000


def print_table(table: Table, console: Console) -> None:
    """Prints a table. Where its columns do not fit, which cuts values, each row is a list: a line for each value."""
    # Of an endless terminal: within a real one rich takes no more than there is for what is needed.
    needed = table.__rich_measure__(console, console.options.update_width(_ENDLESS)).minimum
    if needed <= console.width:
        console.print(table)
        return
    if table.title:
        console.print(table.title, highlight=False)
    titles = [" ".join(str(column.header).split()).replace("- ", "") for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        console.print(Text(str(cells[0]), style="bold"), soft_wrap=True)
        for title, cell in zip(titles[1:], cells[1:], strict=True):
            console.print(Text(f"  {title}: {cell}"), soft_wrap=True)
