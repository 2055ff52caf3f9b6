"""Every link of every Markdown file leads somewhere: files, and headings in them. Links to elsewhere are asked for in
`make soak`.
"""

from __future__ import annotations

import functools
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from structure.repository import ROOT, files

sys.path.append(str(ROOT / "python"))

from docs_site import generated, github_markdown, links

PAGES = [path for path in files() if path.suffix == ".md"]
NO_NETWORK = "[Errno -2]"  # Name or service not known
API = "python/docs/reference/api/"  # its headings are made when the site is built, whose builder looks at links to them


@functools.cache
def text_of(path: Path) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    return generated.filled(text) if path.is_relative_to("python/docs") else text


def faults(path: Path, text: str) -> list[str]:
    """Returns the links of a page that lead nowhere."""
    found = []
    for link in links.links(text):
        if link.is_external:
            continue
        name, _, anchor = link.target.partition("#")
        target = (path.parent / name) if name else path
        there = (ROOT / target).resolve()
        where = f"{path}:{link.line}: {link.target}"
        if not there.exists() or not there.is_relative_to(ROOT):
            found.append(where)
        elif anchor and there.suffix == ".md":
            inside = there.relative_to(ROOT)
            known = links.anchors(text if not name else text_of(inside))
            if not inside.as_posix().startswith(API) and anchor not in known:
                found.append(f"{where}: no such heading")
    return found


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert len(PAGES) > 100
    broken = [fault for path in PAGES for fault in faults(path, text_of(path))]
    assert not broken, "\n".join(broken)


@pytest.mark.soak
def test_links_to_elsewhere_are_answered() -> None:
    wanted: dict[str, str] = {}
    for path in PAGES:
        for link in links.links(text_of(path)):
            if link.target.startswith(("http://", "https://")):
                wanted.setdefault(link.target.partition("#")[0], f"{path}:{link.line}")
    broken = [f"{where}: {url}: {why}" for url, where in wanted.items() if (why := refusal(url))]
    if len(broken) == len(wanted) and all(NO_NETWORK in each for each in broken):
        pytest.skip("no address can be looked up here")
    assert not broken, "\n".join(broken)


def refusal(url: str) -> str:
    """Returns why an address is not answered, or "". Servers that refuse programs exist all the same."""
    request = urllib.request.Request(url, headers={"User-Agent": "Mozilla/5.0 (link check)"})
    try:
        with urllib.request.urlopen(request, timeout=30):
            return ""
    except urllib.error.HTTPError as error:
        return "" if error.code in (401, 403, 405, 429, 503) else str(error)
    except OSError as error:
        return str(error)


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("What a newcomer needs, in this order", "what-a-newcomer-needs-in-this-order"),
        ("`stats(servers=True)`", "statsserverstrue"),
        ("2bit & int8", "2bit--int8"),
        ("A [link](x.md) in *words*", "a-link-in-words"),
        ("GRADWIRE_REPLY", "gradwire_reply"),
        ("Title {: .other }", "title"),
    ],
)
def test_anchors_are_those_of_the_site_and_of_github(heading: str, anchor: str) -> None:
    assert links.slug(heading) == anchor
    assert links.anchors(f"# Page\n\n## {heading}\n") == {"page", anchor}


def test_links_in_code_and_comments_are_none() -> None:
    text = '[a](b.md) `[c](d.md)`\n\n```sh\n[e](f.md)\n```\n<!-- [g](h.md) -->\n[`i`](j.md "k") <img src="l.svg">\n'
    assert [(link.target, link.line) for link in links.links(text)] == [
        ("b.md", 1),
        ("j.md", 7),
        ("l.svg", 7),
    ]
    assert links.rewritten(text, str.upper).count(".MD") == 2


def test_planted_faults_are_found() -> None:
    page = Path("python/docs/index.md")
    text = "# One\n[a](#one) [b](#two) [c](none.md) [d](../../README.md) [e](../../README.md#nowhere) [f](https://x.y)\n"
    assert faults(page, text) == [
        "python/docs/index.md:2: #two: no such heading",
        "python/docs/index.md:2: none.md",
        "python/docs/index.md:2: ../../README.md#nowhere: no such heading",
    ]


def test_lists_and_alerts_of_github_are_those_of_the_site() -> None:
    assert github_markdown.adapted("Has:\n- a\n- b\n  c\n\n```\nx\n- y\n```\n") == (
        "Has:\n\n- a\n- b\n  c\n\n```\nx\n- y\n```\n"
    )
    assert github_markdown.adapted("- a\n  - b\n  - c\n- d\n") == "- a\n    - b\n    - c\n- d\n"
    assert (
        github_markdown.adapted("> [!NOTE]\n> One.\n> Two.\n\nThree.\n")
        == "!!! note\n    One.\n    Two.\n\nThree.\n"
    )
    unchanged = "Text.\n\n1. a\n\n    more\n\n2. b\n"
    assert github_markdown.adapted(unchanged) == unchanged
