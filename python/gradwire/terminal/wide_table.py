"""Tables for people, also on a terminal that is too narrow for them."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def print_table(table: Table, console: Console) -> None:
    """Prints a table of plain cells. If the columns do not fit, prints each row as a list, one value a line.

    A column that may wrap needs a min_width."""
    if fits(table, console):
        console.print(table)
        return
    if table.title:
        console.print(table.title, highlight=False)
    titles = [" ".join(str(column.header).split()).replace("- ", "") for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        console.print(Text(str(cells[0]), style="bold"), soft_wrap=True)
        for title, cell in zip(titles[1:], cells[1:], strict=True):
            console.print(Text(f"  {title}: {cell}"), soft_wrap=True)


def fits(table: Table, console: Console) -> bool:
    """Returns True if the console is wide enough for all of each value."""
    return _width(table) <= console.width


def _width(table: Table) -> int:
    """The least width at which a table shows all of each value."""
    _, right, _, left = table.padding
    between = 0 if table.box is None else len(table.columns) + 1
    return sum(map(_needed, table.columns)) + len(table.columns) * (left + right) + between


def _needed(column: Column) -> int:
    if not column.no_wrap:
        return column.min_width or 1
    lines = [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
    return max(map(cell_len, lines), default=0)
