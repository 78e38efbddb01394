"""The pages of the site as HTML. Every link is relative, so the site works under any address."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import quote

from examples.site import models
from examples.site.markup import Linker, clean, first_sentence
from examples.site.models import Catalogue, Fault, Member, Service

SERVICES_PER_PAGE = 40
OPERATIONS_PER_PAGE = 100

# The sections that misbehave, and the number of pages in each of them.
UNSTEADY_PAGES = 21
UNSTEADY_EVERY = 7
SLOW_PAGES = 5
RETIRED = ("getting-started", "price-list", "release-notes-2009", "sample-code", "soap-interface")

STYLE = """\
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 62rem; padding: 0 1rem 3rem; font: 16px/1.55 system-ui, sans-serif; }
nav, footer { display: flex; flex-wrap: wrap; gap: 0.3rem 1.2rem; padding: 0.8rem 0; border-bottom: 1px solid #8886; }
footer { border: 0; border-top: 1px solid #8886; margin-top: 2rem; font-size: 0.9rem; }
h1 { line-height: 1.2; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: 0.4rem 0.8rem 0.4rem 0; text-align: left; vertical-align: top; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.5rem; }
dl.facts dd { margin: 0; }
.note { border-left: 3px solid #48c; padding-left: 0.8rem; }
.important { border-left: 3px solid #c84; padding-left: 0.8rem; }
code, pre { font-size: 0.92em; overflow-wrap: anywhere; }
ul.services, ul.operations { padding-left: 1.2rem; }
p.pages { display: flex; gap: 1.5rem; }
"""


class NoSuchPage(LookupError):
    """The page does not exist, although its address looks right."""


def service_path(service_id: str) -> str:
    """Return the address of the page of a service."""
    return f"/services/{quote(service_id)}/"


def operation_path(service_id: str, operation: str) -> str:
    """Return the address of the page of an operation."""
    return f"/services/{quote(service_id)}/{quote(operation)}"


def section_paths() -> list[str]:
    """Return the addresses of everything that is not about one service.

    Some of the pages are gone, and robots.txt forbids one of them. Real sitemaps are similar, and
    crawlers must handle this.
    """
    return [
        "/sections/",
        "/go/",
        "/retired/",
        *(f"/retired/{name}" for name in RETIRED),
        "/unsteady/",
        *(f"/unsteady/{number}" for number in range(1, UNSTEADY_PAGES + 1)),
        "/private/",
        "/slow/",
        *(f"/slow/{number}" for number in range(1, SLOW_PAGES + 1)),
    ]


def relative(here: str, target: str) -> str:
    """Return the relative link from one address of the site to another."""
    folder = posixpath.dirname(here)
    path = posixpath.relpath(target, start=folder)
    if target.endswith("/"):
        path += "/"
    return path


class Pages:
    """Renders the pages of one catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue

    def home(self, page: int) -> str:
        """Return the front page, or a part of the complete list of services."""
        here = "/"
        services = self.catalogue.services
        count = len(services)
        intro = (
            "<p>A reference of cloud services, rendered from the API models on this machine. "
            "It exists to be crawled.</p>\n"
        )
        topics = "".join(
            f"<li>{_link(here, f'/categories/{topic}/', _words(topic))} ({len(members)})</li>\n"
            for topic, members in sorted(self.catalogue.topics.items())
        )
        body = (
            (intro if page == 1 else "")
            + f"<h2>Services</h2>\n<p>{count} services.</p>\n"
            + self._service_list(here, services, page)
            + (f"<h2>Categories</h2>\n<ul>\n{topics}</ul>\n" if page == 1 else "")
        )
        return _document(here, "Service reference" + _part(page), body)

    def categories(self) -> str:
        """Return the page of all categories."""
        here = "/categories/"
        entries = "".join(
            f"<li>{_link(here, f'/categories/{topic}/', _words(topic))} ({len(members)})</li>\n"
            for topic, members in sorted(self.catalogue.topics.items())
        )
        return _document(here, "Categories", f"<ul>\n{entries}</ul>\n")

    def category(self, topic: str, page: int) -> str:
        """Return the page of the services in one category."""
        if topic not in self.catalogue.topics:
            raise NoSuchPage(topic)
        here = f"/categories/{topic}/"
        return _document(
            here,
            _words(topic) + _part(page),
            self._service_list(here, self.catalogue.topics[topic], page),
        )

    def service(self, service_id: str, page: int) -> str:
        """Return the page of one service, with its description and its operations."""
        service = self._service(service_id)
        here = service_path(service_id)
        topic = models.topic_of(service_id)
        facts = _facts(
            ("id", "Service id", escape(service.id)),
            ("protocol", "Protocol", escape(service.protocol)),
            ("version", "API version", escape(service.api_version)),
            ("operations", "Operations", str(len(service.operations))),
            ("category", "Category", _link(here, f"/categories/{topic}/", _words(topic))),
            (
                "short-link",
                "Short link",
                _link(here, f"/go/{quote(service_id)}", f"go/{service_id}"),
            ),
        )
        operations = _slice(service.operations, page, OPERATIONS_PER_PAGE)
        entries = "".join(
            f"<li>{_link(here, operation_path(service_id, name), name)}"
            f" – {escape(first_sentence(service.summary(name)), quote=False)}</li>\n"
            for name in operations
        )
        about = clean(service.documentation, self._linker(here, service)) if page == 1 else ""
        body = (
            f"{facts}\n"
            + (f'<h2>About</h2>\n<div class="documentation">\n{about}\n</div>\n' if about else "")
            + f'<h2>Operations</h2>\n<ul class="operations">\n{entries}</ul>\n'
            + _pager(page, len(service.operations), OPERATIONS_PER_PAGE)
        )
        return _document(here, service.title + _part(page), body)

    def operation(self, service_id: str, name: str) -> str:
        """Return the page of one operation, with its call, its parameters and its errors."""
        service = self._service(service_id)
        try:
            operation = service.operation(name)
        except KeyError:
            raise NoSuchPage(name) from None
        here = operation_path(service_id, name)
        linker = self._linker(here, service)
        position = service.operations.index(name)
        facts = _facts(
            ("service", "Service", _link(here, service_path(service_id), service.title)),
            (
                "request",
                "Request",
                f"<code>{escape(operation.method)} {escape(operation.uri)}</code>",
            ),
            ("state", "State", "deprecated" if operation.deprecated else "current"),
        )

        parameters = (
            _member_table("parameters", operation.inputs, linker)
            or "<p>It takes no parameters.</p>\n"
        )
        answer = (
            _member_table("answer", operation.outputs, linker)
            or "<p>It answers with success and no data.</p>\n"
        )
        faults = _fault_table(operation.faults, linker) or "<p>It has no errors of its own.</p>\n"
        related = "".join(
            f"<li>{_link(here, operation_path(service_id, other), other)}</li>\n"
            for other in service.related(name)
        )
        neighbours = [
            _link(
                here,
                operation_path(service_id, service.operations[at]),
                f"{label}: {service.operations[at]}",
            )
            for at, label in ((position - 1, "Before"), (position + 1, "After"))
            if 0 <= at < len(service.operations)
        ]
        body = (
            f"{facts}\n"
            f'<div class="documentation">\n{clean(operation.documentation, linker)}\n</div>\n'
            + f"<h2>Parameters</h2>\n{parameters}<h2>Answer</h2>\n{answer}<h2>Errors</h2>\n{faults}"
            + (
                f'<h2>Related operations</h2>\n<ul class="related">\n{related}</ul>\n'
                if related
                else ""
            )
            + (f'<p class="pages">{" ".join(neighbours)}</p>\n' if neighbours else "")
        )
        return _document(here, name, body)

    def sections(self) -> str:
        """Return the page about the sections that misbehave, and how they do so."""
        here = "/sections/"
        entries = (
            ("/go/", "Short links", "redirects, some of them in two steps"),
            ("/retired/", "Retired pages", "a list of links to pages that are gone (404)"),
            (
                "/unsteady/",
                "Unsteady pages",
                f"every {UNSTEADY_EVERY}th answers 503 every other time",
            ),
            ("/slow/", "Slow pages", "each makes the visitor wait"),
            ("/private/", "Private pages", "robots.txt asks crawlers to stay away"),
        )
        lines = "".join(
            f"<li>{_link(here, target, label)} – {escape(text)}</li>\n"
            for target, label, text in entries
        )
        return _document(here, "Special sections", f"<ul>\n{lines}</ul>\n")

    def short_links(self) -> str:
        """Return the list of redirects."""
        here = "/go/"
        lines = "".join(
            f"<li>{_link(here, f'/go/{quote(service_id)}', service_id)}, "
            f"{_link(here, f'/go/old/{quote(service_id)}', 'its former short link')}</li>\n"
            for service_id in self.catalogue.services
        )
        return _document(here, "Short links", f"<ul>\n{lines}</ul>\n")

    def retired(self) -> str:
        """Return the list of links that lead nowhere."""
        here = "/retired/"
        lines = "".join(
            f"<li>{_link(here, f'/retired/{name}', _words(name))}</li>\n" for name in RETIRED
        )
        return _document(
            here, "Retired pages", f"<p>None of these exists any longer.</p>\n<ul>\n{lines}</ul>\n"
        )

    def numbered_list(self, here: str, title: str, count: int) -> str:
        """Return the list of pages of a section whose pages only have numbers."""
        lines = "".join(
            f"<li>{_link(here, f'{here}{number}', f'Page {number}')}</li>\n"
            for number in range(1, count + 1)
        )
        return _document(here, title, f"<ul>\n{lines}</ul>\n")

    def numbered(self, here: str, title: str, text: str) -> str:
        """Return a page of such a section."""
        up = posixpath.dirname(here) + "/"
        return _document(
            here,
            title,
            f"<p>{escape(text, quote=False)}</p>\n<p>{_link(here, up, 'All of them')}</p>\n",
        )

    def problem(self, here: str, title: str, text: str) -> str:
        """Return the page for an error status."""
        return _document(here, title, f"<p>{escape(text, quote=False)}</p>\n")

    def _service(self, service_id: str) -> Service:
        try:
            return self.catalogue.service(service_id)
        except KeyError:
            raise NoSuchPage(service_id) from None

    def _service_list(self, here: str, services: Sequence[str], page: int) -> str:
        lines = "".join(
            f"<li>{_link(here, service_path(service_id), models.title(service_id))} "
            f"<code>{escape(service_id)}</code></li>\n"
            for service_id in _slice(services, page, SERVICES_PER_PAGE)
        )
        return f'<ul class="services">\n{lines}</ul>\n' + _pager(
            page, len(services), SERVICES_PER_PAGE
        )

    @staticmethod
    def _linker(here: str, service: Service) -> _OperationLinks:
        return _OperationLinks(here, service)


class _OperationLinks:
    """Finds the names in a documentation text that are operations of the same service."""

    def __init__(self, here: str, service: Service) -> None:
        self._here = here
        self._service = service.id
        self._names = frozenset(service.operations)

    def __call__(self, name: str) -> str | None:
        if name not in self._names:
            return None
        target = operation_path(self._service, name)
        return None if target == self._here else relative(self._here, target)


def _slice(entries: Sequence[str], page: int, size: int) -> Sequence[str]:
    if page < 1 or (page > 1 and (page - 1) * size >= len(entries)):
        raise NoSuchPage(f"page {page}")
    return entries[(page - 1) * size : page * size]


def _pager(page: int, count: int, size: int) -> str:
    links = []
    if page > 1:
        links.append(f'<a rel="prev" href="?page={page - 1}">Previous page</a>')
    if page * size < count:
        links.append(f'<a rel="next" href="?page={page + 1}">Next page</a>')
    return f'<p class="pages">{" ".join(links)}</p>\n' if links else ""


def _part(page: int) -> str:
    return f", page {page}" if page > 1 else ""


def _words(slug: str) -> str:
    return slug.replace("-", " ").capitalize()


def _link(here: str, target: str, text: str) -> str:
    return f'<a href="{escape(relative(here, target))}">{escape(text, quote=False)}</a>'


def _facts(*facts: tuple[str, str, str]) -> str:
    """Return a definition list. The values are HTML already."""
    lines = "".join(
        f'<dt>{escape(label)}</dt><dd class="{css}">{value}</dd>\n' for css, label, value in facts
    )
    return f'<dl class="facts">\n{lines}</dl>'


def _member_table(css: str, members: tuple[Member, ...], linker: Linker) -> str:
    return _table(
        css,
        ("Name", "Type", "Presence", "Description"),
        (
            (
                escape(row.name),
                escape(row.type),
                "required" if row.required else "optional",
                clean(row.documentation, linker),
            )
            for row in members
        ),
    )


def _fault_table(faults: tuple[Fault, ...], linker: Linker) -> str:
    return _table(
        "errors",
        ("Name", "Status", "Description"),
        (
            (escape(row.name), str(row.status or "–"), clean(row.documentation, linker))
            for row in faults
        ),
    )


def _table(css: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table whose first column names the row. The cells are HTML already.

    Without rows, the result is empty.
    """
    lines = "".join(
        f'<tr><th scope="row"><code>{first}</code></th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'
        for first, *rest in rows
    )
    if not lines:
        return ""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    return f'<table class="{css}">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}</tbody>\n</table>\n'


def _document(here: str, title: str, body: str) -> str:
    bar = " ".join(
        _link(here, target, label)
        for target, label in (
            ("/", "Services"),
            ("/categories/", "Categories"),
            ("/sections/", "Special sections"),
        )
    )
    name = escape(title, quote=False)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{name}</title>\n<link rel="icon" href="data:,">\n'
        f'<link rel="stylesheet" href="{relative(here, "/style.css")}">\n</head>\n<body>\n'
        f"<nav>{bar}</nav>\n<main>\n<h1>{name}</h1>\n{body}</main>\n"
        "<footer>A demonstration site. Texts: the API models of botocore, Apache License "
        "2.0.</footer>\n"
        "</body>\n</html>\n"
    )


def sitemap(urls: Iterable[str]) -> str:
    """Return a sitemap of absolute addresses."""
    lines = "".join(f"<url><loc>{escape(url)}</loc></url>\n" for url in urls)
    return f'{_XML}<urlset xmlns="{_SITEMAPS}">\n{lines}</urlset>\n'


def sitemap_index(urls: Iterable[str]) -> str:
    """Return a sitemap of sitemaps."""
    lines = "".join(f"<sitemap><loc>{escape(url)}</loc></sitemap>\n" for url in urls)
    return f'{_XML}<sitemapindex xmlns="{_SITEMAPS}">\n{lines}</sitemapindex>\n'


_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SITEMAPS = "http://www.sitemaps.org/schemas/sitemap/0.9"
