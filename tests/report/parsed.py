"""What a browser makes of HTML, and whether anything in it could run, load or look like something else."""

from __future__ import annotations

import re
from html.parser import HTMLParser

TAGS = {
    "html", "head", "meta", "link", "title", "style", "body", "section", "div", "h1", "h2", "h3", "h4", "p", "b", "a",
    "figure", "figcaption", "table", "tr", "th", "td", "img", "pre", "svg", "path", "circle", "rect",
}  # fmt: skip
ATTRIBUTES = {
    "class", "id", "alt", "src", "href", "width", "height", "viewbox", "d", "cx", "cy", "r", "x", "y", "fill", "lang",
    "charset", "http-equiv", "content", "name", "rel",
}  # fmt: skip


class Parsed(HTMLParser):
    """The tags, attributes and texts of a page or fragment."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.content = content
        self._in_style = False
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def rows(self) -> list[list[str]]:
        """The cells of all table rows, as HTML."""
        rows = re.findall(r"<tr>(.*?)</tr>", self.content)
        return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in rows]

    def unsafe(self) -> list[str]:
        """The tags and attributes that a text of a run could only have added by breaking out of its place."""
        problems = [tag for tag, _ in self.tags if tag not in TAGS]
        for tag, attrs in self.tags:
            problems += [f"{tag} {name}" for name in attrs if name not in ATTRIBUTES]
            if not str(attrs.get("src", "data:image/png;base64,")).startswith("data:image/png;base64,"):
                problems.append(f"{tag} src={attrs['src']}")
            if not str(attrs.get("href", "#")).startswith(("#", "data:,")):
                problems.append(f"{tag} href={attrs['href']}")
            if tag == "meta" and attrs.get("http-equiv") not in (None, "Content-Security-Policy"):
                problems.append(f"meta {attrs}")
        return problems


def several(payloads: list[str], most: int = 190) -> list[str]:
    """The payloads joined to texts that are still short enough to be shown in full."""
    texts = [""]
    for payload in payloads:
        if len(texts[-1]) + len(payload) > most:
            texts.append("")
        texts[-1] += payload
    return texts
