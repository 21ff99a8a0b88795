"""Reports and pages as tests read them back."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec

from strobe.perf.table.model import Report


def decode_report(data: bytes) -> Report:
    """Read a report back from its JSON twin."""
    return msgspec.json.decode(data, type=Report)


VOID = {"meta", "link"}


class Page(HTMLParser):
    """Elements in order, with the text of each, and what is left open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def titles(self) -> list[str]:
        """Return the text of each `title`, of the page and of its pictures."""
        return [text for tag, text in self.texts if tag == "title"]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of every element of a kind."""
        return [attrs for name, attrs in self.elements if name == tag]
