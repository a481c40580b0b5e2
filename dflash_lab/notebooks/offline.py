"""HTML that loads nothing: finding what would be loaded, and taking it out."""

import re
from html.parser import HTMLParser

# Attributes that make a browser fetch something as soon as the page is shown.
_LOADING = {
    "src",
    "srcset",
    "poster",
    "background",
    "data",
    "xlink:href",
    "manifest",
    "archive",
    "code",
    "codebase",
    "imagesrcset",
}
_LOADING_HREF_TAGS = {"link", "image", "use", "base", "feimage", "script"}
# Never part of a report, whatever they point to: they run code, hold other pages, or send the reader elsewhere.
_REFUSED_TAGS = {"script", "iframe", "frame", "object", "embed", "applet", "base", "portal", "fencedframe"}
_STYLE_LOADS = re.compile(
    r"@import[^;]*;?|(?:url|image-set|src)\(\s*(?![\"']?\s*(?:data:|#))[^)]*\)?", flags=re.IGNORECASE
)


def outside_loads(html_text: str) -> list[str]:
    """List what an HTML page loads or runs beyond its own text.

    Args:
        html_text: A page or a piece of one.

    Returns:
        One text for each script, frame, and attribute or style that is not an embedded `data:` value; links that a
        reader must click are not listed. Empty when the page is offline.
    """
    finder = _Finder()
    finder.feed(html_text)
    finder.close()
    return finder.found


def make_offline(html_text: str) -> str:
    """Take out of a piece of HTML whatever `outside_loads` would find.

    Args:
        html_text: A piece of HTML, such as rendered Markdown or a notebook's output.

    Returns:
        The same piece; scripts, frames and event handlers are gone, and a picture from elsewhere is a link with its
        alternative text.
    """
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(html_text, "html.parser")
    for tag in soup.find_all(True):
        if tag.decomposed:
            continue
        if tag.name in _REFUSED_TAGS or (tag.name == "meta" and tag.get("http-equiv")):
            tag.decompose()
        elif tag.name == "img" and not _embedded(tag.get("src", "")):
            address = str(tag.get("src", ""))
            link = soup.new_tag("a", href=address, rel="noreferrer")
            link.string = f"[picture, not loaded: {tag.get('alt') or address}]"
            tag.replace_with(link)
        elif tag.name == "style":
            tag.string = _STYLE_LOADS.sub("none", tag.string or "")
        else:
            for name, value in list(tag.attrs.items()):
                value = " ".join(value) if isinstance(value, list) else str(value)
                if name == "style":
                    tag[name] = _STYLE_LOADS.sub("none", value)
                elif _loads(tag.name, name, value) or _runs(name, value):
                    del tag[name]
    return str(soup)


def _embedded(value: str) -> bool:
    return value.strip().lower().startswith(("data:", "#"))


def _loads(tag: str, attribute: str, value: str) -> bool:
    loading = attribute in _LOADING or (attribute == "href" and tag in _LOADING_HREF_TAGS)
    return loading and not _embedded(value)


def _runs(attribute: str, value: str) -> bool:
    return attribute.startswith("on") or value.strip().lower().startswith(("javascript:", "vbscript:"))


class _Finder(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag, attrs):
        self.in_style = tag == "style"
        attributes = {name: value or "" for name, value in attrs}
        if tag in _REFUSED_TAGS or (tag == "meta" and "http-equiv" in attributes):
            self.found.append(f"<{tag}> {attributes.get('src', '')}".rstrip())
            return
        for name, value in attributes.items():
            if _loads(tag, name, value) or _runs(name, value) or (name == "style" and _STYLE_LOADS.search(value)):
                self.found.append(f"<{tag} {name}={value[:80]!r}>")

    def handle_endtag(self, tag):
        self.in_style = False

    def handle_data(self, data):
        if self.in_style:
            self.found.extend(f"<style> {match.group(0)[:80]}" for match in _STYLE_LOADS.finditer(data))
